//! The body of an answer, and its room among those of other answers: hundreds of devices can answer with megabytes at the same time.

use std::io::Read;
use std::ops::Deref;
use std::time::Instant;

use wholegrain_devices::DeviceProblem;

use crate::tree_room::{ROOM_WAIT, RoomCounter, TreeRoom};

/// A shorter body needs no room: 128 KiB, of which each thread of a plug-in has one.
const SMALL_BYTES: usize = 128 << 10;
/// The first bytes of a buffer: 16 KiB.
const BUFFER_BYTES: usize = 16 << 10;
/// The most bytes of all longer bodies of a plug-in at the same time: 24 MiB. A body that may be larger is alone.
const BODIES_BYTES_MAX: usize = 24 << 20;

/// What is wrong with an answer for which there is no room.
pub const NO_ROOM: &str =
    "an answer that is too large beside those of other devices; raise memory_bytes_max, or lower in_flight";

static BODIES: RoomCounter = RoomCounter::new(BODIES_BYTES_MAX);

/// The body of an answer. Its memory and its room are free when it is dropped or cleared.
pub struct AnswerBody {
    bytes: Vec<u8>,
    room: TreeRoom,
}

impl Default for AnswerBody {
    fn default() -> Self {
        Self { bytes: Vec::new(), room: TreeRoom::empty(&BODIES) }
    }
}

impl Deref for AnswerBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AnswerBody {
    /// The bytes without their room.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Reads to the end, or one byte more than `bytes_max`. `expected` is the length if the answer says one. The room is waited for until `deadline`.
    pub(crate) fn read(
        &mut self,
        mut reader: impl Read,
        (expected, bytes_max): (Option<u64>, u64),
        deadline: Instant,
        problem: impl Fn(&std::io::Error) -> DeviceProblem,
    ) -> Result<(), DeviceProblem> {
        let most = usize::try_from(bytes_max).unwrap_or(usize::MAX).saturating_add(1);
        let expected = expected.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or_default();
        let mut capacity = expected.saturating_add(1).max(BUFFER_BYTES).min(most);
        self.bytes = Vec::new();
        loop {
            if capacity > SMALL_BYTES {
                let wait = deadline.saturating_duration_since(Instant::now()).min(ROOM_WAIT);
                self.room.grow(capacity, wait).map_err(|_| DeviceProblem::Refused(NO_ROOM))?;
            }
            let space = capacity - self.bytes.len();
            self.bytes.reserve_exact(space);
            let read = reader.by_ref().take(space as u64).read_to_end(&mut self.bytes);
            if read.map_err(|error| problem(&error))? < space || capacity == most {
                return Ok(());
            }
            capacity = capacity.saturating_mul(2).min(most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(length: usize, expected: Option<u64>, bytes_max: u64) -> (usize, usize) {
        let mut body = AnswerBody::default();
        let text: Vec<u8> = (0..length).map(|at| at as u8).collect();
        body.read(text.as_slice(), (expected, bytes_max), Instant::now(), |_| unreachable!()).unwrap();
        assert_eq!(*body, text[..body.len()]);
        (body.len(), body.bytes.capacity())
    }

    #[test]
    fn bodies_are_whole_whatever_length_they_say() {
        for (length, expected, bytes_max, is) in [
            (0, None, 100, (0, 101)),
            (100, None, 100, (100, 101)),
            (101, None, 100, (101, 101)),
            (5000, Some(5), 1000, (1001, 1001)),
            (100_000, None, 1 << 20, (100_000, 128 << 10)),
            (100_000, Some(100_000), 1 << 20, (100_000, 100_001)),
            (100_000, Some(10), 1 << 20, (100_000, 128 << 10)),
        ] {
            assert_eq!(read(length, expected, bytes_max), is, "{length} {expected:?} {bytes_max}");
        }
    }

    #[test]
    fn long_bodies_wait_for_room() {
        let held: Vec<TreeRoom> = (0..6)
            .map(|_| {
                let mut room = TreeRoom::empty(&BODIES);
                room.grow(4 << 20, ROOM_WAIT).unwrap();
                room
            })
            .collect();
        let text = vec![7; 300 << 10];
        let mut body = AnswerBody::default();
        let mut read = || body.read(text.as_slice(), (None, 8 << 20), Instant::now(), |_| unreachable!());
        assert_eq!(read(), Err(DeviceProblem::Refused(NO_ROOM)));
        drop(held);
        assert_eq!(read(), Ok(()));
    }
}
