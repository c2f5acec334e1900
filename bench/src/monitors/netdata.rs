//! Netdata: a child on the node that streams to a parent, the server's part.
//!
//! The child is what Netdata's documents call a headless collector, its leanest form for a node: no database, no web server, no
//! alarms. The parent keeps the values in memory for two hours and tells how many it got; it samples nothing itself.
//!
//! Configurations: `default` are all plugins that Debian's packages switch on, but the one that listens for others' metrics on a
//! fixed port and Netdata's own 330 figures about itself; `proc` only the plugin of /proc and /sys; `same` that plugin with
//! /proc/meminfo, /proc/vmstat and /proc/stat. Netdata makes charts of a part of what stands in these files, so its number of
//! values for the same reads is low. It gives itself the lowest priority, which is left so.
//!
//! - In: the programs of the packages netdata-core and netdata-plugins-bash.
//! - Out: files in the folder of the run; one port of its own.
//! - Never: beside a Netdata that runs on this machine: the place of its command socket is fixed.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use wholegrain_testing::free_port;

use super::exposition::get;
use super::folder::{self, Address};
use super::{Folder, Monitor, Parts, Role, Running, Started, program, started};

/// What has the daemon, and the script without which a child cannot stream.
const PACKAGES: &str = "netdata-core netdata-plugins-bash";
/// `update every` is in whole seconds.
const SHORTEST: Duration = Duration::from_secs(1);
/// How long the parent keeps values, s: with four bytes each, a few MB.
const KEPT_S: u64 = 7200;
/// The command socket, whose place no setting moves.
const SOCKET: &str = "/tmp/netdata-ipc";
/// Where Debian has its plugins.
const PLUGINS: &str = "/usr/lib/netdata/plugins.d";
/// How long the number of values must not have grown until the child counts as ready: charts come with their first value.
const SETTLED: Duration = Duration::from_secs(3);
/// What lets the child stream to the parent; of one run, on ports of its own.
const KEY: &str = "6f0b7d0e-52a5-4e52-9f0b-1c1f0e6a7d11";
/// A chart of /proc/meminfo, which every configuration has.
const CHART: &str = "system.ram";
/// The name of the parent; a child has its host's.
const PARENT: &str = "wholegrain-bench-parent";
/// Plugins that `proc` and `same` switch off.
const OTHERS: [&str; 13] = [
    "timex",
    "idlejitter",
    "tc",
    "diskspace",
    "cgroups",
    "slabinfo",
    "fping",
    "apps",
    "ioping",
    "perf",
    "cups",
    "charts.d",
    "nfacct",
];
/// What the plugin of /proc reads beside the three files of `same`.
const OTHER_FILES: [&str; 31] = [
    "/proc/net/dev",
    "/proc/pagetypeinfo",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/sys/kernel/random/entropy_avail",
    "/proc/pressure",
    "/proc/interrupts",
    "/proc/softirqs",
    "/sys/kernel/mm/ksm",
    "/sys/block/zram",
    "/sys/devices/system/edac/mc",
    "/sys/devices/system/node",
    "/proc/net/wireless",
    "/proc/net/sockstat",
    "/proc/net/sockstat6",
    "/proc/net/netstat",
    "/proc/net/sctp/snmp",
    "/proc/net/softnet_stat",
    "/proc/net/ip_vs/stats",
    "/sys/class/infiniband",
    "/proc/net/stat/conntrack",
    "/proc/net/stat/synproxy",
    "/proc/diskstats",
    "/proc/mdstat",
    "/proc/net/rpc/nfsd",
    "/proc/net/rpc/nfs",
    "/proc/spl/kstat/zfs/arcstats",
    "/proc/spl/kstat/zfs/pool/state",
    "/sys/fs/btrfs",
    "ipc",
    "/sys/class/power_supply",
];

/// See the module.
pub struct Netdata;

impl Monitor for Netdata {
    fn name(&self) -> &'static str {
        "netdata"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["default", "proc", "same"]
    }

    fn version(&self) -> anyhow::Result<String> {
        let version = program::version(&daemon_path()?, &["-V"])?;
        // Without what this script finds out about the system, a child of 1.37.1 aborts when it begins to stream.
        let script = Path::new(PLUGINS).join("system-info.sh");
        ensure!(
            script.exists(),
            "{} is not there: bench/prepare installs it, or apt-get install {PACKAGES}",
            script.display()
        );
        Ok(version)
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
        ensure!(interval.subsec_nanos() == 0, "Netdata takes whole seconds as its period, not {interval:?}");
        started::both(role, interval, dir, parent, |started, folder| child(started, folder, configuration, interval))
    }
}

fn daemon_path() -> anyhow::Result<PathBuf> {
    program::installed("netdata", PACKAGES)
}

/// Starts the parent, and tells where it listens.
fn parent(started: &mut Started, folder: &Folder) -> anyhow::Result<()> {
    ensure!(
        UnixStream::connect(SOCKET).is_err(),
        "a Netdata runs on this machine, and another would take its command socket {SOCKET}: stop it first"
    );
    let port = free_port();
    let base = folder.server("netdata")?;
    let plugins: String = ["proc"].iter().chain(&OTHERS).map(|name| format!("    {name} = no\n")).collect();
    let web = format!("    bind to = {}:{port}\n", folder.listen());
    started.configured += &files(folder, &base, PARENT, "ram", 1, &web, &plugins)?;
    let stream = format!(
        "[{KEY}]\n    type = api\n    enabled = yes\n    default memory mode = ram\n    default history = {KEPT_S}\n    health enabled by default = no\n"
    );
    started.configured += &folder.write(&base.join("etc/stream.conf"), &stream)?;
    started.run("netdata parent", true, &mut daemon(&base)?, &base.join("out.log"))?;
    started.parts.wait_until("the parent answers", || get(&format!("http://127.0.0.1:{port}/api/v1/info")).is_ok())?;
    folder.announce(&[("netdata", port)]).map(drop)
}

