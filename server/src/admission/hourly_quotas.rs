//! Hourly quotas of clients. Without one, an agent that announces new schemas without end would fill the catalogue, which keeps schemas as long as
//! their readings.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least bytes that a schema counts: it costs the catalogue a transaction and a page.
pub const SCHEMA_BYTES_MIN: u64 = 4 << 10;
/// The most clients that are remembered. A client with its whole quota left is not.
pub const CLIENTS_MAX: usize = 65_536;

const HOUR: Duration = Duration::from_secs(3600);

/// An amount per hour for each client. Unused amounts accumulate up to that of one hour.
#[derive(Debug)]
pub struct HourlyQuotas {
    per_hour: AtomicU64,
    used: Mutex<HashMap<String, HourlyUsage>>,
}

#[derive(Debug, Clone, Copy)]
struct HourlyUsage {
    amount: u64,
    at: Instant,
}

impl HourlyUsage {
    /// The use that still counts after the time that has passed.
    fn left(self, per_hour: u64, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.at).as_nanos().min(HOUR.as_nanos());
        let returned = u128::from(per_hour) * passed / HOUR.as_nanos();
        self.amount.saturating_sub(u64::try_from(returned).unwrap_or(u64::MAX))
    }
}

impl HourlyQuotas {
    pub fn new(per_hour: u64) -> Self {
        Self { per_hour: AtomicU64::new(per_hour), used: Mutex::default() }
    }

    pub fn set_per_hour(&self, per_hour: u64) {
        self.per_hour.store(per_hour, Relaxed);
    }

    /// Takes `amount` from the client's quota; false, and nothing taken, if not enough is left.
    pub fn take(&self, client: &str, amount: u64, now: Instant) -> bool {
        let per_hour = self.per_hour.load(Relaxed);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.len() >= CLIENTS_MAX && !used.contains_key(client) {
            used.retain(|_, used| used.left(per_hour, now) > 0);
            if used.len() >= CLIENTS_MAX {
                return false;
            }
        }
        let before = used.get(client).map_or(0, |used| used.left(per_hour, now));
        let fits = before.saturating_add(amount) <= per_hour;
        if fits {
            used.insert(client.to_owned(), HourlyUsage { amount: before + amount, at: now });
        }
        fits
    }

    /// Returns what was taken for an operation that failed.
    pub fn give_back(&self, client: &str, amount: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = used.get_mut(client) {
            used.amount = used.amount.saturating_sub(amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hours_amount_comes_back_in_an_hour() {
        let allowances = HourlyQuotas::new(100);
        let start = Instant::now();
        assert!(allowances.take("a", 60, start) && allowances.take("a", 40, start));
        assert!(!allowances.take("a", 1, start));
        assert!(allowances.take("b", 100, start), "each has its own");
        assert!(!allowances.take("a", 51, start + HOUR / 2));
        assert!(allowances.take("a", 50, start + HOUR / 2));
        allowances.give_back("a", 50);
        assert!(allowances.take("a", 50, start + HOUR / 2));
        assert!(allowances.take("a", 100, start + 3 * HOUR) && !allowances.take("a", 1, start + 3 * HOUR));
    }

    #[test]
    fn more_clients_than_are_remembered_are_refused_until_others_have_theirs_back() {
        let allowances = HourlyQuotas::new(100);
        let start = Instant::now();
        assert!((0..CLIENTS_MAX).all(|i| allowances.take(&i.to_string(), 1, start)));
        assert!(!allowances.take("one more", 1, start));
        assert!(allowances.take("one more", 1, start + HOUR));
    }
}
