//! Short runs of the benchmarks that start a real server: each writes a result with the figures that are published of it.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Runs a benchmark in a folder of its own; its result.
#[track_caller]
fn result(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_wholegrain-bench")).args(arguments).current_dir(folder.path()).output();
    let output = output.unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {text}{errors}");
    eprintln!("{text}{errors}");
    let file = Path::new("target/bench").join(format!("{}.json", arguments[0]));
    serde_json::from_slice(&std::fs::read(folder.path().join(file)).unwrap()).unwrap()
}

/// The figures of a result are there and greater than 0.
#[track_caller]
fn has_figures(result: &Value, names: &[&str]) {
    for name in names {
        let figure = result["figures"].as_array().unwrap().iter().find(|figure| figure["name"] == *name);
        let figure = figure.unwrap_or_else(|| panic!("no figure {name}: {}", result["figures"]));
        assert!(figure["value"].as_f64() > Some(0.0), "{figure}");
    }
}

/// DuckDB found each reading once.
#[track_caller]
fn each_reading_once(checked: &Value) {
    assert!(checked["rows"].as_u64() > Some(0) && checked["rows"] == checked["made"], "{checked}");
    assert_eq!(checked["agents_that_differ"], 0, "{checked}");
}

#[test]
fn batches_of_agents_are_stored_once() {
    let words = ["server-ingest", "--seconds", "3", "--rate", "50000", "--agents", "6", "--seal-after", "1s"];
    let result = result(&words);
    each_reading_once(&result["checked"]);
    has_figures(&result, &["ns_per_reading_sealed", "ns_per_reading_day", "readings_per_s", "memory.max_mb"]);
}

#[test]
fn connections_with_certificates_are_counted() {
    let words =
        ["connections", "--connections", "20", "--seconds", "3", "--seal-after", "1s", "--security", "certificates"];
    let result = result(&words);
    each_reading_once(&result["runs"][0]["checked"]);
    has_figures(&result, &["runs.certificates.cores", "runs.certificates.connect_s"]);
}

#[test]
fn messages_of_dcdb_are_stored_once() {
    let result = result(&["dcdb-messages", "--seconds", "1", "--connections", "1", "--rate", "200"]);
    let runs = result["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2, "with both qualities of service: {result}");
    assert!(runs.iter().all(|run| run["messages"].as_u64() > Some(0) && run["rows"] == run["messages"]), "{result}");
}

#[test]
fn a_fan_in_begins_with_sensors_that_are_known() {
    let words = ["fan-in", "--connections", "20", "--interval", "1s", "--seconds", "3", "--warm-up", "2"];
    let result = result(&[&words[..], &["--seal-after", "1s"]].concat());
    each_reading_once(&result["checked"]);
    has_figures(&result, &["cores", "ns_per_reading_acknowledged"]);
}

#[test]
fn a_restart_loses_nothing() {
    let result = result(&["restart", "--bytes", "4000000", "--seal-after", "1s"]);
    assert!(result["rows"].as_u64() > result["acknowledged"].as_u64(), "{result}");
    has_figures(&result, &["connected_s", "stored_s", "sealed_s"]);
}

#[test]
fn a_range_is_read_while_readings_arrive() {
    let words = ["range-query", "--queries", "5", "--sensors", "8", "--hours", "1", "--rate", "20000"];
    has_figures(&result(&words), &["json.first_row_ms", "arrow.whole_ms", "rate", "blocks"]);
}

#[test]
fn files_are_imported_beside_duckdb() {
    let words = ["import", "--readings", "20000", "--rounds", "1", "--cores", "0"];
    has_figures(
        &result(&words),
        &["wide.readings_per_s", "wide.duckdb_ratio", "long.readings_per_s", "long.duckdb_ratio"],
    );
}

#[test]
fn lists_are_asked_for_with_both_tokens() {
    let result = result(&["lists", "--sensors", "2000", "--rounds", "1"]);
    for role in ["admin", "user"] {
        let page = &result[role]["sensors: the first page (10,000)"];
        assert!(page["bytes"].as_u64() > Some(100), "{role}: {page}");
    }
}

#[test]
fn queries_have_the_results_of_duckdb() {
    has_figures(&result(&["query-speed", "--runs", "2", "--sensors", "8", "--days", "2"]), &["peak_mib"]);
    let words = ["virtual", "--nodes", "128", "--hours", "2", "--runs", "1", "--again", "1"];
    has_figures(&result(&words), &["first_s", "again_ms", "ratio"]);
}

#[test]
fn other_stores_take_in_the_recording() {
    let words = ["beside", "--record-seconds", "4", "--nodes", "2", "--questions", "2", "--window-s", "1"];
    let result = result(&words);
    let left_out: Vec<&str> =
        result["left_out"].as_array().unwrap().iter().map(|row| row["system"].as_str().unwrap()).collect();
    for (system, program) in [
        ("wholegrain", ""),
        ("wholegrain-singles", ""),
        ("victoriametrics", "victoria-metrics"),
        ("prometheus", "prometheus"),
    ] {
        let is_here = program.is_empty() || Path::new("/usr/bin").join(program).exists();
        assert_eq!(left_out.contains(&system), !is_here, "{system}: {}", result["left_out"]);
        if is_here {
            let rows = result["rows"].as_array().unwrap().iter().filter(|row| row["system"] == system);
            assert_eq!(rows.count(), 11, "{system}: {result}");
        }
    }
    assert!(result["data"]["readings"].as_u64() > Some(5000), "{result}");
}

#[test]
fn jobs_are_sampled_and_reconfigured() {
    if let Some(why) = wholegrain_testing::cgroups::Cgroups::missing() {
        return eprintln!("not tested: {why}");
    }
    let words = ["job-cost", "--seconds", "1", "--rounds", "1", "--interval-ms", "10", "--jobs", "1", "--idle"];
    let cost = result(&words);
    let case = &cost["cases"][0];
    for figure in ["metrics", "reads", "bare_us", "agent_us", "ticks_made", "bare_ticks_made", "other_us"] {
        assert!(case[figure].as_f64() > Some(0.0), "{figure}: {case}");
    }
    has_figures(
        &result(&["job-many", "--jobs", "2", "--seconds", "2"]),
        &["cpu_percent", "descriptors", "samples", "watches"],
    );
    let words = ["job-reconfigure", "--changes", "2", "--jobs", "2", "--nodes", "2"];
    has_figures(&result(&words), &["socket.first_sample_ms", "server.first_sample_ms"]);
}
