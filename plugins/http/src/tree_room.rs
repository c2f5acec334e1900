//! Room for the trees of answers: a text of 1 MiB can become a tree of 100 MiB, and many threads parse at the same time.
//!
//! An answer reserves what its tree can take before it is parsed, and keeps what the tree does take until it is dropped. All threads of a plug-in
//! share the room. An answer that finds none within [`ROOM_WAIT`] is refused, as a plug-in without memory ends with all its devices.
//! The rows of tables and long bodies have rooms of their own.

use std::cell::Cell;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most values of an answer: numbers, texts, lists and objects together.
pub const NODES_MAX: usize = 50_000;
/// The most bytes of the tree of an answer: 8 MiB.
pub const TREE_BYTES_MAX: usize = 8 << 20;
/// The most bytes of all trees of a plug-in at the same time: 48 MiB, a fifth of what a plug-in has without `memory_bytes_max`.
const TREES_BYTES_MAX: usize = 48 << 20;
/// How long an answer waits for room: 5 s. A tree is in use for a fraction of a second.
pub(crate) const ROOM_WAIT: Duration = Duration::from_secs(5);
/// The most bytes of the rows of all answers at the same time: 16 MiB. An answer with more is alone.
const ROWS_BYTES_MAX: usize = 16 << 20;
/// The bytes of a node that a query finds, with the way to it twice.
const FOUND_BYTES: usize = 250;
/// The bytes of a value in a list whose capacity doubles: 32 each.
const ITEM_BYTES: usize = 64;
/// The bytes of the first four values of a list, for which the memory is allocated at once.
const ITEMS_BYTES_MIN: usize = 128;
/// The bytes of a leaf of the B-tree that is an object. It has room for eleven entries.
const LEAF_BYTES: usize = 640;
/// The bytes of a leaf and its part of the node above.
const LEAF_BELOW_NODE_BYTES: usize = 800;

/// Why an answer did not become a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeFault {
    /// It is not of its format.
    Wrong(String),
    /// It is larger than an answer may be.
    TooLarge(String),
    /// Other answers take the room.
    NoRoom,
}

impl fmt::Display for TreeFault {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Wrong(reason) | Self::TooLarge(reason) => f.write_str(reason),
            Self::NoRoom => f.write_str("too large beside the answers of other devices; lower in_flight"),
        }
    }
}

/// What all trees, or all bodies, together take.
pub(crate) struct RoomCounter {
    bytes: Mutex<usize>,
    freed: Condvar,
    bytes_max: usize,
}

static ROOM: RoomCounter = RoomCounter::new(TREES_BYTES_MAX);
static ROWS: RoomCounter = RoomCounter::new(ROWS_BYTES_MAX);

impl RoomCounter {
    pub(crate) const fn new(bytes_max: usize) -> Self {
        Self { bytes: Mutex::new(0), freed: Condvar::new(), bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&'static self, bytes: usize, wait: Duration) -> Result<TreeRoom, TreeFault> {
        let mut room = TreeRoom { counter: self, bytes: 0 };
        room.grow(bytes, wait)?;
        Ok(room)
    }

    fn free(&self, bytes: usize) {
        let mut used = self.lock();
        *used = used.saturating_sub(bytes);
        drop(used);
        self.freed.notify_all();
    }
}

/// The room of one tree. It is free again when this is dropped.
#[must_use]
pub struct TreeRoom {
    counter: &'static RoomCounter,
    bytes: usize,
}

impl TreeRoom {
    /// Reserves room, and waits for it. More than [`TREE_BYTES_MAX`] is refused at once.
    pub fn reserve(bytes: usize) -> Result<Self, TreeFault> {
        if bytes > TREE_BYTES_MAX { Err(too_large()) } else { ROOM.reserve(bytes, ROOM_WAIT) }
    }

    /// Reserves room for what the query of a table finds among at most `nodes` nodes, and for `rows` of `row_bytes` each, and waits for it.
    pub fn for_rows(nodes: usize, rows: usize, row_bytes: usize) -> Result<Self, TreeFault> {
        ROWS.reserve(nodes.min(NODES_MAX) * FOUND_BYTES + rows * row_bytes, ROOM_WAIT)
    }

    /// Room without bytes yet.
    pub(crate) const fn empty(counter: &'static RoomCounter) -> Self {
        Self { counter, bytes: 0 }
    }

    /// Has at least `bytes` from now on, and waits for them. What is larger than the whole room is alone in it.
    pub(crate) fn grow(&mut self, bytes: usize, wait: Duration) -> Result<(), TreeFault> {
        let (counter, own) = (self.counter, self.bytes);
        if bytes <= own {
            return Ok(());
        }
        let is_full = |used: &mut usize| *used > own && used.saturating_add(bytes - own) > counter.bytes_max;
        let waited = counter.freed.wait_timeout_while(counter.lock(), wait, is_full);
        let mut used = waited.unwrap_or_else(PoisonError::into_inner).0;
        if is_full(&mut used) {
            return Err(TreeFault::NoRoom);
        }
        *used += bytes - own;
        self.bytes = bytes;
        Ok(())
    }

