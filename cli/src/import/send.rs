//! Parts to the server, one after the other; those that it has are not sent.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use wholegrain_api::{ImportState, ImportedPart, paths};

use super::pass::{Body, ImportSummary, Prepared};
use crate::connection::Connection;
use crate::failure::Failure;

/// How long a server that is busy, or away for a moment, is waited for before each further attempt.
const WAITS: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];
/// Parts of a piece besides its own have numbers of their own.
const MORE_PER_PIECE: u64 = 4_096;
/// Work shorter than this shows no bar.
const SHOW_AFTER: Duration = Duration::from_millis(500);

/// Whether an import has this part.
fn has(state: &ImportState, part: u64) -> bool {
    state.parts.iter().any(|(first, last)| (*first..=*last).contains(&part))
}

/// Sends the parts of one import.
pub struct Sender<'a> {
    /// `None` for a dry run.
    connection: Option<&'a Connection>,
    id: String,
    /// The parts of pieces, and those that pieces have besides.
    known: (ImportState, ImportState),
    pub summary: ImportSummary,
    bar: Option<ProgressBar>,
    begun: Instant,
}

impl<'a> Sender<'a> {
    /// Asks what is there.
    pub fn new(connection: Option<&'a Connection>, id: &str, bytes: u64) -> Result<Self, Failure> {
        let state = |id: String| match connection {
            None => Ok(ImportState { id, readings: 0, parts: Vec::new() }),
            Some(connection) => connection.get(paths::IMPORT).query("id", id).send()?.json(),
        };
        let known = (state(id.to_owned())?, state(more(id))?);
        let bar = std::io::stderr()
            .is_terminal()
            .then(|| ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::hidden()));
        Ok(Self { connection, id: id.to_owned(), known, summary: ImportSummary::default(), bar, begun: Instant::now() })
    }

    /// Sends what a piece has.
    pub fn take(&mut self, prepared: Prepared) -> Result<(), Failure> {
        self.summary.take(&prepared);
        let last = prepared.bodies.len().saturating_sub(1);
        for (at, body) in prepared.bodies.iter().enumerate() {
            let (id, part, there) = if at == last {
                (self.id.clone(), prepared.index, has(&self.known.0, prepared.index))
            } else {
                let part = prepared.index * MORE_PER_PIECE + at as u64;
                (more(&self.id), part, has(&self.known.1, part))
            };
            self.summary.parts += 1;
            self.summary.readings += body.readings;
            if there {
                self.there(body);
            } else if let Some(connection) = self.connection {
                let stored = send(connection, &id, part, &body.bytes)?;
                if stored.duplicate {
                    self.there(body);
                }
                self.summary.past_retention += stored.past_retention;
            }
        }
        Ok(())
    }

    fn there(&mut self, body: &Body) {
        self.summary.parts_there += 1;
        self.summary.there += body.readings;
    }

    /// So much of the file has been read.
    pub fn progress(&mut self, taken: u64) {
        let Some(bar) = &self.bar else { return };
        if bar.is_hidden() && self.begun.elapsed() > SHOW_AFTER {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {msg}  {bytes}/{total_bytes}  {eta}");
            style.into_iter().for_each(|style| bar.set_style(style));
        }
        bar.set_position(taken);
        bar.set_message(format!("{} readings", self.summary.readings));
    }

    pub fn finish(&self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn more(id: &str) -> String {
    format!("{id}-more")
}

/// Sends a part, again where the server is busy or away for a moment.
fn send(connection: &Connection, id: &str, part: u64, body: &[u8]) -> Result<ImportedPart, Failure> {
    let mut waits = WAITS.iter();
    loop {
        let request = connection.post(paths::IMPORT).query("id", id).query("part", part);
        let response = request.body("application/vnd.apache.arrow.stream", body).send();
        match (response.and_then(|response| response.json()), waits.next()) {
            (Ok(part), _) => return Ok(part),
            (Err(Failure::Unreachable(_)), Some(wait)) => std::thread::sleep(*wait),
            (Err(Failure::Unreachable(why)), None) => {
                return Err(Failure::Unreachable(format!("{why}; the same command again goes on with part {part}")));
            }
            (Err(other), _) => return Err(other),
        }
    }
}
