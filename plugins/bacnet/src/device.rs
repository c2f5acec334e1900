//! The exchange with one device: identity, objects, their names and units, then values at each poll, and changes in between.

use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_devices::{AnswerSlot, DeviceProblem, DeviceProtocol, PollTurn};
use wholegrain_model::SensorDef;

use crate::message::{
    ANY_DEVICE, ChangeNotice, DeviceIdentity, DeviceMessage, PropertyRef, UNKNOWN_OBJECT, acknowledge, parse, property,
    read_property, subscribe, who_is,
};
use crate::objects::{SampledObject, is_same_name, object_name, sampled};
use crate::reads::{Denial, PropertyReads, RequestLimits};
use crate::settings::DeviceSettings;
use crate::tag::{ObjectId, TaggedValue};

/// The most objects of one device.
pub const OBJECTS_MAX: usize = 4096;
/// The longest message of a device that does not say: what the oldest networks carry.
const APDU_BYTES_UNKNOWN: usize = 480;
/// What an answer has for a value or status flags, with its object, in bytes.
const VALUE_BYTES: usize = 26;
/// The same for a name or a unit.
const NAME_BYTES: usize = 60;
/// The same for an element of the object list.
const ELEMENT_BYTES: usize = 24;
/// The most notes of one device.
const NOTES_MAX: usize = 20;
const DEVICE_KIND: u16 = 8;
const WRONG_INSTANCE: DeviceProblem = DeviceProblem::Refused("another instance than the configuration; see `instance`");

/// What is wrong with objects of a device at present, for the administrator.
pub type ObjectNotes = Arc<Mutex<Vec<String>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Identify,
    /// The whole list of objects with one request.
    ListAll,
    /// The number of objects, after the whole list was too long.
    ListCount,
    ListParts,
    Describe,
    Read,
    /// A change of this object is being subscribed to.
    Subscribe(usize),
}

/// An object with its newest value.
#[derive(Debug)]
struct ObjectRun {
    sampled: SampledObject,
    has_flags: bool,
    value: Option<TaggedValue>,
    flags: Vec<bool>,
    subscription: ObjectSubscription,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ObjectSubscription {
    None,
    Active,
    /// The device has no subscriptions for this object: it is read at each poll.
    Refused,
}

/// The protocol of one device.
pub struct BacnetDevice {
    settings: Arc<DeviceSettings>,
    /// The device's path, which begins the names of its sensors.
    path: String,
    slot: Arc<AnswerSlot>,
    notes: ObjectNotes,
    /// Names the subscriptions of this device in notices.
    process: u32,
    invoke: u8,
    stage: Stage,
    /// Whether the next attempt to identify the device reads it instead of asking who it is.
    identifies_by_reading: bool,
    identity: Option<DeviceIdentity>,
    limits: RequestLimits,
    reads: PropertyReads,
    is_described: bool,
    /// Whether all objects were read since.
    has_values: bool,
    objects: Vec<ObjectRun>,
    /// When all is read and subscribed to again, with subscriptions.
    renew_at_ns: i64,
}

impl BacnetDevice {
    /// A device of which nothing is known yet. `process` names its subscriptions.
    pub fn new(
        settings: Arc<DeviceSettings>,
        path: &str,
        slot: Arc<AnswerSlot>,
        notes: ObjectNotes,
        process: u32,
    ) -> Self {
        Self {
            settings,
            path: path.to_owned(),
            slot,
            notes,
            process,
            invoke: process as u8,
            stage: Stage::Identify,
            identifies_by_reading: false,
            identity: None,
            limits: RequestLimits::new(APDU_BYTES_UNKNOWN),
            reads: PropertyReads::default(),
            is_described: false,
            has_values: false,
            objects: Vec::new(),
            renew_at_ns: i64::MIN,
        }
    }

    fn own(&self) -> ObjectId {
        let instance = self.identity.map_or(ANY_DEVICE.instance, |identity| identity.instance);
        ObjectId { kind: DEVICE_KIND, instance }
    }