    /// Frees what is beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.counter.free(self.bytes - bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for TreeRoom {
    fn drop(&mut self) {
        self.counter.free(self.bytes);
    }
}

fn too_large() -> TreeFault {
    TreeFault::TooLarge(format!("more than {} MiB as a tree", TREE_BYTES_MAX >> 20))
}

/// Counts what a tree of `serde_json` takes while it grows. It errs on the side of more.
pub struct TreeCost {
    room: TreeRoom,
    nodes: Cell<usize>,
    bytes: Cell<usize>,
}

impl TreeCost {
    /// Reserves room for a tree of at most `bytes`, or of at most [`TREE_BYTES_MAX`].
    pub fn reserve(bytes: usize) -> Result<Self, TreeFault> {
        let room = TreeRoom::reserve(bytes.min(TREE_BYTES_MAX))?;
        Ok(Self { room, nodes: Cell::new(0), bytes: Cell::new(0) })
    }

    /// Counts a value, without what it contains.
    pub fn add_node(&self) -> Result<(), TreeFault> {
        self.nodes.set(self.nodes.get() + 1);
        let is_good = self.nodes.get() <= NODES_MAX;
        if is_good { Ok(()) } else { Err(TreeFault::TooLarge(format!("more than {NODES_MAX} values"))) }
    }

    /// Counts the place of a value in a list, before it is there.
    pub fn add_item(&self, index: usize) -> Result<(), TreeFault> {
        self.add(match index {
            0 => ITEMS_BYTES_MIN,
            1..4 => 0,
            _ => ITEM_BYTES,
        })
    }

    /// Counts the place of a value in an object and its name, before they are there.
    pub fn add_entry(&self, index: usize, name: &str) -> Result<(), TreeFault> {
        let place = match index {
            0 => LEAF_BYTES,
            1..11 => 0,
            // A full leaf becomes two below a node; from then on leaves may be half full.
            11 => 2 * LEAF_BELOW_NODE_BYTES,
            _ if (index - 11).is_multiple_of(5) => LEAF_BELOW_NODE_BYTES,
            _ => 0,
        };
        self.add(place)?;
        self.add_text(name)
    }

    /// Counts the bytes of a text, before it is copied.
    pub fn add_text(&self, text: &str) -> Result<(), TreeFault> {
        self.add(if text.is_empty() { 0 } else { (text.len() + 24).max(32) })
    }

    fn add(&self, bytes: usize) -> Result<(), TreeFault> {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        if self.bytes.get() <= self.room.bytes { Ok(()) } else { Err(too_large()) }
    }

    /// The bound that the tree exceeds.
    pub fn exceeded(&self) -> Option<TreeFault> {
        if self.nodes.get() > NODES_MAX {
            return Some(TreeFault::TooLarge(format!("more than {NODES_MAX} values")));
        }
        (self.bytes.get() > self.room.bytes).then(too_large)
    }

    /// Frees what the whole tree does not need. The rest is for as long as the tree lives.
    pub fn finish(mut self) -> TreeRoom {
        self.room.shrink(self.bytes.get());
        self.room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> &'static RoomCounter {
        Box::leak(Box::new(RoomCounter::new(100)))
    }

    #[test]
    fn an_answer_without_room_is_refused_and_what_is_freed_is_for_others() {
        let counter = counter();
        let mut first = counter.reserve(60, Duration::ZERO).unwrap();
        assert_eq!(counter.reserve(41, Duration::ZERO).err(), Some(TreeFault::NoRoom));
        let second = counter.reserve(40, Duration::ZERO).unwrap();
        first.shrink(10);
        let third = counter.reserve(50, Duration::ZERO).unwrap();
        assert_eq!(counter.reserve(1, Duration::ZERO).err(), Some(TreeFault::NoRoom));
        drop((first, second, third));
        assert_eq!(*counter.lock(), 0);
    }

    #[test]
    fn what_is_larger_than_the_room_is_alone_in_it() {
        let counter = counter();
        let mut large = counter.reserve(60, Duration::ZERO).unwrap();
        let small = counter.reserve(10, Duration::ZERO).unwrap();
        assert_eq!(large.grow(101, Duration::ZERO), Err(TreeFault::NoRoom));
        drop(small);
        assert_eq!((large.grow(500, Duration::ZERO), large.grow(400, Duration::ZERO)), (Ok(()), Ok(())));
        assert_eq!(counter.reserve(1, Duration::ZERO).err(), Some(TreeFault::NoRoom));
        drop(large);
        assert_eq!(*counter.lock(), 0);
    }

    #[test]
    fn an_answer_waits_for_room() {
        let counter = counter();
        let first = counter.reserve(100, Duration::ZERO).unwrap();
        let waiting = std::thread::spawn(|| counter.reserve(100, Duration::from_secs(60)).map(drop));
        drop(first);
        assert_eq!(waiting.join().unwrap(), Ok(()));
    }

    #[test]
    fn one_answer_never_has_all_the_room() {
        assert!(TreeRoom::reserve(TREE_BYTES_MAX + 1).is_err());
        assert_eq!(TreeCost::reserve(usize::MAX).unwrap().room.bytes, TREE_BYTES_MAX);
        assert!(size_of::<serde_json::Value>() <= 32);
    }
}
