//! Notes for the administrator about values, from the threads of the pool.

use std::sync::{Mutex, PoisonError};

use crate::value::GapReason;

/// The most notes that wait for the next discovery; further ones are counted.
const NOTES_MAX: usize = 100;
/// The most sensors that one note names.
const NAMED_MAX: usize = 3;

/// Notes that wait for the next discovery.
#[derive(Debug, Default)]
pub struct RestNotes(Mutex<(Vec<String>, usize)>);

impl RestNotes {
    /// Adds a note, unless it waits already.
    pub fn add(&self, text: String) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.0.contains(&text) {
        } else if notes.0.len() < NOTES_MAX {
            notes.0.push(text);
        } else {
            notes.1 += 1;
        }
    }

    /// Hands the notes since the last call to `report`.
    pub fn report(&self, report: &mut dyn FnMut(String)) {
        let (notes, more) = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        notes.into_iter().for_each(&mut *report);
        if more > 0 {
            report(format!("{more} more notes about values of devices"));
        }
    }
}

/// The sensors of a group that are gaps at present, so that each is named once until it has a value again.
#[derive(Debug, Default)]
pub struct GapRecord(Vec<Option<GapReason>>);

impl GapRecord {
    /// Takes the reasons of an answer. Gives the text of a note if there are new ones; `name` is that of a sensor.
    pub fn update(&mut self, reasons: &[Option<GapReason>], name: impl Fn(usize) -> String) -> Option<String> {
        self.0.resize(reasons.len(), None);
        let (mut text, mut count) = (String::new(), 0usize);
        for (index, (before, now)) in self.0.iter_mut().zip(reasons).enumerate() {
            if let Some(reason) = now.filter(|reason| *before != Some(*reason) && reason.is_noted()) {
                if count < NAMED_MAX {
                    let separator = if count == 0 { "" } else { "; " };
                    text.push_str(&format!("{separator}{} {reason}", name(index)));
                }
                count += 1;
            }
            *before = *now;
        }
        match count.checked_sub(NAMED_MAX) {
            None | Some(0) => (count > 0).then_some(text),
            Some(more) => Some(format!("{text}; and {more} more sensors are gaps")),
        }
    }

    /// Forgets the sensors after the first `fixed`, as they have changed.
    pub fn forget_after(&mut self, fixed: usize) {
        self.0.truncate(fixed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_named_once_until_it_ends() {
        let mut record = GapRecord::default();
        let name = |index: usize| format!("s{index}");
        let (missing, null) = (Some(GapReason::Missing), Some(GapReason::Null));
        assert_eq!(record.update(&[missing, None], name).unwrap(), "s0 is missing");
        assert_eq!(record.update(&[missing, None], name), None);
        assert_eq!(record.update(&[missing, null], name).unwrap(), "s1 is null");
        assert_eq!(record.update(&[None, null], name), None);
        assert_eq!(record.update(&[missing, null], name).unwrap(), "s0 is missing");
        assert_eq!(record.update(&[missing, Some(GapReason::Absent)], name), None, "it is as configured");
        let many = record.update(&[Some(GapReason::Several); 5], name).unwrap();
        assert!(many.ends_with("; and 2 more sensors are gaps"), "{many}");
    }

    #[test]
    fn notes_are_bounded_and_counted() {
        let notes = RestNotes::default();
        (0..NOTES_MAX + 5).for_each(|number| notes.add(number.to_string()));
        notes.add("7".to_owned());
        let mut reported = Vec::new();
        notes.report(&mut |note| reported.push(note));
        assert_eq!(
            (reported.len(), reported.last().unwrap().as_str()),
            (NOTES_MAX + 1, "5 more notes about values of devices")
        );
    }
}
