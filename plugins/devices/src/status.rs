//! A group about the polls of a source: how many devices answer, how many do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wholegrain_model::SensorDef;
use wholegrain_sources::{GroupPlan, Reader, Reading, Row, Timing};

use crate::answers::AnswerSlot;
use crate::groups::DeviceGroup;
use crate::notes::PollCounts;

/// The sensors of a source's polls. Its reader also requests a discovery when a device has answered for the first time.
pub(crate) struct PollStatus {
    name: &'static str,
    counts: Arc<PollCounts>,
    /// The groups whose sensors the last discovery knew.
    known: Arc<AtomicUsize>,
}

impl PollStatus {
    /// The status of a source with this name, which is also the name of the group.
    pub(crate) fn new(name: &'static str, counts: Arc<PollCounts>) -> Self {
        Self { name, counts, known: Arc::default() }
    }

    /// Hands the notes about the polls to `report`.
    pub(crate) fn report(&self, report: &mut dyn FnMut(String)) {
        self.counts.report(report);
    }

    /// The group, after a discovery of `groups`.
    pub(crate) fn group(&self, groups: &[DeviceGroup]) -> GroupPlan {
        self.known.store(groups.iter().filter(|group| group.slot.has_sensors()).count(), Ordering::Relaxed);
        let name = |last: &str| format!("{}/{last}", self.name);
        let sensors = vec![
            SensorDef::gauge(name("groups"), "{group}", "Groups of devices."),
            SensorDef::gauge(name("failing"), "{device}", "Devices whose last poll brought no answer."),
            SensorDef::counter(name("polls"), "{poll}", "Polls that began."),
            SensorDef::counter(name("answers"), "{poll}", "Polls that ended with an answer."),
            SensorDef::counter(name("timeouts"), "{request}", "Requests without an answer in time."),
            SensorDef::counter(name("strays"), "{message}", "Messages that were not the awaited answer."),
        ];
        let slots = groups.iter().map(|group| group.slot.clone()).collect();
        let reader = PollStatusReader { slots, counts: self.counts.clone(), known: self.known.clone() };
        GroupPlan {
            name: self.name.to_owned(),
            sensors,
            reader: Box::new(reader),
            timing: Timing::default(),
            blocking: true,
        }
    }
}

struct PollStatusReader {
    slots: Vec<Arc<AnswerSlot>>,
    counts: Arc<PollCounts>,
    known: Arc<AtomicUsize>,
}

impl Reader for PollStatusReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let PollCounts { polls, answers, timeouts, strays, failing, .. } = &*self.counts;
        let load =
            |count: &std::sync::atomic::AtomicU64| i64::try_from(count.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        let groups = i64::try_from(self.slots.len()).unwrap_or(i64::MAX);
        let values = [groups, load(failing), load(polls), load(answers), load(timeouts), load(strays)];
        values.iter().enumerate().for_each(|(at, value)| row.set_int(at, *value));
        let known = self.slots.iter().filter(|slot| slot.has_sensors()).count();
        Reading { layout_changed: known != self.known.load(Ordering::Relaxed), ..Reading::COMPLETE }
    }
}
