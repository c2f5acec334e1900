//! Notes for the administrator about devices, and counts of polls. A fault of a device is noted once until it ends.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::answers::DeviceProblem;

/// The most notes that wait for the next discovery; further ones are counted.
const NOTES_MAX: usize = 20;

/// What a poller or a pool of workers has done, shared with its source.
#[derive(Debug, Default)]
pub struct PollCounts {
    /// Polls that began, with or without an end.
    pub polls: AtomicU64,
    /// Polls that ended with an answer.
    pub answers: AtomicU64,
    /// Requests without an answer in time.
    pub timeouts: AtomicU64,
    /// Datagrams that were not the awaited answer.
    pub strays: AtomicU64,
    /// Devices whose last poll brought no answer.
    pub failing: AtomicU64,
    notes: Mutex<PollNotes>,
    /// What silence of a device of this protocol can mean, with `: ` before it.
    silence: OnceLock<&'static str>,
}

/// The problem of the last poll of each group of a device. One group can be refused while the others have answers.
#[derive(Debug)]
pub(crate) struct GroupProblems(Vec<Option<DeviceProblem>>);

impl GroupProblems {
    pub(crate) fn new(groups: usize) -> Self {
        Self(vec![None; groups])
    }

    /// Notes the end of a poll: a problem that the group did not have before is named, and the device counted while one of its groups has one.
    pub(crate) fn end(
        &mut self,
        group: usize,
        problem: Option<DeviceProblem>,
        counts: &PollCounts,
        path: &str,
        host: &str,
    ) {
        let was_failing = self.0.iter().any(Option::is_some);
        let is_new = problem.is_some() && !self.0.contains(&problem);
        for (at, last) in self.0.iter_mut().enumerate() {
            // What concerns the whole device begins and ends for all its groups.
            let is_device = problem.is_some_and(|problem| !problem.is_of_group());
            if at == group || is_device {
                *last = problem;
            } else {
                *last = last.filter(|last| last.is_of_group());
            }
        }
        match (was_failing, self.0.iter().any(Option::is_some)) {
            (false, true) => PollCounts::add(&counts.failing),
            (true, false) => drop(counts.failing.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        if let Some(problem) = problem.filter(|_| is_new) {
            counts.note(path, host, problem);
        }
    }
}

#[derive(Debug, Default)]
struct PollNotes {
    texts: Vec<String>,
    /// The paths of the devices that `texts` has.
    named: HashSet<String>,
    /// The paths of the other devices with a problem.
    more: HashSet<String>,
}

impl PollCounts {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Says what silence can mean in this protocol, with `: ` before it. The first call counts.
    pub fn explain_silence(&self, silence: &'static str) {
        self.silence.get_or_init(|| silence);
    }

    /// Notes that a device began to fail with this problem, or has another one than before.
    pub fn note(&self, path: &str, host: &str, problem: DeviceProblem) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.texts.len() == NOTES_MAX {
            if !notes.named.contains(path) {
                notes.more.insert(path.to_owned());
            }
            return;
        }
        let advice = match problem {
            DeviceProblem::Credentials => "; check its file of credentials; it is asked again after 5 min to 1 h",
            DeviceProblem::Silent => self.silence.get().copied().unwrap_or_default(),
            DeviceProblem::Unresolved => "; check the name and the name server",
            _ => "",
        };
        notes.texts.push(format!("device {path} ({host}): {problem}{advice}"));
        notes.named.insert(path.to_owned());
    }

    /// Adds a note that is not about a device, once for each start.
    pub(crate) fn add_note(&self, text: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).texts.insert(0, text);
    }

    /// Hands the notes since the last call to `report`.
    pub fn report(&self, report: &mut dyn FnMut(String)) {
        let notes = std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner));
        notes.texts.into_iter().for_each(&mut *report);
        if !notes.more.is_empty() {
            report(format!("{} more devices do not answer as they should", notes.more.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_counted_once_however_often_its_problem_changes() {
        let counts = PollCounts::default();
        counts.explain_silence(": check the community");
        for problem in [DeviceProblem::Silent, DeviceProblem::Unresolved] {
            (0..NOTES_MAX + 8).for_each(|number| counts.note(&format!("d{number}"), "h", problem));
        }
        let mut notes = Vec::new();
        counts.report(&mut |note| notes.push(note));
        assert_eq!(notes.len(), NOTES_MAX + 1);
        assert_eq!(notes[0], "device d0 (h): no answer in time: check the community");
        assert_eq!(notes[NOTES_MAX], "8 more devices do not answer as they should");
    }
}
