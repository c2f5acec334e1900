//! The schedule of a group. Pure: the clocks are arguments, so that tests can step them.
//!
//! A synchronous group is read at the wall clock's multiples of its interval plus its offset. Ticks are computed as whole nanoseconds from the
//! multiple, so that nothing drifts. A free-running group counts on the monotonic clock.

use wholegrain_model::Interval;

use super::passes::ClockPasses;

/// A change of (realtime - monotonic) beyond 5 ms between two reads is a step of the clock; below it, the clock is slewed.
pub const CLOCK_STEP_NS: i64 = 5_000_000;
/// The longest sleep with a synchronous group, so that a step of the clock is noticed: 1 s.
pub const SLEEP_NS_MAX: i64 = 1_000_000_000;
/// The longest lag with which a sample still carries the scheduled time: 1 ms.
pub const TOLERANCE_NS_MAX: i64 = 1_000_000;
/// The same as a fraction of the interval: a twentieth.
pub const TOLERANCE_PART: i64 = 20;
/// The longest interval, so that sums of a time and an interval fit into 64 bits: 10 years.
pub const INTERVAL_NS_MAX: i64 = 10 * 365 * 86_400 * 1_000_000_000;

/// Both clocks at one instant, ns: `CLOCK_REALTIME` since the Unix epoch, `CLOCK_MONOTONIC` since some start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    pub real: i64,
    pub mono: i64,
}

/// Detects steps of the wall clock.
#[derive(Debug, Clone, Copy)]
pub struct StepDetector {
    offset: i64,
}

impl StepDetector {
    /// Starts the comparison at `now`.
    pub fn new(now: ClockReading) -> Self {
        Self { offset: now.real.wrapping_sub(now.mono) }
    }

    /// Reads the clocks. The step of the wall clock since the last call, if there was one.
    pub fn observe(&mut self, now: ClockReading) -> Option<i64> {
        let offset = now.real.wrapping_sub(now.mono);
        let by = offset.wrapping_sub(self.offset);
        self.offset = offset;
        (by.abs() > CLOCK_STEP_NS).then_some(by)
    }

    /// Whether the wall clock has been stepped since the last call.
    fn is_stepped(&self, now: ClockReading) -> bool {
        now.real.wrapping_sub(now.mono).wrapping_sub(self.offset).wrapping_abs() > CLOCK_STEP_NS
    }

    /// Realtime minus monotonic at the last call.
    pub fn offset(&self) -> i64 {
        self.offset
    }
}

/// What a group has to do at a wake-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DueTick {
    Nothing,
    /// These ticks have times that an earlier pass of the clock has sampled: nothing is read.
    AlreadySampled(u64),
    Tick(Tick),
}

/// A thread's view of the wall clock: its steps, and the times that were sampled before them.
#[derive(Debug, Clone, Copy)]
pub struct WallClock {
    steps: StepDetector,
    passes: ClockPasses,
}

impl WallClock {
    /// Starts at `now`, with the times that the process has sampled before.
    pub fn new(now: ClockReading, passes: Option<ClockPasses>) -> Self {
        Self { steps: StepDetector::new(now), passes: passes.unwrap_or(ClockPasses::new(now.real)) }
    }

    /// Reads the clocks. The step of the wall clock since the last call, if there was one.
    pub fn observe(&mut self, now: ClockReading) -> Option<i64> {
        let by = self.steps.observe(now)?;
        self.passes.stepped(now.real.wrapping_sub(by), now.real);
        Some(by)
    }

    /// Realtime minus monotonic at the last call.
    pub fn offset(&self) -> i64 {
        self.steps.offset()
    }

    /// The times that were sampled before the last step.
    pub fn passes(&self) -> &ClockPasses {
        &self.passes
    }

    /// Whether a sample can be taken now at the true time: the clock was not stepped since the last call, and the time has no sample.
    pub fn is_free(&self, now: ClockReading) -> bool {
        !self.steps.is_stepped(now) && self.passes.held_until(now.real).is_none()
    }

    /// The tick of `ticker` that was due when the thread woke. None if the wall clock was stepped since the last call, for example during the reads
    /// of other groups: the step has to be observed first, because a tick counted partly before and partly after it would be wrong by the whole step.
    pub fn take(&self, ticker: &mut Ticker, woken: ClockReading, now: ClockReading) -> DueTick {
        if self.steps.is_stepped(now) {
            return DueTick::Nothing;
        }
        match ticker.take(woken, now) {
            None => DueTick::Nothing,
            Some(tick) if self.passes.held_until(tick.stamp).is_some() => DueTick::AlreadySampled(tick.missed + 1),
            Some(tick) => DueTick::Tick(tick),
        }
    }
}

