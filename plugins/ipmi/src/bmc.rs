//! What is asked of a management controller: its repository, its sensors, its event log, its power. A state machine that both ways to a controller
//! share: commands out, replies in.

use std::sync::Arc;

use wholegrain_devices::{AnswerSlot, DeviceProblem};
use wholegrain_model::pattern::Filter;

use crate::catalogue::{EventLayout, ReadingLayout, event_layout, power_sensors, reading_layout};
use crate::event_log::{EventLog, LogStep};
use crate::message::{DCMI, GET_POWER_READING, GET_SENSOR_READING, IpmiCommand, IpmiReply, completion};
use crate::names::THRESHOLDS;
use crate::repository::{RepositoryWalk, SensorCatalogue, WalkResult};

/// How long a walk may take in one poll: 20 s. The next poll goes on.
const WALK_NS_MAX: i64 = 20_000_000_000;
/// How long readings may take in one poll: 40 s from its begin. The next poll begins with those that were left.
const READING_NS_MAX: i64 = 40_000_000_000;
/// How often it is checked whether the repository has changed: every 5 min.
const CHECK_NS: i64 = 300_000_000_000;
/// For how long a sensor is left out for which the controller did not answer in time: 5 min.
const SILENT_NS: i64 = 300_000_000_000;
/// In the status of a reading: the controller scans the sensor; there is no reading now (35.14).
const SCANNING: u8 = 0x40;
const UNAVAILABLE: u8 = 0x20;

/// A group of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BmcGroup {
    Sensors,
    Power,
    Events,
}

