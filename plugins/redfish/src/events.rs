//! Events that a service sends by itself, as server-sent events (DSP0266, section 13.7; the format is of HTML, section 9.2).
//!
//! A stream needs no open port here, and the service forgets it when the connection ends: no subscription is ever left behind. Events are counted by
//! severity. Metric reports that come as events are values like those that are polled. A stream that sends too much is closed, so that its counts are gaps;
//! all streams together are read no faster than a bound, so that the services wait.

use std::collections::VecDeque;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wholegrain_device_http::json;
use wholegrain_devices::{DeviceProblem, system_time};
use wholegrain_model::SensorDef;
use wholegrain_sources::{GroupPlan, Reader, Reading, Row, Timing};

use crate::connection::RedfishConnection;
use crate::pace::{PaceBudget, PaceLimit};
use crate::registry::GroupRegistry;
use crate::reports::ReportQueues;

/// The longest event, in bytes: 1 MiB. Longer ones are dropped and counted.
const EVENT_BYTES_MAX: usize = 1 << 20;
/// A stream without a byte is opened again after this time: 5 min.
const IDLE: Duration = Duration::from_secs(300);
/// How long the head of a stream may take: 30 s.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The first pause before a stream is opened again: 1 s. It doubles to 5 min, and is 1 s again after a stream has lasted 1 min.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);
const GOOD_STREAM: Duration = Duration::from_secs(60);
/// What one stream may send in the mean of 10 s: 50 events and 256 KiB a second. The log messages of a busy controller are a few events a second.
const STREAM_LIMIT: PaceLimit = PaceLimit { events_s: 50.0, bytes_s: 262_144.0, burst_s: 10.0 };
/// What is read of all streams together: 2,000 events and 4 MiB a second. Above it all are read more slowly.
pub const STREAMS_LIMIT: PaceLimit = PaceLimit { events_s: 2_000.0, bytes_s: 4_194_304.0, burst_s: 1.0 };
/// A read counts as so many bytes at least: a service may send them one by one.
const READ_BYTES_MIN: usize = 256;
/// How many identifiers of events are remembered: a service repeats events after a stream was opened again.
const IDS_MAX: usize = 256;
/// The longest identifier that is remembered and sent.
const ID_BYTES_MAX: usize = 256;
/// The stack of a thread: 512 KiB, as each controller with events has one.
const STACK_BYTES: usize = 512 << 10;

/// What the stream of one controller has brought.
#[derive(Debug, Default)]
pub struct EventCounts {
    pub ok: AtomicU64,
    pub warning: AtomicU64,
    pub critical: AtomicU64,
    /// Events without a severity that the schema knows.
    pub other: AtomicU64,
    /// Metric reports that came as events.
    pub reports: AtomicU64,
    /// Events that were too large or no JSON.
    pub dropped: AtomicU64,
    /// Streams that were opened.
    pub streams: AtomicU64,
    /// Streams that were closed because they sent too much.
    pub overruns: AtomicU64,
    pub is_connected: AtomicBool,
}

/// Where the stream of a controller is, once the service was walked, and what came of it.
#[derive(Default)]
pub struct EventTarget {
    stream: Mutex<Option<String>>,
    changed: Condvar,
    has_ended: AtomicBool,
    pub counts: EventCounts,
}

impl EventTarget {
    /// Sets the address after a walk.
    pub fn set_stream(&self, stream: Option<String>) {
        *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = stream;
        self.changed.notify_all();
    }

