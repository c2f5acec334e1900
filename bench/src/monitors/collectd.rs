//! collectd, which sends with its network plugin to a collectd that receives.
//!
//! The receiver keeps the newest values and writes one series to CSV, by which ticks are counted: less than a server in service
//! does, which writes all of them. The sender has a socket over which its values are counted before anything is measured.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use wholegrain_testing::free_port;

use super::{Folder, Monitor, Role, Running, Started, folder, program, started};

const PROGRAM: (&str, &str) = ("collectd", "collectd-core");
/// How long an answer over the socket may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The values of meminfo, vmstat and stat.
const SAME: &str = "\
LoadPlugin cpu
<Plugin cpu>
  ReportByCpu true
  ReportByState true
  ValuesPercentage false
</Plugin>
LoadPlugin contextswitch
LoadPlugin memory
LoadPlugin vmem
<Plugin vmem>
  Verbose true
</Plugin>
";
/// What else our agent reads of /proc when it is told nothing, but for what collectd has no plugin for (pressure).
const FURTHER: &str = "\
LoadPlugin load
LoadPlugin interface
LoadPlugin protocols
LoadPlugin disk
<Plugin disk>
  Disk \"/^(loop|ram)[0-9]+$/\"
  IgnoreSelected true
</Plugin>
";

/// See the module.
pub struct Collectd;

impl Monitor for Collectd {
    fn name(&self) -> &'static str {
        "collectd"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["default", "same"]
    }

    fn version(&self) -> anyhow::Result<String> {
        program::version(&program::installed(PROGRAM.0, PROGRAM.1)?, &["-h"])
    }

    fn shortest_interval(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn start(
        &self,
        role: Role,
        configuration: &str,
        interval: Duration,
        dir: &Path,
    ) -> anyhow::Result<Box<dyn Running>> {
        let receive = |started: &mut Started, folder: &Folder| receive(started, folder, interval);
        started::both(role, interval, dir, receive, |started, folder| send(started, folder, configuration, interval))
    }
}

/// The lines that both begin with. Several threads that write would overtake each other and values be dropped as too old.
fn head(name: &str, base: &Path, interval: Duration) -> String {
    format!(
        "Hostname \"{name}\"\nFQDNLookup false\nBaseDir \"{base}\"\nPIDFile \"{base}/pid\"\nPluginDir \"/usr/lib/collectd\"\n\
         TypesDB \"/usr/share/collectd/types.db\"\nInterval {interval}\nWriteThreads 1\n\
         LoadPlugin logfile\n<Plugin logfile>\n  LogLevel warning\n  File STDOUT\n</Plugin>\n",
        base = base.display(),
        interval = interval.as_secs_f64()
    )
}

fn receive(started: &mut Started, folder: &Folder, interval: Duration) -> anyhow::Result<()> {
    let address = folder.announce(&[("collectd", free_port())])?;
    // Its CSV goes below its own folder: it makes no file whose path has a part that begins with a dot, above that either.
    let text = head("server", &folder.server("")?, interval)
        + &format!(
            "LoadPlugin network\n<Plugin network>\n  Listen \"{}\" \"{}\"\n</Plugin>\n\
             LoadPlugin csv\n<Plugin csv>\n  DataDir \"csv\"\n</Plugin>\nLoadPlugin match_regex\n\
             PostCacheChain \"PostCache\"\n<Chain \"PostCache\">\n  <Rule \"ticks\">\n    <Match \"regex\">\n      \
             Plugin \"^vmem$\"\n      TypeInstance \"^free_pages$\"\n    </Match>\n    <Target \"write\">\n      \
             Plugin \"csv\"\n    </Target>\n  </Rule>\n  Target \"stop\"\n</Chain>\n",
            folder.listen(),
            address.port("collectd")?,
        );
    let config = folder.server("collectd.conf")?;
    started.run_with(folder, ("collectd (receives)", true), &mut command()?, (&config, &text))
}

fn send(started: &mut Started, folder: &Folder, configuration: &str, interval: Duration) -> anyhow::Result<()> {
    let address = folder.address()?;
    let socket = folder.node("socket")?;
    let text = head(&folder::node(), &folder.node("")?, interval)
        + SAME
        + if configuration == "default" { FURTHER } else { "" }
        + &format!(
            "LoadPlugin network\n<Plugin network>\n  Server \"{}\" \"{}\"\n</Plugin>\n\
             LoadPlugin unixsock\n<Plugin unixsock>\n  SocketFile \"{}\"\n</Plugin>\n",
            address.host,
            address.port("collectd")?,
            socket.display(),
        );
    let since = Instant::now();
    let config = folder.node("collectd.conf")?;
    started.run_with(folder, ("collectd", false), &mut command()?, (&config, &text))?;
    // Where the receiver's CSV of this node is.
    let ticks = folder.server("csv")?.join(folder::node()).join("vmem");
    started.parts.wait_until("collectd's values arrive", || lines(&ticks) > 1)?;
    // All plugins have read by then: each is asked once before any is a second time, but for what is a difference of two reads.
    let mut before = 0;
    started.parts.wait_until("collectd has all of its values", || {
        let now = values(&socket).unwrap_or(0);
        std::mem::replace(&mut before, now) == now && now > 0
    })?;
    started.metrics = before;
    started.counts(since, move || Some(lines(&ticks)));
    Ok(())
}

/// In the foreground; the file of its configuration follows.
fn command() -> anyhow::Result<Command> {
    let mut command = Command::new(program::installed(PROGRAM.0, PROGRAM.1)?);
    command.args(["-f", "-C"]);
    Ok(command)
}

/// Lines of readings in CSV files that the receiver wrote of this node: one a tick, and one in front.
fn lines(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files
        .filter_map(|file| std::fs::read(file.path()).ok())
        .map(|text| (text.iter().filter(|byte| **byte == b'\n').count() as u64).saturating_sub(1))
        .sum()
}

/// How many values it has: one or more of each of its identifiers, by the commands LISTVAL and GETVAL of collectd-unixsock(5).
fn values(socket: &Path) -> anyhow::Result<u64> {
    let mut stream = UnixStream::connect(socket).context("collectd's socket")?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let mut answers = BufReader::new(stream.try_clone()?).lines();
    let mut ask = |command: &str| -> anyhow::Result<Vec<String>> {
        writeln!(stream, "{command}")?;
        let mut line = || answers.next().context("collectd's answer ended")?.context("collectd's answer");
        let head = line()?;
        let count: i64 = head.split(' ').next().unwrap_or_default().parse()?;
        anyhow::ensure!(count >= 0, "collectd answers {head}");
        (0..count).map(|_| line()).collect()
    };
    let mut sum = 0;
    for line in ask("LISTVAL")? {
        let Some((_, name)) = line.split_once(' ') else { continue };
        // One that went meanwhile has none.
        sum += ask(&format!("GETVAL \"{name}\"")).map_or(0, |values| values.len() as u64);
    }
    Ok(sum)
}
