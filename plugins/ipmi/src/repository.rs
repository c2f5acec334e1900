//! Walks the sensor data repository of a controller (IPMI 2.0, chapter 33), or the device's own records (chapter 35). No I/O; a walk can go on in a
//! later poll.

use std::collections::HashSet;

use crate::message::{
    GET_DEVICE_ID, GET_DEVICE_SDR, GET_DEVICE_SDR_INFO, GET_SDR, GET_SDR_INFO, GET_SENSOR_THRESHOLDS, IpmiCommand,
    IpmiReply, RESERVE_DEVICE_SDR, RESERVE_SDR, completion,
};
use crate::names::THRESHOLDS;
use crate::record::{self, HEADER_BYTES, SensorRecord};

/// The most records of a repository.
pub const RECORDS_MAX: usize = 8192;
/// The most sensors of a device.
pub const DEVICE_SENSORS_MAX: usize = 4096;
/// The most requests of one walk, also of one that begins again.
const REQUESTS_MAX: u32 = 60_000;
/// How often a walk begins again because the repository changed.
const RESTARTS_MAX: u32 = 5;
/// How often a reservation may be cancelled in one walk.
const RESERVATIONS_MAX: u32 = 64;
/// How often a record is requested again from a busy controller.
const BUSY_MAX: u32 = 5;
/// The number that means a whole record.
const WHOLE: u8 = 0xff;
/// The sizes of parts to try in turn, in bytes.
const PARTS: [u8; 4] = [WHOLE, 32, 16, 8];
/// The number after the last record.
const LAST_RECORD: u16 = 0xffff;
/// The address of the management controller as owner of sensors.
pub const BMC_OWNER: u8 = 0x20;

/// A sensor with what its thresholds are, as the controller answered them.
#[derive(Debug, Clone, PartialEq)]
pub struct CatalogueSensor {
    pub record: SensorRecord,
    /// By the places of [`THRESHOLDS`].
    pub thresholds: [Option<f64>; THRESHOLDS.len()],
}

/// All sensors of a controller, after a walk.
#[derive(Debug, Default)]
pub struct SensorCatalogue {
    pub sensors: Vec<CatalogueSensor>,
    /// Why sensors may be missing.
    pub fault: Option<&'static str>,
    stamp: Vec<u8>,
    is_device: bool,
    /// The place in [`PARTS`] with which the controller can answer.
    part: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WalkStage {
    DeviceId,
    Info,
    Reserve,
    Record,
    /// Whether the repository has changed meanwhile.
    InfoAfter,
    Thresholds(usize),
    Done,
}

/// A walk, from its begin to its end.
pub struct RepositoryWalk {
    stage: WalkStage,
    /// Of the walk before, to see whether anything has changed.
    before: Option<Vec<u8>>,
    catalogue: SensorCatalogue,
    reservation: u16,
    /// The record that is read, and its bytes so far.
    record: u16,
    bytes: Vec<u8>,
    next: u16,
    visited: HashSet<u16>,
    requests: u32,
    restarts: u32,
    reservations: u32,
    busy: u32,
}

/// Why a walk ended without sensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkFault(pub &'static str);

/// What a finished walk found.
pub enum WalkResult {
    /// The repository is that of the walk before.
    Unchanged,
    Changed(SensorCatalogue),
}

impl RepositoryWalk {
    /// A walk that ends soon if the repository is still the one of `before`.
    pub fn new(before: Option<&SensorCatalogue>) -> Self {
        let catalogue = SensorCatalogue {
            is_device: before.is_some_and(|before| before.is_device),
            part: before.map_or(0, |before| before.part),
            ..SensorCatalogue::default()
        };
        Self {
            stage: if before.is_some() { WalkStage::Info } else { WalkStage::DeviceId },
            before: before.map(|before| before.stamp.clone()),
            catalogue,
            reservation: 0,
            record: 0,
            bytes: Vec::new(),
            next: LAST_RECORD,
            visited: HashSet::new(),
            requests: 0,
            restarts: 0,
            reservations: 0,
            busy: 0,
        }
    }

    /// Goes on in a later poll, where the reservation may have been cancelled.
    pub fn resume(&mut self) {
        if self.stage == WalkStage::Record {
            self.reserve();
        }
    }

