//! Rezolus: its agent on the node; its recorder, which asks the agent at each period and writes what it is told, as the server's part.
//!
//! Configurations: `default` are all samplers, as the package's own agent.toml has them; `same` those of /proc/meminfo and
//! /proc/vmstat, and the one of processor time, which Rezolus counts in the kernel instead of reading /proc/stat. The agent takes a
//! real-time priority, which is its default. What its eBPF programs take is time of whatever they interrupt: no process of the
//! agent's shows it, only the run time of the programs on the node does.
//!
//! - In: the program `rezolus`, and root's rights for eBPF.
//! - Out: files in the folder of the run; one port of its own.
//! - Never: an agent that is not root: it would run with a part of its samplers and say so nowhere.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::Value;
use wholegrain_testing::free_port;

use super::exposition::get;
use super::pull::{self, Pull};
use super::{Folder, Monitor, Role, Running, Started, program};

/// The recorder refuses a period below the time that one answer takes it, here 1 to 2 ms; at 2 ms it made 1490 of 1500 samples.
const SHORTEST: Duration = Duration::from_millis(2);
/// For how long the agent answers with the same snapshot unless told otherwise.
const CACHED_MAX: Duration = Duration::from_millis(10);
/// Where `bench/prepare` installs it, below the checkout.
const INSTALLED: &str = "target/peers/rezolus/bin/rezolus";
/// The samplers of `same`.
const SAME: [&str; 3] = ["memory_meminfo", "memory_vmstat", "cpu_usage"];
/// What each snapshot of a raw recording has once, in MessagePack: `source` and `rezolus`, with their lengths.
const SNAPSHOT: &[u8] = b"\xa6source\xa7rezolus";

/// Bytes of a recording that are looked at together.
const PIECE_BYTES: usize = 1 << 20;

/// See the module.
pub struct Rezolus;

impl Monitor for Rezolus {
    fn name(&self) -> &'static str {
        "rezolus"
    }

    fn configurations(&self) -> &'static [&'static str] {
        &["default", "same"]
    }

    fn version(&self) -> anyhow::Result<String> {
        let version = program::version(&agent_path()?, &["--version"])?;
        // SAFETY: geteuid takes nothing and cannot fail.
        ensure!(unsafe { libc::geteuid() } == 0, "Rezolus {version} needs to be root for its eBPF programs");
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
        pull::start(role, interval, dir, "rezolus record", |started, folder, pull| {
            node(started, folder, pull, configuration, interval)
        })
    }
}

/// The one that `bench/prepare` has built, else the system's.
fn agent_path() -> anyhow::Result<PathBuf> {
    let built = wholegrain_testing::checkout().join(INSTALLED);
    if built.exists() { Ok(built) } else { program::installed("rezolus", "rezolus, from its makers") }
}

fn settings(configuration: &str, listen: &str, interval: Duration) -> String {
    // A snapshot is to be older than a period at no time.
    let cached = CACHED_MAX.min(interval / 2);
    let mut text = format!("[general]\nlisten = \"{listen}\"\nttl = \"{}us\"\n[scheduler]\n", cached.as_micros());
    text += "[log]\nlevel = \"info\"\n";
    if configuration == "same" {
        text += "[defaults]\nenabled = false\n";
        text.extend(SAME.iter().map(|sampler| format!("[samplers.{sampler}]\nenabled = true\n")));
    } else {
        text += "[defaults]\nenabled = true\n";
    }
    text
}

/// The values of a snapshot: counters, gauges, and histograms, each of which has hundreds of buckets and counts once.
fn values(snapshot: &str) -> Option<u64> {
    let snapshot: Value = serde_json::from_str(snapshot).ok()?;
    let of = |kind: &str| Some(snapshot[kind].as_array()?.len() as u64);
    Some(of("counters")? + of("gauges")? + of("histograms")?)
}

/// The snapshots of a raw recording, which may have gigabytes.
fn snapshots(mut recording: impl Read) -> std::io::Result<u64> {
    let (mut piece, mut kept, mut sum) = (vec![0; PIECE_BYTES], 0, 0);
    loop {
        let read = recording.read(&mut piece[kept..])?;
        if read == 0 {
            return Ok(sum);
        }
        let filled = kept + read;
        sum += piece[..filled].windows(SNAPSHOT.len()).filter(|window| *window == SNAPSHOT).count() as u64;
        // The mark may be cut by the end of the piece.
        kept = filled.min(SNAPSHOT.len() - 1);
        piece.copy_within(filled - kept..filled, 0);
    }
}

/// The agent and its recorder.
fn node(
    started: &mut Started,
    folder: &Folder,
    pull: &Pull,
    configuration: &str,
    interval: Duration,
) -> anyhow::Result<()> {
    let port = free_port();
    let path = folder.node("agent.toml")?;
    let listen = format!("{}:{port}", if folder.has_server() { "127.0.0.1" } else { "0.0.0.0" });
    started.configured += &folder.write(&path, &settings(configuration, &listen, interval))?;
    let mut agent = Command::new(agent_path()?);
    started.run("rezolus", false, agent.arg(&path), &folder.node("rezolus.log")?)?;
    let url = format!("http://127.0.0.1:{port}/metrics/json");
    let told = || get(&url).ok().and_then(|text| values(&text)).unwrap_or(0);
    started.parts.wait_until("the agent tells values", || told() > 0)?;

    let recording = pull.kept();
    // That of an earlier run in the same folder.
    let _ = std::fs::remove_file(&recording);
    let mut recorder = Command::new(agent_path()?);
    recorder.args(["record", "--format", "raw", "--interval", &format!("{}us", interval.as_micros())]);
    recorder.arg(format!("http://{}:{port}", pull.host())).arg(&recording);
    let since = Instant::now();
    pull.node(started, "rezolus record", &mut recorder)?;
    let sampled = || File::open(&recording).and_then(snapshots).is_ok_and(|made| made > 1);
    started.parts.wait_until("the recorder has samples", sampled)?;
    started.metrics = told();
    started.counts(since, move || File::open(&recording).and_then(snapshots).ok());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_one_value() {
        let text =
            r#"{"counters":[{"value":0},{"value":1}],"gauges":[{}],"histograms":[{"value":{"buckets":[0,0,0]}}]}"#;
        assert_eq!(values(text), Some(4));
        assert_eq!(values("{}"), None);
    }

    #[test]
    fn snapshots_are_counted_up_to_the_last_whole_one() {
        let one = [b"\x96\x82\xa7version\xa55.4.0".as_slice(), SNAPSHOT, b"\xdc\x00"].concat();
        let cut = &one[..one.len() - 5];
        assert_eq!(snapshots([&one, &one, cut].concat().as_slice()).unwrap(), 2);
        assert_eq!(snapshots(b"".as_slice()).unwrap(), 0);
    }

    #[test]
    fn a_snapshot_that_two_reads_bring_counts_once() {
        let recording = SNAPSHOT.repeat(5);
        for cut in 0..recording.len() {
            let (first, second) = recording.split_at(cut);
            assert_eq!(snapshots(first.chain(second)).unwrap(), 5, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_cached_is_younger_than_a_period() {
        let of = |ms| settings("default", "127.0.0.1:1", Duration::from_millis(ms));
        assert!(of(1000).contains("ttl = \"10000us\""));
        assert!(of(2).contains("ttl = \"1000us\""));
        assert!(
            settings("same", "x", CACHED_MAX).contains("enabled = false\n[samplers.memory_meminfo]\nenabled = true")
        );
    }
}