    fn identify(&mut self, turn: &mut PollTurn<'_>) {
        self.stage = Stage::Identify;
        self.invoke = self.invoke.wrapping_add(1);
        let (invoke, instance) = (self.invoke, self.settings.instance);
        let by_reading = self.identifies_by_reading;
        self.identifies_by_reading = !by_reading;
        if by_reading {
            let object = instance.map_or(ANY_DEVICE, |instance| ObjectId { kind: DEVICE_KIND, instance });
            turn.send(|out| {
                read_property(out, invoke, PropertyRef { object, property: property::OBJECT_IDENTIFIER, index: None })
            });
        } else {
            turn.send(|out| who_is(out, instance, false));
        }
    }

    fn identified(&mut self, identity: DeviceIdentity, turn: &mut PollTurn<'_>) {
        if self.settings.instance.is_some_and(|instance| instance != identity.instance) {
            return turn.fail(WRONG_INSTANCE);
        }
        self.identity = Some(identity);
        self.limits = RequestLimits::new(identity.apdu_bytes_max);
        if self.settings.lists.is_empty() {
            return self.describe(Vec::new(), turn);
        }
        let list = PropertyRef { object: self.own(), property: property::OBJECT_LIST, index: None };
        // A list has one answer: alone, and as long as the device can make it.
        self.limits.has_multiple = false;
        self.start(Stage::ListAll, vec![list], ELEMENT_BYTES, turn);
    }

    /// Begins a stage that reads these properties.
    fn start(&mut self, stage: Stage, wanted: Vec<PropertyRef>, answer_bytes: usize, turn: &mut PollTurn<'_>) {
        self.stage = stage;
        self.reads = PropertyReads::new(wanted, answer_bytes);
        self.request(turn);
    }

    /// Sends the next request of the stage, or goes on to the next stage.
    fn request(&mut self, turn: &mut PollTurn<'_>) {
        self.invoke = self.invoke.wrapping_add(1);
        let (reads, limits, invoke) = (&mut self.reads, &self.limits, self.invoke);
        let mut bytes = Vec::new();
        if reads.request(limits, invoke, &mut bytes) {
            turn.send(|out| out.append(&mut bytes));
        } else {
            self.complete(turn);
        }
    }

    /// All properties of the stage have results.
    fn complete(&mut self, turn: &mut PollTurn<'_>) {
        match self.stage {
            Stage::ListAll => match self.first_values() {
                Some(list) => {
                    let objects = objects_of(&list);
                    self.limits.has_multiple = true;
                    self.describe(objects, turn);
                }
                None => {
                    let count = PropertyRef { object: self.own(), property: property::OBJECT_LIST, index: Some(0) };
                    self.start(Stage::ListCount, vec![count], ELEMENT_BYTES, turn);
                }
            },
            Stage::ListCount => match self.first_values().as_deref() {
                Some([TaggedValue::Unsigned(count)]) if *count <= OBJECTS_MAX as u64 => {
                    let element =
                        |index| PropertyRef { object: self.own(), property: property::OBJECT_LIST, index: Some(index) };
                    let elements = (1..=*count as u32).map(element).collect();
                    self.limits.has_multiple = true;
                    self.start(Stage::ListParts, elements, ELEMENT_BYTES, turn);
                }
                _ => turn.fail(DeviceProblem::Refused("no list of objects, or too many")),
            },
            Stage::ListParts => {
                let parts = self.reads.results().filter_map(|(_, result)| result.as_ref().ok());
                let objects = parts.flat_map(|values| objects_of(values)).collect();
                self.describe(objects, turn);
            }
            Stage::Describe => self.described(turn),
            Stage::Read => self.values_read(turn),
            Stage::Identify | Stage::Subscribe(_) => {}
        }
    }

    fn first_values(&self) -> Option<Vec<TaggedValue>> {
        self.reads.results().next()?.1.as_ref().ok().cloned()
    }