    /// The next command. `None`: the walk is done.
    pub fn command(&mut self) -> Option<IpmiCommand> {
        self.requests += 1;
        let device = self.catalogue.is_device;
        let choose = |own, main| if device { own } else { main };
        Some(match self.stage {
            WalkStage::DeviceId => IpmiCommand::new(GET_DEVICE_ID, []),
            WalkStage::Info | WalkStage::InfoAfter => IpmiCommand::new(choose(GET_DEVICE_SDR_INFO, GET_SDR_INFO), []),
            WalkStage::Reserve => IpmiCommand::new(choose(RESERVE_DEVICE_SDR, RESERVE_SDR), []),
            WalkStage::Record => {
                let (begin, part) = (self.bytes.len(), PARTS[self.catalogue.part]);
                let length = if part == WHOLE && begin == 0 {
                    WHOLE
                } else {
                    let all = self.record_bytes().unwrap_or(HEADER_BYTES);
                    (all.saturating_sub(begin)).min(usize::from(part.min(PARTS[1]))) as u8
                };
                let mut data = self.reservation.to_le_bytes().to_vec();
                data.extend_from_slice(&self.record.to_le_bytes());
                data.extend_from_slice(&[begin as u8, length]);
                IpmiCommand::new(choose(GET_DEVICE_SDR, GET_SDR), data)
            }
            WalkStage::Thresholds(at) => {
                let key = self.catalogue.sensors[at].record.key;
                IpmiCommand { lun: key.lun, ..IpmiCommand::new(GET_SENSOR_THRESHOLDS, [key.number]) }
            }
            WalkStage::Done => return None,
        })
    }

    /// The whole length of the record that is read, once its header is known.
    fn record_bytes(&self) -> Option<usize> {
        self.bytes.get(4).map(|length| HEADER_BYTES + usize::from(*length))
    }

    /// Leaves out the answer to the present command, which never came.
    pub fn skip(&mut self) -> bool {
        match self.stage {
            WalkStage::Thresholds(at) => {
                self.stage = self.thresholds_from(at + 1);
                true
            }
            _ => false,
        }
    }

    /// Takes the answer to the last command.
    pub fn take(&mut self, reply: IpmiReply<'_>) -> Result<(), WalkFault> {
        if self.requests > REQUESTS_MAX {
            return Err(WalkFault("a sensor repository without end"));
        }
        match self.stage {
            WalkStage::DeviceId => {
                let data = reply.good().filter(|data| data.len() >= 6).ok_or(WalkFault("no device ID"))?;
                // Without a repository, the device has records of its own sensors.
                self.catalogue.is_device = data[5] & 2 == 0 && data[1] & 0x80 != 0;
                self.stage = WalkStage::Info;
            }
            WalkStage::Info => self.take_info(reply)?,
            WalkStage::Reserve => {
                self.reservation = match (reply.completion, reply.data) {
                    (completion::OK, [low, high, ..]) => u16::from_le_bytes([*low, *high]),
                    // Controllers without reservations read records with the number 0.
                    (completion::INVALID_COMMAND, _) => 0,
                    _ => return Err(WalkFault("no reservation of the sensor repository")),
                };
                self.stage = WalkStage::Record;
            }
            WalkStage::Record => self.take_part(reply)?,
            WalkStage::InfoAfter => {
                let stamp = reply.good().and_then(|data| stamp(data, self.catalogue.is_device));
                if stamp.is_some_and(|stamp| stamp == self.catalogue.stamp) {
                    self.stage = self.thresholds_from(0);
                } else {
                    self.restart()?;
                }
            }
            WalkStage::Thresholds(at) => {
                if let Some(data) = reply.good().filter(|data| data.len() >= 7) {
                    self.catalogue.sensors[at].take_thresholds(data);
                }
                self.stage = self.thresholds_from(at + 1);
            }
            WalkStage::Done => {}
        }
        Ok(())
    }

    /// What the walk found, after its end.
    pub fn finish(self) -> WalkResult {
        match self.before {
            Some(before) if before == self.catalogue.stamp => WalkResult::Unchanged,
            _ => WalkResult::Changed(self.catalogue),
        }
    }

    fn take_info(&mut self, reply: IpmiReply<'_>) -> Result<(), WalkFault> {
        let info = reply.good().and_then(|data| stamp(data, self.catalogue.is_device));
        self.catalogue.stamp = info.ok_or(WalkFault("no answer about its sensor repository"))?;
        if self.before.as_ref() == Some(&self.catalogue.stamp) {
            self.stage = WalkStage::Done;
        } else {
            self.before = None;
            self.begin();
        }
        Ok(())
    }

    /// Begins with the first record.
    fn begin(&mut self) {
        self.catalogue.sensors.clear();
        self.catalogue.fault = None;
        self.visited.clear();
        self.record = 0;
        self.reserve();
    }

    fn restart(&mut self) -> Result<(), WalkFault> {
        self.restarts += 1;
        if self.restarts > RESTARTS_MAX {
            return Err(WalkFault("its sensor repository changes all the time"));
        }
        self.stage = WalkStage::Info;
        Ok(())
    }

