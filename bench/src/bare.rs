//! The yardstick: a loop with the same tick that only reads the same files, with nothing around it. Each second it prints how
//! many ticks it has made and missed.

use std::ffi::CString;

use anyhow::{Context, ensure};

/// What is read, in every comparison.
pub const FILES: [&str; 3] = ["/proc/meminfo", "/proc/vmstat", "/proc/stat"];

#[derive(clap::Args)]
pub struct Options {
    /// Tick in milliseconds.
    #[arg(long, default_value_t = 1)]
    interval_ms: u64,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let mut descriptors = [0; FILES.len()];
    for (descriptor, file) in descriptors.iter_mut().zip(FILES) {
        let path = CString::new(file)?;
        // SAFETY: `path` is a string with its final NUL that outlives the call.
        *descriptor = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        ensure!(*descriptor >= 0, "opening {file}: {}", std::io::Error::last_os_error());
    }
    // SAFETY: PR_SET_TIMERSLACK takes one number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut buffer = vec![0u8; 64 << 10];
    let interval_ns = i64::try_from(options.interval_ms * 1_000_000).context("the interval")?;
    let mut next = now();
    let (mut made, mut missed, mut told) = (0u64, 0, next);
    loop {
        let skipped = (now() - next).max(0) / interval_ns;
        next += interval_ns * (1 + skipped);
        missed += skipped;
        made += 1;
        // Once a second: what the parent compares, too seldom to cost anything.
        if next - told >= 1_000_000_000 {
            told = next;
            println!("{made} {missed}");
        }
        let deadline = libc::timespec { tv_sec: next / 1_000_000_000, tv_nsec: next % 1_000_000_000 };
        // SAFETY: `deadline` lives through the call; the remaining time is not asked for.
        unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &deadline, std::ptr::null_mut()) };
        for descriptor in descriptors {
            // SAFETY: the buffer is as long as said and nobody else uses it.
            let count = unsafe { libc::pread(descriptor, buffer.as_mut_ptr().cast(), buffer.len(), 0) };
            ensure!(count > 0, "reading: {}", std::io::Error::last_os_error());
        }
    }
}

fn now() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the out-pointer is to a live variable of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
