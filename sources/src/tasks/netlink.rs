//! Encodes and decodes messages of taskstats over generic netlink, and `struct taskstats` (linux/netlink.h, linux/genetlink.h,
//! linux/taskstats.h, Documentation/accounting/taskstats.rst).

use super::usage::*;

/// The longest message, in bytes. A `struct taskstats` has less than 1 KiB.
pub const MESSAGE_BYTES_MAX: usize = 8192;

/// The length of `nlmsghdr` and `genlmsghdr` together.
const HEADERS: usize = 20;
const ERROR: u16 = 2;
const CONTROL_FAMILY: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GET: u8 = 1;
const NEW: u8 = 2;
const STATS: u16 = 3;
const AGGREGATE_PID: u16 = 4;
const AGGREGATE_TGID: u16 = 5;
/// The type of an attribute, without the flags in the upper bits.
const TYPE_MASK: u16 = 0x3fff;
const REQUEST: u16 = 1;
const REQUEST_WITH_ANSWER: u16 = REQUEST | 4;

/// Version 15 of the structure has fields in the middle that every other version has at the end or not at all.
const VERSION_OUT_OF_ORDER: u16 = 15;
/// The first version with the process of a thread.
const VERSION_WITH_TGID: u16 = 12;

/// A request to taskstats.
#[derive(Debug, Clone, Copy)]
pub enum TaskstatsRequest<'a> {
    /// Get the number of the family of taskstats.
    Family,
    /// Get the counters of a thread.
    Thread(u32),
    /// Get the counters of a process with all its threads, also those that have ended.
    Process(u32),
    /// Receive the exit of every thread on these CPUs, such as `0-3`.
    Exits(&'a str),
}

/// Encodes a request; gives its length. `None` when it does not fit.
pub fn write_request(request: TaskstatsRequest<'_>, family: u16, sequence: u32, out: &mut [u8]) -> Option<usize> {
    let (family, command, flags) = match request {
        TaskstatsRequest::Family => (CONTROL_FAMILY, GET_FAMILY, REQUEST),
        TaskstatsRequest::Thread(_) | TaskstatsRequest::Process(_) => (family, GET, REQUEST),
        TaskstatsRequest::Exits(_) => (family, GET, REQUEST_WITH_ANSWER),
    };
    let (kind, length) = match request {
        TaskstatsRequest::Family => (FAMILY_NAME, b"TASKSTATS\0".len()),
        TaskstatsRequest::Thread(_) => (1, 4),
        TaskstatsRequest::Process(_) => (2, 4),
        TaskstatsRequest::Exits(cpus) => (3, cpus.len() + 1),
    };
    let message_length = HEADERS + (4 + length).next_multiple_of(4);
    let out = out.get_mut(..message_length)?;
    out.fill(0);
    out[0..4].copy_from_slice(&(message_length as u32).to_ne_bytes());
    out[4..6].copy_from_slice(&family.to_ne_bytes());
    out[6..8].copy_from_slice(&flags.to_ne_bytes());
    out[8..12].copy_from_slice(&sequence.to_ne_bytes());
    (out[16], out[17]) = (command, 1);
    out[20..22].copy_from_slice(&(4 + length as u16).to_ne_bytes());
    out[22..24].copy_from_slice(&kind.to_ne_bytes());
    let value = &mut out[24..24 + length];
    match request {
        TaskstatsRequest::Family => value.copy_from_slice(b"TASKSTATS\0"),
        TaskstatsRequest::Thread(id) | TaskstatsRequest::Process(id) => value.copy_from_slice(&id.to_ne_bytes()),
        TaskstatsRequest::Exits(cpus) => value[..cpus.len()].copy_from_slice(cpus.as_bytes()),
    }
    Some(message_length)
}