    /// Ends the thread, at the latest when its stream brings nothing for [`IDLE`].
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Waits until a time, or for the end.
    fn wait_until(&self, until: Instant) {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.has_ended() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            stream = self.changed.wait_timeout(stream, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for `pause`, then for an address. `None` at the end.
    fn wait(&self, pause: Duration) -> Option<String> {
        let until = Instant::now() + pause;
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if self.has_ended() {
                return None;
            }
            let left = until.saturating_duration_since(Instant::now());
            match &*stream {
                Some(path) if left.is_zero() => return Some(path.clone()),
                _ => {
                    let wait = if left.is_zero() { PAUSE_MAX } else { left };
                    stream = self.changed.wait_timeout(stream, wait).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

/// The thread of one controller's events.
pub struct EventFollower {
    pub path: String,
    pub connection: Arc<RedfishConnection>,
    pub target: Arc<EventTarget>,
    pub reports: Arc<ReportQueues>,
    pub registry: Arc<GroupRegistry>,
    /// What is read of all streams.
    pub pace: Arc<Mutex<PaceBudget>>,
}

impl EventFollower {
    /// Starts the thread, which ends with its target.
    pub fn start(self) -> std::io::Result<()> {
        let builder = std::thread::Builder::new().name("redfish-events".to_owned()).stack_size(STACK_BYTES);
        builder.spawn(move || self.run()).map(drop)
    }

    fn run(self) {
        let (mut pause, mut parser, mut noted) = (Duration::ZERO, EventParser::default(), None);
        let mut is_overrun_noted = false;
        while let Some(path) = self.target.wait(pause) {
            let begin = Instant::now();
            let last_id = parser.last_id.clone();
            let deadline = Instant::now() + OPEN_TIMEOUT;
            let mut is_overrun = false;
            let problem = match self.connection.open(&path, last_id.as_deref(), deadline, IDLE) {
                Ok(reader) => {
                    self.target.counts.streams.fetch_add(1, Ordering::Relaxed);
                    self.target.counts.is_connected.store(true, Ordering::Release);
                    noted = None;
                    is_overrun = self.follow(reader, &mut parser);
                    self.target.counts.is_connected.store(false, Ordering::Release);
                    parser.restart();
                    None
                }
                Err(problem) => Some(problem),
            };
            if let Some(problem) = problem.filter(|problem| noted != Some(*problem)) {
                self.note(problem);
                noted = Some(problem);
            }
            let is_good = begin.elapsed() >= GOOD_STREAM && !is_overrun;
            if is_overrun {
                self.target.counts.overruns.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut is_overrun_noted, true) {
                    self.note_overrun();
                }
            }
            is_overrun_noted &= !is_good;
            pause = if is_good { PAUSE_MIN } else { (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX) };
        }
    }

    fn note(&self, problem: DeviceProblem) {
        self.registry.note(format!("device {}: its stream of events: {problem}; it is opened again later", self.path));
    }

    fn note_overrun(&self) {
        let PaceLimit { events_s, bytes_s, burst_s } = STREAM_LIMIT;
        self.registry.note(format!(
            "device {}: its stream sends more than {events_s} events or {} KiB a second in {burst_s} s: it is closed and opened again later; \
             let the controller send fewer events, or write events = \"off\"",
            self.path,
            bytes_s / 1024.0
        ));
    }

    /// Reads until the stream or the source ends. Whether it is to be closed because it sends too much.
    fn follow(&self, mut reader: impl Read, parser: &mut EventParser) -> bool {
        let mut buffer = [0; 4096];
        let mut budget = PaceBudget::new(STREAM_LIMIT);
        while !self.target.has_ended() {
            match reader.read(&mut buffer) {
                Ok(0) | Err(_) => return false,
                Ok(count) => {
                    let before = parser.events;
                    let dropped = parser.feed(&buffer[..count], &mut |data| self.take(data));
                    self.target.counts.dropped.fetch_add(dropped, Ordering::Relaxed);
                    let (events, bytes) = (parser.events - before, count.max(READ_BYTES_MIN));
                    let now = Instant::now();
                    if !budget.take(events, bytes, now).is_zero() {
                        return true;
                    }
                    let pause = self.pace.lock().unwrap_or_else(PoisonError::into_inner).take(events, bytes, now);
                    if !pause.is_zero() {
                        self.target.wait_until(now + pause);
                    }
                }
            }
        }
        false
    }

    fn take(&self, data: &str) {
        let counts = &self.target.counts;
        let add = |count: &AtomicU64| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let Ok(document) = json::parse(data) else { return add(&counts.dropped) };
        if document["@odata.type"].as_str().is_some_and(|name| name.starts_with("#MetricReport.")) {
            add(&counts.reports);
            if self.reports.take_event(&document, system_time()) == Some(true) {
                self.registry.changed();
            }
            return;
        }
        let Some(events) = document["Events"].as_array() else { return add(&counts.dropped) };
        for event in events {
            // `MessageSeverity` replaces `Severity` since version 1.5 of the schema.
            match event["MessageSeverity"].as_str().or_else(|| event["Severity"].as_str()) {
                Some("OK") => add(&counts.ok),
                Some("Warning") => add(&counts.warning),
                Some("Critical") => add(&counts.critical),
                _ => add(&counts.other),
            }
        }
    }
}

/// Takes the bytes of a stream apart into events.
#[derive(Default)]
struct EventParser {
    line: Vec<u8>,
    /// Whether the line was too long; its rest is skipped.
    skips_line: bool,
    data: String,
    id: Option<String>,
    last_id: Option<String>,
    recent: VecDeque<String>,
    was_return: bool,
    is_too_long: bool,
    /// Events that have ended so far, whole or not.
    events: u64,
}

impl EventParser {
    /// A new stream begins: what is not whole does not count.
    fn restart(&mut self) {
        let (last_id, recent) = (self.last_id.take(), std::mem::take(&mut self.recent));
        *self = Self { last_id, recent, ..Self::default() };
    }

    /// Takes bytes and hands each whole event to `take`. The number of events that were too long.
    fn feed(&mut self, bytes: &[u8], take: &mut dyn FnMut(&str)) -> u64 {
        let mut dropped = 0;
        for byte in bytes {
            let follows_return = std::mem::replace(&mut self.was_return, *byte == b'\r');
            match byte {
                b'\n' if follows_return => {}
                b'\n' | b'\r' => dropped += u64::from(self.end_line(take)),
                _ if self.line.len() < EVENT_BYTES_MAX => self.line.push(*byte),
                _ => self.skips_line = true,
            }
        }
        dropped
    }

    /// Ends a line. Whether it ended an event that was too long.
    fn end_line(&mut self, take: &mut dyn FnMut(&str)) -> bool {
        let line = std::mem::take(&mut self.line);
        self.is_too_long |= std::mem::take(&mut self.skips_line);
        if line.is_empty() {
            return self.end_event(take);
        }
        let text = String::from_utf8_lossy(&line);
        let (field, value) = text.split_once(':').unwrap_or((&text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" if self.data.len() + value.len() < EVENT_BYTES_MAX => {
                self.data.push_str(value);
                self.data.push('\n');
            }
            "data" => self.is_too_long = true,
            "id" if value.len() <= ID_BYTES_MAX && value.chars().all(|c| c.is_ascii_graphic()) => {
                self.id = Some(value.to_owned());
            }
            _ => {}
        }
        false
    }

    fn end_event(&mut self, take: &mut dyn FnMut(&str)) -> bool {
        let (data, id) = (std::mem::take(&mut self.data), self.id.take());
        self.events += u64::from(self.is_too_long || !data.is_empty());
        if std::mem::take(&mut self.is_too_long) {
            return true;
        }
        if data.is_empty() {
            return false;
        }
        if let Some(id) = id.filter(|id| !id.is_empty()) {
            if self.recent.contains(&id) {
                return false;
            }
            if self.recent.len() == IDS_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(id.clone());
            self.last_id = Some(id);
        }
        take(&data);
        false
    }
}

/// The group of a controller's events.
pub fn event_group(path: &str, timing: Timing, target: Arc<EventTarget>) -> GroupPlan {
    let name = |last: &str| format!("{path}/events/{last}");
    let sensors = vec![
        SensorDef::counter(name("ok"), "{event}", "Events of severity OK since the source began."),
        SensorDef::counter(name("warning"), "{event}", "Events of severity Warning since the source began."),
        SensorDef::counter(name("critical"), "{event}", "Events of severity Critical since the source began."),
        SensorDef::counter(name("other"), "{event}", "Events without a known severity since the source began."),
        SensorDef::counter(name("reports"), "{report}", "Metric reports that came as events."),
        SensorDef::counter(name("dropped"), "{event}", "Events that were too large or no JSON."),
        SensorDef::counter(name("streams"), "1", "Streams that were opened."),
        SensorDef::gauge(name("connected"), "1", "1 while a stream is open, else 0."),
        SensorDef::counter(name("overruns"), "1", "Streams that were closed because they sent too much."),
    ];
    GroupPlan { name: format!("{path}/events"), sensors, reader: Box::new(EventReader(target)), timing, blocking: true }
}

struct EventReader(Arc<EventTarget>);

impl Reader for EventReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let counts = &self.0.counts;
        let is_connected = counts.is_connected.load(Ordering::Acquire);
        let of_stream =
            [&counts.ok, &counts.warning, &counts.critical, &counts.other, &counts.reports, &counts.dropped];
        // Without a stream nobody knows how many events there were.
        for (index, count) in of_stream.into_iter().enumerate().filter(|_| is_connected) {
            row.set_int(index, i64::try_from(count.load(Ordering::Relaxed)).unwrap_or(i64::MAX));
        }
        row.set_int(6, i64::try_from(counts.streams.load(Ordering::Relaxed)).unwrap_or(i64::MAX));
        row.set_int(7, i64::from(is_connected));
        row.set_int(8, i64::try_from(counts.overruns.load(Ordering::Relaxed)).unwrap_or(i64::MAX));
        Reading::COMPLETE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(parser: &mut EventParser, bytes: &[u8]) -> (Vec<String>, u64) {
        let mut all = Vec::new();
        // In pieces of three bytes, as a network may bring them.
        let dropped = bytes.chunks(3).map(|piece| parser.feed(piece, &mut |data| all.push(data.to_owned()))).sum();
        (all, dropped)
    }

    #[test]
    fn events_are_taken_apart() {
        let mut parser = EventParser::default();
        let (all, dropped) = events(
            &mut parser,
            b": hello\r\nid: 1\r\ndata: {\r\ndata:}\r\n\r\nid: 2\ndata: b\n\nevent: x\n\ndata: c\n",
        );
        assert_eq!((all, dropped), (vec!["{\n}\n".to_owned(), "b\n".to_owned()], 0));
        assert_eq!(parser.last_id.as_deref(), Some("2"));
        parser.restart();
        let (all, _) = events(&mut parser, b"id: 2\ndata: b\n\nid: 3\ndata: d\n\n");
        assert_eq!(all, ["d\n"], "what is repeated counts once, and a half event not at all");
    }

    #[test]
    fn long_events_are_dropped_and_counted() {
        let mut parser = EventParser::default();
        let mut long = b"data: ".to_vec();
        long.resize(EVENT_BYTES_MAX + 100, b'x');
        long.extend_from_slice(b"\n\ndata: a\n\n");
        (0..EVENT_BYTES_MAX / 1000 + 2).for_each(|_| {
            long.extend_from_slice(b"data: ");
            long.resize(long.len() + 1000, b'y');
            long.push(b'\n');
        });
        long.extend_from_slice(b"\ndata: b\n\n");
        let (all, dropped) = events(&mut parser, &long);
        assert_eq!((all, dropped), (vec!["a\n".to_owned(), "b\n".to_owned()], 2));
        assert!(parser.line.capacity() <= 2 * EVENT_BYTES_MAX);
    }
}
