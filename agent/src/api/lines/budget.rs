//! The thread's time by user.

use std::collections::HashMap;

use super::limits::{CONNECTIONS_MAX, USER_BURST_NS, USER_SHARE};
use crate::jobs::marks::bucket::TokenBucket;

/// The thread's time that a user regains each second, ns.
const RATE: f64 = USER_SHARE * 1e9;

#[derive(Debug, Default)]
pub struct RequestBudgets(HashMap<Option<u32>, TokenBucket>);

impl RequestBudgets {
    /// Counts `took` ns until `now` for a user. Returns how long the user has to wait, ns, if over the budget.
    pub fn spend(&mut self, uid: Option<u32>, took: i64, now: i64) -> Option<i64> {
        let budget = self.0.entry(uid).or_insert_with(|| TokenBucket::full(USER_BURST_NS as f64, now));
        let left = budget.fill(RATE, USER_BURST_NS as f64, now) - took as f64;
        budget.spend(took as f64);
        (left < 0.0).then_some((-left / USER_SHARE) as i64)
    }

    /// Removes full budgets if there are many.
    pub fn tidy(&mut self, now: i64) {
        if self.0.len() > CONNECTIONS_MAX {
            self.0.retain(|_, budget| budget.fill(RATE, USER_BURST_NS as f64, now) < USER_BURST_NS as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn beyond_the_burst_a_user_has_the_share_and_nobody_elses() {
        let mut budgets = RequestBudgets::default();
        assert_eq!(budgets.spend(Some(1), 100 * MS, 0), None, "the burst");
        assert_eq!(budgets.spend(Some(1), 5 * MS, 0), Some(100 * MS));
        assert_eq!(budgets.spend(Some(2), MS, 0), None, "another's is another's");
        assert_eq!(budgets.spend(Some(1), 0, 100 * MS), None, "paid");
        // A user who sends requests all the time gets a twentieth of the time.
        let (mut now, mut had) = (100 * MS, 0);
        while now < 10_100 * MS {
            had += MS;
            now += MS + budgets.spend(Some(1), MS, now + MS).unwrap_or(0);
        }
        assert!((495..=505).contains(&(had / MS)), "{} ms in 10 s", had / MS);
    }
}
