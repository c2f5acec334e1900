//! The newest answer of a device for one group, and the reader that copies it.
//!
//! A poller writes an answer as a whole; a reader copies it under a lock that both hold for the time of a copy only. Readers run on the thread that the
//! agent gives a source that blocks ([`wholegrain_sources::GroupPlan::blocking`]), never on the common sampling thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use wholegrain_model::SensorDef;
use wholegrain_sources::{ReadProblem, Reader, Reading, Row};

/// What is wrong with a device that answers with the same old time.
pub const OLD_TIME: &str = "the newest time of the device is older than stale_after: is its clock right?";

/// How long after the newest value its gap is, if the device's time stays: 1 ms.
const GAP_AFTER_NS: i64 = 1_000_000;

/// Why a device gave no values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeviceProblem {
    #[error("its name cannot be resolved")]
    Unresolved,
    /// The plug-in has no thread that could resolve the name.
    #[error("its name was not resolved: no thread can be made; raise memory_bytes_max of the plug-in")]
    NoThread,
    /// No answer in time, after all retries.
    #[error("no answer in time")]
    Silent,
    /// The network refused: an errno.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    Network(i32),
    /// The device does not accept the credentials.
    #[error("refuses the credentials")]
    Credentials,
    /// An answer that is not of the protocol.
    #[error("answers what is not of the protocol ({0})")]
    Garbage(&'static str),
    /// The device says that it cannot answer.
    #[error("answers with an error ({0})")]
    Refused(&'static str),
}

impl DeviceProblem {
    /// Whether it is of the answer to one group, and not of the device.
    pub fn is_of_group(self) -> bool {
        matches!(self, Self::Refused(_) | Self::Garbage(_))
    }

    /// The problem as the agent shows it for a group.
    pub fn read_problem(self) -> ReadProblem {
        let os = |what, errno| ReadProblem::Os { what, errno };
        match self {
            Self::Unresolved => os("name of the device", libc::EHOSTUNREACH),
            Self::NoThread => os("thread that resolves the device's name", libc::EAGAIN),
            Self::Silent => os("device", libc::ETIMEDOUT),
            Self::Network(errno) => os("device", errno),
            Self::Credentials => os("credentials of the device", libc::EACCES),
            Self::Garbage(what) => os(what, libc::EBADMSG),
            Self::Refused(what) => ReadProblem::Message { text: what },
        }
    }
}

/// The current time in ns since the epoch, as an argument in tests.
pub type WallTime = fn() -> i64;

/// The system's time, in ns since the epoch.
pub fn system_time() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// The newest answer of a device for one group.
#[derive(Debug, Default)]
pub struct AnswerSlot(Mutex<NewestAnswer>);

#[derive(Debug, Default)]
struct NewestAnswer {
    /// Rises with each change of the sensors; 0 while they are unknown.
    layout: u64,
    sensors: Arc<[SensorDef]>,
    /// 64 bits for each sensor; [`None`] for a gap.
    values: Vec<Option<u64>>,
    /// The number of the answer; 0 before the first.
    number: u64,
    /// The number of the answer that a reader copied last: the next reader of this slot does not repeat it.
    copied: u64,
    taken_at: i64,
    /// Why there is no newer answer.
    problem: Option<DeviceProblem>,
    /// Whether the last answer had no newer values than the one before.
    is_repeated: bool,
    /// The number of the answer after which there was a gap because the device's time stayed; 0 before the first answer.
    gap_after: u64,
    /// Whether a poll has ended, with an answer or without.
    was_polled: bool,
    /// What the next discovery says about the answers.
    remark: Option<String>,
}

impl NewestAnswer {
    /// Whether the last poll brought an answer without a new time.
    fn has_old_time(&self) -> bool {
        self.is_repeated || self.problem == Some(DeviceProblem::Refused(OLD_TIME))
    }
}

impl AnswerSlot {
    /// A slot whose sensors are known before any answer.
    pub fn with_sensors(sensors: Vec<SensorDef>) -> Self {
        let slot = Self::default();
        slot.set_sensors(sensors);
        slot
    }

    fn lock(&self) -> MutexGuard<'_, NewestAnswer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the sensors. If they changed, the answers before do not count, and the readers request a discovery. Whether they changed.
    pub fn set_sensors(&self, sensors: Vec<SensorDef>) -> bool {
        let mut newest = self.lock();
        if newest.layout > 0 && *newest.sensors == *sensors {
            return false;
        }
        newest.layout += 1;
        newest.values = vec![None; sensors.len()];
        newest.sensors = sensors.into();
        (newest.number, newest.copied, newest.gap_after) = (0, 0, 0);
        true
    }

    /// The sensors, once they are known.
    pub fn sensors(&self) -> Option<Arc<[SensorDef]>> {
        let newest = self.lock();
        (newest.layout > 0).then(|| newest.sensors.clone())
    }

    /// Whether a reader has copied the newest answer.
    pub fn is_read(&self) -> bool {
        let newest = self.lock();
        newest.number > 0 && newest.copied == newest.number
    }

    /// Whether the sensors are known.
    pub fn has_sensors(&self) -> bool {
        self.lock().layout > 0
    }

    /// Stores an answer. `values` has 64 bits or a gap for each sensor; other lengths are refused, which is `false`.
    pub fn publish(&self, taken_at: i64, values: &[Option<u64>]) -> bool {
        let mut newest = self.lock();
        if newest.values.len() != values.len() {
            return false;
        }
        newest.values.copy_from_slice(values);
        newest.number += 1;
        newest.taken_at = taken_at;
        (newest.problem, newest.is_repeated) = (None, false);
        newest.was_polled = true;
        true
    }

    /// Notes an answer whose own time is that of the answer before.
    pub fn repeat(&self) {
        let mut newest = self.lock();
        (newest.problem, newest.is_repeated) = (None, true);
        newest.was_polled = true;
    }

    /// Notes why a poll brought no answer.
    pub fn fail(&self, problem: DeviceProblem) {
        let mut newest = self.lock();
        (newest.problem, newest.is_repeated) = (Some(problem), false);
        newest.was_polled = true;
    }

    /// Whether a poll has ended, with an answer or without.
    pub fn was_polled(&self) -> bool {
        self.lock().was_polled
    }

    /// Leaves a remark about the answers, which the next discovery reports once. It has the device's path.
    pub fn set_remark(&self, remark: String) {
        self.lock().remark = Some(remark);
    }

    /// The remark, which is gone then.
    pub(crate) fn take_remark(&self) -> Option<String> {
        self.lock().remark.take()
    }

    /// The problem of the last poll, if it brought no answer.
    pub fn problem(&self) -> Option<DeviceProblem> {
        self.lock().problem
    }

    /// The sensors and a reader for them, once they are known. Answers older than `stale_after_ns` count no more.
    pub fn reader(self: &Arc<Self>, stale_after_ns: u64, now: WallTime) -> Option<(Vec<SensorDef>, AnswerReader)> {
        let newest = self.lock();
        let reader = AnswerReader { slot: self.clone(), layout: newest.layout, stale_after_ns, now };
        (newest.layout > 0).then(|| (newest.sensors.to_vec(), reader))
    }
}

/// Copies the newest answer of a device. It never waits for the device.
pub struct AnswerReader {
    slot: Arc<AnswerSlot>,
    layout: u64,
    stale_after_ns: u64,
    now: WallTime,
}

impl Reader for AnswerReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut newest = self.slot.lock();
        if newest.layout != self.layout || newest.values.len() != row.len() {
            return Reading { layout_changed: true, ..Reading::COMPLETE };
        }
        let problem = newest.problem.map(DeviceProblem::read_problem);
        let age = (self.now)().saturating_sub(newest.taken_at);
        if newest.number == 0 || age > i64::try_from(self.stale_after_ns).unwrap_or(i64::MAX) {
            if newest.has_old_time() {
                // The device answers, and the time of its next value can be before this tick: one gap, behind the newest value.
                let problem = Some(ReadProblem::Message { text: OLD_TIME });
                let unchanged = newest.gap_after == newest.number;
                newest.gap_after = newest.number;
                let taken_at = Some(newest.taken_at.saturating_add(GAP_AFTER_NS)).filter(|_| !unchanged);
                return Reading { unchanged, taken_at, problem, ..Reading::COMPLETE };
            }
            // Gaps at the tick: the newest answer, if there is one, is too old to stand for the present.
            let silent = || DeviceProblem::Silent.read_problem();
            let problem = if newest.was_polled { Some(problem.unwrap_or_else(silent)) } else { None };
            return Reading { unchanged: !newest.was_polled, problem, ..Reading::COMPLETE };
        }
        if newest.number == newest.copied {
            return Reading { unchanged: true, problem, ..Reading::COMPLETE };
        }
        for (index, value) in newest.values.iter().enumerate() {
            if let Some(bits) = value {
                row.set_int(index, *bits as i64);
            }
        }
        newest.copied = newest.number;
        Reading { taken_at: Some(newest.taken_at), problem, ..Reading::COMPLETE }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    static NOW: AtomicI64 = AtomicI64::new(0);

    fn read(reader: &mut AnswerReader) -> (Reading, Vec<Option<i64>>) {
        let (mut values, mut gaps) = ([0; 2], [0; 1]);
        let mut row = Row::new(&mut values, &mut gaps);
        let reading = reader.read(&mut row);
        (reading, (0..2).map(|index| row.int(index)).collect())
    }

    #[test]
    fn an_answer_is_copied_once_and_ages() {
        let sensors = || vec![SensorDef::gauge("a", "1", ""), SensorDef::gauge("b", "1", "")];
        let slot = Arc::new(AnswerSlot::default());
        assert!(slot.reader(30, || 0).is_none(), "no reader without sensors");
        assert!(slot.set_sensors(sensors()) && !slot.set_sensors(sensors()));
        let (_, mut reader) = slot.reader(30, || NOW.load(Ordering::Relaxed)).unwrap();
        assert!(read(&mut reader).0.unchanged, "not polled yet");
        assert!(!slot.publish(100, &[Some(1)]), "another number of values");

        assert!(slot.publish(100, &[Some(7), None]));
        NOW.store(110, Ordering::Relaxed);
        let (reading, values) = read(&mut reader);
        assert_eq!((reading.taken_at, values), (Some(100), vec![Some(7), None]));
        let (reading, values) = read(&mut reader);
        assert!(reading.unchanged && values == [None, None], "a value is never repeated");

        slot.fail(DeviceProblem::Silent);
        let (reading, _) = read(&mut reader);
        assert!(reading.unchanged && reading.problem == Some(DeviceProblem::Silent.read_problem()));
        NOW.store(131, Ordering::Relaxed);
        let (reading, values) = read(&mut reader);
        assert_eq!((reading.unchanged, reading.taken_at, values), (false, None, vec![None, None]));
        assert_eq!(reading.problem, Some(DeviceProblem::Silent.read_problem()));

        assert!(slot.publish(130, &[Some(8), Some(9)]));
        assert_eq!(read(&mut reader).1, [Some(8), Some(9)]);
        slot.repeat();
        NOW.store(160, Ordering::Relaxed);
        assert!(read(&mut reader).0.unchanged);
        NOW.store(161, Ordering::Relaxed);
        let (reading, values) = read(&mut reader);
        let old = Some(ReadProblem::Message { text: OLD_TIME });
        assert_eq!((reading.problem, values), (old, vec![None, None]));
        // The next value can have any later time: the gap is behind the last one, and there is one only.
        assert_eq!(reading.taken_at, Some(130 + GAP_AFTER_NS));
        slot.fail(DeviceProblem::Refused(OLD_TIME));
        let (reading, _) = read(&mut reader);
        assert_eq!((reading.unchanged, reading.problem), (true, old));
        assert!(slot.publish(150, &[Some(1), Some(2)]));
        assert_eq!(read(&mut reader).0.taken_at, Some(150));
        assert!(slot.is_read());
        slot.set_sensors(vec![SensorDef::gauge("c", "1", "")]);
        assert!(read(&mut reader).0.layout_changed);
    }
}
