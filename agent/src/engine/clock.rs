//! The system's clocks, and a precise sleep that another thread can end.

use std::sync::atomic::{AtomicU32, Ordering};

use super::schedule::ClockReading;

const NS: i64 = 1_000_000_000;

fn clock(id: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the result; the call has no other effect.
    unsafe { libc::clock_gettime(id, &mut time) };
    time.tv_sec * NS + time.tv_nsec
}

/// Realtime, ns since the Unix epoch.
pub fn real() -> i64 {
    clock(libc::CLOCK_REALTIME)
}

/// Monotonic time in ns.
pub fn mono() -> i64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// CPU time of the process so far, in ns.
pub fn process_cpu() -> i64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Both clocks are read within 100 µs of each other. Otherwise a thread that is preempted in between would see a step of the clock where there is
/// none.
const APART_NS_MAX: i64 = 100_000;
/// How often both clocks are read again to get that close.
const READS_MAX: usize = 10;

/// Both clocks at one instant.
pub fn now() -> ClockReading {
    now_of(mono, real)
}

/// As [`now`], if realtime minus monotonic is still about `offset`: then one read of each clock is enough.
pub fn now_near(offset: i64) -> ClockReading {
    near_of(offset, mono, real)
}

fn near_of(offset: i64, mut mono: impl FnMut() -> i64, mut real: impl FnMut() -> i64) -> ClockReading {
    let now = ClockReading { mono: mono(), real: real() };
    let apart = now.real.wrapping_sub(now.mono).wrapping_sub(offset);
    if (-APART_NS_MAX..=APART_NS_MAX).contains(&apart) { now } else { now_of(mono, real) }
}

/// As [`now`], with any clocks: the closest pair of the reads.
fn now_of(mut mono: impl FnMut() -> i64, mut real: impl FnMut() -> i64) -> ClockReading {
    let (mut best, mut apart_min) = (ClockReading { real: 0, mono: 0 }, i64::MAX);
    for _ in 0..READS_MAX {
        let (before, real, after) = (mono(), real(), mono());
        if after - before < apart_min {
            apart_min = after - before;
            best = ClockReading { real, mono: before + apart_min / 2 };
        }
        if apart_min <= APART_NS_MAX {
            break;
        }
    }
    best
}

/// Sets the thread's timer slack to 1 ns in place of 50 µs, so that the kernel wakes it as exactly as it can.
pub fn sharpen_timers() {
    // SAFETY: sets a property of the calling thread; takes integers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64, 0u64, 0u64, 0u64) };
}

/// A flag that ends a sleep.
#[derive(Debug, Default)]
pub struct Wake(AtomicU32);

impl Wake {
    /// The state for [`Wake::sleep_until`]: read before checking for work, so that no wake-up is lost in between.
    pub fn state(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Ends the sleep of the waiting thread, now or when it next begins.
    pub fn wake(&self) {
        self.0.fetch_add(1, Ordering::Release);
        // SAFETY: the address is that of a live atomic; the kernel only uses it to find the sleeper.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
    }

    /// Sleeps until the monotonic clock shows `deadline` ns, or until a wake-up after `state` was read. The deadline is absolute, on the same
    /// high-resolution timers as `clock_nanosleep`, which no other thread could end.
    pub fn sleep_until(&self, deadline: i64, state: u32) {
        let deadline = deadline.max(0);
        let time = libc::timespec { tv_sec: deadline / NS, tv_nsec: deadline % NS };
        let operation = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
        let no_address = std::ptr::null::<u32>();
        // SAFETY: the address is that of a live atomic, `time` outlives the call; the second address is not used by this operation.
        unsafe {
            let any = libc::FUTEX_BITSET_MATCH_ANY;
            libc::syscall(
                libc::SYS_futex,
                self.0.as_ptr(),
                operation,
                state,
                &time as *const libc::timespec,
                no_address,
                any,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_preemption_between_the_clocks_is_no_step() {
        use crate::engine::schedule::StepDetector;
        // The thread loses the processor for 20 ms at each of the first reads in turn.
        for at in 0..6 {
            let (time, reads) = (std::cell::Cell::new(0i64), std::cell::Cell::new(0));
            let read = || {
                reads.set(reads.get() + 1);
                time.set(time.get() + if reads.get() == at { 20_000_000 } else { 50 });
                time.get()
            };
            let mut steps = StepDetector::new(ClockReading { real: 1_000 * NS, mono: 0 });
            assert_eq!(steps.observe(now_of(read, || read() + 1_000 * NS)), None, "preempted at read {at}");
        }
    }

    #[test]
    fn a_clock_that_is_as_it_was_is_looked_at_once() {
        let (time, reads) = (std::cell::Cell::new(0i64), std::cell::Cell::new(0));
        let read = || {
            reads.set(reads.get() + 1);
            time.set(time.get() + 50);
            time.get()
        };
        let near = |offset: i64, step: i64| {
            reads.set(0);
            let now = near_of(offset, read, || read() + 1_000 * NS + step);
            (now.real - now.mono - 1_000 * NS, reads.get())
        };
        assert_eq!(near(1_000 * NS, 0), (50, 2));
        assert_eq!(near(1_000 * NS, -NS), (-NS, 5), "stepped: both clocks are read again, closer together");
        // The thread loses the processor for 20 ms between the two.
        let late = near_of(1_000 * NS, read, || {
            if reads.get() == 6 {
                time.set(time.get() + 20_000_000);
            }
            read() + 1_000 * NS
        });
        assert_eq!((late.real - late.mono - 1_000 * NS, reads.get()), (0, 10));
    }

    #[test]
    fn a_sleep_lasts_to_its_deadline_or_until_woken() {
        let wake = Arc::new(Wake::default());
        let deadline = mono() + 2_000_000;
        while mono() < deadline {
            wake.sleep_until(deadline, wake.state());
        }
        assert!(mono() >= deadline);
        let state = wake.state();
        let other = wake.clone();
        let thread = std::thread::spawn(move || other.wake());
        let start = mono();
        wake.sleep_until(start + 3600 * NS, state);
        thread.join().unwrap();
        assert!(mono() - start < 60 * NS, "woken long before the deadline");
    }
}