    /// Reads names and units of the objects of the configuration and of those `listed` that it selects.
    fn describe(&mut self, listed: Vec<ObjectId>, turn: &mut PollTurn<'_>) {
        let objects = sampled(&self.settings, &listed);
        if objects.is_empty() {
            return turn.fail(DeviceProblem::Refused("none of the objects of the configuration"));
        }
        let run = |sampled| ObjectRun {
            sampled,
            has_flags: true,
            value: None,
            flags: Vec::new(),
            subscription: ObjectSubscription::None,
        };
        self.objects = objects.into_iter().take(OBJECTS_MAX).map(run).collect();
        let wanted = self.objects.iter().flat_map(|run| {
            let of = |property| PropertyRef { object: run.sampled.object, property, index: None };
            let unit = run.sampled.needs_unit().then(|| of(property::UNITS));
            let name = run.sampled.needs_name().then(|| of(property::OBJECT_NAME));
            let counts = run.sampled.is_count().then(|| [property::SCALE, property::MAX_PRES_VALUE].map(of));
            unit.into_iter().chain(name).chain(counts.into_iter().flatten())
        });
        let wanted = wanted.collect();
        self.start(Stage::Describe, wanted, NAME_BYTES, turn);
    }

    /// Defines the sensors of the objects.
    fn described(&mut self, turn: &mut PollTurn<'_>) {
        for (wanted, result) in self.reads.results() {
            let Some(run) = self.objects.iter_mut().find(|run| run.sampled.object == wanted.object) else { continue };
            match (wanted.property, result.as_deref()) {
                (property::UNITS, Ok([TaggedValue::Enumerated(unit)])) => run.sampled.set_unit(*unit),
                (property::OBJECT_NAME, Ok([TaggedValue::Text(name)])) => run.sampled.set_name(name),
                (property::SCALE, Ok([TaggedValue::Context(choice, content)])) => {
                    run.sampled.set_count_scale(*choice, content);
                }
                (property::MAX_PRES_VALUE, Ok([TaggedValue::Unsigned(max)])) => run.sampled.set_count_max(*max),
                _ => {}
            }
        }
        let mut notes = Vec::new();
        // Names of the device can be equal: no number decides which object has the name, so neither has.
        let names: Vec<String> = self.objects.iter().map(|run| run.sampled.sensor_name(&self.settings)).collect();
        let mut sensors: Vec<SensorDef> = Vec::new();
        let mut kept = Vec::new();
        for (run, name) in std::mem::take(&mut self.objects).into_iter().zip(&names) {
            if is_same_name(name, &names) {
                notes.push(format!(
                    "{}: left out, as another object has the name {name} too",
                    object_name(run.sampled.object)
                ));
                continue;
            }
            match run.sampled.sensor(&self.path, name) {
                Ok(sensor) => {
                    sensors.push(sensor);
                    kept.push(run);
                }
                Err(error) => notes.push(format!("{}: left out: {error}", object_name(run.sampled.object))),
            }
        }
        self.objects = kept;
        self.set_notes(notes);
        if sensors.is_empty() {
            return turn.fail(DeviceProblem::Refused("none of the objects of the configuration"));
        }
        self.slot.set_sensors(sensors);
        (self.is_described, self.has_values) = (true, false);
        self.renew_at_ns = i64::MIN;
        self.read(turn);
    }

    fn set_notes(&self, notes: Vec<String>) {
        let mut held = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        *held = notes.into_iter().take(NOTES_MAX).collect();
    }

    /// Reads the values of all objects; with subscriptions, only of those without one, or what shows that the device is there.
    fn read(&mut self, turn: &mut PollTurn<'_>) {
        let is_whole = self.settings.cov.is_none() || turn.now_ns() >= self.renew_at_ns;
        let mut wanted = Vec::new();
        for run in self.objects.iter().filter(|run| is_whole || run.subscription != ObjectSubscription::Active) {
            let property = |property| PropertyRef { object: run.sampled.object, property, index: None };
            wanted.push(property(property::PRESENT_VALUE));
            if run.has_flags {
                wanted.push(property(property::STATUS_FLAGS));
            }
        }
        if wanted.is_empty() {
            wanted.push(PropertyRef { object: self.own(), property: property::SYSTEM_STATUS, index: None });
        }
        self.start(Stage::Read, wanted, VALUE_BYTES, turn);
    }

