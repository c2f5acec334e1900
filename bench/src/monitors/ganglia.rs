//! Ganglia: a gmond that samples and sends by unicast to one that only receives, as its documents advise for clusters without
//! multicast. It tells periods in whole seconds, and nothing by which its ticks could be counted.

use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use wholegrain_testing::free_port;

use super::{Folder, Monitor, Role, Running, Started, folder, program, started};

const PROGRAM: (&str, &str) = ("gmond", "ganglia-monitor");
/// Where Debian has its modules, below the folder of the machine's libraries.
const MODULES: &str = "ganglia";
/// How long the receiver may take to tell what it has.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Modules and the metrics of them: what there is of meminfo, vmstat and stat.
const SAME: &[(&str, &str, &str)] = &[
    ("cpu_module", "modcpu.so", "^cpu_(user|nice|system|idle|wio|intr|sintr|steal)$"),
    ("multicpu_module", "modmulticpu.so", "^multicpu_([a-z]+)([0-9]+)$"),
    ("mem_module", "modmem.so", "^(mem|swap)_(.+)$"),
];
/// What there is of what else our agent reads of /proc when it is told nothing.
const FURTHER: &[(&str, &str, &str)] =
    &[("load_module", "modload.so", "^load_(.+)$"), ("net_module", "modnet.so", "^(bytes|pkts)_(in|out)$")];

/// See the module.
pub struct Ganglia;

impl Monitor for Ganglia {
    fn name(&self) -> &'static str {
        "ganglia"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["default", "same"]
    }

    fn version(&self) -> anyhow::Result<String> {
        program::version(&program::installed(PROGRAM.0, PROGRAM.1)?, &["--version"])
    }

    fn shortest_interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn start(
        &self,
        role: Role,
        configuration: &str,
        interval: Duration,
        dir: &Path,
    ) -> anyhow::Result<Box<dyn Running>> {
        ensure!(interval.subsec_nanos() == 0, "ganglia's periods are whole seconds: {interval:?} is none");
        started::both(role, interval, dir, receive, |started, folder| send(started, folder, configuration, interval))
    }
}

fn head(name: &str, receives: bool) -> String {
    let (mute, deaf) = if receives { ("yes", "no") } else { ("no", "yes") };
    format!(
        "globals {{\n  daemonize = no\n  setuid = no\n  debug_level = 0\n  max_udp_msg_len = 1472\n  mute = {mute}\n  deaf = {deaf}\n  \
         host_dmax = 0\n  cleanup_threshold = 300\n  gexec = no\n  send_metadata_interval = 60\n  \
         override_hostname = \"{name}\"\n}}\ncluster {{ name = \"bench\" }}\nmodules {{\n  module {{ name = \"core_metrics\" }}\n}}\n"
    )
}

fn receive(started: &mut Started, folder: &Folder) -> anyhow::Result<()> {
    let address = folder.announce(&[("udp", free_port()), ("tcp", free_port())])?;
    let text = head("server", true)
        + &format!(
            "udp_recv_channel {{ port = {} bind = {listen} }}\ntcp_accept_channel {{ port = {} bind = {listen} }}\n",
            address.port("udp")?,
            address.port("tcp")?,
            listen = folder.listen(),
        );
    let config = folder.server("gmond.conf")?;
    started.run_with(folder, ("gmond (receives)", true), &mut command()?, (&config, &text))?;
    let port = address.port("tcp")?;
    started.parts.wait_until("the receiving gmond answers", || told(&address.host, port).is_ok())
}

fn send(started: &mut Started, folder: &Folder, configuration: &str, interval: Duration) -> anyhow::Result<()> {
    let address = folder.address()?;
    let modules: Vec<_> = SAME.iter().chain(if configuration == "default" { FURTHER } else { &[] }).collect();
    let mut text = head(&folder::node(), false);
    text += &format!("udp_send_channel {{ host = {} port = {} ttl = 1 }}\n", address.host, address.port("udp")?);
    let libraries = libraries()?;
    for (module, file, _) in &modules {
        text += &format!("modules {{ module {{ name = \"{module}\" path = \"{libraries}/{file}\" }} }}\n");
    }
    let seconds = interval.as_secs();
    text += &format!("collection_group {{\n  collect_every = {seconds}\n  time_threshold = {seconds}\n");
    for (_, _, metrics) in &modules {
        // Without a threshold each value is sent at each period.
        text += &format!("  metric {{ name_match = \"{metrics}\" value_threshold = 0 }}\n");
    }
    text += "}\n";
    let config = folder.node("gmond.conf")?;
    started.run_with(folder, ("gmond", false), &mut command()?, (&config, &text))?;
    let (port, mut before) = (address.port("tcp")?, 0);
    // Each value comes within a period; that their number grows no more is looked at after two.
    let (two_periods, begun) = (2 * (interval + Duration::from_millis(500)), Instant::now());
    started.parts.wait_until("gmond's values arrive", || {
        let text = told(&address.host, port).unwrap_or_default();
        let now = metrics(&text, &folder::node());
        let same = std::mem::replace(&mut before, now) == now;
        same && now > 0 && begun.elapsed() > two_periods
    })?;
    started.metrics = before;
    Ok(())
}

/// In the foreground; the file of its configuration follows.
fn command() -> anyhow::Result<Command> {
    let mut command = Command::new(program::installed(PROGRAM.0, PROGRAM.1)?);
    command.args(["-f", "-c"]);
    Ok(command)
}

/// The folder of gmond's modules: /usr/lib/<architecture>/ganglia on Debian.
fn libraries() -> anyhow::Result<String> {
    let entries = std::fs::read_dir("/usr/lib").context("looking for gmond's modules in /usr/lib")?.flatten();
    let mut places = entries.map(|entry| entry.path().join(MODULES)).chain([Path::new("/usr/lib64").join(MODULES)]);
    let found = places.find(|dir| dir.join(SAME[0].1).is_file());
    let found =
        found.with_context(|| format!("gmond's modules are not below /usr/lib: apt-get install {}", PROGRAM.1))?;
    Ok(found.display().to_string())
}

/// The XML that a gmond tells to whoever connects.
fn told(host: &str, port: u16) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect((host, port)).context("the receiving gmond")?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).context("the receiving gmond's answer")?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// How many metrics a host has in that XML.
fn metrics(text: &str, host: &str) -> u64 {
    let hosts = text.split("<HOST ").skip(1).filter(|text| text.contains(&format!("NAME=\"{host}\"")));
    hosts.map(|text| text.matches("<METRIC ").count() as u64).sum()
}

#[cfg(test)]
mod tests {
    #[test]
    fn metrics_are_those_of_the_host() {
        let text = "<CLUSTER><HOST NAME=\"a\" IP=\"x\"><METRIC NAME=\"1\"/><METRIC NAME=\"2\"/></HOST>\
                    <HOST NAME=\"ab\"><METRIC NAME=\"1\"/></HOST></CLUSTER>";
        assert_eq!((super::metrics(text, "a"), super::metrics(text, "ab"), super::metrics(text, "c")), (2, 1, 0));
    }
}
