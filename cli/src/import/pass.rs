//! One pass through a file: one thread reads, several parse, and the parts are passed on in the file's order.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use super::options::Shape;
use super::parse::{Bad, Parsed, PieceParser};
use super::plan::Plan;
use super::source::{FileSource, Piece};
use super::times::shown;
use crate::failure::Failure;

/// The most parsing threads.
const PARSERS_MAX: usize = 4;
/// The number of waiting pieces besides one for each parser.
const WAITING: usize = 2;

/// Readings ready to be sent.
pub struct Body {
    pub bytes: Vec<u8>,
    pub readings: u64,
}

/// A piece of a file, ready to be sent.
pub struct Prepared {
    pub index: u64,
    /// At least one; the last is the piece's own part.
    pub bodies: Vec<Body>,
    pub bad: Vec<Bad>,
    pub lines: u64,
    pub other_lines: u64,
    pub range: Option<(i64, i64)>,
    /// Hashes of the sensors' paths.
    pub sensors: Vec<u64>,
}

/// The result of an import.
#[derive(Debug, Default)]
pub struct ImportSummary {
    pub lines: u64,
    pub other_lines: u64,
    pub readings: u64,
    /// The readings in parts that were imported before.
    pub there: u64,
    pub parts: u64,
    pub parts_there: u64,
    pub bad: u64,
    pub past_retention: u64,
    pub range: Option<(i64, i64)>,
    pub sensors: HashSet<u64>,
}

impl Prepared {
    /// Encodes the parts of a piece.
    pub fn of(parsed: Parsed) -> Result<Self, Failure> {
        let ranges = parsed.batches.iter().filter_map(super::encode::Batch::range);
        let range = ranges.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        let paths = parsed.batches.iter().flat_map(|batch| batch.sensors.targets.iter());
        let sensors = paths.map(|(target, _)| {
            let mut hasher = DefaultHasher::new();
            target.path.hash(&mut hasher);
            hasher.finish()
        });
        let sensors = sensors.collect();
        let encode = |batch: super::encode::Batch| {
            let readings = batch.readings();
            let bytes = batch.encode().map_err(|error| Failure::Failed(format!("cannot encode a part: {error}")))?;
            Ok(Body { bytes, readings })
        };
        let bodies: Result<Vec<Body>, Failure> = parsed.batches.into_iter().map(encode).collect();
        let Parsed { index, bad, lines, other_lines, .. } = parsed;
        Ok(Self { index, bodies: bodies?, bad, lines, other_lines, range, sensors })
    }
}

/// Reads a file and passes on its pieces in order; `taken` gets the number of bytes read so far.
pub fn pass(
    mut source: FileSource,
    plan: &Plan,
    shape: &Shape,
    each: &mut dyn FnMut(Prepared) -> Result<(), Failure>,
    taken: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    let parsers = std::thread::available_parallelism().map_or(1, usize::from).min(PARSERS_MAX);
    let read_bytes = source.taken.clone();
    let (place, places) = sync_channel::<()>(parsers + WAITING);
    for _ in 0..parsers + WAITING {
        let _ = place.send(());
    }
    std::thread::scope(|scope| {
        let (piece, pieces) = sync_channel::<Result<Piece, Failure>>(1);
        let (done, prepared) = sync_channel::<Result<Prepared, Failure>>(parsers);
        // The last parser drops the receiver, so that the reader does not wait forever.
        let pieces = Arc::new(Mutex::new(pieces));
        scope.spawn(move || {
            while places.recv().is_ok() {
                let next = source.piece();
                let last = !matches!(next, Ok(Some(_)));
                if next.transpose().is_some_and(|next| piece.send(next).is_err()) || last {
                    return;
                }
            }
        });
        for _ in 0..parsers {
            let (done, pieces) = (done.clone(), pieces.clone());
            scope.spawn(move || {
                let mut parser = PieceParser::new(plan, shape);
                loop {
                    let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(next) = next else { return };
                    if done.send(next.and_then(|piece| Prepared::of(parser.parse(&piece)))).is_err() {
                        return;
                    }
                }
            });
        }
        drop((done, pieces));
        let place = place;
        let (mut waiting, mut next) = (BTreeMap::new(), 0);
        let mut failed = None;
        for result in &prepared {
            match result {
                Ok(piece) => drop(waiting.insert(piece.index, piece)),
                // The pieces before the failed one are still passed on.
                Err(error) => failed = failed.or(Some(error)),
            }
            while let Some(piece) = waiting.remove(&next) {
                each(piece)?;
                taken(read_bytes.load(Relaxed));
                next += 1;
                let _ = place.try_send(());
            }
        }
        failed.map_or(Ok(()), Err)
    })
}

/// A number in groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

impl ImportSummary {
    pub fn take(&mut self, prepared: &Prepared) {
        self.lines += prepared.lines;
        self.other_lines += prepared.other_lines;
        self.sensors.extend(&prepared.sensors);
        let range = self.range.into_iter().chain(prepared.range);
        self.range = range.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    }

    pub fn words(&self, seconds: f64, dry: bool, strict: bool) -> String {
        let (readings, sensors) = (grouped(self.readings), grouped(self.sensors.len() as u64));
        let span = self.range.map_or(String::new(), |(from, to)| format!(" from {} to {}", shown(from), shown(to)));
        let bad = if self.bad > 0 {
            format!("; {} of {} lines refused", grouped(self.bad), grouped(self.lines))
        } else {
            String::new()
        };
        if strict && self.bad > 0 {
            return format!("nothing imported, because of --strict{bad}");
        }
        if dry {
            return format!("{readings} readings of {sensors} sensors{span} would be imported{bad}");
        }
        let fresh = self.readings - self.there;
        let rate = if seconds > 0.0 { grouped((fresh as f64 / seconds) as u64) } else { "0".to_owned() };
        let there = match self.parts_there {
            0 => String::new(),
            parts if parts == self.parts => {
                return format!(
                    "was imported before: all {readings} readings of {sensors} sensors{span}. Readings deleted since then stay deleted; --again LABEL imports them once more{bad}"
                );
            }
            _ => format!("; {} readings were imported before", grouped(self.there)),
        };
        let retention = match self.past_retention {
            0 => String::new(),
            count => format!("; {} of them are older than their retention on the server", grouped(count)),
        };
        format!(
            "{} readings of {sensors} sensors{span} imported in {seconds:.1} s ({rate}/s){there}{bad}{retention}",
            grouped(fresh)
        )
    }

    pub fn json(&self, file: &Path, id: &str, list: Option<PathBuf>, seconds: f64, dry: bool) -> serde_json::Value {
        json!({
            "file": file, "id": id, "dry_run": dry, "lines": self.lines, "other_lines": self.other_lines, "readings": self.readings,
            "readings_there_before": self.there, "parts": self.parts, "parts_there_before": self.parts_there,
            "sensors": self.sensors.len(), "refused_lines": self.bad, "refused_list": list, "past_retention": self.past_retention,
            "from": self.range.map(|range| shown(range.0)), "to": self.range.map(|range| shown(range.1)), "seconds": seconds,
        })
    }
}
