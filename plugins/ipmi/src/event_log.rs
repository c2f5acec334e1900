//! Follows the system event log of a controller (IPMI 2.0, chapters 31 and 32): reads new entries only, and counts them. No I/O.

use std::collections::{HashMap, HashSet};

use crate::message::{GET_SEL_ENTRY, GET_SEL_INFO, IpmiCommand, IpmiReply, completion};
use crate::record::SensorKey;

/// The most entries that one poll reads; the next one goes on.
pub const ENTRIES_POLL_MAX: u32 = 512;
/// The bytes of an entry.
const ENTRY_BYTES: usize = 16;
/// The numbers that mean the first and the last entry; the latter also says that there is no next one.
const FIRST: u16 = 0;
const LAST: u16 = 0xffff;
/// The type of entries about sensors.
const SYSTEM_EVENT: u8 = 2;
/// A time that is not known.
const NO_TIME: u32 = 0xffff_ffff;
/// Times below are counted from the start of the controller, not from the epoch.
const FIRST_TIME: u32 = 0x2000_0000;

/// What Get SEL Info says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogInfo {
    pub entries: u16,
    /// `None`: unknown, or 65,535 and more.
    pub free_bytes: Option<u16>,
    added: u32,
    erased: u32,
    /// Whether the log was full and lost entries.
    pub has_overflowed: bool,
}

impl LogInfo {
    fn read(data: &[u8]) -> Option<Self> {
        let data: &[u8; 14] = data.first_chunk()?;
        let two = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]);
        let four = |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        Some(Self {
            entries: two(1),
            free_bytes: Some(two(3)).filter(|free| *free != u16::MAX),
            added: four(5),
            erased: four(9),
            has_overflowed: data[13] & 0x80 != 0,
        })
    }
}

/// An entry that was read last: the next ones follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LogEntry {
    bytes: [u8; ENTRY_BYTES],
}

impl LogEntry {
    fn number(&self) -> u16 {
        u16::from_le_bytes([self.bytes[0], self.bytes[1]])
    }

