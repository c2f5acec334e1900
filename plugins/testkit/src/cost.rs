//! The CPU time of polls, for examples that print what a source costs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wholegrain_sources::{GroupPlan, Row};

use crate::{SampledSource, SensorValues};

/// The argument by which an example starts itself as the devices.
const PEERS: &str = "peers";

/// A process that plays the devices, so that their CPU time is not that of the source. It is killed when this is dropped.
pub struct PeerProcess {
    child: Child,
    /// The line that it has printed: what the source has to know of it.
    pub line: String,
}

impl PeerProcess {
    /// Whether this process is to play the devices.
    pub fn is_this() -> bool {
        std::env::args().nth(1).as_deref() == Some(PEERS)
    }

    /// Starts this program again and waits for its line.
    pub fn start() -> Self {
        let program = std::env::current_exe().expect("the path of this program");
        let mut child = Command::new(program).arg(PEERS).stdout(Stdio::piped()).spawn().expect("the devices start");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        Self { child, line: line.trim().to_owned() }
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a source did in a time.
pub struct PollCost {
    pub wall: Duration,
    /// The CPU time of this process.
    pub cpu: Duration,
    pub polls: i64,
    pub answers: i64,
    pub timeouts: i64,
    /// Devices whose last poll brought no answer.
    pub failing: i64,
    /// Samples that the readers got.
    pub samples: usize,
}

impl PollCost {
    /// Measures for `length`, with the readers read at each `interval` as the agent does. `name` is that of the plug-in, whose group of polls is read.
    pub fn measure(source: &mut SampledSource, name: &str, length: Duration, interval: Duration) -> Self {
        let before = source.read(name).1;
        let (start, cpu, mut samples) = (Instant::now(), cpu_time(), 0);
        while start.elapsed() < length {
            std::thread::sleep(interval);
            samples += source.groups.iter_mut().filter(|group| group.name != name).filter_map(read).count();
        }
        let (wall, cpu) = (start.elapsed(), cpu_time() - cpu);
        let last = source.read(name).1;
        let value = |values: &SensorValues, count: &str| values[&format!("{name}/{count}")].unwrap_or_default() as i64;
        let of = |count: &str| value(&last, count) - value(&before, count);
        Self {
            wall,
            cpu,
            polls: of("polls"),
            answers: of("answers"),
            timeouts: of("timeouts"),
            failing: value(&last, "failing"),
            samples,
        }
    }
}

impl std::fmt::Display for PollCost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { wall, cpu, polls, answers, timeouts, failing, samples } = self;
        writeln!(
            f,
            "{polls} polls in {:.0} s: {answers} answers, {timeouts} requests without one, {failing} devices that fail, {samples} samples read",
            wall.as_secs_f64()
        )?;
        let (cpu, polls) = (cpu.as_secs_f64(), (*polls).max(1) as f64);
        write!(
            f,
            "the source with its readers: {:.2} % of a core, {:.1} us a poll",
            100.0 * cpu / wall.as_secs_f64(),
            1e6 * cpu / polls
        )
    }
}

/// The time of a new sample.
fn read(group: &mut GroupPlan) -> Option<i64> {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    group.reader.read(&mut Row::new(&mut values, &mut gaps)).taken_at
}

/// The CPU time of this process, of all its threads.
pub fn cpu_time() -> Duration {
    // SAFETY: `usage` has room for what getrusage writes, and all its bits may be zero.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