    fn reserve(&mut self) {
        self.bytes.clear();
        self.stage = WalkStage::Reserve;
    }

    fn take_part(&mut self, reply: IpmiReply<'_>) -> Result<(), WalkFault> {
        match reply.completion {
            completion::OK => {}
            completion::RESERVATION_CANCELLED => {
                self.reservations += 1;
                if self.reservations > RESERVATIONS_MAX {
                    return Err(WalkFault("others read its sensor repository all the time"));
                }
                self.reserve();
                return Ok(());
            }
            completion::BUSY | completion::TIMEOUT | completion::INITIALISATION if self.busy < BUSY_MAX => {
                self.busy += 1;
                return Ok(());
            }
            // An empty repository has no first record.
            completion::NOT_PRESENT if self.record == 0 && self.bytes.is_empty() => {
                self.end_records(None);
                return Ok(());
            }
            _ if self.catalogue.part + 1 < PARTS.len() => {
                self.catalogue.part += 1;
                self.bytes.clear();
                return Ok(());
            }
            _ => return self.leave_record("a record of a sensor cannot be read"),
        }
        let Some(([low, high], data)) = reply.data.split_first_chunk::<2>() else {
            return self.leave_record("a record of a sensor without data");
        };
        let (begin, wanted) = (self.bytes.len(), self.record_bytes().unwrap_or(usize::from(WHOLE)));
        if begin == 0 {
            self.next = u16::from_le_bytes([*low, *high]);
        }
        if data.is_empty() {
            return self.leave_record("a record of a sensor without data");
        }
        self.bytes.extend_from_slice(&data[..data.len().min(wanted.saturating_sub(begin).max(HEADER_BYTES))]);
        match self.record_bytes() {
            Some(all) if self.bytes.len() >= all => {
                self.bytes.truncate(all);
                self.end_record()
            }
            // The rest of records of other kinds is of no interest.
            Some(_) if !(1..=3).contains(&self.bytes[3]) => {
                self.bytes.clear();
                self.end_record()
            }
            _ => Ok(()),
        }
    }

    /// Goes on without a record, if it is known which one is next.
    fn leave_record(&mut self, why: &'static str) -> Result<(), WalkFault> {
        self.catalogue.fault = Some(why);
        if self.bytes.is_empty() {
            self.end_records(Some(why));
            return Ok(());
        }
        self.bytes.clear();
        self.end_record()
    }

    fn end_record(&mut self) -> Result<(), WalkFault> {
        self.busy = 0;
        for record in record::sensors(&self.bytes) {
            if self.catalogue.sensors.len() == DEVICE_SENSORS_MAX {
                self.catalogue.fault = Some("more than 4096 sensors");
                break;
            }
            self.catalogue.sensors.push(CatalogueSensor { record, thresholds: [None; THRESHOLDS.len()] });
        }
        self.bytes.clear();
        self.visited.insert(self.record);
        if self.next == LAST_RECORD {
            self.end_records(None);
        } else if self.next == 0 || self.visited.contains(&self.next) {
            self.end_records(Some("a sensor repository whose records repeat"));
        } else if self.visited.len() >= RECORDS_MAX {
            self.end_records(Some("a sensor repository of more than 8192 records"));
        } else {
            self.record = self.next;
        }
        Ok(())
    }

    fn end_records(&mut self, fault: Option<&'static str>) {
        self.catalogue.fault = fault.or(self.catalogue.fault);
        self.stage = WalkStage::InfoAfter;
    }

    /// The stage that reads the thresholds of the first sensor from `at` on that has some.
    fn thresholds_from(&self, at: usize) -> WalkStage {
        let is_read = |sensor: &CatalogueSensor| {
            sensor.record.has_thresholds && sensor.record.key.owner == BMC_OWNER && sensor.record.factors.is_some()
        };
        let next = self.catalogue.sensors.iter().skip(at).position(is_read);
        next.map_or(WalkStage::Done, |next| WalkStage::Thresholds(at + next))
    }
}

impl CatalogueSensor {
    /// Takes the answer to Get Sensor Thresholds: which can be read, then one byte for each in their order.
    fn take_thresholds(&mut self, data: &[u8]) {
        let Some(factors) = self.record.factors else { return };
        for (place, threshold) in self.thresholds.iter_mut().enumerate() {
            *threshold = (data[0] >> place & 1 == 1).then(|| factors.value(data[1 + place])).flatten();
        }
    }
}

/// What changes with the records: number and times, without the free space.
fn stamp(data: &[u8], is_device: bool) -> Option<Vec<u8>> {
    match is_device {
        true => (data.len() >= 2).then(|| data.to_vec()),
        false => (data.len() >= 13).then(|| [&data[..3], &data[5..13]].concat()),
    }
}