/// A message of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskstatsMessage<'a> {
    /// The error of a request; 0 acknowledges it.
    Error(i32),
    Family(u16),
    Thread(TaskstatsStruct<'a>),
    Process(TaskstatsStruct<'a>),
}

/// Decodes the messages of one read. Other messages, and incomplete ones, are ignored.
pub fn for_each_message<'a>(mut bytes: &'a [u8], mut take: impl FnMut(u32, TaskstatsMessage<'a>)) {
    while let (Some(length), Some(kind), Some(sequence)) = (u32_at(bytes, 0), u16_at(bytes, 4), u32_at(bytes, 8)) {
        let Some(message) = bytes.get(..length as usize).filter(|message| message.len() >= 16) else { return };
        if kind == ERROR {
            if let Some(error) = u32_at(message, 16) {
                take(sequence, TaskstatsMessage::Error(-(error as i32)));
            }
        } else if let Some(body) = message.get(HEADERS..) {
            let is_control = kind == CONTROL_FAMILY;
            attributes(body, |kind, value| match kind {
                FAMILY_ID if is_control => {
                    if let Some(family) = u16_at(value, 0) {
                        take(sequence, TaskstatsMessage::Family(family));
                    }
                }
                AGGREGATE_PID | AGGREGATE_TGID if !is_control && message[16] == NEW => {
                    attributes(value, |inner, value| {
                        if let Some(stats) = TaskstatsStruct::new(value).filter(|_| inner == STATS) {
                            let is_thread = kind == AGGREGATE_PID;
                            take(
                                sequence,
                                if is_thread {
                                    TaskstatsMessage::Thread(stats)
                                } else {
                                    TaskstatsMessage::Process(stats)
                                },
                            );
                        }
                    })
                }
                _ => {}
            });
        }
        bytes = bytes.get((length as usize).next_multiple_of(4)..).unwrap_or_default();
    }
}

fn attributes<'a>(mut bytes: &'a [u8], mut take: impl FnMut(u16, &'a [u8])) {
    while let (Some(length), Some(kind)) = (u16_at(bytes, 0), u16_at(bytes, 2)) {
        let Some(value) = bytes.get(4..usize::from(length)) else { return };
        take(kind & TYPE_MASK, value);
        bytes = bytes.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
}

/// A `struct taskstats`. Later versions have more fields at the end. Fields that an earlier version lacks are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskstatsStruct<'a>(&'a [u8]);

impl<'a> TaskstatsStruct<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len() >= 80).then_some(Self(bytes))
    }

    /// The version of the structure.
    pub fn version(self) -> u16 {
        u16_at(self.0, 0).unwrap_or_default()
    }

    /// Whether the version has its fields at the known offsets.
    pub fn is_known(self) -> bool {
        self.version() >= 1 && self.version() != VERSION_OUT_OF_ORDER
    }

    /// Whether the structure has a counter.
    pub fn has(self, counter: usize) -> bool {
        DELAYS.iter().all(|&(first, offset)| !(first..first + 2).contains(&counter) || self.0.len() >= offset + 16)
    }

    /// The number of the thread.
    pub fn pid(self) -> u32 {
        u32_at(self.0, 128).unwrap_or_default()
    }

    /// The parent of the process.
    pub fn parent(self) -> u32 {
        u32_at(self.0, 132).unwrap_or_default()
    }

    /// The process of the thread; `None` before version 12.
    pub fn process(self) -> Option<u32> {
        u32_at(self.0, 368).filter(|_| self.version() >= VERSION_WITH_TGID)
    }

    /// The most resident memory, in bytes.
    pub fn peak_rss_bytes(self) -> u64 {
        self.number(200).saturating_mul(1024)
    }

    /// The counters. Those of page faults and I/O are 0 for a process. For a thread those of I/O are rounded down to multiples of 1024, also the
    /// numbers of system calls.
    pub fn usage(self) -> Usage {
        let mut usage = Usage::default();
        usage.0[RUN] = self.number(72);
        for (counter, offset) in DELAYS {
            (usage.0[counter], usage.0[counter + 1]) = (self.number(offset), self.number(offset + 8));
        }
        for (counter, offset) in [(SWITCHES, 272), (FAULTS, 168)] {
            (usage.0[counter], usage.0[counter + 1]) = (self.number(offset), self.number(offset + 8));
        }
        for (index, value) in usage.0[IO..].iter_mut().enumerate() {
            *value = self.number(216 + 8 * index);
        }
        usage
    }

    fn number(self, offset: usize) -> u64 {
        self.0.get(offset..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}

/// The delays: the index of each counter, and the offset of its number. The time follows the number.
const DELAYS: [(usize, usize); 8] = [
    (DELAY_CPU, 16),
    (DELAY_BLKIO, 32),
    (DELAY_SWAPIN, 48),
    (DELAY_RECLAIM, 312),
    (DELAY_THRASHING, 328),
    (DELAY_COMPACT, 352),
    (DELAY_WPCOPY, 400),
    (DELAY_IRQ, 416),
];

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A structure of a version. The value of each 64-bit word is its offset.
    pub fn structure(version: u16, bytes: usize) -> Vec<u8> {
        let mut stats: Vec<u8> = (0..bytes as u64 / 8).flat_map(|word| (word * 8).to_ne_bytes()).collect();
        stats[..2].copy_from_slice(&version.to_ne_bytes());
        for (offset, value) in [(128, 4242u32), (132, 4200), (368, 4240)] {
            if let Some(place) = stats.get_mut(offset..offset + 4) {
                place.copy_from_slice(&value.to_ne_bytes());
            }
        }
        stats
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut out = [(4 + value.len() as u16).to_ne_bytes(), kind.to_ne_bytes()].concat();
        out.extend(value);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    pub fn message(aggregate: u16, stats: &[u8]) -> Vec<u8> {
        let inner = [attribute(1, &4242u32.to_ne_bytes()), attribute(STATS, stats)].concat();
        let body = attribute(aggregate | 0x8000, &inner);
        let mut out = [(HEADERS as u32 + body.len() as u32).to_ne_bytes(), [31, 0, 0, 0]].concat();
        out.extend([7, 0, 0, 0, 0, 0, 0, 0, NEW, 1, 0, 0]);
        out.extend(body);
        out
    }

    #[test]
    fn requests() {
        let mut out = [0xff; 64];
        assert_eq!(write_request(TaskstatsRequest::Process(0x01020304), 31, 9, &mut out), Some(28));
        let expected: &[u8] = &[28, 0, 0, 0, 31, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 8, 0, 2, 0, 4, 3, 2, 1];
        assert_eq!(&out[..28], expected);
        assert_eq!(write_request(TaskstatsRequest::Exits("0-1"), 31, 9, &mut out), Some(28));
        assert_eq!(&out[20..28], b"\x08\0\x03\x000-1\0");
        assert_eq!(write_request(TaskstatsRequest::Family, 0, 1, &mut out), Some(36));
        assert_eq!(&out[20..36], b"\x0e\0\x02\0TASKSTATS\0\0\0");
        assert_eq!(write_request(TaskstatsRequest::Exits(&"0,".repeat(100)), 31, 9, &mut out), None);
    }

    #[test]
    fn every_version_of_the_structure() {
        for (version, bytes, irq) in [(16, 560, true), (14, 432, true), (13, 416, false), (10, 352, false)] {
            let stats = structure(version, bytes);
            let stats = TaskstatsStruct::new(&stats).unwrap();
            let usage = stats.usage().0;
            assert!(stats.is_known());
            assert_eq!((stats.pid(), stats.parent()), (4242, 4200));
            assert_eq!(stats.process(), (version >= 12).then_some(4240));
            assert_eq!((usage[RUN], usage[DELAY_CPU], usage[DELAY_THRASHING + 1]), (72, 16, 336));
            assert_eq!((usage[FAULTS + 1], usage[SWITCHES], usage[IO], usage[COUNTERS - 1]), (176, 272, 216, 264));
            assert_eq!((stats.has(DELAY_IRQ), stats.has(DELAY_IRQ + 1), stats.has(RUN)), (irq, irq, true));
            assert_eq!(usage[DELAY_IRQ], if irq { 416 } else { 0 });
            assert_eq!(stats.peak_rss_bytes(), 200 * 1024);
        }
        assert!(!TaskstatsStruct::new(&structure(15, 480)).unwrap().is_known());
        assert_eq!(TaskstatsStruct::new(&[0; 79]), None);
    }

    #[test]
    fn messages_cut_anywhere_do_no_harm() {
        let both = [message(AGGREGATE_PID, &structure(16, 560)), message(AGGREGATE_TGID, &structure(16, 560))].concat();
        let count = |bytes: &[u8]| {
            let (mut threads, mut processes) = (0, 0);
            for_each_message(bytes, |sequence, answer| match answer {
                TaskstatsMessage::Thread(_) => threads += sequence,
                TaskstatsMessage::Process(_) => processes += sequence,
                other => panic!("{other:?}"),
            });
            (threads, processes)
        };
        assert_eq!(count(&both), (7, 7));
        for end in 0..both.len() {
            let expected = if end < both.len() / 2 { (0, 0) } else { (7, 0) };
            assert_eq!(count(&both[..end]), expected, "cut at {end}");
        }
        let mut error = vec![36, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        error.extend((-1i32).to_ne_bytes());
        error.resize(36, 0);
        let mut messages = Vec::new();
        for_each_message(&error, |sequence, message| messages.push((sequence, message)));
        assert_eq!(messages, [(3, TaskstatsMessage::Error(1))]);
    }

    #[test]
    fn random_bytes_do_no_harm() {
        let mut random = crate::testing::Random::seeded();
        let good = message(AGGREGATE_PID, &structure(16, 560));
        for _ in 0..20_000 {
            let bytes = crate::testing::changed(&good, &mut random);
            for_each_message(&bytes, |_, answer| {
                if let TaskstatsMessage::Thread(stats) | TaskstatsMessage::Process(stats) = answer {
                    std::hint::black_box((stats.usage(), stats.process(), stats.has(DELAY_IRQ)));
                }
            });
        }
    }
}
