//! When which device is polled, without threads, sockets and clocks.
//!
//! A group is polled shortly before the wall-clock multiples of its interval, so that its answer is there when the agent reads it. The polls of
//! different devices are spread by their paths. A device has one poll at a time. One that gives no answer is polled again after a pause that grows
//! from 1 s to 5 min, one that refuses the credentials after 5 min to 1 h. Devices without answers take at most half of the polls in flight.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::answers::DeviceProblem;

const SECOND_NS: u64 = 1_000_000_000;
/// The first pause after a poll without an answer: 1 s. It doubles with each further one.
pub const PAUSE_NS_MIN: u64 = SECOND_NS;
/// The longest pause: 5 min.
pub const PAUSE_NS_MAX: u64 = 300 * SECOND_NS;
/// The first pause after refused credentials: 5 min, so that no account is locked.
pub const CREDENTIALS_PAUSE_NS_MIN: u64 = 300 * SECOND_NS;
/// The longest pause after refused credentials: 1 h.
pub const CREDENTIALS_PAUSE_NS_MAX: u64 = 3600 * SECOND_NS;
/// Polls of different devices are spread over half an interval, at most 5 s.
const SPREAD_NS_MAX: u64 = 5 * SECOND_NS;
/// A poll begins a quarter of the interval before the group is read, at most 1 s.
const MARGIN_NS_MAX: u64 = SECOND_NS;

/// One instant on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollInstant {
    /// Nanoseconds on a clock that never steps.
    pub mono_ns: u64,
    /// Nanoseconds since the epoch.
    pub wall_ns: i64,
}

/// The interval and offset of a group, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTicks {
    pub interval_ns: u64,
    pub offset_ns: u64,
}

/// A poll: the numbers of a device and of one of its groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PollKey {
    pub device: usize,
    pub group: usize,
}

struct DeviceState {
    groups: Vec<GroupTicks>,
    /// The device's part of the spread, from 0 to 1.
    part: f64,
    is_busy: bool,
    /// Polls without an answer in a row.
    failures: u32,
    not_before_ns: u64,
    /// Groups that were due while another one was polled.
    waiting: Vec<usize>,
}

/// The polls of all devices of a source.
pub struct PollSchedule {
    devices: Vec<DeviceState>,
    due: BinaryHeap<Reverse<(u64, PollKey)>>,
    /// Due polls of devices that answered last, and of those that did not.
    healthy: VecDeque<PollKey>,
    failing: VecDeque<PollKey>,
    in_flight: usize,
    failing_in_flight: usize,
    in_flight_max: usize,
}

impl PollSchedule {
    /// An empty schedule with this many polls at a time.
    pub fn new(in_flight_max: usize) -> Self {
        Self {
            devices: Vec::new(),
            due: BinaryHeap::new(),
            healthy: VecDeque::new(),
            failing: VecDeque::new(),
            in_flight: 0,
            failing_in_flight: 0,
            in_flight_max: in_flight_max.max(1),
        }
    }

    /// Adds a device; its groups are due at once. `path` decides its place in the spread. Returns its number.
    pub fn add(&mut self, path: &str, groups: Vec<GroupTicks>, now: PollInstant) -> usize {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        let device = self.devices.len();
        self.due.extend((0..groups.len()).map(|group| Reverse((now.mono_ns, PollKey { device, group }))));
        self.devices.push(DeviceState {
            groups,
            part: (hasher.finish() >> 11) as f64 / (1u64 << 53) as f64,
            is_busy: false,
            failures: 0,
            not_before_ns: 0,
            waiting: Vec::new(),
        });
        device
    }

