//! Sends parts to the server one after the other, without those that it has.

use std::time::Duration;

use wholegrain_api::{ImportState, ImportedPart, paths};

use super::pass::{Body, ImportSummary, Prepared};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::progress::DelayedBar;

/// The pauses between attempts while the server is busy or cannot be reached.
const BACKOFF: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];
/// The numbers of additional parts of a piece.
const MORE_PER_PIECE: u64 = 4_096;

/// Whether an import has this part.
fn has(state: &ImportState, part: u64) -> bool {
    state.parts.iter().any(|(first, last)| (*first..=*last).contains(&part))
}

/// Sends the parts of one import.
pub struct Sender<'a> {
    /// `None` for a dry run.
    connection: Option<&'a Connection>,
    id: String,
    /// The parts on the server: one for each piece, and the additional parts of pieces.
    known: (ImportState, ImportState),
    pub summary: ImportSummary,
    bar: DelayedBar,
}

impl<'a> Sender<'a> {
    /// Requests the parts on the server.
    pub fn new(connection: Option<&'a Connection>, id: &str, bytes: u64) -> Result<Self, Failure> {
        let state = |id: String| match connection {
            None => Ok(ImportState { id, readings: 0, parts: Vec::new() }),
            Some(connection) => connection.get(paths::IMPORT).query("id", id).send()?.json(),
        };
        let known = (state(id.to_owned())?, state(more(id))?);
        let bar = DelayedBar::new(bytes, "{wide_bar} {percent:>3}%  {msg}  {bytes}/{total_bytes}  {eta}");
        Ok(Self { connection, id: id.to_owned(), known, summary: ImportSummary::default(), bar })
    }

    /// Sends the parts of a piece.
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

    /// Shows the number of bytes of the file that have been read.
    pub fn progress(&mut self, taken: u64) {
        self.bar.set(taken, || format!("{} readings", self.summary.readings));
    }

    pub fn finish(&self) {
        self.bar.finish();
    }
}

fn more(id: &str) -> String {
    format!("{id}-more")
}

/// Sends a part, again if the server is busy or cannot be reached.
fn send(connection: &Connection, id: &str, part: u64, body: &[u8]) -> Result<ImportedPart, Failure> {
    let mut pauses = BACKOFF.iter();
    loop {
        let request = connection.post(paths::IMPORT).query("id", id).query("part", part);
        let response = request.body("application/vnd.apache.arrow.stream", body).send();
        match (response.and_then(|response| response.json()), pauses.next()) {
            (Ok(part), _) => return Ok(part),
            (Err(Failure::Unreachable(_)), Some(pause)) => std::thread::sleep(*pause),
            (Err(Failure::Unreachable(reason)), None) => {
                return Err(Failure::Unreachable(format!(
                    "{reason}; the same command again continues with part {part}"
                )));
            }
            (Err(other), _) => return Err(other),
        }
    }
}