    fn time(&self) -> Option<u32> {
        let time = u32::from_le_bytes([self.bytes[3], self.bytes[4], self.bytes[5], self.bytes[6]]);
        (self.bytes[2] < 0xe0 && time >= FIRST_TIME && time != NO_TIME).then_some(time)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogStage {
    Info,
    /// The last entry of the log, where counting begins.
    Newest,
    /// The last known entry: is it still there, and which one follows?
    Known,
    Entry(u16),
}

/// Counts of events since the plug-in began to follow the log.
#[derive(Debug, Default)]
pub struct LogCounts {
    pub entries: u64,
    /// How often the known entries had vanished: erased, or overwritten by newer ones.
    pub erasures: u64,
    /// Asserted events by sensor.
    pub asserted: HashMap<SensorKey, u64>,
}

/// What a poll of the log brought.
#[derive(Debug, PartialEq, Eq)]
pub enum LogStep {
    Command(IpmiCommand),
    Done(Option<&'static str>),
    /// The controller has no log, or it may not be read.
    Absent,
}

/// The log of one controller.
#[derive(Default)]
pub struct EventLog {
    pub counts: LogCounts,
    info: Option<LogInfo>,
    /// What the log said when all its entries were known.
    followed: Option<LogInfo>,
    last: Option<LogEntry>,
    stage: Option<LogStage>,
    visited: HashSet<u16>,
    read: u32,
    /// Entries older than this are known: the last known one was removed, but others stayed.
    older_than: Option<u32>,
    fault: Option<&'static str>,
}

impl EventLog {
    /// Begins a poll: the first command.
    pub fn begin(&mut self) -> IpmiCommand {
        (self.stage, self.read, self.fault) = (Some(LogStage::Info), 0, None);
        IpmiCommand::new(GET_SEL_INFO, [])
    }

    /// The log as it was at the last poll.
    pub fn info(&self) -> Option<LogInfo> {
        self.info
    }

    fn get(&mut self, stage: LogStage) -> LogStep {
        let number = match stage {
            LogStage::Newest => LAST,
            LogStage::Known => self.last.map_or(FIRST, |last| last.number()),
            LogStage::Entry(number) => number,
            LogStage::Info => return LogStep::Command(self.begin()),
        };
        self.stage = Some(stage);
        let [low, high] = number.to_le_bytes();
        // A whole entry needs no reservation.
        LogStep::Command(IpmiCommand::new(GET_SEL_ENTRY, [0, 0, low, high, 0, 0xff]))
    }

    /// Ends a poll with all entries known.
    fn follow(&mut self) -> LogStep {
        (self.followed, self.stage, self.older_than) = (self.info, None, None);
        self.visited.clear();
        LogStep::Done(self.fault)
    }

    /// Takes the answer to the last command.
    pub fn take(&mut self, reply: IpmiReply<'_>) -> LogStep {
        match self.stage {
            None => LogStep::Done(None),
            Some(LogStage::Info) => self.take_info(reply),
            Some(stage) => self.take_entry(stage, reply),
        }
    }

    fn take_info(&mut self, reply: IpmiReply<'_>) -> LogStep {
        let absent = [completion::INVALID_COMMAND, completion::INVALID_FOR_LUN, completion::PRIVILEGE];
        if absent.contains(&reply.completion) {
            self.info = None;
            return LogStep::Absent;
        }
        let Some(info) = reply.good().and_then(LogInfo::read) else {
            self.stage = None;
            return LogStep::Done(Some("no answer about its event log"));
        };
        let (before, is_first) = (self.followed, self.info.is_none() && self.followed.is_none());
        self.info = Some(info);
        if is_first {
            // What is in the log already is not counted.
            return if info.entries == 0 { self.follow() } else { self.get(LogStage::Newest) };
        }
        if info.entries == 0 {
            if self.last.take().is_some() {
                self.counts.erasures += 1;
            }
            return self.follow();
        }
        match self.last {
            // A log without a time of its last entry can be full and still have new ones.
            _ if before == Some(info) && info.added != NO_TIME => self.follow(),
            Some(_) => self.get(LogStage::Known),
            None => self.get(LogStage::Entry(FIRST)),
        }
    }

    fn take_entry(&mut self, stage: LogStage, reply: IpmiReply<'_>) -> LogStep {
        let entry = reply.good().and_then(|data| {
            let (next, rest) = data.split_first_chunk::<2>()?;
            Some((u16::from_le_bytes(*next), LogEntry { bytes: *rest.first_chunk()? }))
        });
        match (stage, entry) {
            (LogStage::Newest, Some((_, entry))) => {
                self.last = Some(entry);
                self.follow()
            }
            (LogStage::Known, Some((next, entry))) if Some(entry) == self.last => {
                if next == LAST {
                    self.follow()
                } else {
                    self.go_on(next)
                }
            }
            (LogStage::Known, found) if found.is_some() || reply.completion == completion::NOT_PRESENT => {
                self.counts.erasures += 1;
                self.older_than = self.last.take().and_then(|last| last.time());
                self.visited.clear();
                self.get(LogStage::Entry(FIRST))
            }
            (LogStage::Entry(_), Some((next, entry))) => {
                self.count(&entry);
                self.last = Some(entry);
                self.visited.insert(entry.number());
                if next == LAST { self.follow() } else { self.go_on(next) }
            }
            // Somebody erases the log now, or the controller is busy: the next poll begins from what is known.
            (LogStage::Entry(_), None) if reply.completion != completion::OK => {
                self.stage = None;
                LogStep::Done(None)
            }
            _ => {
                self.stage = None;
                LogStep::Done(Some("an entry of its event log cannot be read"))
            }
        }
    }

    /// Reads the next entry, in this poll or in the next one.
    fn go_on(&mut self, next: u16) -> LogStep {
        if next == FIRST || self.visited.contains(&next) {
            // The newest entry is where following begins again.
            self.fault = Some("an event log whose entries repeat");
            self.visited.clear();
            return self.get(LogStage::Newest);
        }
        self.read += 1;
        if self.read == ENTRIES_POLL_MAX {
            (self.stage, self.followed) = (None, None);
            return LogStep::Done(None);
        }
        self.get(LogStage::Entry(next))
    }

    fn count(&mut self, entry: &LogEntry) {
        if let (Some(bound), Some(time)) = (self.older_than, entry.time())
            && time < bound
        {
            return;
        }
        self.counts.entries += 1;
        let bytes = &entry.bytes;
        if bytes[2] == SYSTEM_EVENT && bytes[12] & 0x80 == 0 {
            let key = SensorKey { owner: bytes[7], lun: bytes[8] & 3, number: bytes[11] };
            *self.counts.asserted.entry(key).or_default() += 1;
        }
    }
}
