//! The groups of all controllers as they are now, from the threads that poll to the source.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wholegrain_devices::{AnswerSlot, PollTiming};

use crate::reports::ReportQueue;

/// The most notes that wait for the next discovery; further ones are counted.
const NOTES_MAX: usize = 100;

/// Where the values of a group come from.
#[derive(Clone)]
pub enum GroupValues {
    Answers(Arc<AnswerSlot>),
    Report(Arc<ReportQueue>),
}

/// A group of a controller.
#[derive(Clone)]
pub struct RegisteredGroup {
    /// Below the agent's prefix.
    pub name: String,
    pub timing: PollTiming,
    pub values: GroupValues,
}

/// The groups of all controllers, and notes about them.
#[derive(Default)]
pub struct GroupRegistry {
    /// By the number of the controller.
    groups: Mutex<Vec<Vec<RegisteredGroup>>>,
    version: AtomicU64,
    notes: Mutex<(Vec<String>, usize)>,
}

impl GroupRegistry {
    /// A registry for so many controllers.
    pub fn new(devices: usize) -> Self {
        Self { groups: Mutex::new(vec![Vec::new(); devices]), ..Self::default() }
    }

    /// Sets the groups of a controller.
    pub fn set(&self, device: usize, groups: Vec<RegisteredGroup>) {
        let mut all = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = all.get_mut(device) {
            *place = groups;
        }
        drop(all);
        self.changed();
    }

    /// The sensors of a group have become known, or are others.
    pub fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    /// A number that rises with each change.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// All groups, controller by controller.
    pub fn groups(&self) -> Vec<RegisteredGroup> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).concat()
    }

    /// Adds a sentence for the administrator.
    pub fn note(&self, text: String) {
        let (notes, more) = &mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.contains(&text) {
            return;
        }
        if notes.len() < NOTES_MAX { notes.push(text) } else { *more += 1 }
    }

    /// Hands the notes since the last call to `report`.
    pub fn report(&self, report: &mut dyn FnMut(String)) {
        let (notes, more) = std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner));
        notes.into_iter().for_each(&mut *report);
        if more > 0 {
            report(format!("redfish: {more} more notes are left out"));
        }
    }
}
