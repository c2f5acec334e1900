//! Who has how much of something that all users share, so that where there is too much of it the user who has most gives way.

use std::collections::{BTreeMap, BTreeSet};

/// What one user has.
#[derive(Debug, Default)]
struct UserShare {
    orders: BTreeSet<u64>,
    bytes: usize,
}

/// Things by their users, each with a number that rises and its bytes. Those of which no user is known are as one user's.
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

    /// The numbers of the user's who has the most of them, in their order.
    pub fn of_most(&self) -> impl Iterator<Item = u64> {
        let most = self.users.values().max_by_key(|share| share.orders.len());
        most.into_iter().flat_map(|share| share.orders.iter().copied())
    }

    /// The numbers of the user's who has the most bytes.
    pub fn of_most_bytes(&self) -> impl Iterator<Item = u64> {
        let most = self.users.values().max_by_key(|share| share.bytes);
        most.into_iter().flat_map(|share| share.orders.iter().copied())
    }
}
