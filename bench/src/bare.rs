//! The yardstick: a loop with the same tick that only reads the same files, with nothing around it. It tells how many ticks it
//! has made and missed: each second on standard output, or all the time in a file that lies in memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};

use crate::jobs::bare::{Open, Read, open_listed, open_read, read_one};

/// The files that every comparison reads.
const FILES: [&str; 3] = ["/proc/meminfo", "/proc/vmstat", "/proc/stat"];
/// The largest of them has about 20 kB on a machine of 128 CPUs.
const BUFFER_BYTES: usize = 64 << 10;

#[derive(clap::Args)]
pub struct BareOptions {
    /// Length of a tick, milliseconds.
    #[arg(long, default_value_t = 1.0)]
    interval_ms: f64,
    /// Tick without any read.
    #[arg(long)]
    tick_only: bool,
    /// A list of reads in place of the three files, as for `bare-jobs`.
    #[arg(long, conflicts_with = "tick_only")]
    reads: Option<PathBuf>,
    /// Where ticks made and missed are kept, in place of printing them.
    #[arg(long)]
    counts: Option<PathBuf>,
}

/// Ticks made and missed, in 16 bytes of a file that is mapped: telling costs the loop two stores and no system call.
pub struct Counts(*const [AtomicU64; 2]);

impl Counts {
    fn map(path: &Path) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.with_context(|| format!("making {}", path.display()))?;
        file.set_len(size_of::<[AtomicU64; 2]>() as u64).context("the length of a file")?;
        // SAFETY: a new shared mapping of an open file of that length, at a place the kernel chooses.
        let place = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<[AtomicU64; 2]>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        ensure!(place != libc::MAP_FAILED, "mapping {}: {}", path.display(), std::io::Error::last_os_error());
        Ok(Self(place.cast()))
    }

    fn tell(&self, made: u64, missed: u64) {
        // SAFETY: the mapping is of that size, aligned to a page, and stays as long as the process.
        let [place_of_made, place_of_missed] = unsafe { &*self.0 };
        place_of_made.store(made, Ordering::Relaxed);
        place_of_missed.store(missed, Ordering::Relaxed);
    }
}

pub fn run(options: &BareOptions) -> anyhow::Result<()> {
    let reads: Vec<Open> = match &options.reads {
        Some(list) => open_listed(list)?,
        None if options.tick_only => Vec::new(),
        None => FILES.iter().map(|file| open_read(&Read::File(file.into()))).collect::<anyhow::Result<_>>()?,
    };
    let counts = options.counts.as_deref().map(Counts::map).transpose()?;
    // SAFETY: PR_SET_TIMERSLACK takes one number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut buffer = vec![0u8; BUFFER_BYTES];
    let interval_ns = (options.interval_ms * 1e6).round() as i64;
    ensure!(interval_ns > 0, "the tick of {} ms is none", options.interval_ms);
    let mut next = now();
    let (mut made, mut missed, mut reported) = (0u64, 0u64, next);
    loop {
        let skipped = (now() - next).max(0) / interval_ns;
        next += interval_ns * (1 + skipped);
        missed += skipped.unsigned_abs();
        made += 1;
        match &counts {
            Some(counts) => counts.tell(made, missed),
            // Once a second, for the parent: too seldom to have a cost.
            None if next - reported >= 1_000_000_000 => {
                reported = next;
                println!("{made} {missed}");
            }
            None => {}
        }
        let deadline = libc::timespec { tv_sec: next / 1_000_000_000, tv_nsec: next % 1_000_000_000 };
        // SAFETY: `deadline` lives through the call; the remaining time is not asked for.
        unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &deadline, std::ptr::null_mut()) };
        reads.iter().try_for_each(|read| read_one(read, &mut buffer))?;
    }
}

fn now() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the out-pointer is to a live variable of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
