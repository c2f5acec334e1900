//! The groups of the agent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::engine::Group;

/// The running groups, and the retired ones whose last samples are not encoded yet.
#[derive(Debug, Default)]
pub struct GroupRegistry {
    lists: RwLock<GroupLists>,
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct GroupLists {
    live: Vec<Arc<Group>>,
    draining: Vec<Arc<Group>>,
}

impl GroupRegistry {
    fn read(&self) -> RwLockReadGuard<'_, GroupLists> {
        self.lists.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, GroupLists> {
        self.lists.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The running groups, ordered by name.
    pub fn live(&self) -> Vec<Arc<Group>> {
        self.read().live.clone()
    }

    /// The groups that are no longer sampled and not yet encoded to the end, the oldest first.
    pub fn draining(&self) -> Vec<Arc<Group>> {
        self.read().draining.clone()
    }

    /// The running group of this name.
    pub fn find(&self, name: &str) -> Option<Arc<Group>> {
        self.read().live.iter().find(|group| group.name() == name).cloned()
    }

    /// A number that rises with each change of the lists, so that a selection of sensors can be checked for being current.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub fn add(&self, group: Arc<Group>) {
        self.exchange(&[], vec![group]);
    }

    /// Adds a group; fails with the running group that has the same name.
    pub fn add_new(&self, group: Arc<Group>) -> Result<(), Arc<Group>> {
        let mut lists = self.write();
        let at = lists.live.partition_point(|other| other.name() < group.name());
        if let Some(other) = lists.live.get(at).filter(|other| other.name() == group.name()) {
            return Err(other.clone());
        }
        lists.live.insert(at, group);
        drop(lists);
        self.changes.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Retires groups and adds others in one step: a reader of the lists sees all of the change or nothing.
    pub fn exchange(&self, retired: &[u64], added: Vec<Arc<Group>>) {
        let mut lists = self.write();
        for id in retired {
            if let Some(at) = lists.live.iter().position(|group| group.id == *id) {
                let group = lists.live.remove(at);
                lists.draining.push(group);
            }
        }
        for group in added {
            let at = lists.live.partition_point(|other| other.name() < group.name());
            lists.live.insert(at, group);
        }
        drop(lists);
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Moves a group from the running to the draining ones.
    pub fn retire(&self, id: u64) {
        self.exchange(&[id], Vec::new());
    }

    /// Removes the groups that are encoded to the end, and returns them.
    pub fn remove_drained(&self) -> Vec<Arc<Group>> {
        let drained = self.write().draining.extract_if(.., |group| group.is_drained()).collect();
        self.changes.fetch_add(1, Ordering::Release);
        drained
    }
}
