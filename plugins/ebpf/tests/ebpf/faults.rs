//! What is missing is named, and the rest works.

use std::path::PathBuf;

use wholegrain_sources::Roots;

use crate::machine::{Machine, discover, skips, values};

fn explained(settings: &str) -> String {
    Machine::new().configure(settings).err().unwrap_or_else(|| panic!("{settings} is accepted")).to_string()
}

#[test]
fn settings_are_checked() {
    for (settings, expected) in [
        ("jobs_max = 0\n", "jobs_max is 0; expected 1 to 1024"),
        ("jobs_max = 1025\n", "jobs_max is 1025"),
        ("programs = []\n", "programs is empty"),
        ("programs = [\"disk\"]\n", "disk"),
        ("job_max = 3\n", "did you mean `jobs_max`"),
    ] {
        assert!(explained(settings).contains(expected), "{}", explained(settings));
    }
}

#[test]
fn without_btf_there_is_one_line_and_no_sensor() {
    if skips("without_btf") {
        return;
    }
    let machine = Machine::new();
    let roots = Roots { sys: PathBuf::from("/nowhere"), ..Roots::default() };
    let mut source = machine.configure_below(roots, "").unwrap();
    let (groups, reports) = discover(source.as_mut());
    assert!(groups.is_empty());
    assert!(reports.len() == 1 && reports[0].contains("CONFIG_DEBUG_INFO_BTF"), "{reports:?}");
}

#[test]
fn refused_programs_are_named_and_the_others_run() {
    if skips("refused_programs") {
        return;
    }
    let machine = Machine::new();
    let roots = machine.roots_without(&["btf_trace_tcp_retransmit_synack", "last_queued"]);
    let mut source = machine.configure_below(roots, "").unwrap();
    let (mut groups, reports) = discover(source.as_mut());
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(reports[0].starts_with("ebpf: no scheduler sensors: on_switch: "), "{reports:?}");
    assert!(reports[0].ends_with("this kernel's structures lack a field that the program reads"), "{reports:?}");
    assert!(reports[1].starts_with("ebpf: no tcp sensors: on_retransmit_synack: "), "{reports:?}");
    assert!(reports[1].contains("btf_trace_tcp_retransmit_synack"), "{reports:?}");
    let node = values(groups.get_mut("ebpf").unwrap());
    assert!(node.contains_key("ebpf/block_latency/count"));
    assert!(!node.keys().any(|name| name.contains("off_cpu") || name.contains("tcp")), "{node:?}");
    let roots = machine.roots_without(&["btf_trace_tcp_retransmit_synack"]);
    let mut source = machine.configure_below(roots, "programs = [\"tcp\"]\n").unwrap();
    let (groups, reports) = discover(source.as_mut());
    assert!(groups.is_empty() && reports[1] == "ebpf: no sensors: the kernel refuses all programs", "{reports:?}");
}

#[test]
fn without_capabilities_the_missing_ones_are_named() {
    let machine = Machine::new();
    let proc = machine.folder.path().join("proc");
    std::fs::create_dir_all(proc.join("self")).unwrap();
    std::fs::write(proc.join("self/status"), "CapEff:\t0000004000000000\n").unwrap();
    let Ok(mut source) = machine.configure_below(Roots { proc, ..Roots::default() }, "") else { return };
    let (groups, reports) = discover(source.as_mut());
    assert!(groups.is_empty());
    assert!(reports[0].contains("lacks CAP_BPF; set capabilities = [\"CAP_BPF\", \"CAP_PERFMON\"]"), "{reports:?}");
}

#[test]
fn faulty_records_are_named_and_the_node_is_counted() {
    if skips("faulty_records") {
        return;
    }
    let machine = Machine::new();
    std::fs::write(machine.folder.path().join("records.json"), "{").unwrap();
    let mut source = machine.source("");
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports.len() == 1 && reports[0].contains("records.json: not the agent's records"), "{reports:?}");
    let node = groups.get_mut("ebpf").unwrap();
    let before = values(node)["ebpf/run_queue_latency/count"];
    std::thread::sleep(std::time::Duration::from_millis(1));
    assert!(values(node)["ebpf/run_queue_latency/count"] > before);
}

#[test]
fn the_example_is_valid_and_every_sensor_is_listed() {
    let text = include_str!("../../../../packaging/plugins/ebpf.toml");
    let machine = Machine::new();
    let document = wholegrain_model::config::Document::new("ebpf.toml", text);
    let section = document.root().child("plugins").child("ebpf");
    let own: Vec<String> = section.keys().unwrap();
    assert_eq!(own, ["capabilities"], "the other settings are comments");
    let commented: String = text
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| line.contains(" = "))
        .fold(String::new(), |all, line| all + line + "\n");
    let commented = commented.replace("job_records", "# job_records");
    assert!(commented.contains("jobs_max"), "{commented}");
    machine.configure(&commented).unwrap();
    if skips("every_sensor_is_listed") {
        return;
    }
    let folder = machine.folder.path();
    machine.jobs(&[("3", &[folder])]);
    let roots = Roots { cgroup: folder.parent().unwrap().to_owned(), ..Roots::default() };
    let mut source = machine.configure_below(roots, "").unwrap();
    let (groups, reports) = discover(source.as_mut());
    assert!(reports[0].contains("1 jobs are left out"), "no cgroup: {reports:?}");
    let mut out = String::from("# name x scale unit kind: description\n");
    for group in groups.values() {
        out += &format!("\n[{}]\n", group.name);
        for sensor in &group.sensors {
            out += &format!(
                "{} x {} {} {:?}: {}\n",
                sensor.name, sensor.scale, sensor.unit, sensor.kind, sensor.description
            );
        }
    }
    expect_test::expect_file!["../golden.txt"].assert_eq(&out);
}