impl BmcGroup {
    /// All groups with their names in the configuration and below the device's path.
    pub const NAMES: [(&'static str, Self); 3] =
        [("sensors", Self::Sensors), ("power", Self::Power), ("sel", Self::Events)];
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum BmcStep {
    Command(IpmiCommand),
    /// The poll has ended; what it brought is in the slot.
    Finished,
    Failed(DeviceProblem),
}

enum PollStage {
    Walk,
    /// Reading the sensor at this place of the layout; how many have been asked.
    Reading {
        at: usize,
        count: usize,
        values: Vec<Option<u64>>,
    },
    Power,
    Events,
}

/// The polls of one controller.
pub struct BmcPolls {
    path: String,
    groups: Vec<BmcGroup>,
    filter: Arc<Filter>,
    catalogue: Option<SensorCatalogue>,
    walk: Option<RepositoryWalk>,
    /// When the repository was checked last. `None`: it is due.
    checked_ns: Option<i64>,
    readings: Option<ReadingLayout>,
    events: Option<EventLayout>,
    /// Where the next poll of the readings begins.
    begin_at: usize,
    /// Until when each sensor of the layout is left out.
    silent_until: Vec<i64>,
    log: EventLog,
    stage: Option<PollStage>,
    group: BmcGroup,
    began_ns: i64,
}

impl BmcPolls {
    /// A controller that has not been asked yet.
    pub fn new(path: &str, groups: &[BmcGroup], filter: Arc<Filter>) -> Self {
        Self {
            path: path.to_owned(),
            groups: groups.to_vec(),
            filter,
            catalogue: None,
            walk: None,
            checked_ns: None,
            readings: None,
            events: None,
            begin_at: 0,
            silent_until: Vec::new(),
            log: EventLog::default(),
            stage: None,
            group: BmcGroup::Sensors,
            began_ns: 0,
        }
    }

    /// The poll was cut off. If the controller may be another one by now, its repository is checked at the next poll.
    pub fn interrupted(&mut self, is_check_due: bool) {
        self.stage = None;
        if is_check_due {
            self.checked_ns = None;
        }
    }

    /// Begins a poll of the group with this number.
    pub fn begin(&mut self, group: usize, slot: &AnswerSlot, now_ns: i64) -> BmcStep {
        self.group = self.groups.get(group).copied().unwrap_or(BmcGroup::Sensors);
        self.began_ns = now_ns;
        // A clock that was set back does not put off the check.
        let is_due = self.checked_ns.is_none_or(|checked| !(0..CHECK_NS).contains(&(now_ns - checked)));
        if self.group == BmcGroup::Power || !(is_due || self.catalogue.is_none()) {
            return self.begin_group(slot, now_ns);
        }
        match &mut self.walk {
            Some(walk) => walk.resume(),
            None => self.walk = Some(RepositoryWalk::new(self.catalogue.as_ref())),
        }
        self.stage = Some(PollStage::Walk);
        self.walk_on(slot, now_ns)
    }

    /// Takes the reply to the last command.
    pub fn take(&mut self, reply: IpmiReply<'_>, slot: &AnswerSlot, now_ns: i64) -> BmcStep {
        match self.stage.take() {
            None => BmcStep::Finished,
            Some(PollStage::Walk) => {
                self.stage = Some(PollStage::Walk);
                match self.walk.as_mut().map(|walk| walk.take(reply)) {
                    Some(Err(fault)) => {
                        (self.walk, self.stage) = (None, None);
                        BmcStep::Failed(DeviceProblem::Refused(fault.0))
                    }
                    _ => self.walk_on(slot, now_ns),
                }
            }
            Some(PollStage::Reading { at, count, mut values }) => {
                self.take_reading(at, reply, &mut values);
                self.read_on(at + 1, count + 1, values, slot, now_ns)
            }
            Some(PollStage::Power) => self.take_power(reply, slot, now_ns),
            Some(PollStage::Events) => {
                let step = self.log.take(reply);
                self.log_on(step, slot, now_ns)
            }
        }
    }

    /// Goes on without the reply to the last command, which never came. `None`: the poll cannot go on without it.
    pub fn skip(&mut self, slot: &AnswerSlot, now_ns: i64) -> Option<BmcStep> {
        match self.stage.take() {
            Some(PollStage::Reading { at, count, values }) => {
                if let Some(until) = self.silent_until.get_mut(at) {
                    *until = now_ns.saturating_add(SILENT_NS);
                }
                Some(self.read_on(at + 1, count + 1, values, slot, now_ns))
            }
            Some(PollStage::Walk) if self.walk.as_mut().is_some_and(RepositoryWalk::skip) => {
                self.stage = Some(PollStage::Walk);
                Some(self.walk_on(slot, now_ns))
            }
            other => {
                self.stage = other;
                None
            }
        }
    }

    fn walk_on(&mut self, slot: &AnswerSlot, now_ns: i64) -> BmcStep {
        let Some(walk) = &mut self.walk else { return self.begin_group(slot, now_ns) };
        if let Some(command) = walk.command() {
            if now_ns.saturating_sub(self.began_ns) <= WALK_NS_MAX {
                return BmcStep::Command(command);
            }
            self.stage = None;
            // The readings of the repository as it was go on meanwhile.
            return if self.catalogue.is_some() { self.begin_group(slot, now_ns) } else { BmcStep::Finished };
        }
        if let Some(WalkResult::Changed(catalogue)) = self.walk.take().map(RepositoryWalk::finish) {
            self.catalogue = Some(catalogue);
            (self.readings, self.events) = (None, None);
        }
        self.checked_ns = Some(now_ns);
        self.begin_group(slot, now_ns)
    }

    fn begin_group(&mut self, slot: &AnswerSlot, now_ns: i64) -> BmcStep {
        match self.group {
            BmcGroup::Sensors => self.begin_readings(slot, now_ns),
            BmcGroup::Power => {
                self.stage = Some(PollStage::Power);
                BmcStep::Command(IpmiCommand::new(GET_POWER_READING, [DCMI, 1, 0, 0]))
            }
            BmcGroup::Events => {
                self.stage = Some(PollStage::Events);
                BmcStep::Command(self.log.begin())
            }
        }
    }

    fn begin_readings(&mut self, slot: &AnswerSlot, now_ns: i64) -> BmcStep {
        if let (None, Some(catalogue)) = (&self.readings, &self.catalogue) {
            let layout = reading_layout(&self.path, catalogue, &self.filter);
            slot.set_sensors(layout.sensors.clone());
            self.silent_until = vec![i64::MIN; layout.reads.len()];
            (self.readings, self.begin_at) = (Some(layout), 0);
        }
        let sensors = self.readings.as_ref().map_or(0, |layout| layout.sensors.len());
        self.read_on(self.begin_at, 0, vec![None; sensors], slot, now_ns)
    }

    /// Asks for the next sensor from this place on, or ends the poll.
    fn read_on(
        &mut self,
        mut at: usize,
        mut count: usize,
        values: Vec<Option<u64>>,
        slot: &AnswerSlot,
        now_ns: i64,
    ) -> BmcStep {
        let Some(layout) = &self.readings else { return BmcStep::Finished };
        let is_late = now_ns.saturating_sub(self.began_ns) > READING_NS_MAX;
        while count < layout.reads.len() && !is_late {
            at %= layout.reads.len();
            let until = self.silent_until[at];
            // A clock that was set back does not leave it out for longer.
            if until > now_ns && until <= now_ns.saturating_add(SILENT_NS) {
                (at, count) = (at + 1, count + 1);
                continue;
            }
            let key = layout.reads[at].key;
            let command = IpmiCommand { lun: key.lun, ..IpmiCommand::new(GET_SENSOR_READING, [key.number]) };
            self.stage = Some(PollStage::Reading { at, count, values });
            return BmcStep::Command(command);
        }
        let is_slow = count < layout.reads.len();
        self.begin_at = if is_slow { at % layout.reads.len() } else { 0 };
        slot.publish(now_ns, &values);
        let fault = self.catalogue.as_ref().and_then(|catalogue| catalogue.fault);
        match fault.or(is_slow.then_some("it is too slow to read all its sensors in 40 s")) {
            Some(fault) => BmcStep::Failed(DeviceProblem::Refused(fault)),
            None => BmcStep::Finished,
        }
    }

    fn take_reading(&self, at: usize, reply: IpmiReply<'_>, values: &mut [Option<u64>]) {
        let (Some(layout), Some(catalogue)) = (&self.readings, &self.catalogue) else { return };
        let Some([raw, status, rest @ ..]) = reply.good() else { return };
        if status & SCANNING == 0 || status & UNAVAILABLE != 0 {
            return;
        }
        let read = &layout.reads[at];
        let record = &catalogue.sensors[read.at].record;
        if let Some(place) = read.value {
            values[place] = record.factors.and_then(|factors| factors.value(*raw)).map(f64::to_bits);
        }
        if let (Some(place), Some(low)) = (read.states, rest.first()) {
            // Sensors with thresholds have a bit for each; others have 15 states, of which the last byte may be absent.
            let high = rest.get(1).copied().unwrap_or(0) & 0x7f;
            values[place] = Some(match record.event_type {
                1 => u64::from(low & ((1 << THRESHOLDS.len()) - 1)),
                _ => u64::from(*low) | u64::from(high) << 8,
            });
        }
    }

    fn take_power(&mut self, reply: IpmiReply<'_>, slot: &AnswerSlot, now_ns: i64) -> BmcStep {
        let Some(data) = reply.good() else {
            let absent = [completion::INVALID_COMMAND, completion::NOT_PRESENT, completion::PRIVILEGE];
            if !absent.contains(&reply.completion) {
                return BmcStep::Failed(DeviceProblem::Refused("it gives no power reading"));
            }
            // A controller without DCMI has no sensors; if it had them before, they are gaps.
            let sensors = slot.sensors().map_or(0, |sensors| sensors.len());
            if sensors == 0 {
                slot.set_sensors(Vec::new());
            }
            slot.publish(now_ns, &vec![None; sensors]);
            return BmcStep::Finished;
        };
        let Some(values) = power_values(data) else {
            return BmcStep::Failed(DeviceProblem::Refused("a power reading that is not of DCMI"));
        };
        slot.set_sensors(power_sensors(&self.path));
        slot.publish(now_ns, &values);
        BmcStep::Finished
    }

    fn log_on(&mut self, step: LogStep, slot: &AnswerSlot, now_ns: i64) -> BmcStep {
        let fault = match step {
            LogStep::Command(command) => {
                self.stage = Some(PollStage::Events);
                return BmcStep::Command(command);
            }
            LogStep::Absent => {
                slot.set_sensors(Vec::new());
                slot.publish(now_ns, &[]);
                self.events = None;
                return BmcStep::Finished;
            }
            LogStep::Done(fault) => fault,
        };
        if let (None, Some(catalogue)) = (&self.events, &self.catalogue) {
            let layout = event_layout(&self.path, catalogue, &self.filter);
            slot.set_sensors(layout.sensors.clone());
            self.events = Some(layout);
        }
        if let (Some(layout), Some(info)) = (&self.events, self.log.info()) {
            let counts = &self.log.counts;
            let asserted = |key| counts.asserted.get(key).copied().unwrap_or(0);
            let known: u64 = layout.keys.iter().map(asserted).sum();
            let all: u64 = counts.asserted.values().sum();
            let mut values = vec![
                Some(u64::from(info.entries)),
                info.free_bytes.map(u64::from),
                Some(u64::from(info.has_overflowed)),
                Some(counts.entries),
                Some(counts.erasures),
                Some(all - known),
            ];
            values.extend(layout.keys.iter().map(|key| Some(asserted(key))));
            slot.publish(now_ns, &values);
        }
        fault.map_or(BmcStep::Finished, |fault| BmcStep::Failed(DeviceProblem::Refused(fault)))
    }
}

/// The values of a power reading, in the order of its sensors. `None` if it is none; gaps while nothing is measured.
fn power_values(data: &[u8]) -> Option<[Option<u64>; 5]> {
    let data: &[u8; 18] = data.first_chunk()?;
    if data[0] != DCMI {
        return None;
    }
    let two = |at: usize| Some(u64::from(u16::from_le_bytes([data[at], data[at + 1]])));
    let period = u64::from(u32::from_le_bytes([data[13], data[14], data[15], data[16]]));
    let is_active = data[17] & 0x40 != 0;
    Some(if is_active { [two(1), two(3), two(5), two(7), Some(period)] } else { [None; 5] })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes by DCMI 1.5, table 6-16: 286 W, 61 to 480 W, mean 273 W, over 3600 s.
    #[test]
    fn a_power_reading_of_dcmi() {
        let mut data = [0xdc, 0x1e, 1, 61, 0, 0xe0, 1, 0x11, 1, 0x78, 0x56, 0x34, 0x12, 0x80, 0xee, 0x36, 0, 0x40];
        let expected = [286, 61, 480, 273, 3_600_000].map(Some);
        assert_eq!(power_values(&data), Some(expected));
        assert_eq!(power_values(&data[..17]), None);
        data[17] = 0;
        assert_eq!(power_values(&data), Some([None; 5]), "nothing is measured");
        data[0] = 0;
        assert_eq!(power_values(&data), None);
        let sensors = power_sensors("n1");
        assert_eq!((sensors[0].name.as_str(), sensors[4].scale), ("n1/dcmi/power", 0.001));
    }
}
