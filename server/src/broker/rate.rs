//! Rate limits of one client's publishes and of lookups of retained messages: a client above its rate is read more slowly, or waits. No clock
//! inside.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::retained::ScanResult;

/// Retained topics that one connection may scan in a second without finding much, about 0.5 us each.
const TOPICS_PER_S: u64 = 400_000;
/// The same for all connections together, for each processor.
const TOPICS_PER_S_AND_PROCESSOR: u64 = 1_000_000;
/// A lookup that finds less than one in this many topics counts.
const FRUITLESS: usize = 8;

/// A token bucket that may be overdrawn by one packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenBucket {
    per_s: f64,
    most: f64,
    left: f64,
    at: Instant,
}

impl TokenBucket {
    /// Holds one second's worth.
    fn new(per_s: u64, now: Instant) -> Self {
        Self::with(per_s as f64, per_s as f64, now)
    }

    /// Holds `most`, and is full.
    pub fn with(per_s: f64, most: f64, now: Instant) -> Self {
        Self { per_s, most, left: most, at: now }
    }

    /// Changes rate and size; the debt stays.
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

    /// Takes an amount; returns when the bucket is no longer overdrawn.
    fn take(&mut self, amount: f64, now: Instant) -> Option<Instant> {
        self.fill(now);
        self.left -= amount;
        (self.left < 0.0).then(|| now + Duration::from_secs_f64(-self.left / self.per_s))
    }

    /// The same, with the debt limited to `debt_s_max` seconds of the rate.
    pub fn take_bounded(&mut self, amount: f64, debt_s_max: f64, now: Instant) -> Option<Instant> {
        self.fill(now);
        self.left = (self.left - amount).max(-debt_s_max * self.per_s);
        self.take(0.0, now)
    }

    /// Takes an amount if it is available, else nothing.
    pub fn take_whole(&mut self, amount: f64, now: Instant) -> bool {
        self.fill(now);
        let fits = amount <= self.left;
        if fits {
            self.left -= amount;
        }
        fits
    }

    pub fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.left >= self.most
    }
}

/// Limits of one client in messages and bytes per second.
#[derive(Debug)]
pub struct PublishRate {
    messages: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
}

impl PublishRate {
    /// `None` if there is no limit.
    pub fn new(messages_per_s: Option<u64>, bytes_per_s: Option<u64>, now: Instant) -> Option<Self> {
        let bucket = |per_s: Option<u64>| per_s.map(|per_s| TokenBucket::new(per_s, now));
        (messages_per_s.is_some() || bytes_per_s.is_some())
            .then(|| Self { messages: bucket(messages_per_s), bytes: bucket(bytes_per_s) })
    }

    /// Counts a publish; returns until when nothing more is read, if it was too fast.
    pub fn publish(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        let messages = self.messages.as_mut().and_then(|bucket| bucket.take(1.0, now));
        let bytes = self.bytes.as_mut().and_then(|bucket| bucket.take(bytes as f64, now));
        messages.max(bytes)
    }
}

/// The rate limit of one connection's lookups of retained messages.
#[derive(Debug)]
pub struct RetainedLookupRate(TokenBucket);

impl RetainedLookupRate {
    pub fn new(now: Instant) -> Self {
        Self(TokenBucket::new(TOPICS_PER_S, now))
    }

    /// Counts a lookup; returns until when no other is allowed, if it was too much for this connection or for all.
    pub fn record_lookup(&mut self, scanned: &ScanResult, all: &TotalLookupRate, now: Instant) -> Option<Instant> {
        if scanned.found.len() >= scanned.work / FRUITLESS {
            return None;
        }
        let work = scanned.work as f64;
        // Each lookup takes from the common bucket, so that later ones wait for earlier debts in order.
        let all = all.0.lock().unwrap_or_else(PoisonError::into_inner).take(work, now);
        self.0.take(work, now).max(all)
    }
}

/// The rate limit of the lookups of all connections.
#[derive(Debug)]
pub struct TotalLookupRate(Mutex<TokenBucket>);

impl TotalLookupRate {
    pub fn new(processors: NonZeroUsize, now: Instant) -> Self {
        Self(Mutex::new(TokenBucket::new(processors.get() as u64 * TOPICS_PER_S_AND_PROCESSOR, now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty_scan(work: usize) -> ScanResult {
        ScanResult { work, ..ScanResult::default() }
    }

    /// Many sessions with one filter each do not wait; a session with endless lookups waits, and so do very many sessions together.
    #[test]
    fn looks_that_find_little_are_bounded_for_each_connection_and_for_all() {
        let (start, all_start) = (Instant::now(), Instant::now());
        let all = TotalLookupRate::new(NonZeroUsize::new(4).unwrap(), all_start);
        for _ in 0..900 {
            assert_eq!(RetainedLookupRate::new(start).record_lookup(&empty_scan(1200), &all, start), None);
        }
        let mut one = RetainedLookupRate::new(start);
        assert!((0..400).all(|_| one.record_lookup(&empty_scan(1000), &all, start).is_none()));
        assert_eq!(one.record_lookup(&empty_scan(1000), &all, start), Some(start + Duration::from_micros(2500)));
        // From then on at its rate.
        let mut now = start;
        for _ in 0..400 {
            now = one.record_lookup(&empty_scan(1000), &all, now).unwrap();
        }
        assert_eq!((now - start).as_millis(), 1002);
        let mut others: Vec<RetainedLookupRate> = (0..100).map(|_| RetainedLookupRate::new(now)).collect();
        let mut until: Vec<Instant> = Vec::new();
        for other in &mut others {
            until.extend((0..400).filter_map(|_| other.record_lookup(&empty_scan(1000), &all, now)));
        }
        assert!(until.is_sorted() && until.len() > 35_000, "{}", until.len());
        assert_eq!((*until.last().unwrap() - now).as_secs(), 9);
    }

    #[test]
    fn a_burst_of_one_second_passes_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut rate = PublishRate::new(Some(10), Some(1000), start).unwrap();
        assert!((0..10).all(|_| rate.publish(1, start).is_none()));
        assert_eq!(rate.publish(1, start), Some(start + Duration::from_millis(100)));
        let later = start + Duration::from_millis(200);
        assert_eq!(rate.publish(1, later), None);
        // Bytes are limited too: a large message is accepted and charged afterwards.
        let later = start + Duration::from_secs(10);
        assert_eq!(rate.publish(3000, later), Some(later + Duration::from_secs(2)));
        assert!(PublishRate::new(None, None, start).is_none());
    }
}
