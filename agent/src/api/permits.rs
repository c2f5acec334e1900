//! Permits for connections: a bounded number for each listener, of which no caller can take all.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use crate::sync::lock;

/// The owner of a connection, as far as it is known before the first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ClientKey {
    /// A user of this node.
    Uid(u32),
    /// A machine; of IPv6 the network, because a machine may have all its addresses.
    Address(IpAddr),
    /// A caller with a token, by a hash of the identity.
    Caller(u64),
    /// All callers of the listener together.
    All,
}

impl ClientKey {
    /// The key of an authenticated caller.
    pub fn caller(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self::Caller(hasher.finish())
    }

    pub fn address(address: IpAddr) -> Self {
        match address {
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) => Self::Address(v4.into()),
                None => Self::Address(std::net::Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into()),
            },
            v4 => Self::Address(v4),
        }
    }
}

/// The permits of one listener.
#[derive(Debug)]
pub(crate) struct ConnectionPermits {
    max: usize,
    /// Permits that only [`ClientKey::All`] gets.
    reserved: usize,
    taken: Mutex<HashMap<ClientKey, usize>>,
}

impl ConnectionPermits {
    pub fn new(max: usize) -> Arc<Self> {
        Self::reserving(max, 0)
    }

    /// With permits that only [`ClientKey::All`] gets.
    pub fn reserving(max: usize, reserved: usize) -> Arc<Self> {
        Arc::new(Self { max, reserved, taken: Mutex::default() })
    }

    /// Whether no permit is taken.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        lock(&self.taken).is_empty()
    }

    /// A permit for one more connection. [`ClientKey::All`] gets one until all are taken. Another caller gets as many as are then still free: half of
    /// them if alone, and always fewer than all, so that the next caller gets one (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on
    /// Networking 6(2), 1998).
    pub fn take(self: &Arc<Self>, key: ClientKey) -> Option<ConnectionPermit> {
        let mut taken = lock(&self.taken);
        let free = self.max.saturating_sub(taken.values().sum());
        let mine = taken.get(&key).copied().unwrap_or(0);
        let may = if key == ClientKey::All { free > 0 } else { mine < free.saturating_sub(self.reserved) };
        if !may {
            return None;
        }
        taken.insert(key, mine + 1);
        Some(ConnectionPermit { permits: self.clone(), key })
    }
}

/// The right to one connection; returned when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    permits: Arc<ConnectionPermits>,
    key: ClientKey,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = lock(&self.permits.taken);
        match taken.get_mut(&self.key) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_the_places_of_others() {
        let permits = ConnectionPermits::new(64);
        let take_all = |key| std::iter::from_fn(|| permits.take(key)).collect::<Vec<_>>();
        let first = take_all(ClientKey::Uid(1));
        assert_eq!(first.len(), 32);
        let others: Vec<_> = (2..6).map(|uid| take_all(ClientKey::Uid(uid))).collect();
        assert_eq!(others.iter().map(Vec::len).collect::<Vec<_>>(), [16, 8, 4, 2]);
        assert!(permits.take(ClientKey::Uid(99)).is_some(), "somebody new still finds one");
        drop(first);
        assert_eq!(take_all(ClientKey::Uid(7)).len(), 17);
        drop(others);
        assert!(lock(&permits.taken).is_empty(), "given back, nothing is kept of anybody");
        let permits = ConnectionPermits::new(3);
        let all: Vec<_> = std::iter::from_fn(|| permits.take(ClientKey::All)).collect();
        assert_eq!(all.len(), 3);
        let permits = ConnectionPermits::reserving(32, 4);
        let users: Vec<_> = (0..40)
            .flat_map(|user| {
                std::iter::from_fn(|| permits.take(ClientKey::caller(&format!("user {user}")))).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(users.len(), 28);
        assert_eq!(std::iter::from_fn(|| permits.take(ClientKey::All)).collect::<Vec<_>>().len(), 4);
    }

    #[test]
    fn a_machine_is_one_caller() {
        let key = |text: &str| ClientKey::address(text.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:2"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:192.0.2.7"), key("192.0.2.7"));
        assert_ne!(key("192.0.2.7"), key("192.0.2.8"));
    }
}