    /// When the next poll is due, on the monotonic clock. `None` while all devices are in flight.
    pub fn next_due_ns(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// The polls in flight now.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// A poll to begin now, if one is due and may begin.
    pub fn take(&mut self, now: PollInstant) -> Option<PollKey> {
        while let Some(Reverse((due, key))) = self.due.peek().copied().filter(|Reverse((due, _))| *due <= now.mono_ns) {
            self.due.pop();
            let device = &mut self.devices[key.device];
            if device.not_before_ns > due.max(now.mono_ns) {
                self.due.push(Reverse((device.not_before_ns, key)));
            } else if device.is_busy {
                device.waiting.push(key.group);
            } else {
                device.is_busy = true;
                let queue = if device.failures > 0 { &mut self.failing } else { &mut self.healthy };
                queue.push_back(key);
            }
        }
        if self.in_flight == self.in_flight_max {
            return None;
        }
        let key = match self.healthy.pop_front() {
            Some(key) => key,
            None if self.failing_in_flight < self.in_flight_max.div_ceil(2) => self.failing.pop_front()?,
            None => return None,
        };
        self.in_flight += 1;
        self.failing_in_flight += usize::from(self.devices[key.device].failures > 0);
        Some(key)
    }

    /// Whether the device gave no answer to its last poll. A poll of it sends each request once.
    pub fn is_failing(&self, device: usize) -> bool {
        self.devices[device].failures > 0
    }

    /// Ends a poll that [`PollSchedule::take`] began, and plans the next one.
    pub fn done(&mut self, key: PollKey, problem: Option<DeviceProblem>, now: PollInstant) {
        let device = &mut self.devices[key.device];
        self.in_flight -= 1;
        self.failing_in_flight -= usize::from(device.failures > 0);
        device.is_busy = false;
        let due = match problem {
            // A device that answers is not silent: it keeps its interval, and one of its groups delays no other.
            problem if problem.is_none_or(DeviceProblem::is_of_group) => {
                device.failures = 0;
                device.not_before_ns = 0;
                device.next(key.group, now)
            }
            problem => {
                let (first, longest) = match problem {
                    Some(DeviceProblem::Credentials) => (CREDENTIALS_PAUSE_NS_MIN, CREDENTIALS_PAUSE_NS_MAX),
                    _ => (PAUSE_NS_MIN, PAUSE_NS_MAX),
                };
                let pause = first.saturating_mul(1 << device.failures.min(30)).min(longest);
                device.failures += 1;
                // Devices that vanished together are not polled together again.
                let pause = pause - (pause as f64 * 0.2 * device.part) as u64;
                device.not_before_ns = now.mono_ns + pause;
                device.not_before_ns
            }
        };
        self.due.push(Reverse((due, key)));
        for group in std::mem::take(&mut self.devices[key.device].waiting) {
            self.due.push(Reverse((now.mono_ns, PollKey { group, ..key })));
        }
    }
}

impl DeviceState {
    /// The next poll of a group after `now`, on the monotonic clock.
    fn next(&self, group: usize, now: PollInstant) -> u64 {
        let GroupTicks { interval_ns, offset_ns } = self.groups[group];
        let spread = (interval_ns / 2).min(SPREAD_NS_MAX);
        let lead = (interval_ns / 4).min(MARGIN_NS_MAX) + (spread as f64 * self.part) as u64;
        let interval = i128::from(interval_ns.max(1));
        let phase = i128::from(offset_ns) - i128::from(lead);
        let since = (i128::from(now.wall_ns) - phase).rem_euclid(interval);
        now.mono_ns + u64::try_from(interval - since).unwrap_or(interval_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: GroupTicks = GroupTicks { interval_ns: 10 * SECOND_NS, offset_ns: 0 };

    fn at(ms: u64) -> PollInstant {
        let ns = ms * 1_000_000;
        PollInstant { mono_ns: ns, wall_ns: 1_000_000_000_000_000_000 + ns as i64 }
    }

    /// Runs until `end_ms` in steps of 1 ms; `answer` decides the end of each poll, which takes no time.
    fn run(
        schedule: &mut PollSchedule,
        end_ms: u64,
        answer: impl Fn(PollKey) -> Option<DeviceProblem>,
    ) -> Vec<(u64, PollKey)> {
        let mut polls = Vec::new();
        for ms in 0..end_ms {
            while let Some(key) = schedule.take(at(ms)) {
                polls.push((ms, key));
                schedule.done(key, answer(key), at(ms));
            }
        }
        polls
    }

    #[test]
    fn polls_are_before_the_multiples_and_spread() {
        let mut schedule = PollSchedule::new(10);
        for device in 0..100 {
            schedule.add(&format!("pdu{device}"), vec![TEN], at(0));
        }
        let polls = run(&mut schedule, 40_000, |_| None);
        assert_eq!(polls.iter().filter(|(ms, _)| *ms == 0).count(), 100, "all are due at once at the start");
        let later: Vec<u64> = polls.iter().map(|(ms, _)| *ms).filter(|ms| *ms > 0).collect();
        assert_eq!(later.len(), 400, "one poll in each interval");
        assert!(later.iter().all(|ms| (4_000..=9_000).contains(&(ms % 10_000))), "in the 5 s before the margin of 1 s");
        let early = later.iter().filter(|ms| (4_000..6_500).contains(&(*ms % 10_000))).count();
        assert!((120..280).contains(&early), "{early} of 400 in the first half of the spread");
    }

    #[test]
    fn a_silent_device_is_polled_seldom() {
        let mut schedule = PollSchedule::new(10);
        schedule.add("pdu", vec![TEN, TEN], at(0));
        let silent = run(&mut schedule, 3_600_000, |_| Some(DeviceProblem::Silent));
        // 1, 2, 4, … 256 s, then every 5 min: 9 and some 11; the pauses are up to a fifth shorter.
        assert!((18..30).contains(&silent.len()), "{} polls in an hour", silent.len());
        let mut schedule = PollSchedule::new(10);
        schedule.add("pdu", vec![TEN, TEN], at(0));
        let refused = run(&mut schedule, 3_600_000, |_| Some(DeviceProblem::Credentials));
        assert!((3..=6).contains(&refused.len()), "{} polls with refused credentials in an hour", refused.len());
        let mut schedule = PollSchedule::new(10);
        schedule.add("pdu", vec![TEN], at(0));
        let errors = run(&mut schedule, 100_000, |_| Some(DeviceProblem::Refused("x")));
        assert!((10..=12).contains(&errors.len()), "a device that answers with errors keeps its interval");
    }

    #[test]
    fn a_group_that_answers_garbage_delays_no_other() {
        let mut schedule = PollSchedule::new(10);
        schedule.add("pdu", vec![TEN, TEN], at(0));
        let polls = run(&mut schedule, 100_000, |key| (key.group == 0).then_some(DeviceProblem::Garbage("not a page")));
        for group in [0, 1] {
            let count = polls.iter().filter(|(_, key)| key.group == group).count();
            assert!((10..=12).contains(&count), "{count} polls of group {group}");
        }
    }

    #[test]
    fn silent_devices_leave_room_for_others() {
        let mut schedule = PollSchedule::new(4);
        for device in 0..100 {
            schedule.add(&format!("pdu{device}"), vec![TEN], at(0));
        }
        // All fail at first.
        for _ in 0..100 {
            let key = schedule.take(at(0)).unwrap();
            schedule.done(key, Some(DeviceProblem::Silent), at(0));
        }
        let now = at(2_000);
        let failing: Vec<PollKey> = std::iter::from_fn(|| schedule.take(now)).collect();
        assert_eq!(failing.len(), 2, "half of 4");
        schedule.add("new", vec![TEN], now);
        assert_eq!(schedule.take(now), Some(PollKey { device: 100, group: 0 }));
        assert_eq!(schedule.in_flight(), 3);
    }

    #[test]
    fn a_device_has_one_poll_at_a_time() {
        let mut schedule = PollSchedule::new(4);
        schedule.add("pdu", vec![TEN, TEN], at(0));
        let first = schedule.take(at(0)).unwrap();
        assert_eq!(schedule.take(at(1)), None);
        schedule.done(first, None, at(1));
        let second = schedule.take(at(1)).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn a_clock_step_moves_no_poll_far() {
        let mut schedule = PollSchedule::new(4);
        schedule.add("pdu", vec![TEN], at(0));
        let key = schedule.take(at(0)).unwrap();
        schedule.done(key, None, PollInstant { mono_ns: 0, wall_ns: -5 });
        assert!(schedule.next_due_ns().unwrap() <= 10 * SECOND_NS);
    }
}
