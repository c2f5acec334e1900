//! Performance Co-Pilot: `pmcd` with its agents on the node; `pmlogger`, which asks it at each period and writes an archive, as the
//! server's part.
//!
//! Configurations: `default` are the agents of the package's own table and the metrics that its `pmlogconf` chooses, which is what
//! a node has after the package was installed, all at the asked period; `same` is the Linux agent with what stands in
//! /proc/meminfo, /proc/vmstat and /proc/stat.
//!
//! - In: the package's files, where they are installed or unpacked.
//! - Out: files in the folder of the run alone; ports of its own.
//! - Never: the machine's own /etc/pcp and /var/lib/pcp, or its services.

mod archive;
mod installed;

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use wholegrain_testing::free_port;

use self::installed::{Installed, SetUp};
use super::pull::{self, Pull};
use super::{Folder, Monitor, Role, Running, Started, program};

/// The logger's timers treat what is due within 10 ms as due, so it keeps no period up to that: it takes a period of 10 ms and
/// makes 50 samples a second. At 20 ms, all 50 were in its archive.
const SHORTEST: Duration = Duration::from_millis(20);
/// The agents of `same`: the one that reads those files, and pmcd's own, which tells of the daemon and costs nothing unasked.
const SAME_AGENTS: [&str; 2] = ["pmcd", "linux"];
/// The values of /proc/meminfo, /proc/vmstat and /proc/stat.
const SAME: &str = "log mandatory on default {
    mem.util
    mem.vmstat
    kernel.all.cpu
    kernel.percpu.cpu
    kernel.all.intr
    kernel.all.pswitch
    kernel.all.sysfork
    kernel.all.running
    kernel.all.blocked
    kernel.all.boottime
}
";
/// See the module.
pub struct Pcp;

impl Monitor for Pcp {
    fn name(&self) -> &'static str {
        "pcp"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["default", "same"]
    }

    fn version(&self) -> anyhow::Result<String> {
        Installed::find()?.version()
    }

    fn shortest_interval(&self) -> Duration {
        SHORTEST
    }

    fn start(
        &self,
        role: Role,
        configuration: &str,
        interval: Duration,
        dir: &Path,
    ) -> anyhow::Result<Box<dyn Running>> {
        ensure!(
            interval.subsec_nanos().is_multiple_of(1_000_000),
            "pmlogger takes whole milliseconds as its period, not {interval:?}"
        );
        pull::start(role, interval, dir, "pmlogger", |started, folder, pull| {
            node(started, folder, pull, configuration, interval)
        })
    }
}

fn daemon(set_up: &SetUp, folder: &Folder, port: u16) -> anyhow::Result<Command> {
    let mut command = set_up.daemon("pmcd")?;
    command.args(["-f", "-A", "-p", &port.to_string(), "-U", &program::user()?]);
    if folder.has_server() {
        command.args(["-i", "127.0.0.1"]);
    }
    command.arg("-c").arg(&set_up.agents).arg("-n").arg(&set_up.names);
    command.arg("-s").arg(folder.node("run/pmcd.socket")?).arg("-l").arg(folder.node("pmcd.log")?);
    Ok(command)
}

/// Has the package's own `pmlogconf` choose the metrics, as it does for the logger of a newly installed node.
fn chosen(set_up: &SetUp, url: &str, path: &Path) -> anyhow::Result<String> {
    let mut command = set_up.daemon("pmlogconf")?;
    command.args(["-c", "-q", "-h", url, "-d"]).arg(set_up.groups()?).arg(path);
    let output = command.output().context("starting pmlogconf")?;
    let text = std::fs::read_to_string(path).unwrap_or_default();
    if text.is_empty() {
        bail!("pmlogconf chose no metrics: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    Ok(format!("# {command:?}\n{}\n", lines.join("\n")))
}

/// The daemon and its agents, and its logger.
fn node(
    started: &mut Started,
    folder: &Folder,
    pull: &Pull,
    configuration: &str,
    interval: Duration,
) -> anyhow::Result<()> {
    let keep: &[&str] = if configuration == "same" { &SAME_AGENTS } else { &[] };
    let set_up = Installed::find()?.set_up(folder, keep)?;
    let port = free_port();
    started.configured += &set_up.configured;
    started.run("pmcd", false, &mut daemon(&set_up, folder, port)?, &folder.node("pmcd.out")?)?;
    started.parts.wait_until("pmcd takes connections", || TcpStream::connect(("127.0.0.1", port)).is_ok())?;

    let url = format!("pcp://{}:{port}", pull.host());
    let metrics = folder.node("pmlogger.conf")?;
    started.configured +=
        &if configuration == "same" { folder.write(&metrics, SAME)? } else { chosen(&set_up, &url, &metrics)? };
    let archive = pull.kept();
    archive::remove(&archive)?;
    let mut logger = set_up.daemon("pmlogger")?;
    logger.args(["-V", "2", "-h", &url, "-t", &format!("{}msec", interval.as_millis()), "-c"]).arg(&metrics);
    logger.arg("-l").arg(archive.with_extension("log")).arg(&archive);
    // It would listen for its own control program on every address from port 4330 on.
    logger.env("PMLOGGER_LOCAL", "1").env("PMLOGGER_PORT", free_port().to_string());
    let since = Instant::now();
    pull.node(started, "pmlogger", &mut logger)?;
    let sampled = || archive::count(&archive).is_ok_and(|c| c.values > 0 && c.samples > 1);
    started.parts.wait_until("its archive has samples", sampled)?;
    started.metrics = archive::count(&archive)?.values;
    started.counts(since, move || Some(archive::count(&archive).ok()?.samples));
    Ok(())
}
