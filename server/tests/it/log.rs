//! Captures the log of this process's servers, for tests of log lines.

use std::fmt::{Debug, Write};
use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::harness::wait_for;

static LINES: LazyLock<Mutex<Vec<String>>> = LazyLock::new(Mutex::default);

/// The warnings of all servers of this program from now on.
pub struct CapturedLog;

impl CapturedLog {
    pub fn start() -> Self {
        static STARTED: OnceLock<()> = OnceLock::new();
        STARTED.get_or_init(|| tracing::subscriber::set_global_default(Collector).expect("no other log"));
        Self
    }

    /// The warning about the client that spoke from this address; `what` it did is for the message when there is none.
    #[track_caller]
    pub fn line_of(&self, client: SocketAddr, what: &str) -> String {
        let wanted = format!("{client}");
        wait_for(&format!("a log line about {what}"), || {
            LINES.lock().unwrap().iter().find(|line| line.contains(&wanted)).cloned()
        })
    }
}

struct Collector;

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = LogFields(String::new());
        event.record(&mut line);
        LINES.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct LogFields(String);

impl Visit for LogFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}
