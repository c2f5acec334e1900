//! The hot paths, each with data of its own that are the same on every run.

mod mqtt;
mod payload;
mod query;
mod readings;
mod sampling;
mod store;

use std::ffi::CString;

use anyhow::Context;

use crate::request;

/// A path that is counted.
pub struct HotPath {
    /// As the budget is called.
    pub name: &'static str,
    /// The unit of the count: instructions "a …".
    pub unit: &'static str,
    pub make: fn() -> anyhow::Result<Box<dyn Work>>,
}

/// A path made ready.
pub trait Work {
    /// The preparation before each time, which is not counted.
    fn prepare(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// The counted work; returns its number of units.
    fn work(&mut self) -> anyhow::Result<u64>;
}

/// In the order in which a reading goes through them.
pub const ALL: &[HotPath] = &[
    HotPath { name: "sample-procfs", unit: "sample of meminfo, vmstat and stat", make: sampling::procfs },
    HotPath { name: "sample-job", unit: "sample of everything in a job's cgroups", make: sampling::job },
    HotPath { name: "encode-batch", unit: "batch of 285 sensors x 100 samples", make: sampling::encode_batch },
    HotPath { name: "encode-sample", unit: "batch of 285 sensors x 1 sample", make: sampling::encode_sample },
    HotPath { name: "mqtt-write", unit: "PUBLISH of 4 kB", make: mqtt::write },
    HotPath { name: "mqtt-read", unit: "PUBLISH of 4 kB", make: mqtt::read },
    HotPath { name: "decode-batch", unit: "batch of 285 sensors x 100 samples", make: payload::decode_batch },
    HotPath { name: "decode-sample", unit: "batch of 285 sensors x 1 sample", make: payload::decode_sample },
    HotPath { name: "journal-append", unit: "batch of 250 sensors x 10 samples", make: store::append },
    HotPath { name: "block-write", unit: "reading sealed, of 16 agents x 250 sensors x 60 s", make: store::seal },
    HotPath { name: "block-merge", unit: "reading merged, with its tiers", make: store::merge },
    HotPath { name: "block-scan", unit: "reading scanned, of 64 sensors over 1 h", make: query::scan },
    HotPath { name: "query-windows", unit: "reading in windows of 7 s, of 64 sensors over 1 h", make: query::windows },
    HotPath { name: "virtual-sum", unit: "reading added up, of 64 sensors over 1 h", make: query::virtual_sum },
];

/// Runs one path in callgrind: once to be warm, once counted. Prints how many units were counted.
pub fn run(name: &str) -> anyhow::Result<()> {
    let path = ALL.iter().find(|path| path.name == name).with_context(|| format!("there is no path {name:?}"))?;
    stay_on_one_processor();
    let mut path_made = (path.make)().with_context(|| format!("making {name} ready"))?;
    path_made.prepare()?;
    path_made.work()?;
    path_made.prepare()?;
    let units = request::counted(&CString::new(name)?, || path_made.work())?;
    println!("{units} {}", processor());
    Ok(())
}

/// Libraries that start a thread for each processor start one on every machine.
fn stay_on_one_processor() {
    // SAFETY: a set is plain bits, for which zero is a value; the calls read and write one set of the size they are given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let size = std::mem::size_of::<libc::cpu_set_t>();
        if libc::sched_getaffinity(0, size, &mut set) == 0
            && let Some(first) = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &set))
        {
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(first, &mut set);
            libc::sched_setaffinity(0, size, &set);
        }
    }
}

/// The processor features by which libraries select their code. Within valgrind these are valgrind's.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    let has = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("bmi2", is_x86_feature_detected!("bmi2")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let has: [(&str, bool); 0] = [];
    has.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect::<Vec<_>>().join("+")
}
