//! How fast one client may publish, and look for retained messages that are not there: over its rate it is read more slowly, or waits. No clock
//! inside.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::retained::Scanned;

/// How many retained topics one connection may look at in a second without finding much. Some 0.5 us each.
const LOOKED_AT_PER_S: u64 = 400_000;
/// How many all connections may together, for each processor.
const LOOKED_AT_PER_S_AND_PROCESSOR: u64 = 1_000_000;
/// A look that finds less than one in so many topics counts.
const FRUITLESS: usize = 8;

/// A bucket that may be overdrawn by one packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    per_s: f64,
    most: f64,
    left: f64,
    at: Instant,
}

impl Bucket {
    /// Holds one second's worth.
    fn new(per_s: u64, now: Instant) -> Self {
        Self::with(per_s as f64, per_s as f64, now)
    }

    /// Holds `most`, and is full.
    pub fn with(per_s: f64, most: f64, now: Instant) -> Self {
        Self { per_s, most, left: most, at: now }
    }

    /// Another rate and size; what was taken stays taken.
    pub fn set(&mut self, per_s: f64, most: f64, now: Instant) {
        if (per_s, most) != (self.per_s, self.most) {
            self.fill(now);
            (self.left, self.per_s, self.most) = (self.left + most - self.most, per_s, most);
        }
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * self.per_s).min(self.most);
        self.at = now;
    }

    /// Takes so much; when there is something again.
    fn take(&mut self, amount: f64, now: Instant) -> Option<Instant> {
        self.fill(now);
        self.left -= amount;
        (self.left < 0.0).then(|| now + Duration::from_secs_f64(-self.left / self.per_s))
    }

    /// The same; what is owed never takes longer than so many seconds to come back.
    pub fn take_bounded(&mut self, amount: f64, debt_s_max: f64, now: Instant) -> Option<Instant> {
        self.fill(now);
        self.left = (self.left - amount).max(-debt_s_max * self.per_s);
        self.take(0.0, now)
    }

    /// Takes so much if it is there, and else nothing.
    pub fn take_whole(&mut self, amount: f64, now: Instant) -> bool {
        self.fill(now);
        let fits = amount <= self.left;
        if fits {
            self.left -= amount;
        }
        fits
    }

    /// Whether nothing is missing.
    pub fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.left >= self.most
    }
}

/// Messages and bytes a second of one client.
#[derive(Debug)]
pub struct Rate {
    messages: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Rate {
    /// With these bounds; `None` when there is none.
    pub fn new(messages_per_s: Option<u64>, bytes_per_s: Option<u64>, now: Instant) -> Option<Self> {
        let bucket = |per_s: Option<u64>| per_s.map(|per_s| Bucket::new(per_s, now));
        (messages_per_s.is_some() || bytes_per_s.is_some())
            .then(|| Self { messages: bucket(messages_per_s), bytes: bucket(bytes_per_s) })
    }

    /// A publish of so many bytes came; until when nothing more is to be read, if it was too fast.
    pub fn publish(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        let messages = self.messages.as_mut().and_then(|bucket| bucket.take(1.0, now));
        let bytes = self.bytes.as_mut().and_then(|bucket| bucket.take(bytes as f64, now));
        messages.max(bytes)
    }
}

/// One connection's looks for retained messages.
#[derive(Debug)]
pub struct Looking(Bucket);

impl Looking {
    /// None yet.
    pub fn new(now: Instant) -> Self {
        Self(Bucket::new(LOOKED_AT_PER_S, now))
    }

    /// One was made; until when no other may be, if that was too much for this connection or for all.
    pub fn looked(&mut self, scanned: &Scanned, all: &AllLooking, now: Instant) -> Option<Instant> {
        if scanned.found.len() >= scanned.work / FRUITLESS {
            return None;
        }
        let work = scanned.work as f64;
        // Each takes from what all have, so that the debt of some is waited for by those that come then, one behind the other.
        let all = all.0.lock().unwrap_or_else(PoisonError::into_inner).take(work, now);
        self.0.take(work, now).max(all)
    }
}

/// Those of all connections.
#[derive(Debug)]
pub struct AllLooking(Mutex<Bucket>);

impl AllLooking {
    /// None yet, on a machine with so many processors.
    pub fn new(processors: NonZeroUsize, now: Instant) -> Self {
        Self(Mutex::new(Bucket::new(processors.get() as u64 * LOOKED_AT_PER_S_AND_PROCESSOR, now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fruitless(work: usize) -> Scanned {
        Scanned { work, ..Scanned::default() }
    }

    /// What many sessions with a filter each do does not wait; what one does that goes on without end waits, and so do very many together.
    #[test]
    fn looks_that_find_little_are_bounded_for_each_connection_and_for_all() {
        let (start, all_start) = (Instant::now(), Instant::now());
        let all = AllLooking::new(NonZeroUsize::new(4).unwrap(), all_start);
        for _ in 0..900 {
            assert_eq!(Looking::new(start).looked(&fruitless(1200), &all, start), None);
        }
        let mut one = Looking::new(start);
        assert!((0..400).all(|_| one.looked(&fruitless(1000), &all, start).is_none()));
        assert_eq!(one.looked(&fruitless(1000), &all, start), Some(start + Duration::from_micros(2500)));
        // From then on at its rate.
        let mut now = start;
        for _ in 0..400 {
            now = one.looked(&fruitless(1000), &all, now).unwrap();
        }
        assert_eq!((now - start).as_millis(), 1002);
        let mut others: Vec<Looking> = (0..100).map(|_| Looking::new(now)).collect();
        let mut until: Vec<Instant> = Vec::new();
        for other in &mut others {
            until.extend((0..400).filter_map(|_| other.looked(&fruitless(1000), &all, now)));
        }
        assert!(until.is_sorted() && until.len() > 35_000, "{}", until.len());
        assert_eq!((*until.last().unwrap() - now).as_secs(), 9);
    }

    #[test]
    fn a_burst_of_one_second_passes_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut rate = Rate::new(Some(10), Some(1000), start).unwrap();
        assert!((0..10).all(|_| rate.publish(1, start).is_none()));
        assert_eq!(rate.publish(1, start), Some(start + Duration::from_millis(100)));
        let later = start + Duration::from_millis(200);
        assert_eq!(rate.publish(1, later), None);
        // Bytes bound too: a large message is taken and paid for afterwards.
        let later = start + Duration::from_secs(10);
        assert_eq!(rate.publish(3000, later), Some(later + Duration::from_secs(2)));
        assert!(Rate::new(None, None, start).is_none());
    }
}