/// The timing of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TickSchedule {
    pub interval: Interval,
    /// Added to the multiples of the interval.
    pub offset: Interval,
    /// On multiples of the wall clock, or free-running.
    pub synchronous: bool,
}

/// A tick that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    pub scheduled: i64,
    /// How much later the read begins, ns; not negative.
    pub lag: i64,
    /// The sample's time: the scheduled time if the lag is within the tolerance, otherwise the true time. Also the true time if the sample before has
    /// a true time behind the scheduled one, because times of a group go forward.
    pub stamp: i64,
    /// Ticks before this one without a read.
    pub missed: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct Ticker {
    interval: i64,
    phase: i64,
    synchronous: bool,
    tolerance: i64,
    /// The next tick: realtime if synchronous, otherwise monotonic.
    next: i64,
    /// The time of the last sample; the smallest possible one before the first and after a step of the clock.
    stamped: i64,
}

impl Ticker {
    /// Starts. The first tick is the first multiple after `now`; of a free-running group it is `now` plus the offset.
    pub fn new(ticking: TickSchedule, now: ClockReading) -> Self {
        let interval = i64::try_from(ticking.interval.ns()).unwrap_or(INTERVAL_NS_MAX).clamp(1, INTERVAL_NS_MAX);
        let offset = i64::try_from(ticking.offset.ns()).unwrap_or(0);
        let mut ticker = Self {
            interval,
            phase: offset.rem_euclid(interval),
            synchronous: ticking.synchronous,
            tolerance: (interval / TOLERANCE_PART).min(TOLERANCE_NS_MAX),
            next: 0,
            stamped: i64::MIN,
        };
        ticker.next =
            if ticker.synchronous { ticker.multiple_after(now.real) } else { now.mono.saturating_add(ticker.phase) };
        ticker
    }

    pub fn interval_ns(&self) -> u64 {
        self.interval as u64
    }

    /// Whether it follows the wall clock.
    pub fn is_synchronous(&self) -> bool {
        self.synchronous
    }

    /// The monotonic time of the next tick, by the last difference of the clocks.
    pub fn deadline(&self, clock_offset: i64) -> i64 {
        if self.synchronous { self.next.saturating_sub(clock_offset) } else { self.next }
    }

    /// The tick that was due when the thread woke; the next one is then after that instant. At most one: earlier ones are counted in
    /// [`Tick::missed`]. The read begins at `now`, after those of the groups before it. The instant of waking decides for all groups of a thread:
    /// groups of one interval stay in step, however late the thread is, and a sensor that moves between two groups is read exactly once at each tick.
    pub fn take(&mut self, woken: ClockReading, now: ClockReading) -> Option<Tick> {
        let clock = |at: ClockReading| if self.synchronous { at.real } else { at.mono };
        let late = clock(woken).saturating_sub(self.next);
        if late < 0 {
            return None;
        }
        let missed = late / self.interval;
        let tick = self.next.saturating_add(missed.saturating_mul(self.interval));
        let lag = clock(now).saturating_sub(tick).max(0);
        self.next = tick.saturating_add(self.interval);
        let scheduled = now.real - lag;
        let stamp = if lag <= self.tolerance && scheduled > self.stamped { scheduled } else { now.real };
        self.stamped = stamp;
        Some(Tick { scheduled, lag, stamp, missed: missed as u64 })
    }

    /// Goes on after a step of the wall clock at the next multiple of the new time. Returns as missed the ticks that a step forward skipped, as after
    /// the suspension of a machine. Times may go back with the clock.
    pub fn stepped(&mut self, now: ClockReading) -> u64 {
        self.stamped = i64::MIN;
        if !self.synchronous {
            return 0;
        }
        let jumped = now.real.saturating_sub(self.next);
        let missed = if jumped >= 0 { jumped / self.interval + 1 } else { 0 };
        self.next = self.multiple_after(now.real);
        missed as u64
    }

    fn multiple_after(&self, real: i64) -> i64 {
        let since = real.saturating_sub(self.phase);
        since.saturating_sub(since.rem_euclid(self.interval)).saturating_add(self.interval).saturating_add(self.phase)
    }
}

