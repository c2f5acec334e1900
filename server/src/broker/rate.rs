//! How fast one client may publish: over its rate it is read more slowly. No clock inside.

use std::time::{Duration, Instant};

/// A bucket that holds one second's worth and may be overdrawn by one packet.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    per_s: f64,
    left: f64,
    at: Instant,
}

impl Bucket {
    fn new(per_s: u64, now: Instant) -> Self {
        Self { per_s: per_s as f64, left: per_s as f64, at: now }
    }

    /// Takes so much; when there is something again.
    fn take(&mut self, amount: f64, now: Instant) -> Option<Instant> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * self.per_s).min(self.per_s) - amount;
        self.at = now;
        (self.left < 0.0).then(|| now + Duration::from_secs_f64(-self.left / self.per_s))
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

#[cfg(test)]
mod tests {
    use super::*;

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
