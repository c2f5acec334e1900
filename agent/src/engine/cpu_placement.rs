//! Places sampler threads on CPUs. Every tick interrupts the program on its CPU; a thread that the kernel moves often interrupts the programs on all
//! CPUs, displaces them and finds cold caches.
//!
//! Therefore the kernel chooses the CPU at first, and the thread then stays there for a period of some hundred ticks. It stays longer if the CPU was
//! otherwise idle, or moves to an idle one. If none is idle, it goes to the next CPU: on a fully loaded node a program that waits for its slowest
//! part loses as much as the part that loses most, which is least if all lose the same. The sampler thread itself does none of this.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::idle::IdleCpus;

/// The scheduler slice of the thread: 100 us, the shortest that the kernel accepts (sched(7), `sched_runtime` in sched_setattr(2)). With a shorter
/// slice the thread runs sooner after its tick while others run.
const SLICE_NS: u64 = 100_000;
/// With a shortest interval above 100 ms the thread is not placed: it wakes so rarely that the kernel's choice of an idle CPU is better.
pub const KEPT_INTERVAL_NS_MAX: u64 = 100_000_000;
/// The number of intervals that it stays on one CPU if all CPUs are in use.
const TURN_TICKS: u32 = 500;
/// The lower bound of that time: 200 ms, twenty of the kernel's accounting ticks.
const TURN_MIN: Duration = Duration::from_millis(200);
/// The upper bound of that time: 10 s.
const TURN_MAX: Duration = Duration::from_secs(10);
/// A CPU counts as idle from this fraction of idle time.
const IDLE_PART: f64 = 0.5;
/// The number of intervals during which the kernel chooses.
const CHOOSING_TICKS: u32 = 5;

/// The value of `[sampler] cpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "toml::Value")]
pub enum SamplerCpu {
    /// The kernel's choice at first, then an idle CPU, or each in turn.
    #[default]
    Sticky,
    /// The kernel's choice at each tick.
    Any,
    /// Always this CPU, if the process may use it.
    Number(u16),
}

fn shown(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| format!("a {}", value.type_str()), |text| format!("{text:?}"))
}

impl TryFrom<toml::Value> for SamplerCpu {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let number = value.as_integer().and_then(|number| u16::try_from(number).ok());
        match (value.as_str(), number) {
            (Some("sticky"), _) => Ok(Self::Sticky),
            (Some("any"), _) => Ok(Self::Any),
            (_, Some(number)) => Ok(Self::Number(number)),
            _ => Err(format!("cpu is {}; use \"sticky\", \"any\" or the number of a CPU", shown(&value))),
        }
    }
}

/// The location of a sampler thread, as the thread reports it.
#[derive(Debug)]
pub struct CpuPlacement {
    thread: AtomicI32,
    cpu: AtomicI32,
}

impl Default for CpuPlacement {
    fn default() -> Self {
        Self { thread: AtomicI32::new(0), cpu: AtomicI32::new(-1) }
    }
}

impl CpuPlacement {
    /// Registers the calling thread.
    pub fn begin(&self) {
        // SAFETY: takes no argument and changes nothing.
        self.thread.store(unsafe { libc::gettid() }, Ordering::Release);
    }

    /// Notes the CPU of the calling thread, at a tick. Without a system call: the C library reads it from memory.
    #[inline]
    pub fn note(&self) {
        // SAFETY: takes no argument and changes nothing.
        self.cpu.store(unsafe { libc::sched_getcpu() }, Ordering::Relaxed);
    }
}

/// Requests a short slice, so that the thread runs soon after each tick while others run. Kernels before 6.12 have one slice for all threads and
/// ignore the request.
pub fn shorten_slice() {
    // SAFETY: integers only, for which zero is valid.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the buffer has the given size; 0 is the calling thread.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } != 0 {
        return;
    }
    if attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SLICE_NS;
        // SAFETY: reads the structure that the kernel filled.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// Keeps one thread on a CPU and moves it.
#[derive(Debug)]
pub struct CpuPlacer {
    placement: Arc<CpuPlacement>,
    cpu: SamplerCpu,
    /// The CPUs that the process may use.
    allowed: libc::cpu_set_t,
    idle: IdleCpus,
    state: PlacerState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlacerState {
    /// The kernel places it, and it is not moved.
    Free,
    /// The kernel places it until then.
    Choosing(Instant),
    /// On a CPU until then.
    Turn { cpu: usize, until: Instant },
    /// On one CPU permanently.
    Fixed,
}

impl CpuPlacer {
    /// For a thread that the kernel places so far.
    pub fn new(placement: Arc<CpuPlacement>, cpu: SamplerCpu) -> Self {
        Self { placement, cpu, allowed: affinity(), idle: IdleCpus::new("/proc/stat"), state: PlacerState::Free }
    }