/// The monotonic time until which a thread with these tickers may sleep.
pub fn sleep_until<'a>(tickers: impl Iterator<Item = &'a Ticker>, now_mono: i64, clock_offset: i64) -> i64 {
    let mut until = i64::MAX;
    let mut synchronous = false;
    for ticker in tickers {
        until = until.min(ticker.deadline(clock_offset));
        synchronous |= ticker.is_synchronous();
    }
    if synchronous { until.min(now_mono.saturating_add(SLEEP_NS_MAX)) } else { until }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;
    const S: i64 = 1_000_000_000;
    const START: i64 = 1_769_860_800 * S;

    /// Both clocks, set by the test, and the groups of one thread.
    struct Simulation {
        now: ClockReading,
        clock: WallClock,
        tickers: Vec<Ticker>,
        ticks: Vec<Vec<Tick>>,
        /// The monotonic time of each sample, and whether a gap comes before it.
        taken: Vec<Vec<(i64, bool)>>,
        gap_due: Vec<bool>,
        missed: Vec<u64>,
        steps: u64,
        /// How long each read takes, and how late each wake-up is.
        read_ns: i64,
        wake_ns: i64,
        /// The step of the wall clock during the next read of the first group.
        step_in_read: i64,
        /// Parts per billion by which realtime runs faster than monotonic.
        slew_ppb: i64,
    }

    impl Simulation {
        fn new(groups: &[(i64, i64, bool)]) -> Self {
            let now = ClockReading { real: START + 123, mono: 77 * S };
            let tickers: Vec<Ticker> = groups
                .iter()
                .map(|&(interval, offset, synchronous)| Ticker::new(ticking(interval, offset, synchronous), now))
                .collect();
            let (ticks, missed) = (vec![Vec::new(); tickers.len()], vec![0; tickers.len()]);
            let (taken, gap_due) = (vec![Vec::new(); tickers.len()], vec![false; tickers.len()]);
            Self {
                now,
                clock: WallClock::new(now, None),
                tickers,
                ticks,
                taken,
                gap_due,
                missed,
                steps: 0,
                read_ns: 0,
                wake_ns: 0,
                step_in_read: 0,
                slew_ppb: 0,
            }
        }

        fn pass(&mut self, ns: i64) {
            self.now.mono += ns;
            self.now.real += ns + ((i128::from(ns) * i128::from(self.slew_ppb)) / 1_000_000_000) as i64;
        }

        /// The loop of the sampler until the monotonic clock shows `until`.
        fn run_until(&mut self, until: i64) {
            while self.now.mono < until {
                let woken = self.now;
                if self.clock.observe(self.now).is_some() {
                    self.steps += 1;
                    self.gap_due.fill(true);
                    for (ticker, missed) in self.tickers.iter_mut().zip(&mut self.missed) {
                        *missed += ticker.stepped(self.now);
                    }
                }
                for index in 0..self.tickers.len() {
                    match self.clock.take(&mut self.tickers[index], woken, self.now) {
                        DueTick::Nothing => {}
                        DueTick::AlreadySampled(missed) => self.missed[index] += missed,
                        DueTick::Tick(tick) => {
                            self.missed[index] += tick.missed;
                            self.ticks[index].push(tick);
                            self.taken[index].push((self.now.mono, std::mem::take(&mut self.gap_due[index])));
                            self.pass(self.read_ns);
                            if index == 0 {
                                self.now.real += std::mem::take(&mut self.step_in_read);
                            }
                        }
                    }
                }
                let deadline = sleep_until(self.tickers.iter(), self.now.mono, self.clock.offset()).min(until);
                let wake = self.wake_ns;
                self.pass((deadline - self.now.mono).max(0) + wake);
            }
        }

        fn run(&mut self, ns: i64) {
            self.run_until(self.now.mono + ns);
        }

        fn stamps(&self, group: usize) -> Vec<i64> {
            self.ticks[group].iter().map(|tick| tick.stamp).collect()
        }
    }

    fn ticking(interval: i64, offset: i64, synchronous: bool) -> TickSchedule {
        TickSchedule {
            interval: Interval::from_ns(interval as u64),
            offset: Interval::from_ns(offset as u64),
            synchronous,
        }
    }

    #[test]
    fn ticks_lie_on_multiples_plus_offset() {
        let mut s = Simulation::new(&[(S, 0, true), (S, 250 * MS, true), (10 * S, 25 * S, true), (MS, 0, true)]);
        s.run(60 * S + S / 2);
        assert_eq!(s.stamps(0), (1..=60).map(|k| START + k * S).collect::<Vec<_>>());
        assert_eq!(s.stamps(1), (0..=60).map(|k| START + k * S + 250 * MS).collect::<Vec<_>>());
        assert_eq!(
            s.stamps(2),
            (0..6).map(|k| START + 5 * S + k * 10 * S).collect::<Vec<_>>(),
            "an offset wraps at the interval"
        );
        assert_eq!(s.ticks[3].len(), 60_500);
        assert_eq!((s.missed.iter().sum::<u64>(), s.steps), (0, 0));
    }

    #[test]
    fn years_of_ticks_without_drift() {
        let mut ticker = Ticker::new(ticking(7 * S, 3, true), ClockReading { real: START, mono: 0 });
        for k in 1..200_000i64 {
            // A different lag at each wake-up, for 44 years.
            let real = START - START % (7 * S) + k * 7000 * S + 3 + (k * 7919) % (6 * S);
            let now = ClockReading { real, mono: real - START };
            let tick = ticker.take(now, now).expect("due");
            assert_eq!((tick.scheduled - 3) % (7 * S), 0);
        }
    }

    #[test]
    fn many_groups_of_different_intervals_share_one_thread() {
        let intervals: Vec<i64> = (1..=200).map(|k| k * 7 * MS).collect();
        let groups: Vec<_> = intervals.iter().map(|&i| (i, i / 3, i % 2 == 0)).collect();
        let mut s = Simulation::new(&groups);
        s.read_ns = 2_000;
        s.run(100 * S);
        for (index, interval) in intervals.iter().enumerate() {
            let (have, wanted) = (s.ticks[index].len() as i64 + s.missed[index] as i64, 100 * S / interval);
            assert!((have - wanted).abs() <= 1, "group {index}: {have} ticks, {wanted} wanted");
            assert_eq!(s.missed[index], 0, "group {index}");
        }
    }

    #[test]
    fn times_go_forward_after_a_read_that_began_late() {
        for synchronous in [true, false] {
            let mut ticker = Ticker::new(ticking(10 * MS, 0, synchronous), ClockReading { real: START, mono: START });
            let at = |ns: i64| ClockReading { real: START + ns, mono: START + ns };
            ticker.take(at(0), at(0));
            // Delayed between waking and reading until after the next tick, which then begins within its tolerance.
            let first = ticker.take(at(10 * MS), at(20 * MS + 100_000)).expect("due");
            let second = ticker.take(at(20 * MS + 200_000), at(20 * MS + 200_000)).expect("due");
            let third = ticker.take(at(30 * MS), at(30 * MS)).expect("due");
            assert_eq!(
                [first.stamp, second.stamp, third.stamp],
                [20_100_000, 20_200_000, 30 * MS].map(|ns| START + ns)
            );
            assert_eq!([first.missed, second.missed, third.missed], [0; 3]);
        }
    }

    #[test]
    fn groups_of_one_interval_stay_in_step_however_late_the_thread_is() {
        let mut s = Simulation::new(&[(MS, 0, true); 5]);
        for read_ns in [10_000, 700_000, 90_000, 3_100_000, 199_999, 200_001] {
            s.read_ns = read_ns;
            for _ in 0..50 {
                s.run(7 * MS);
                let deadlines: Vec<i64> = s.tickers.iter().map(|ticker| ticker.deadline(0)).collect();
                assert!(
                    deadlines.windows(2).all(|pair| pair[0] == pair[1]),
                    "{deadlines:?} with reads of {read_ns} ns"
                );
            }
        }
        assert!(s.missed.iter().all(|missed| *missed == s.missed[0] && *missed > 0));
    }

    #[test]
    fn slewing_is_no_step_and_ticks_stay_on_the_wall_clock() {
        for slew in [500_000, -500_000] {
            let mut s = Simulation::new(&[(S, 0, true), (60 * S, 0, true)]);
            s.slew_ppb = slew;
            s.run(3600 * S);
            assert_eq!(s.steps, 0);
            assert_eq!(s.missed, [0, 0]);
            assert!(s.ticks[0].iter().all(|tick| tick.scheduled % S == 0 && tick.lag < MS), "slew {slew}");
            assert!((s.ticks[0].len() as i64 - 3600).abs() <= 3);
        }
    }

    #[test]
    fn a_step_forward_counts_what_it_jumped_over_and_makes_no_burst() {
        let mut s = Simulation::new(&[(S, 0, true), (100 * MS, 0, false)]);
        s.run(10 * S + MS);
        let before = (s.ticks[0].len(), s.ticks[1].len());
        s.now.real += 3600 * S;
        s.run(10 * S);
        assert_eq!((s.steps, s.missed[0], s.missed[1]), (1, 3600, 0));
        assert_eq!((s.ticks[0].len() - before.0, s.ticks[1].len() - before.1), (10, 100));
        assert!(s.stamps(0).windows(2).all(|pair| pair[1] - pair[0] == S || pair[1] - pair[0] == 3601 * S));
    }

    #[test]
    fn an_hour_back_to_before_the_first_sample_goes_on_at_the_next_multiple_of_the_new_time() {
        let mut s = Simulation::new(&[(S, 0, true), (MS, 0, true)]);
        s.run(10 * S + MS / 2);
        s.now.real -= 3600 * S;
        let (slow, fast) = (s.ticks[0].len(), s.ticks[1].len());
        s.run(10 * S);
        assert_eq!((s.steps, s.missed[0]), (1, 0));
        assert_eq!(s.stamps(0)[slow..], (11..=20).map(|k| START + (k - 3600) * S).collect::<Vec<_>>());
        assert!((s.ticks[1].len() - fast) as i64 >= 9_999, "at 1 ms no tick is lost to a step back");
    }

    #[test]
    fn a_step_while_another_group_is_read_stalls_nobody() {
        // Back to before the first sample: no time has a sample.
        for step in [3600 * S, -3600 * S] {
            let mut s = Simulation::new(&[(100 * MS, 0, true), (100 * MS, 0, false), (100 * MS, 0, true)]);
            s.read_ns = 5 * MS;
            s.run(10 * S);
            s.step_in_read = step;
            let before: Vec<usize> = s.ticks.iter().map(Vec::len).collect();
            s.run(10 * S);
            for (group, before) in before.into_iter().enumerate() {
                let ticks = s.ticks[group].len() - before;
                assert!((99..=101).contains(&ticks), "group {group}: {ticks} ticks in 10 s after a step of {step}");
            }
            assert_eq!((s.steps, s.missed[1]), (1, 0), "by the monotonic clock nothing was missed");
        }
    }

    /// The values of a counter of 60 a second at each sample, with the gaps, and the rates between neighbours.
    fn rates(s: &Simulation, group: usize) -> Vec<f64> {
        let samples = s.ticks[group].iter().zip(&s.taken[group]);
        let rows: Vec<(i64, f64, bool)> =
            samples.map(|(tick, (mono, gap))| (tick.stamp, *mono as f64 / S as f64 * 60.0, *gap)).collect();
        let within = rows.windows(2).filter(|pair| !pair[1].2);
        within.map(|pair| (pair[1].1 - pair[0].1) / ((pair[1].0 - pair[0].0) as f64 / S as f64)).collect()
    }

    #[test]
    fn no_time_is_sampled_twice_and_no_rate_goes_over_a_step() {
        let groups = [(S, 0, true), (100 * MS, 0, true), (10 * S, 0, true), (S, 0, false), (7 * S, 3 * S, false)];
        for step in [-5 * S, -20 * MS, -90 * S, 5 * S] {
            let mut s = Simulation::new(&groups);
            s.run(100 * S + 300 * MS);
            s.now.real += step;
            let before: Vec<usize> = s.ticks.iter().map(Vec::len).collect();
            s.run(200 * S);
            assert_eq!(s.steps, 1);
            for (group, before) in before.into_iter().enumerate() {
                let (stamps, what) =
                    (s.stamps(group), format!("group {group}, a step of {} s", step as f64 / S as f64));
                assert!(stamps.windows(2).all(|pair| pair[0] < pair[1]), "{what}: times go forward");
                let gaps: Vec<usize> = (0..stamps.len()).filter(|at| s.taken[group][*at].1).collect();
                assert_eq!(gaps, [before], "{what}: one gap, at the step");
                assert!(
                    rates(&s, group).iter().all(|rate| (rate - 60.0).abs() < 0.1),
                    "{what}: {:?}",
                    rates(&s, group)
                );
                // With the ticks that were not read, none is missing.
                let interval = groups[group].0;
                let all = stamps.len() as i64 + s.missed[group] as i64;
                let due = (300 * S + 300 * MS + if groups[group].2 { step.max(0) } else { 0 }) / interval;
                assert!((all - due).abs() <= 2, "{what}: {all} ticks, {due} were due");
            }
        }
    }

    #[test]
    fn a_step_during_a_long_sleep_is_noticed_within_the_cap() {
        let mut s = Simulation::new(&[(3600 * S, 0, true)]);
        s.run(10 * S);
        s.now.real += 3590 * S - 200 * MS;
        s.run(5 * S);
        assert_eq!((s.steps, s.stamps(0)), (1, vec![START + 3600 * S]), "not an hour late");
    }

    #[test]
    fn a_suspended_machine_misses_and_makes_nothing_up() {
        let mut s = Simulation::new(&[(10 * MS, 0, true)]);
        s.run(S);
        let before = s.ticks[0].len();
        s.now.real += 8 * 3600 * S;
        s.run(S);
        assert_eq!(s.ticks[0].len() - before, 100);
        assert_eq!(s.missed[0], 8 * 3600 * 100);
    }

    #[test]
    fn a_slow_reader_takes_true_times_and_counts_what_it_missed() {
        let mut s = Simulation::new(&[(10 * MS, 0, true)]);
        s.read_ns = 25 * MS;
        s.run(10 * S);
        let (taken, missed) = (s.ticks[0].len() as i64, s.missed[0] as i64);
        assert!((taken + missed - 1000).abs() <= 2, "{taken} taken and {missed} missed are all");
        assert!((taken - 400).abs() <= 2, "one read after another: {taken}");
        let stamps = s.stamps(0);
        assert!(stamps.windows(2).all(|pair| pair[1] - pair[0] >= 25 * MS), "no two within one read");
    }

    #[test]
    fn the_stamp_is_the_tick_within_tolerance_and_else_the_truth() {
        let now = ClockReading { real: START + 1, mono: 0 };
        for (interval, lag, kept) in [
            (S, MS, true),
            (S, MS + 1, false),
            (MS, 50_000, true),
            (MS, 50_001, false),
            (10 * MS, 500_000, true),
            (10 * MS, 500_001, false),
        ] {
            let mut ticker = Ticker::new(ticking(interval, 0, true), now);
            let late = ClockReading { real: START + interval + lag, mono: interval + lag };
            let tick = ticker.take(late, late).expect("due");
            assert_eq!((tick.lag, tick.missed), (lag, 0));
            assert_eq!(tick.stamp, START + interval + if kept { 0 } else { lag }, "interval {interval}, lag {lag}");
        }
    }

    #[test]
    fn a_changed_interval_does_not_touch_the_others() {
        let mut s = Simulation::new(&[(S, 0, true), (100 * MS, 0, true)]);
        s.run(5 * S + MS);
        s.tickers[1] = Ticker::new(ticking(MS, 0, true), s.now);
        s.run(5 * S);
        assert_eq!(s.stamps(0), (1..=10).map(|k| START + k * S).collect::<Vec<_>>());
        assert_eq!(s.missed, [0, 0]);
        let stamps = s.stamps(1);
        assert_eq!(stamps.len(), 50 + 5000);
        assert!(stamps.windows(2).all(|pair| pair[1] > pair[0]));
    }

    #[test]
    fn late_wake_ups_below_the_interval_lose_no_tick() {
        let mut s = Simulation::new(&[(MS, 0, true)]);
        s.wake_ns = 400_000;
        s.run(10 * S);
        assert_eq!(s.missed, [0]);
        assert!((s.ticks[0].len() as i64 - 10_000).abs() <= 1);
        assert!(s.ticks[0].iter().all(|tick| tick.lag == 400_000 && tick.stamp % MS == 400_000));
    }

    #[test]
    fn extremes_do_not_overflow() {
        for real in [i64::MIN / 2, 0, i64::MAX / 2, i64::MAX] {
            let now = ClockReading { real, mono: 0 };
            let mut ticker = Ticker::new(ticking(INTERVAL_NS_MAX, 5, true), now);
            ticker.stepped(ClockReading { real: -real, mono: 1 });
            let last = ClockReading { real: i64::MAX, mono: 2 };
            ticker.take(last, last);
            ticker.deadline(-real);
        }
    }
}
