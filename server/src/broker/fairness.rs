//! Fair use of the broker's time between identities: a rate limit on control packets, and turns.
//!
//! - Input: a connection's identity and its work. Output: until when it is not read, and when its next turn starts.
//! - Never: a dropped packet or a closed connection. A client that does too much waits.
//!
//! **Control packets** carry no data and cost the client nothing: PINGREQ, SUBSCRIBE and UNSUBSCRIBE (one for each filter), and acknowledgements of
//! unknown packets. Each connection has a small budget of its own, so that ten thousand agents that share a password do not wait for each other;
//! more is taken from the budget of the identity.
//!
//! **Turns.** After [`TURN_UNITS`] of work a connection waits until all ready tasks have run, and at most [`TURNS_AT_ONCE`] connections of one
//! identity wait for that at a time: the others queue. So the connections of one identity do a bounded amount of work between two steps of any other
//! client, however many they are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::Semaphore;

use super::rate::TokenBucket;
use crate::admission::source;

/// Control packets in a connection's own budget, and how many of them return in a second.
const OWN_PACKETS: f64 = 16.0;
const OWN_PACKETS_PER_S: f64 = 1.0;
/// The size of an identity's budget, in seconds of its rate.
const BURST_S: f64 = 5.0;
/// The most debt of an identity, in seconds of its rate: the longest wait for the next packet.
const DEBT_S_MAX: f64 = 60.0;
/// Units of work in one turn: one for a packet or message, and one for each [`UNIT_BYTES`] of its payload.
pub const TURN_UNITS: usize = 256;
/// Bytes of a payload that count as one unit.
pub const UNIT_BYTES: usize = 4 << 10;
/// Bytes of a topic that count as one unit: each level, which may be two bytes long, is searched for among all filters.
pub const TOPIC_UNIT_BYTES: usize = 256;
/// How many connections of one identity get a new turn at a time.
const TURNS_AT_ONCE: usize = 4;
/// The most identities without a connection that are remembered because of their debt.
const IDLE_MAX: usize = 16_384;

/// The owner of a budget.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum BudgetKey {
    Identity(Box<str>),
    /// Unauthenticated clients of one address, whatever names they claim.
    Anonymous(IpAddr),
}

/// The budget that the connections of one identity share.
#[derive(Debug)]
struct IdentityBudget {
    packets: Mutex<TokenBucket>,
    turns: Semaphore,
}

/// The budgets of all identities with connections, and of some without.
#[derive(Debug, Default)]
pub struct Fairness(Mutex<BudgetTable>);

#[derive(Debug, Default)]
struct BudgetTable {
    budgets: HashMap<BudgetKey, Arc<IdentityBudget>>,
    /// Idle budgets are removed at this size.
    tidy_at: usize,
}

impl BudgetTable {
    /// Removes identities without connection and without debt.
    fn tidy(&mut self, now: Instant) {
        let lives = |budget: &Arc<IdentityBudget>| Arc::strong_count(budget) > 1;
        let owes =
            |budget: &IdentityBudget| !budget.packets.lock().unwrap_or_else(PoisonError::into_inner).is_full(now);
        self.budgets.retain(|_, budget| lives(budget) || owes(budget));
        if self.budgets.values().filter(|budget| !lives(budget)).count() > IDLE_MAX {
            self.budgets.retain(|_, budget| lives(budget));
        }
        self.budgets.shrink_to(2 * self.budgets.len());
        self.tidy_at = (2 * self.budgets.len()).max(64);
    }
}

impl Fairness {
    /// Registers a connection. `anonymous` is its address if it is unauthenticated; `per_s_max` is the identity's rate of control packets.
    pub(super) fn enter(
        &self,
        identity: &str,
        anonymous: Option<IpAddr>,
        per_s_max: u64,
        now: Instant,
    ) -> ConnectionTurn {
        let key = anonymous
            .map_or_else(|| BudgetKey::Identity(identity.into()), |address| BudgetKey::Anonymous(source(address)));
        let per_s = per_s_max as f64;
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.budgets.len() >= table.tidy_at {
            table.tidy(now);
        }
        let new = || {
            let packets = Mutex::new(TokenBucket::with(per_s, BURST_S * per_s, now));
            Arc::new(IdentityBudget { packets, turns: Semaphore::new(TURNS_AT_ONCE) })
        };
        let budget = table.budgets.entry(key).or_insert_with(new).clone();
        drop(table);
        // A reload may have changed the rate.
        budget.packets.lock().unwrap_or_else(PoisonError::into_inner).set(per_s, BURST_S * per_s, now);
        ConnectionTurn { budget, own: TokenBucket::with(OWN_PACKETS_PER_S, OWN_PACKETS, now), left: TURN_UNITS }
    }
}

#[derive(Debug)]
pub(super) struct ConnectionTurn {
    budget: Arc<IdentityBudget>,
    own: TokenBucket,
    /// Units left in this turn.
    left: usize,
}

impl ConnectionTurn {
    /// Takes control packets from the budgets; returns until when the client is not read if it was too fast.
    pub fn control(&mut self, packets: usize, now: Instant) -> Option<Instant> {
        let packets = packets as f64;
        if self.own.take_whole(packets, now) {
            return None;
        }
        let mut shared = self.budget.packets.lock().unwrap_or_else(PoisonError::into_inner);
        shared.take_bounded(packets, DEBT_S_MAX, now)
    }

