//! Groups of a source of devices: made from the slots whose sensors are known.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use wholegrain_model::{Interval, SensorDef};
use wholegrain_sources::{GroupPlan, Timing};

use crate::answers::{AnswerSlot, WallTime, system_time};
use crate::config::PollTiming;
use crate::notes::PollCounts;
use crate::schedule::GroupTicks;
use crate::status::PollStatus;

/// How many intervals the newest answer counts, unless `stale_after` says otherwise.
const STALE_INTERVALS: u64 = 3;
/// How often the first discovery looks whether all devices have answered: every 10 ms.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The most devices that a note names.
const NAMED_MAX: usize = 5;

/// A group of a device, for the source.
pub struct DeviceGroup {
    /// The group's name below the agent's prefix, such as `r7/pdu01/outlets`.
    pub name: String,
    /// The interval and the offset; the age at which an answer counts no more.
    pub timing: PollTiming,
    pub slot: Arc<AnswerSlot>,
}

impl DeviceGroup {
    /// Interval and offset, for the poller.
    pub fn ticks(&self) -> GroupTicks {
        GroupTicks { interval_ns: self.timing.interval.ns(), offset_ns: self.timing.offset.ns() }
    }
}

/// All groups of a source, for its `discover`.
pub struct DeviceGroups {
    groups: Vec<DeviceGroup>,
    /// How long the first discovery may wait for answers. 0 after it.
    first_answers: Interval,
    /// What silence of a device of this protocol can mean, for notes; empty or with `: ` before it.
    silence: &'static str,
    status: Option<PollStatus>,
    now: WallTime,
}

impl DeviceGroups {
    /// `first_answers` is how long the first discovery may wait until each device has answered once.
    pub fn new(groups: Vec<DeviceGroup>, first_answers: Interval) -> Self {
        Self { groups, first_answers, silence: "", status: None, now: system_time }
    }

    /// Says what silence can mean in this protocol, with `: ` before it.
    pub fn with_silence(self, silence: &'static str) -> Self {
        Self { silence, ..self }
    }

    /// Adds a group `name` about the polls, and their notes, to each discovery from now on.
    pub fn show_polls(&mut self, name: &'static str, counts: Arc<PollCounts>) {
        self.status = Some(PollStatus::new(name, counts));
    }

    /// The groups whose sensors are known, and that about the polls. A group with a sensor that another group has is left out, and both are named.
    pub fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.groups.is_empty() && self.first_answers > Interval::default() {
            report("no device is configured: write [[plugins.….device]] with hosts".to_owned());
        }
        let deadline = Instant::now() + std::mem::take(&mut self.first_answers).duration();
        let was_polled = |group: &DeviceGroup| group.slot.was_polled();
        while !self.groups.iter().all(was_polled) && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
        }
        let unknown: Vec<&str> =
            self.groups.iter().filter(|group| !group.slot.has_sensors()).map(|group| group.name.as_str()).collect();
        if let Some(more) = unknown.len().checked_sub(NAMED_MAX + 1) {
            report(format!(
                "{} and {} more groups: their devices have not answered yet{}",
                unknown[..NAMED_MAX].join(", "),
                more + 1,
                self.silence
            ));
        } else if !unknown.is_empty() {
            report(format!("{}: the device has not answered yet{}", unknown.join(", "), self.silence));
        }
        self.groups.iter().filter_map(|group| group.slot.take_remark()).for_each(&mut *report);
        let mut owners: HashMap<String, String> = HashMap::new();
        let plans = self.groups.iter().filter_map(|group| {
            let interval_ns = group.timing.interval.ns();
            let stale_ns = group.timing.stale_after.map_or(interval_ns * STALE_INTERVALS, Interval::ns);
            let (sensors, reader) = group.slot.reader(stale_ns, self.now)?;
            if let Some((sensor, owner)) = collision(&sensors, &owners) {
                report(format!("group {} is left out: group {owner} has the sensor {sensor} too", group.name));
                return None;
            }
            owners.extend(sensors.iter().map(|sensor| (sensor.name.clone(), group.name.clone())));
            let timing =
                Timing { interval: Some(group.timing.interval), offset: group.timing.offset, synchronous: true };
            (!sensors.is_empty()).then(|| GroupPlan {
                name: group.name.clone(),
                sensors,
                reader: Box::new(reader),
                timing,
                blocking: true,
            })
        });
        let mut plans: Vec<GroupPlan> = plans.collect();
        if let Some(status) = &self.status {
            status.report(report);
            plans.push(status.group(&self.groups));
        }
        plans
    }

    /// Adds groups before the first discovery.
    pub fn extend(&mut self, groups: impl IntoIterator<Item = DeviceGroup>) {
        self.groups.extend(groups);
    }

    /// The groups in the order in which they were added.
    pub fn groups(&self) -> &[DeviceGroup] {
        &self.groups
    }
}

/// The first sensor that another group has, with that group.
fn collision<'a>(sensors: &'a [SensorDef], owners: &'a HashMap<String, String>) -> Option<(&'a str, &'a str)> {
    sensors.iter().find_map(|sensor| Some((sensor.name.as_str(), owners.get(&sensor.name)?.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_a_discovery() {
        let said = |groups: &mut DeviceGroups| {
            let mut notes = Vec::new();
            groups.discover(&mut |note| notes.push(note));
            notes
        };
        let mut none = DeviceGroups::new(Vec::new(), Interval::from_ms(1));
        assert_eq!(said(&mut none), ["no device is configured: write [[plugins.….device]] with hosts"]);
        assert_eq!(said(&mut none), [""; 0], "once");
        let slot = Arc::new(AnswerSlot::default());
        let group = DeviceGroup { name: "d/g".to_owned(), timing: PollTiming::default(), slot: slot.clone() };
        let mut one = DeviceGroups::new(vec![group], Interval::from_ms(1)).with_silence(": check the community");
        assert_eq!(said(&mut one), ["d/g: the device has not answered yet: check the community"]);
        slot.set_sensors(Vec::new());
        slot.set_remark("d: nothing of this preset".to_owned());
        assert_eq!(said(&mut one), ["d: nothing of this preset"]);
        assert_eq!(said(&mut one), [""; 0], "once");
    }
}
