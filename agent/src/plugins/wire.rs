//! The messages between the agent and the process of a plug-in: a length of 4 bytes (little endian) and JSON.

use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::de::{DeserializeOwned, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use wholegrain_model::name::check_relative;
use wholegrain_model::schema::SENSORS_MAX;
use wholegrain_model::{Interval, Kind, SensorDef, ValueType};
use wholegrain_plugin::{GROUPS_MAX, NOTE_BYTES_MAX, NOTES_MAX, SensorChecks};
use wholegrain_sources::{ConfigureContext, Timing};

/// The longest message: 64 MiB. A million sensors with short names fit.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// How much of a message is read at a time; memory grows with what has arrived.
const READ_BYTES: usize = 64 << 10;

/// Receives a list of which at most `MAX` entries are kept: many short entries would need much more memory than the message that has them.
fn at_most<'de, D: Deserializer<'de>, T: Deserialize<'de>, const MAX: usize>(from: D) -> Result<Vec<T>, D::Error> {
    struct Entries<T, const MAX: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Entries<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Vec<T>, A::Error> {
            let mut kept = Vec::new();
            while kept.len() < MAX {
                match entries.next_element()? {
                    Some(entry) => kept.push(entry),
                    None => return Ok(kept),
                }
            }
            while entries.next_element::<IgnoredAny>()?.is_some() {}
            Ok(kept)
        }
    }
    from.deserialize_seq(Entries::<T, MAX>(PhantomData))
}

/// A text of a plug-in's process as it may get into a log, onto a terminal and into the agent's state.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(NOTE_BYTES_MAX).collect()
}

/// What the agent sends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PluginRequest {
    /// The first message to the process.
    Configure(ConfigureMessage),
    /// Name the groups. `reopen`: with a new reader for each.
    Discover { reopen: bool },
}

/// The settings and bounds of a plug-in.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ConfigureMessage {
    pub table: String,
    pub file: String,
    /// The plug-in's file, for messages and for programs in Python.
    pub path: String,
    pub config_dir: String,
    pub proc: String,
    pub sys: String,
    pub cgroup: String,
    pub is_script: bool,
    pub memory_bytes_max: u64,
    pub processes_max: u32,
    pub capabilities: u64,
}

/// What the plug-in's process answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum PluginAnswer {
    Configured {
        version: String,
    },
    Discovered(DiscoveredMessage),
    /// The settings have an error: line of the table from 1, or 0.
    Refused {
        line: usize,
        message: String,
    },
    Failed {
        reason: String,
    },
}

/// The result of a discovery.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct DiscoveredMessage {
    /// One more than a plug-in may have, so that the check names the limit.
    #[serde(deserialize_with = "at_most::<_, _, { GROUPS_MAX + 1 }>")]
    pub groups: Vec<GroupMessage>,
    #[serde(deserialize_with = "at_most::<_, _, NOTES_MAX>")]
    pub notes: Vec<String>,
    #[serde(deserialize_with = "at_most::<_, _, GROUPS_MAX>")]
    pub keeps: Vec<String>,
}

/// A group with its sensors, in order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GroupMessage {
    pub name: String,
    pub interval_ns: u64,
    pub offset_ns: u64,
    pub synchronous: bool,
    #[serde(deserialize_with = "at_most::<_, _, { SENSORS_MAX + 1 }>")]
    pub sensors: Vec<SensorMessage>,
}

/// A sensor. The scale as bits: decimal digits could change it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SensorMessage {
    pub name: String,
    pub unit: String,
    pub counter: bool,
    pub float: bool,
    pub scale_bits: u64,
    pub wraps_at: Option<u64>,
    pub description: String,
}

impl From<&SensorDef> for SensorMessage {
    fn from(sensor: &SensorDef) -> Self {
        Self {
            name: sensor.name.clone(),
            unit: sensor.unit.clone(),
            counter: sensor.kind == Kind::Counter,
            float: sensor.value_type == ValueType::Float,
            scale_bits: sensor.scale.to_bits(),
            wraps_at: sensor.wraps_at,
            description: sensor.description.clone(),
        }
    }
}

impl From<SensorMessage> for SensorDef {
    fn from(sensor: SensorMessage) -> Self {
        Self {
            name: sensor.name,
            unit: sensor.unit,
            kind: if sensor.counter { Kind::Counter } else { Kind::Gauge },
            value_type: if sensor.float { ValueType::Float } else { ValueType::Int },
            scale: f64::from_bits(sensor.scale_bits),
            wraps_at: sensor.wraps_at,
            description: sensor.description,
        }
    }
}

/// A group after the agent's own checks.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CheckedGroup {
    pub name: String,
    pub sensors: Vec<SensorDef>,
    pub timing: Timing,
    /// Its place in the plug-in's list.
    pub index: usize,
}

/// Checks what a plug-in's process has sent, as if nobody had. A group with a sensor that its process had to refuse is left out: the places of its
/// values are not known. The groups, the notes, and the groups to keep.
pub(super) fn checked(message: DiscoveredMessage) -> (Vec<CheckedGroup>, Vec<String>, Vec<String>) {
    let (mut checks, mut groups, mut notes) = (SensorChecks::default(), Vec::new(), message.notes);
    // Names of groups live as long as the agent.
    let keeps = message.keeps.into_iter().filter(|name| check_relative(name).is_ok()).collect();
    for (index, group) in message.groups.into_iter().enumerate() {
        let sensors: Vec<SensorDef> = group.sensors.into_iter().map(SensorDef::from).collect();
        let mut good = checks.group(&group.name, group.interval_ns, group.offset_ns);
        for sensor in &sensors {
            good = good.and_then(|()| checks.sensor(&group.name, sensor));
        }
        let timing = Timing {
            interval: (group.interval_ns > 0).then(|| Interval::from_ns(group.interval_ns)),
            offset: Interval::from_ns(group.offset_ns),
            synchronous: group.synchronous,
        };
        match good {
            Ok(()) => groups.push(CheckedGroup { name: group.name, sensors, timing, index }),
            Err(error) if notes.len() < NOTES_MAX => notes.push(error.0),
            Err(_) => {}
        }
    }
    notes.iter_mut().for_each(|note| *note = printable(note));
    (groups, notes, keeps)
}

