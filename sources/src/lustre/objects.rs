//! The jobs or peers of a file that have sensors, of which there is a bound.

use std::collections::BTreeSet;

use wholegrain_model::pattern::Filter;

/// Which objects have sensors. Objects keep them while they are in the file; free places go to others in the order of the file.
#[derive(Debug)]
pub struct BoundedObjects {
    known: BTreeSet<Vec<u8>>,
    filter: Filter,
    max: usize,
}

/// What an object is for a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectState {
    /// It has sensors, or the next discovery gives it some.
    Sampled,
    /// The settings leave it out.
    Filtered,
    /// It has none because of the bound.
    LeftOut,
}

impl BoundedObjects {
    /// Of the objects in a file, at most `max`: first those of `old`.
    pub fn new(ids: Vec<&[u8]>, filter: &Filter, max: usize, old: Option<&BTreeSet<Vec<u8>>>) -> Self {
        let kept = ids.into_iter().filter(|id| keeps(filter, id));
        let (first, then): (Vec<&[u8]>, Vec<&[u8]>) =
            kept.partition(|id| old.is_some_and(|old| old.contains::<[u8]>(*id)));
        let mut known = BTreeSet::new();
        for id in first.into_iter().chain(then) {
            if known.len() == max {
                break;
            }
            known.insert(id.to_vec());
        }
        Self { known, filter: filter.clone(), max }
    }

    /// The objects that have sensors.
    pub fn known(&self) -> &BTreeSet<Vec<u8>> {
        &self.known
    }

    /// What an object is. An unknown one is sampled, so that it starts a discovery, unless there is no place for it.
    pub fn state(&self, id: &[u8]) -> ObjectState {
        if self.known.contains(id) {
            ObjectState::Sampled
        } else if !keeps(&self.filter, id) {
            ObjectState::Filtered
        } else if self.known.len() >= self.max {
            ObjectState::LeftOut
        } else {
            ObjectState::Sampled
        }
    }
}

fn keeps(filter: &Filter, id: &[u8]) -> bool {
    filter.keeps(&String::from_utf8_lossy(id))
}
