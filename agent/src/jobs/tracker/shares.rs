//! Shares of users in a bounded resource: beyond the bound, the user with the largest share loses entries.

use std::collections::{BTreeMap, BTreeSet};

/// The share of one user.
#[derive(Debug, Default)]
struct UserShare {
    orders: BTreeSet<u64>,
    bytes: usize,
}

/// Entries of users, each with a rising number and its size. Entries without a user count as one user's.
#[derive(Debug, Default)]
pub struct UserShares {
    users: BTreeMap<Option<u32>, UserShare>,
}

impl UserShares {
    pub fn add(&mut self, uid: Option<u32>, order: u64, bytes: usize) {
        let share = self.users.entry(uid).or_default();
        share.orders.insert(order);
        share.bytes += bytes;
    }

    pub fn remove(&mut self, uid: Option<u32>, order: u64, bytes: usize) {
        if let Some(share) = self.users.get_mut(&uid)
            && share.orders.remove(&order)
        {
            share.bytes -= bytes;
            if share.orders.is_empty() {
                self.users.remove(&uid);
            }
        }
    }

    /// The entry numbers of the user with the most entries, ascending.
    pub fn of_most(&self) -> impl Iterator<Item = u64> {
        let most = self.users.values().max_by_key(|share| share.orders.len());
        most.into_iter().flat_map(|share| share.orders.iter().copied())
    }

    /// The entry numbers of the user with the most bytes, ascending.
    pub fn of_most_bytes(&self) -> impl Iterator<Item = u64> {
        let most = self.users.values().max_by_key(|share| share.bytes);
        most.into_iter().flat_map(|share| share.orders.iter().copied())
    }
}