    pub fn configure(&mut self, cpu: SamplerCpu) {
        if self.cpu != cpu {
            self.cpu = cpu;
            self.free();
        }
    }

    /// Moves the thread if its time on the CPU is over. `interval_ns` is the thread's shortest interval.
    pub fn move_if_due(&mut self, now: Instant, interval_ns: Option<u64>) {
        let interval_ns = interval_ns.filter(|interval| *interval <= KEPT_INTERVAL_NS_MAX);
        match (self.cpu, interval_ns, self.state) {
            (SamplerCpu::Number(_), _, PlacerState::Fixed) => {}
            (SamplerCpu::Number(cpu), ..) => {
                if self.keep_on(usize::from(cpu)) {
                    self.state = PlacerState::Fixed;
                } else {
                    tracing::warn!("[sampler] cpu: CPU {cpu} cannot be used by this process; the kernel chooses");
                    self.cpu = SamplerCpu::Any;
                }
            }
            (SamplerCpu::Any, ..) | (_, None, _) => self.free(),
            (_, Some(interval_ns), PlacerState::Free | PlacerState::Fixed) => {
                self.free();
                self.state = PlacerState::Choosing(now + Duration::from_nanos(interval_ns) * CHOOSING_TICKS);
            }
            (_, Some(interval_ns), PlacerState::Choosing(until)) if now >= until => {
                // Idle times are measured over the thread's time on the CPU.
                self.idle.measure();
                let cpu = usize::try_from(self.placement.cpu.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
                self.stay(cpu, now, interval_ns);
            }
            (_, Some(interval_ns), PlacerState::Turn { cpu, until }) if now >= until => {
                let idle = self.idle.measure();
                let next = next(cpu, &idle, |cpu| is_in(&self.allowed, cpu));
                self.stay(next, now, interval_ns);
            }
            _ => {}
        }
    }

    /// Pins the thread to a CPU for a while. If that fails, it is tried again after the same time.
    fn stay(&mut self, cpu: usize, now: Instant, interval_ns: u64) {
        let is_kept = matches!(self.state, PlacerState::Turn { cpu: before, .. } if before == cpu) || self.keep_on(cpu);
        let turn = (Duration::from_nanos(interval_ns) * TURN_TICKS).clamp(TURN_MIN, TURN_MAX);
        self.state = PlacerState::Turn { cpu, until: now + turn };
        tracing::trace!("the sampler stays on CPU {cpu} for {turn:?}: {is_kept}");
    }

    /// The time until the next move.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        match self.state {
            PlacerState::Choosing(at) | PlacerState::Turn { until: at, .. } => Some(at.saturating_duration_since(now)),
            PlacerState::Free | PlacerState::Fixed => None,
        }
    }

    fn keep_on(&self, cpu: usize) -> bool {
        // SAFETY: a plain bit set, for which zero is valid; the number is checked to be within the set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        if cpu >= libc::CPU_SETSIZE as usize {
            return false;
        }
        // SAFETY: the number was checked.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        self.set(&set)
    }

    fn free(&mut self) {
        if !matches!(self.state, PlacerState::Free | PlacerState::Choosing(_)) {
            self.set(&self.allowed);
        }
        self.state = PlacerState::Free;
    }

    fn set(&self, cpus: &libc::cpu_set_t) -> bool {
        let thread = self.placement.thread.load(Ordering::Acquire);
        // SAFETY: reads the set, whose size is given. The thread id is not 0, which would be the calling thread.
        thread != 0 && unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), cpus) } == 0
    }
}

/// The next CPU of a thread on `cpu`, among the allowed ones; `idle` has the idle fraction of each.
fn next(cpu: usize, idle: &[(usize, f64)], is_allowed: impl Fn(usize) -> bool) -> usize {
    let of = |cpu: usize| idle.iter().find(|(other, _)| *other == cpu).map_or(0.0, |(_, part)| *part);
    if of(cpu) >= IDLE_PART {
        return cpu;
    }
    let mut others = idle.iter().filter(|(other, _)| *other != cpu && is_allowed(*other));
    if let Some((idlest, part)) = others.clone().max_by(|(_, one), (_, other)| one.total_cmp(other))
        && *part >= IDLE_PART
    {
        return *idlest;
    }
    let (first, after) = (others.clone().next(), others.find(|(other, _)| *other > cpu));
    after.or(first).map_or(cpu, |(other, _)| *other)
}