impl ConfigureMessage {
    pub fn context(&self) -> ConfigureContext {
        let roots = wholegrain_sources::Roots {
            proc: self.proc.clone().into(),
            sys: self.sys.clone().into(),
            cgroup: self.cgroup.clone().into(),
        };
        ConfigureContext { roots, config_dir: self.config_dir.clone().into() }
    }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message is longer than 64 MiB")
}

/// Sends a message of bounded length.
pub(super) fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(too_long());
    }
    stream.write_all(&(bytes.len() as u32).to_le_bytes())?;
    stream.write_all(&bytes)
}

fn wait_readable(stream: &UnixStream, deadline: Option<Instant>) -> io::Result<()> {
    let Some(deadline) = deadline else { return Ok(()) };
    let left = deadline.saturating_duration_since(Instant::now());
    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let ms = i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    // SAFETY: one entry, which outlives the call.
    match unsafe { libc::poll(&mut poll, 1, ms) } {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

fn fill(mut stream: &UnixStream, into: &mut [u8], deadline: Option<Instant>) -> io::Result<()> {
    let mut at = 0;
    while at < into.len() {
        wait_readable(stream, deadline)?;
        match stream.read(&mut into[at..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives a message, within `timeout` altogether.
pub(super) fn receive<T: DeserializeOwned>(stream: &UnixStream, timeout: Option<Duration>) -> io::Result<T> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut length = [0; 4];
    fill(stream, &mut length, deadline)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let from = bytes.len();
        bytes.resize(length.min(from + READ_BYTES), 0);
        fill(stream, &mut bytes[from..], deadline)?;
    }
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_in_length_and_time() {
        let (here, there) = UnixStream::pair().unwrap();
        let soon = Some(Duration::from_secs(60));
        send(&here, &PluginRequest::Discover { reopen: true }).unwrap();
        assert!(matches!(receive(&there, soon), Ok(PluginRequest::Discover { reopen: true })));
        let error = receive::<PluginRequest>(&there, Some(Duration::from_millis(5))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        (&here).write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(receive::<PluginRequest>(&there, soon).unwrap_err().to_string().contains("64 MiB"));
        (&here).write_all(&[3, 0, 0, 0, b'{', 0xff, b'}']).unwrap();
        assert!(receive::<PluginRequest>(&there, soon).is_err());
        drop(here);
        let error = receive::<PluginRequest>(&there, soon).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn many_short_entries_take_no_more_memory_than_few() {
        let lists = |groups: &str, notes: &str, keeps: &str| {
            let text = format!("{{\"groups\":[{groups}],\"notes\":[{notes}],\"keeps\":[{keeps}]}}");
            serde_json::from_str::<DiscoveredMessage>(&text)
        };
        let many = |entry: &str, count: usize| [entry].repeat(count).join(",");
        let found = lists("", &many("\"\"", 300_000), &many("\"\"", 300_000)).unwrap();
        assert_eq!((found.notes.len(), found.keeps.len()), (NOTES_MAX, GROUPS_MAX));
        assert!(found.notes.capacity() < 1000 && found.keeps.capacity() <= 2 * GROUPS_MAX);
        let group = "{\"name\":\"\",\"interval_ns\":0,\"offset_ns\":0,\"synchronous\":true,\"sensors\":[]}";
        assert_eq!(lists(&many(group, 40_000), "", "").unwrap().groups.len(), GROUPS_MAX + 1);
        assert!(lists("1", "", "").is_err() && lists("", "1", "").is_err() && lists("", "\"a\" \"b\"", "").is_err());
    }

    #[test]
    fn what_a_process_sends_is_checked_again() {
        let sensor = |name: &str, unit: &str| {
            let mut sensor = SensorMessage::from(&SensorDef::gauge(name, unit, "x").scaled(0.1));
            sensor.wraps_at = Some(7);
            sensor
        };
        let group = |name: &str, sensors| GroupMessage {
            name: name.to_owned(),
            interval_ns: 1_000_000_000,
            offset_ns: 0,
            synchronous: true,
            sensors,
        };
        let message = DiscoveredMessage {
            groups: vec![
                group("a", vec![sensor("a/1", "W"), sensor("a/2", "K")]),
                group("b", vec![sensor("a/1", "W")]),
                group("c", vec![sensor("c/1", "watts?")]),
                group("../d", vec![sensor("d/1", "W")]),
                group("e", vec![sensor("e/1", "W")]),
            ],
            notes: vec![format!("one\u{1b}[2J\n{}", "x".repeat(5000))],
            keeps: vec!["a".to_owned(), "../b".to_owned(), "x".repeat(100_000)],
        };
        let (groups, notes, keeps) = checked(message);
        assert_eq!((keeps, notes[0].len()), (vec!["a".to_owned()], NOTE_BYTES_MAX));
        assert!(notes[0].starts_with("one[2Jxx"), "{}", notes[0]);
        let names: Vec<(&str, usize)> = groups.iter().map(|group| (group.name.as_str(), group.index)).collect();
        assert_eq!(names, [("a", 0), ("e", 4)]);
        assert_eq!((groups[0].sensors[0].scale, groups[0].sensors[0].wraps_at), (0.1, Some(7)));
        assert_eq!(notes.len(), 4, "{notes:?}");
    }
}