    fn values_read(&mut self, turn: &mut PollTurn<'_>) {
        let (mut has_any, mut notes) = (false, Vec::new());
        let by_object = self.objects.iter().enumerate().map(|(at, run)| (run.sampled.object, at));
        let by_object: std::collections::HashMap<ObjectId, usize> = by_object.collect();
        for (wanted, result) in self.reads.results() {
            has_any |= result.is_ok();
            let Some(run) = by_object.get(&wanted.object).map(|at| &mut self.objects[*at]) else { continue };
            match (wanted.property, result) {
                (property::PRESENT_VALUE, Ok(values)) => run.value = values.first().cloned(),
                (property::PRESENT_VALUE, Err(error)) => {
                    run.value = None;
                    notes.push(format!("{}: {error}; its value is a gap", object_name(wanted.object)));
                }
                (property::STATUS_FLAGS, Ok(values)) => run.set_flags(values),
                (property::STATUS_FLAGS, Err(_)) => (run.has_flags, run.flags) = (false, Vec::new()),
                _ => {}
            }
        }
        if !has_any {
            self.set_notes(notes);
            return turn.fail(DeviceProblem::Refused("errors for all objects"));
        }
        if !notes.is_empty() || self.settings.cov.is_none() {
            self.set_notes(notes);
        }
        self.has_values = true;
        self.publish(turn.now_ns());
        if self.settings.cov.is_some() && turn.now_ns() >= self.renew_at_ns {
            return self.subscribe(0, turn);
        }
        turn.finish();
    }

    /// Subscribes to the first object from `from` on that can have a subscription.
    fn subscribe(&mut self, from: usize, turn: &mut PollTurn<'_>) {
        let Some(cov) = self.settings.cov else { return turn.finish() };
        let next = (from..self.objects.len()).find(|at| self.objects[*at].subscription != ObjectSubscription::Refused);
        let Some(at) = next else {
            // Twice in a lifetime, so that one that is lost does not end it.
            self.renew_at_ns = turn.now_ns().saturating_add(i64::from(cov.lifetime_s) * 500_000_000);
            return turn.finish();
        };
        self.stage = Stage::Subscribe(at);
        self.invoke = self.invoke.wrapping_add(1);
        let (invoke, process, object) = (self.invoke, self.process, self.objects[at].sampled.object);
        turn.send(|out| subscribe(out, invoke, process, object, cov.is_confirmed, cov.lifetime_s));
    }

    /// Stores the newest value of each object.
    fn publish(&self, now_ns: i64) {
        let values: Vec<Option<u64>> = self.objects.iter().map(ObjectRun::bits).collect();
        self.slot.publish(now_ns, &values);
    }

    /// Takes a change; whether it is of a subscription of this device.
    fn changed(&mut self, notice: &ChangeNotice, now_ns: i64) -> bool {
        let is_own = notice.process == self.process && self.identity.is_some_and(|i| i.instance == notice.device);
        if !is_own || !self.is_described {
            return false;
        }
        let Some(run) = self.objects.iter_mut().find(|run| run.sampled.object == notice.object) else { return false };
        for (property, values) in &notice.values {
            match *property {
                property::PRESENT_VALUE => run.value = values.first().cloned(),
                property::STATUS_FLAGS => run.set_flags(values),
                _ => {}
            }
        }
        // Before the first whole read the other objects have no values yet.
        if self.has_values {
            self.publish(now_ns);
        }
        true
    }

    /// Handles what an answer to the request of this stage says instead of values.
    fn denied(&mut self, denial: Denial, turn: &mut PollTurn<'_>) {
        match self.stage {
            // Who-Is with the instance of the configuration has no answer from another device, but reading it has.
            Stage::Identify if self.settings.instance.is_some() && denial == Denial::Error(UNKNOWN_OBJECT) => {
                turn.fail(WRONG_INSTANCE);
            }
            // It cannot be read: it is asked who it is.
            Stage::Identify => self.identify(turn),
            Stage::Subscribe(at) => {
                self.objects[at].subscription = ObjectSubscription::Refused;
                self.subscribe(at + 1, turn);
            }
            _ => {
                self.reads.deny(denial, &mut self.limits);
                self.request(turn);
            }
        }
    }
}

impl ObjectRun {
    fn set_flags(&mut self, values: &[TaggedValue]) {
        if let Some(TaggedValue::Bits(bits)) = values.first() {
            self.flags.clone_from(bits);
        }
    }

