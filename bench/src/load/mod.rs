//! The load generator: simulated agents and other publishers over real sockets, cheap enough to share two cores with the
//! server that it loads.
//!
//! - In: how many, how large, how often; where the server is.
//! - Out: publishes with quality of service 0 or 1; acknowledgements with their times, and the sums that the store must hold afterwards.
//! - Never: a thread for a connection (one thread and `epoll` serve all), a publish sent again: a connection that breaks ends
//!   the measurement with an error.

pub mod agent;
pub mod client;
pub mod fleet;
pub mod latencies;
pub mod link;
pub mod poll;
pub mod template;
pub mod values;

/// The processor time that this process, the load generator, has used: ns, user and system, all threads.
pub fn own_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which `time` is.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The wall clock, ns since the Unix epoch.
pub fn wall_ns() -> i64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as i64)
}

/// Lets this process open as many files as it may.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read and write one rlimit, which `limit` is.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}