fn child(started: &mut Started, folder: &Folder, configuration: &str, interval: Duration) -> anyhow::Result<()> {
    let address = folder.address()?;
    let base = folder.node("netdata")?;
    let others = if configuration == "default" { &[][..] } else { &OTHERS[..] };
    let mut plugins: String = others.iter().map(|name| format!("    {name} = no\n")).collect();
    if configuration == "same" {
        plugins += "[plugin:proc]\n";
        plugins.extend(OTHER_FILES.iter().map(|name| format!("    {name} = no\n")));
    }
    let every_s = interval.as_secs();
    started.configured += &files(folder, &base, &folder::node(), "none", every_s, "    mode = none\n", &plugins)?;
    let destination = format!("tcp:{}:{}", address.host, address.port("netdata")?);
    let stream = format!("[stream]\n    enabled = yes\n    destination = {destination}\n    api key = {KEY}\n");
    started.configured += &folder.write(&base.join("etc/stream.conf"), &stream)?;
    let since = Instant::now();
    started.run("netdata", false, &mut daemon(&base)?, &base.join("out.log"))?;
    started.metrics = settled(&mut started.parts, &address)?;
    started.counts(since, move || samples(&address, since));
    Ok(())
}

/// The seconds of which the parent has values; `None` when they are more than it keeps.
fn samples(address: &Address, since: Instant) -> Option<u64> {
    let since_s = since.elapsed().as_secs();
    if since_s > KEPT_S {
        return None;
    }
    let what = format!("data?chart={CHART}&after=-{}&points=0&format=csv", since_s + 1);
    Some(rows(&get(&child_url(address, &what).ok()?).ok()?))
}

/// Writes netdata.conf for a daemon whose every folder is below `base`. `web` and `plugins` are the lines of these sections.
fn files(
    folder: &Folder,
    base: &Path,
    name: &str,
    mode: &str,
    every_s: u64,
    web: &str,
    plugins: &str,
) -> anyhow::Result<String> {
    let mut text = "[directories]\n".to_owned();
    for (setting, place) in
        [("config", "etc"), ("cache", "cache"), ("lib", "lib"), ("home", "lib"), ("log", "log"), ("lock", "run")]
    {
        let dir = base.join(place);
        std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        text += &format!("    {setting} = {}\n", dir.display());
    }
    text += &format!("[global]\n    hostname = {name}\n    run as user = {}\n", program::user()?);
    text += &format!("[db]\n    mode = {mode}\n    update every = {every_s}\n    retention = {KEPT_S}\n");
    text += "[logs]\n    debug = none\n    access = none\n    health = none\n";
    text += &format!("[web]\n{web}[health]\n    enabled = no\n[registry]\n    enabled = no\n[ml]\n    enabled = no\n");
    text += "[plugins]\n    statsd = no\n    netdata monitoring = no\n    netdata monitoring extended = no\n";
    text += plugins;
    // It sends statistics about itself to its makers otherwise.
    std::fs::write(base.join("etc/.opt-out-from-anonymous-statistics"), "").context("opting out of statistics")?;
    folder.write(&base.join("etc/netdata.conf"), &text)
}

/// In the foreground, as this user.
fn daemon(base: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(daemon_path()?);
    command.arg("-D").arg("-c").arg(base.join("etc/netdata.conf")).args(["-u", &program::user()?]);
    // The folder of the run is read by this user alone, whoever starts a plugin.
    command.current_dir(base);
    Ok(command)
}

/// Waits until the parent has values of this child and their number grows no more.
fn settled(parts: &mut Parts, address: &Address) -> anyhow::Result<u64> {
    let url = child_url(address, "charts")?;
    let (mut most, mut since) = (0, Instant::now());
    parts.wait_until("the parent has this node's values", || {
        let now = get(&url).ok().and_then(|text| dimensions(&text)).unwrap_or(0);
        if now != most {
            (most, since) = (now, Instant::now());
        }
        most > 0 && since.elapsed() > SETTLED
    })?;
    Ok(most)
}

fn child_url(address: &Address, what: &str) -> anyhow::Result<String> {
    let (host, port) = (&address.host, address.port("netdata")?);
    Ok(format!("http://{host}:{port}/host/{}/api/v1/{what}", folder::node()))
}

/// The values of all charts.
fn dimensions(charts: &str) -> Option<u64> {
    let answer: Value = serde_json::from_str(charts).ok()?;
    let charts = answer["charts"].as_object()?;
    Some(charts.values().filter_map(|chart| Some(chart["dimensions"].as_object()?.len() as u64)).sum())
}

/// The rows of a chart that have values: those of seconds without are `null`.
fn rows(csv: &str) -> u64 {
    csv.lines().skip(1).filter(|row| !row.trim().is_empty() && !row.contains("null")).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_all_charts() {
        let charts = r#"{"charts":{"a":{"dimensions":{"x":{},"y":{}}},"b":{"dimensions":{"z":{}}}}}"#;
        assert_eq!(dimensions(charts), Some(3));
        assert_eq!(dimensions("This netdata does not maintain a database for host: a"), None);
    }

    #[test]
    fn seconds_without_values_are_no_samples() {
        assert_eq!(rows("time,free,used\n2026-01-01 00:00:02,1,2\n2026-01-01 00:00:01,null,null\n\n"), 1);
    }
}