    /// The value for the row: none while the device says that the object has a fault or is out of service (12.2.7).
    fn bits(&self) -> Option<u64> {
        let flag = |at: usize| self.flags.get(at).copied().unwrap_or(false);
        if flag(1) || flag(3) {
            return None;
        }
        self.sampled.bits(self.value.as_ref()?)
    }
}

/// The objects of a list.
fn objects_of(values: &[TaggedValue]) -> Vec<ObjectId> {
    let object = |value: &TaggedValue| if let TaggedValue::Object(object) = value { Some(*object) } else { None };
    values.iter().filter_map(object).collect()
}

impl DeviceProtocol for BacnetDevice {
    fn begin(&mut self, _group: usize, turn: &mut PollTurn<'_>) {
        match self.identity {
            Some(_) if self.is_described => self.read(turn),
            Some(identity) => self.identified(identity, turn),
            None => self.identify(turn),
        }
    }

    fn receive(&mut self, bytes: &[u8], turn: &mut PollTurn<'_>) -> usize {
        let Ok(message) = parse(bytes) else { return 0 };
        let is_answer = |invoke: u8| invoke == self.invoke;
        match message {
            DeviceMessage::IAm(identity) if self.stage == Stage::Identify => self.identified(identity, turn),
            DeviceMessage::Values { invoke, values } if is_answer(invoke) => {
                if self.stage == Stage::Identify {
                    if let Some((_, Ok(values))) = values.first()
                        && let [TaggedValue::Object(ObjectId { kind: DEVICE_KIND, instance })] = values[..]
                    {
                        self.identified(DeviceIdentity { instance, apdu_bytes_max: APDU_BYTES_UNKNOWN }, turn);
                    }
                } else if !matches!(self.stage, Stage::Subscribe(_)) && self.reads.take(values) {
                    self.request(turn);
                }
            }
            DeviceMessage::Done { invoke } if is_answer(invoke) => {
                if let Stage::Subscribe(at) = self.stage {
                    self.objects[at].subscription = ObjectSubscription::Active;
                    self.subscribe(at + 1, turn);
                }
            }
            DeviceMessage::Error { invoke, error } if is_answer(invoke) => self.denied(Denial::Error(error), turn),
            DeviceMessage::Reject { invoke, reason } if is_answer(invoke) => self.denied(Denial::Reject(reason), turn),
            DeviceMessage::Abort { invoke, reason } if is_answer(invoke) => self.denied(Denial::Abort(reason), turn),
            DeviceMessage::Change { invoke, notice } if self.changed(&notice, turn.now_ns()) => {
                turn.accept();
                if let Some(invoke) = invoke {
                    turn.reply(|out| acknowledge(out, invoke));
                }
            }
            _ => {}
        }
        bytes.len()
    }

    fn again(&mut self, turn: &mut PollTurn<'_>) {
        if self.stage == Stage::Identify {
            self.identify(turn);
        }
    }

    fn unsolicited(&mut self, bytes: &[u8], now_ns: i64, reply: &mut Vec<u8>) {
        if let Ok(DeviceMessage::Change { invoke, notice }) = parse(bytes)
            && self.changed(&notice, now_ns)
            && let Some(invoke) = invoke
        {
            acknowledge(reply, invoke);
        }
    }

    fn disconnected(&mut self) {
        // Another device can have the address, and a subscription is bound to the port that is closed now.
        self.stage = Stage::Identify;
        self.identity = None;
        self.is_described = false;
        self.renew_at_ns = i64::MIN;
    }
}

#[cfg(test)]
#[path = "device_tests.rs"]
mod tests;