    /// Takes units from the turn.
    pub fn spend(&mut self, units: usize) {
        self.left = self.left.saturating_sub(units);
    }

    /// Whether other connections are next.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Waits for the next turn.
    pub async fn next(&mut self) {
        // The permit is returned before the turn is used: its holder only waits for others, so no connection can keep it. The only error would be a
        // closed semaphore, which never happens.
        let _waits = self.budget.turns.acquire().await;
        tokio::task::yield_now().await;
        self.left = TURN_UNITS;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use tokio::task::{LocalSet, yield_now};

    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    /// Ten thousand agents with one password: each sends twelve packets at once and then a ping every 15 s; none waits.
    #[test]
    fn a_fleet_of_one_identity_does_not_wait_for_each_other() {
        let (fairness, start) = (Fairness::default(), Instant::now());
        let mut fleet: Vec<ConnectionTurn> = (0..10_000).map(|_| fairness.enter("agents", None, 1, start)).collect();
        for turn in &mut fleet {
            assert_eq!(turn.control(12, start), None);
        }
        for minute in 0..4 {
            let now = start + Duration::from_secs(15 * minute);
            assert!(fleet.iter_mut().all(|turn| turn.control(1, now).is_none()));
        }
    }

    #[test]
    fn use_beyond_a_connections_share_counts_for_its_identity() {
        let (fairness, start) = (Fairness::default(), Instant::now());
        let [mut one, mut other] = [(); 2].map(|()| fairness.enter("a", None, 10, start));
        assert_eq!(one.control(16, start), None);
        assert!((0..50).all(|_| one.control(1, start).is_none()), "five seconds' worth at once");
        assert_eq!(one.control(1, start), Some(start + Duration::from_millis(100)));
        assert_eq!(other.control(16, start), None, "its own");
        assert_eq!(other.control(1, start), Some(start + Duration::from_millis(200)), "behind the first");
        assert_eq!(fairness.enter("b", None, 10, start).control(50, start), None, "somebody else");
        let later = start + Duration::from_secs(30);
        assert_eq!(
            (one.control(66, later), other.control(16, later)),
            (Some(later + Duration::from_millis(1600)), None)
        );
        // A packet of a million filters.
        assert_eq!(one.control(1_000_000, later), Some(later + Duration::from_secs(60)));
    }

    #[test]
    fn anonymous_clients_of_one_address_share_one_budget() {
        let (fairness, now) = (Fairness::default(), Instant::now());
        let enter = |name: &str, from| {
            let mut turn = fairness.enter(name, from, 1, now);
            turn.control(16, now);
            turn.control(5, now)
        };
        assert_eq!(enter("x", address("2001:db8::1")), None);
        assert!(enter("y", address("2001:db8::ffff")).is_some());
        assert_eq!(enter("x", address("2001:db8:0:1::1")), None);
        assert_eq!(enter("x", address("10.0.0.1")), None);
        assert_eq!(enter("x", None), None, "an authenticated x");
    }

    #[test]
    fn disconnected_identities_are_dropped_when_their_budget_is_full() {
        let (fairness, start) = (Fairness::default(), Instant::now());
        let count = || fairness.0.lock().unwrap().budgets.len();
        let stays = fairness.enter("stays", None, 1, start);
        for name in 0..5000 {
            fairness.enter(&name.to_string(), None, 1, start);
        }
        assert!(count() <= 65, "{}", count());
        fairness.enter("owes", None, 1, start).control(21, start);
        fairness.0.lock().unwrap().tidy(start);
        assert_eq!(count(), 2);
        assert!(fairness.enter("owes", None, 1, start).control(17, start).is_some(), "leaving changes nothing");
        fairness.0.lock().unwrap().tidy(start + Duration::from_secs(60));
        assert_eq!(count(), 1);
        drop(stays);
        // All of them are above their rate; at most the maximum number is remembered.
        for name in 0..5 * IDLE_MAX {
            fairness.enter(&name.to_string(), None, 1, start).control(17, start);
        }
        assert!(count() <= 2 * IDLE_MAX + 1, "{}", count());
    }

    /// Sixty connections of one identity that always have more to do, and one of another: how much they do between two of its steps.
    #[tokio::test]
    async fn one_identitys_connections_do_little_between_two_steps_of_another() {
        let (fairness, now, done) = (Fairness::default(), Instant::now(), Rc::new(Cell::new(0)));
        let tasks = LocalSet::new();
        for _ in 0..60 {
            let (mut turn, done) = (fairness.enter("flood", None, 1000, now), done.clone());
            tasks.spawn_local(async move {
                loop {
                    while !turn.is_over() {
                        turn.spend(1);
                        done.set(done.get() + 1);
                    }
                    turn.next().await;
                }
            });
        }
        let other = async {
            // The burst that a new connection may send.
            while done.get() < 2 * 60 * TURN_UNITS {
                yield_now().await;
            }
            for _ in 0..100 {
                let before = done.get();
                yield_now().await;
                let between = done.get() - before;
                assert!(between <= 2 * TURNS_AT_ONCE * TURN_UNITS, "{between} units");
            }
        };
        tasks.run_until(other).await;
    }
}
