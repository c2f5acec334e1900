//! The stored parts of imports.

use std::collections::HashMap;

use crate::StoreError;
use crate::ranges::{RANGES_MAX, RangeSet};

/// The most imports whose parts are remembered; the one without a new part for the longest time is dropped. A part of a dropped import that is sent
/// again is stored again, and counts once in every answer.
pub const IMPORTS_MAX: usize = 4_096;

/// The state of one import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportState {
    /// Number of readings, including gaps.
    pub readings: u64,
    /// Its parts as ranges of numbers, both ends included.
    pub parts: Vec<(u64, u64)>,
}

/// An import in the catalogue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImportRecord {
    /// Rises with each part of any import.
    pub order: u64,
    pub readings: u64,
    pub parts: RangeSet,
}

/// The remembered imports by their ids.
#[derive(Debug, Clone, Default)]
pub(crate) struct Imports(HashMap<String, ImportRecord>);

impl Imports {
    pub(crate) fn set(&mut self, id: &str, known: ImportRecord) {
        self.0.insert(id.to_owned(), known);
    }

    pub(crate) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }

    pub(crate) fn state(&self, id: &str) -> ImportState {
        self.0.get(id).map_or_else(ImportState::default, |known| ImportState {
            readings: known.readings,
            parts: known.parts.iter().collect(),
        })
    }

    /// Whether the part is stored; an error if its number cannot be remembered.
    pub fn refuse_or_has(&self, id: &str, part: u64) -> Result<bool, StoreError> {
        let Some(known) = self.0.get(id) else { return Ok(false) };
        if known.parts.is_full_for(part) && !known.parts.contains(part) {
            let reason =
                format!("an import has at most {RANGES_MAX} separate ranges of parts; number them one after the other");
            return Err(StoreError::Payload(reason));
        }
        Ok(known.parts.contains(part))
    }

    /// The import with one more part, and the imports that are dropped for it.
    pub fn with(&self, id: &str, part: u64, readings: u64) -> (ImportRecord, Vec<String>) {
        let mut known = self.0.get(id).cloned().unwrap_or_default();
        known.order = self.0.values().map(|known| known.order).max().unwrap_or(0) + 1;
        known.readings += readings;
        known.parts.insert(part);
        let mut others: Vec<(u64, &String)> =
            self.0.iter().filter(|(other, _)| *other != id).map(|(id, known)| (known.order, id)).collect();
        others.sort_unstable();
        let surplus = (others.len() + 1).saturating_sub(IMPORTS_MAX);
        (known, others.into_iter().take(surplus).map(|(_, id)| id.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_import_without_a_new_part_for_longest_is_forgotten() {
        let mut imports = Imports::default();
        for number in 0..IMPORTS_MAX {
            let id = format!("i{number}");
            let (known, dropped) = imports.with(&id, 0, 1);
            assert!(dropped.is_empty());
            imports.set(&id, known);
        }
        let (known, dropped) = imports.with("i0", 1, 5);
        assert!(dropped.is_empty());
        imports.set("i0", known);
        assert_eq!(imports.state("i0"), ImportState { readings: 6, parts: vec![(0, 1)] });
        assert_eq!(imports.with("new", 0, 1).1, ["i1"]);
        assert!(imports.refuse_or_has("i0", 1).unwrap());
        assert!(!imports.refuse_or_has("i0", 2).unwrap());
    }
}