fn is_in(set: &libc::cpu_set_t, cpu: usize) -> bool {
    // SAFETY: only reads, within the set.
    cpu < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(cpu, set) }
}

/// The CPUs that the calling thread may use; all if there are more than the set has room for.
fn affinity() -> libc::cpu_set_t {
    // SAFETY: a plain bit set, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the buffer has the given size; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
        // SAFETY: numbers within the set only.
        (0..libc::CPU_SETSIZE as usize).for_each(|cpu| unsafe { libc::CPU_SET(cpu, &mut set) });
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const MS: u64 = 1_000_000;

    fn count(thread: i32) -> i32 {
        // SAFETY: as in `affinity`.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: as in `affinity`.
        assert_eq!(unsafe { libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &mut set) }, 0);
        // SAFETY: only counts bits.
        unsafe { libc::CPU_COUNT(&set) }
    }

    #[test]
    fn a_thread_is_kept_where_it_was_and_let_go_again() {
        let placement = Arc::new(CpuPlacement::default());
        let (theirs, end) = (placement.clone(), Arc::new(AtomicBool::new(false)));
        let ends = end.clone();
        let thread = std::thread::spawn(move || {
            shorten_slice();
            theirs.note();
            theirs.begin();
            while !ends.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(1));
            }
        });
        while placement.thread.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        let id = placement.thread.load(Ordering::Relaxed);
        let (all, start) = (count(id), Instant::now());
        let mut placer = CpuPlacer::new(placement, SamplerCpu::default());
        placer.move_if_due(start, Some(1000 * MS));
        assert_eq!(
            (placer.state, placer.due_in(start)),
            (PlacerState::Free, None),
            "seldom: wherever the kernel likes"
        );
        placer.move_if_due(start, Some(MS));
        assert_eq!((placer.due_in(start), count(id)), (Some(Duration::from_millis(5)), all), "the kernel chooses");
        placer.move_if_due(start + Duration::from_millis(5), Some(MS));
        assert_eq!((count(id), placer.due_in(start)), (1, Some(Duration::from_millis(505))));
        placer.move_if_due(start + Duration::from_millis(504), Some(MS));
        assert_eq!(placer.due_in(start), Some(Duration::from_millis(505)), "its turn is not over");
        placer.move_if_due(start + Duration::from_millis(505), Some(50 * MS));
        assert_eq!((count(id), placer.due_in(start)), (1, Some(Duration::from_millis(10_505))), "at most 10 s");
        placer.move_if_due(start, Some(1000 * MS));
        assert_eq!((count(id), placer.state), (all, PlacerState::Free));
        placer.move_if_due(start, Some(MS));
        placer.move_if_due(start + Duration::from_secs(12), Some(MS));
        assert_eq!(count(id), 1);
        placer.configure(SamplerCpu::Any);
        assert_eq!((count(id), placer.due_in(start)), (all, None));
        placer.configure(SamplerCpu::Number(9_999));
        placer.move_if_due(start, Some(MS));
        assert_eq!((count(id), placer.cpu), (all, SamplerCpu::Any), "there is no such CPU");
        placer.configure(SamplerCpu::Number(0));
        placer.move_if_due(start, Some(MS));
        assert_eq!((placer.state, count(id)), (PlacerState::Fixed, 1));
        placer.configure(SamplerCpu::Sticky);
        placer.move_if_due(start, Some(MS));
        assert_eq!(count(id), all, "it chooses");
        end.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }

    #[test]
    fn who_disturbs_nobody_stays_and_who_does_takes_turns() {
        let all = |_: usize| true;
        assert_eq!(next(1, &[(0, 0.9), (1, 0.6), (2, 1.0)], all), 1, "idle enough");
        assert_eq!(next(1, &[(0, 0.9), (1, 0.1), (2, 1.0), (3, 0.0)], all), 2, "the idlest");
        assert_eq!(next(1, &[(0, 0.9), (1, 0.1), (2, 1.0)], |cpu| cpu != 2), 0, "of those that may be used");
        // All are in use: they are used in turn, without those that are not allowed.
        let busy: Vec<(usize, f64)> = [0, 1, 4, 5].map(|cpu| (cpu, 0.2)).into();
        let round: Vec<usize> =
            std::iter::successors(Some(4), |cpu| Some(next(*cpu, &busy, |cpu| cpu != 1))).take(5).collect();
        assert_eq!(round, [4, 5, 0, 4, 5]);
        assert_eq!(next(7, &[], all), 7, "nothing is known");
        assert_eq!(next(0, &[(0, 0.0)], all), 0, "the only one");
    }
}
