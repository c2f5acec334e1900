//! Parquet files with the defaults of pandas, pyarrow and DuckDB, imported with the real command and server.

use std::path::Path;

use wholegrain_testing::{Site, python};

fn values(site: &Site, pattern: &str) -> Vec<String> {
    let answer = site.answer(&["query", pattern, "--from", "2026-01-31T11:00:00Z", "--to", "2026-02-01", "-f", "csv"]);
    answer.lines().skip(1).filter_map(|line| line.split(',').nth(2)).map(str::to_owned).collect()
}

#[test]
fn files_with_the_defaults_of_other_programs_are_imported() {
    let site = Site::new();
    python("write_parquet.py", &[site.dir()]);
    let server = site.start_server();
    let import = |name: &str| {
        let file = site.path(&format!("{name}.parquet"));
        let file = file.to_str().expect("a path in UTF-8");
        site.answer(&["import", "parquet", file, "--prefix", &format!("/import/{name}"), "--yes"]);
    };
    for name in ["pandas", "none", "snappy", "gzip", "lz4", "brotli", "zstd"] {
        import(name);
        let found = values(&site, &format!("/import/{name}/power"));
        assert_eq!(found, ["1.5", "2.5", "3.5", "4.5"], "{name}: {}", server.log());
    }
    import("categorical");
    assert_eq!(values(&site, "/import/categorical/a"), ["1", "3"]);
    assert_eq!(values(&site, "/import/categorical/b"), ["2", "4"]);
    import("duckdb");
    assert_eq!(values(&site, "/import/duckdb/amount"), ["1.1", "2.2", "3.3", "4.4"]);
    let large: Vec<f64> = values(&site, "/import/duckdb/large").iter().map(|value| value.parse().unwrap()).collect();
    assert_eq!(large, [0.0, 2048.0, 4096.0, 6144.0].map(|more| 2f64.powi(63) + more));
    assert_eq!(values(&site, "/import/duckdb/open"), ["1", "0", "1", "0"]);
    assert!(!Path::new(&site.path("duckdb.parquet.bad")).exists());
}

/// The SQL at the top of `store/FORMAT.md` returns each reading once, even if one was sent again and is in two files.
#[test]
fn the_sql_in_the_format_page_reads_each_reading_once() {
    use wholegrain_model::{Kind, SensorPath, Value, ValueType};
    use wholegrain_store::{Reading, SchemalessSensor, Store, StoreConfig};
    let dir = tempfile::tempdir().expect("a directory");
    let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path()) }).expect("a store");
    let sensor = SchemalessSensor {
        path: SensorPath::new("/gw/p").expect("a path"),
        unit: "W".to_owned(),
        kind: Kind::Gauge,
        value_type: ValueType::Float,
        scale: 1.0,
        description: String::new(),
    };
    let sensor = store.register_sensors("gw", &[sensor]).expect("a sensor")[0];
    let day = 1_769_817_600_000_000_000;
    // DuckDB has times with microseconds.
    let ms = 1_000_000;
    for (times, value) in [([day, day + ms], 1.0), ([day + ms, day + 2 * ms], 2.0)] {
        let readings = times.iter().map(|time| Reading { sensor, time: *time, value: Value::Float(value) }).collect();
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        store.append_readings("gw", readings, Box::new(move |result| drop(sender.send(result))));
        receiver.recv().expect("an answer").expect("stored");
        store.seal().expect("a seal");
    }
    drop(store);
    let page = wholegrain_testing::checkout().join("store/FORMAT.md");
    let (plain, once) = (4, [(day, 1.0), (day + ms, 2.0), (day + 2 * ms, 2.0)]);
    let lines: Vec<String> = once.iter().map(|(time, value)| format!("/gw/p {time} {value:.1}")).collect();
    let expected = format!("{plain}\n{}\n", lines.join("\n"));
    assert_eq!(python("each_once.py", &[dir.path(), &page]), expected);
}
