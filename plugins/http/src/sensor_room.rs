//! Room for the sensors of devices that decide themselves how many they have and what these are named: hundreds of megabytes without a bound.

use std::sync::{Mutex, PoisonError};

/// The bound of a process without one of its own: 256 MiB, as plug-ins have it without `memory_bytes_max`.
const PROCESS_BYTES_USUAL: usize = 256 << 20;
/// What only devices have whose sensors take less: 1 MiB. A quarter of the room is kept for them.
const SMALL_BYTES: usize = 1 << 20;
/// The bytes of a sensor without its texts: in what a plug-in knows of the device, in the newest answer, in the groups before and after a discovery,
/// and in the message to the agent.
const SENSOR_BYTES: usize = 800;
/// How often the texts of a sensor are in memory.
const TEXT_COPIES: usize = 6;

/// The bytes that all devices of the plug-in use.
static USED: Mutex<usize> = Mutex::new(0);

/// The room of the sensors of one device, free when it is dropped.
#[derive(Debug)]
pub struct SensorRoom {
    bytes: usize,
    eighths: usize,
}

impl SensorRoom {
    /// The room of a device of a plug-in whose sensors may take so many eighths of `memory_bytes_max`.
    pub fn new(eighths: usize) -> Self {
        Self { bytes: 0, eighths }
    }

    /// What a sensor takes with this length of its name, unit and description together.
    pub fn cost(text_bytes: usize) -> usize {
        SENSOR_BYTES + TEXT_COPIES * text_bytes
    }

    /// Learns sensors. `learn` takes the most bytes for all sensors of the device, and gives those that they take. Only one device at a time learns,
    /// as that needs more memory than what is learned.
    pub fn learn<R>(&mut self, learn: impl FnOnce(usize) -> (R, usize)) -> R {
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        let others = used.saturating_sub(self.bytes);
        let (result, bytes) = learn(most(process_bytes() / 8 * self.eighths, others).max(self.bytes));
        *used = others + bytes;
        self.bytes = bytes;
        result
    }
}

impl Drop for SensorRoom {
    fn drop(&mut self) {
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(self.bytes);
    }
}

/// The most that one device may use, while the others use `others`.
fn most(room: usize, others: usize) -> usize {
    let (kept, left) = (room / 4, room.saturating_sub(others));
    left.saturating_sub(kept).max(SMALL_BYTES.min(left))
}

/// What the process may have.
fn process_bytes() -> usize {
    let mut bound = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the bound.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_DATA, &mut bound) } == 0;
    match usize::try_from(bound.rlim_cur) {
        Ok(bytes) if is_known && bound.rlim_cur != libc::RLIM_INFINITY => bytes,
        _ => PROCESS_BYTES_USUAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_device_leaves_room_for_small_ones() {
        let mib = |count: usize| count << 20;
        assert_eq!(most(mib(96), 0), mib(72));
        assert_eq!(most(mib(96), mib(70)), mib(2));
        assert_eq!(most(mib(96), mib(72)), mib(1), "a small one");
        assert_eq!(most(mib(96), mib(95) + 7), mib(1) - 7);
        assert_eq!(most(mib(96), mib(97)), 0);
    }

    #[test]
    fn what_a_device_used_before_is_its_own_and_free_after_it() {
        let mut room = SensorRoom::new(3);
        let first = room.learn(|most| (most, 5000));
        assert_eq!(room.learn(|most| (most, 7000)), first);
        let mut other = SensorRoom::new(3);
        assert_eq!(other.learn(|most| (most, 0)), first - 7000);
        drop(room);
        assert_eq!(other.learn(|most| (most, 0)), first);
    }
}
