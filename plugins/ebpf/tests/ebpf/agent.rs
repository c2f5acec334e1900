//! The shared object in the real agent, isolated and with two capabilities.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::skips;

/// A file that cargo built beside this test.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.ancestors().find(|dir| dir.join(name).is_file());
    folder.unwrap_or_else(|| panic!("{name} is not built; run `cargo build --workspace`")).join(name)
}

fn agent(folder: &Path, capabilities: &str, argument: &str) -> (bool, String) {
    let config = format!(
        "name = \"try\"\n[sources.procfs]\ngroups = [\"loadavg\"]\n[plugins]\ndir = \".\"\n[plugins.ebpf]\ncapabilities = [{capabilities}]\n"
    );
    std::fs::write(folder.join("agent.toml"), config).unwrap();
    let mut command = Command::new(built("wholegrain-agent"));
    let output = command.current_dir(folder).args(["--config", "agent.toml", argument]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

#[test]
fn the_agent_runs_it_with_two_capabilities_and_names_missing_ones() {
    if skips("the_agent_runs_it") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let library = folder.path().join("ebpf.so");
    std::fs::copy(built("libwholegrain_plugin_ebpf.so"), &library).unwrap();
    std::fs::set_permissions(&library, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (is_good, text) = agent(folder.path(), "\"CAP_BPF\", \"CAP_PERFMON\"", "--once");
    assert!(is_good, "{text}");
    let value = |name: &str| {
        let path = format!("/try/ebpf/{name} ");
        let line = text.lines().find(|line| line.starts_with(&path)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.split_whitespace().find_map(|word| word.parse::<f64>().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    assert!(value("run_queue_latency/count") > 0.0, "{text}");
    assert_eq!(value("lost/nested"), 0.0);
    let (_, text) = agent(folder.path(), "\"CAP_PERFMON\"", "--check");
    assert!(text.contains("lacks CAP_BPF;"), "{text}");
}
