//! What the servers share about the chunks: which uploads are complete, which deletions hold, on which days there are readings.

use std::collections::{BTreeMap, BTreeSet};

use wholegrain_model::Pattern;
use wholegrain_store::StoreError;

use crate::session::CassandraSession;

/// A deletion. Its readings are hidden in the chunks that were uploaded before it, and no later ones.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    pub id: String,
    pub patterns: Vec<Pattern>,
    /// The range is `from <= time < to`.
    pub from: i64,
    pub to: i64,
    /// The newest stamp of each server when it had applied the deletion to its local store. Chunks of a server that is not here are all hidden.
    pub upto: BTreeMap<i16, i64>,
}

impl Cut {
    /// Whether it hides its readings in this upload of a server.
    pub fn hides(&self, server: i16, stamp: i64) -> bool {
        self.upto.get(&server).is_none_or(|upto| stamp <= *upto)
    }

    /// Whether it deletes readings of this sensor.
    pub fn chooses(&self, path: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(path))
    }
}

/// The state of the shared tables at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedView {
    /// The stamp of each server's newest complete upload. Rows with larger stamps do not count yet.
    pub vector: BTreeMap<i16, i64>,
    /// No complete upload has a reading after this time; `None` if there is none.
    pub last_time: Option<i64>,
    pub cuts: Vec<Cut>,
    /// Days since 1970-01-01 (UTC) with readings.
    pub days: BTreeSet<i32>,
}

impl SharedView {
    /// Whether complete uploads can have readings of this time or later.
    pub fn reaches(&self, from: i64) -> bool {
        self.last_time.is_some_and(|last| from <= last)
    }

    /// Adds a complete upload of a server with readings up to `last_time`.
    pub fn complete(&mut self, server: i16, stamp: i64, last_time: i64) {
        self.vector.insert(server, stamp);
        self.last_time = self.last_time.max(Some(last_time));
    }

    /// Adds what was read later.
    pub fn merge(&mut self, read: Self) {
        for (server, stamp) in read.vector {
            // What is known of this server's own uploads can be newer than what was read.
            let known = self.vector.entry(server).or_insert(stamp);
            *known = stamp.max(*known);
        }
        self.last_time = self.last_time.max(read.last_time);
        for cut in read.cuts {
            match self.cuts.iter_mut().find(|known| known.id == cut.id) {
                Some(known) => known.upto.extend(cut.upto),
                None => self.cuts.push(cut),
            }
        }
        self.days.extend(read.days);
    }

    /// The stamp with which a server has applied a deletion.
    pub fn applied(&self, cut: &str, server: i16) -> Option<i64> {
        self.cuts.iter().find(|known| known.id == cut)?.upto.get(&server).copied()
    }
}

/// A row of the table of cuts: id, server (0: the deletion itself), patterns, first time, end, stamp.
type CutRow = (String, i16, Option<Vec<String>>, Option<i64>, Option<i64>, Option<i64>);

impl SharedView {
    /// Reads what has changed since `known`. Uploads first: what belongs to an upload is written before it is complete.
    pub async fn read(session: &CassandraSession, known: &Self) -> Result<Self, StoreError> {
        let doing = "reading which uploads are complete";
        let mut view = Self { last_time: known.last_time, ..Self::default() };
        for (server,) in session.rows::<(i16,)>(doing, "SELECT number FROM $.server_numbers", ()).await? {
            match known.vector.get(&server) {
                Some(stamp) => {
                    let newer = "SELECT stamp, last_time FROM $.commits WHERE server = ? AND stamp > ?";
                    let uploads = session.rows::<(i64, Option<i64>)>(doing, newer, (server, *stamp)).await?;
                    let newest = uploads.iter().map(|(stamp, _)| *stamp).max().unwrap_or(*stamp);
                    view.vector.insert(server, newest);
                    view.last_time = view.last_time.max(uploads.into_iter().filter_map(|(_, time)| time).max());
                }
                None => {
                    let newest = "SELECT stamp FROM $.commits WHERE server = ? LIMIT 1";
                    let stamps = session.rows::<(i64,)>(doing, newest, (server,)).await?;
                    view.vector.extend(stamps.first().map(|(stamp,)| (server, *stamp)));
                    // After the stamp: the time of a later upload is too large, never too small.
                    let last = "SELECT max(last_time) FROM $.commits WHERE server = ?";
                    let times = session.rows::<(Option<i64>,)>(doing, last, (server,)).await?;
                    view.last_time = view.last_time.max(times.first().and_then(|(time,)| *time));
                }
            }
        }
        view.cuts = read_cuts(session).await?;
        // New days come with uploads.
        if known.vector == view.vector && !known.vector.is_empty() {
            return Ok(view);
        }
        let days = session.rows::<(i32,)>("reading the days", "SELECT day FROM $.days WHERE k = 0", ()).await?;
        view.days = days.into_iter().map(|(day,)| day).collect();
        Ok(view)
    }
}

pub(crate) async fn read_cuts(session: &CassandraSession) -> Result<Vec<Cut>, StoreError> {
    let doing = "reading the deletions";
    let text = "SELECT id, server, patterns, from_time, to_time, stamp FROM $.cuts WHERE k = 0";
    let mut cuts: BTreeMap<String, Cut> = BTreeMap::new();
    let mut confirmed = Vec::new();
    for (id, server, patterns, from, to, stamp) in session.rows::<CutRow>(doing, text, ()).await? {
        if server != 0 {
            confirmed.extend(stamp.map(|stamp| (id, server, stamp)));
            continue;
        }
        let patterns = patterns.unwrap_or_default().into_iter().map(Pattern::new).collect::<Result<Vec<_>, _>>();
        let patterns = patterns.map_err(|error| StoreError::Remote { doing, reason: error.to_string() })?;
        let (from, to) = (from.unwrap_or(i64::MIN), to.unwrap_or(i64::MAX));
        cuts.insert(id.clone(), Cut { id, patterns, from, to, upto: BTreeMap::new() });
    }
    for (id, server, stamp) in confirmed {
        if let Some(cut) = cuts.get_mut(&id) {
            cut.upto.insert(server, stamp);
        }
    }
    Ok(cuts.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_hides_what_was_uploaded_before_it() {
        let patterns = vec![Pattern::new("/a/**").unwrap()];
        let cut = Cut { id: "1".into(), patterns, from: 0, to: 9, upto: BTreeMap::from([(1, 50)]) };
        assert!(cut.hides(1, 50) && !cut.hides(1, 51));
        assert!(cut.hides(2, i64::MAX), "a server that has not applied it");
        assert!(cut.chooses("/a/x") && !cut.chooses("/b"));
    }
}
