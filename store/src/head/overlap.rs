//! Finds processes of one agent whose readings have the same times: the node's clock was set back between them, or two agents have one name. Within
//! a process no time is sampled twice, so only this makes readings replace others. No I/O and no clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wholegrain_model::{Interval, Timestamp};

use crate::head::live::LiveBatch;

/// The most agents that are checked.
const AGENTS_MAX: usize = 65_536;
/// The most processes of one agent; the one whose last reading is the oldest is dropped.
const PROCESSES_MAX: usize = 8;
/// The accepted overlap of two processes, 1 s: a process can end with readings that it took shortly before the other one started.
const COMMON_NS_MAX: i64 = 1_000_000_000;
/// The shortest time between two log messages.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// One process of an agent, and the times of its readings.
#[derive(Debug, Clone, Copy)]
struct AgentProcess {
    boot: u64,
    from: i64,
    to: i64,
    reported: bool,
}

/// The processes since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Overlaps {
    agents: HashMap<Arc<str>, Vec<AgentProcess>>,
    /// When an overlap was last logged, and the number found since.
    reported: Option<(Instant, u64)>,
}

impl Overlaps {
    /// Adds the times of a batch. An overlap is logged, at most once in [`TELL_EVERY`].
    pub fn note(&mut self, batch: &LiveBatch, now: Instant) {
        let Some(found) = self.find(batch) else { return };
        match &mut self.reported {
            Some((at, more)) if now.saturating_duration_since(*at) < TELL_EVERY => *more += 1,
            reported => {
                let more = reported.replace((now, 0)).map_or(0, |(_, more)| more);
                tracing::warn!(before = more, "{found}");
            }
        }
    }

    /// The message about the batch's process, once.
    #[inline]
    fn find(&mut self, batch: &LiveBatch) -> Option<String> {
        // Events can have any time.
        if batch.interval_ns == 0 {
            return None;
        }
        if let Some(processes) = self.agents.get_mut(&batch.agent)
            && let [only] = processes.as_mut_slice()
            && only.boot == batch.boot
        {
            only.to = only.to.max(batch.last_time);
            only.from = only.from.min(batch.first_time.saturating_add_unsigned(batch.interval_ns));
            return None;
        }
        self.compare(batch)
    }

    #[cold]
    fn compare(&mut self, batch: &LiveBatch) -> Option<String> {
        if self.agents.len() >= AGENTS_MAX && !self.agents.contains_key(&batch.agent) {
            return None;
        }
        let processes = self.agents.entry(batch.agent.clone()).or_default();
        let at = processes.iter().position(|process| process.boot == batch.boot).unwrap_or_else(|| {
            if processes.len() >= PROCESSES_MAX
                && let Some(oldest) = (0..processes.len()).min_by_key(|at| processes[*at].to)
            {
                processes.swap_remove(oldest);
            }
            processes.push(AgentProcess { boot: batch.boot, from: i64::MAX, to: i64::MIN, reported: false });
            processes.len() - 1
        });
        // A window has the time of its start, which can be before the process's.
        let from = batch.first_time.saturating_add_unsigned(batch.interval_ns);
        let own = &mut processes[at];
        (own.from, own.to) = (own.from.min(from), own.to.max(batch.last_time));
        let own = *own;
        let common = |other: &AgentProcess| own.to.min(other.to).saturating_sub(own.from.max(other.from));
        let is_over = |other: &&AgentProcess| other.boot != own.boot && common(other) > COMMON_NS_MAX;
        let other = processes.iter().filter(is_over).max_by_key(|other| common(other)).copied()?;
        if std::mem::replace(&mut processes[at].reported, true) || other.reported {
            return None;
        }
        let (from, to) = (own.from.max(other.from), own.to.min(other.to));
        let length = Interval::from_ns(to.abs_diff(from) / 1_000_000 * 1_000_000);
        let (from, boot) = (Timestamp(from), Timestamp(own.boot as i64));
        Some(format!(
            "agent {}: its process that began at {boot} sends readings of times from {from} on, so far {length}, of which there are readings of \
             another process of it: its node's clock was set back between them, or two agents run under this name; of two readings \
             of one sensor and time the one that came later counts",
            batch.agent
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_model::{Schema, SensorDef, SensorPath};

    const S: i64 = 1_000_000_000;

    fn batch(agent: &str, boot: i64, times: (i64, i64), interval_s: i64) -> LiveBatch {
        let sensors = vec![SensorDef::gauge("x", "1", "")];
        LiveBatch {
            schema: Schema::new(SensorPath::new("/n1").unwrap(), "g", sensors).unwrap(),
            payload: bytes::Bytes::new(),
            agent: agent.into(),
            boot: (boot * S) as u64,
            seq: 1,
            interval_ns: (interval_s * S) as u64,
            samples: 1,
            first_time: times.0 * S,
            last_time: times.1 * S,
            arrival: 0,
        }
    }

    /// Batches of one agent, each with its boot, times and interval in s; returns the batches that cause a report.
    fn reported(batches: &[(i64, (i64, i64), i64)]) -> Vec<usize> {
        let mut overlaps = Overlaps::default();
        let is_reported = |(boot, times, interval): &(i64, (i64, i64), i64)| {
            overlaps.find(&batch("other", 5, (0, 1_000_000), 1));
            overlaps.find(&batch("n1", *boot, *times, *interval)).is_some()
        };
        let all: Vec<bool> = batches.iter().map(is_reported).collect();
        (0..all.len()).filter(|at| all[*at]).collect()
    }

    #[test]
    fn what_an_agent_samples_again_after_a_restart_is_reported_once() {
        // Restarts as they should be, with windows of a minute and the backlog of the process before.
        assert_eq!(
            reported(&[(100, (100, 200), 1), (201, (202, 210), 1), (201, (180, 180), 60), (100, (120, 190), 1)]),
            [0; 0]
        );
        // The clock was set back by 50 s between the two.
        let back = [(100, (100, 200), 1), (151, (152, 153), 1), (151, (153, 160), 1), (151, (160, 180), 1)];
        assert_eq!(reported(&back), [2], "as soon as it is sure, and once");
        // By so much that its number is less than that of the first: sure when it comes to the first one's times.
        assert_eq!(reported(&[(100, (100, 200), 1), (20, (21, 90), 1), (20, (91, 110), 1), (100, (200, 205), 1)]), [2]);
        // Two agents of one name.
        assert_eq!(
            reported(&[(100, (100, 110), 1), (105, (106, 107), 1), (100, (110, 120), 1), (105, (107, 115), 1)]),
            [3]
        );
        // Events can be of any time.
        assert_eq!(reported(&[(100, (100, 200), 1), (201, (120, 150), 0)]), [0; 0]);
    }

    #[test]
    fn processes_and_agents_are_bounded() {
        let mut overlaps = Overlaps::default();
        for boot in 0..100 {
            overlaps.find(&batch("n1", boot * 10, (boot * 10, boot * 10 + 9), 1));
        }
        assert_eq!(overlaps.agents["n1"].len(), PROCESSES_MAX);
        (0..AGENTS_MAX + 5).for_each(|n| _ = overlaps.find(&batch(&n.to_string(), 1, (1, 2), 1)));
        assert_eq!(overlaps.agents.len(), AGENTS_MAX);
    }
}
