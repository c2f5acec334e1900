//! HTTPS connections without a valid token so far: few, for a short time, and never in the way of the next one. If all permits are taken, the oldest
//! connection of the same machine is closed for a new one, or else the oldest of all, so that a caller with a token can connect however many others
//! are idle.

use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::limits::UNAUTHENTICATED_MAX;
use super::permits::{ClientKey, ConnectionPermit, ConnectionPermits};
use crate::jobs::{CallerIdentity, Role};
use crate::sync::lock;

/// The time from the connection to the first request with a token: 5 s.
pub(super) const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct UnauthenticatedClients {
    permits: Arc<ConnectionPermits>,
    /// The oldest first; each has a permit.
    waiting: Mutex<VecDeque<Arc<UnauthenticatedClient>>>,
}

struct UnauthenticatedClient {
    key: ClientKey,
    stream: TcpStream,
    permit: Mutex<Option<ConnectionPermit>>,
}

impl UnauthenticatedClients {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { permits: ConnectionPermits::new(UNAUTHENTICATED_MAX), waiting: Mutex::default() })
    }

    /// A permit for a connection, and the number of connections that were closed for it.
    pub fn admit(self: &Arc<Self>, key: ClientKey, stream: &TcpStream) -> Option<(ClientAdmission, u64)> {
        let stream = stream.try_clone().ok()?;
        let mut waiting = lock(&self.waiting);
        let mut closed = 0;
        let permit = loop {
            if let Some(permit) = self.permits.take(key) {
                break permit;
            }
            let at = waiting.iter().position(|other| other.key == key).unwrap_or(0);
            let oldest = waiting.remove(at)?;
            let _ = oldest.stream.shutdown(Shutdown::Both);
            drop(lock(&oldest.permit).take());
            closed += 1;
        };
        let client = Arc::new(UnauthenticatedClient { key, stream, permit: Mutex::new(Some(permit)) });
        waiting.push_back(client.clone());
        Some((ClientAdmission { clients: self.clone(), client, known: None }, closed))
    }
}

/// The permit of a connection: first as an unauthenticated one, then as one of its caller.
pub(super) struct ClientAdmission {
    clients: Arc<UnauthenticatedClients>,
    client: Arc<UnauthenticatedClient>,
    known: Option<(ClientKey, ConnectionPermit)>,
}

impl ClientAdmission {
    /// Whether the caller is authenticated.
    pub fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Exchanges the permit for one of the caller.
    pub fn admit(&mut self, who: &CallerIdentity, https: &Arc<ConnectionPermits>) -> Result<(), String> {
        // Administrators share one key: some permits are reserved for it.
        let key = if who.role == Role::Admin { ClientKey::All } else { ClientKey::caller(&who.key()) };
        if self.known.as_ref().is_some_and(|(known, _)| *known == key) {
            return Ok(());
        }
        let permit = https.take(key);
        let permit =
            permit.ok_or("too many connections over HTTPS with this token or with all; close one, or try again")?;
        self.leave();
        self.known = Some((key, permit));
        Ok(())
    }

    fn leave(&self) {
        lock(&self.clients.waiting).retain(|other| !Arc::ptr_eq(other, &self.client));
        drop(lock(&self.client.permit).take());
    }
}

impl Drop for ClientAdmission {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    #[test]
    fn the_next_one_always_finds_a_place() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients = UnauthenticatedClients::new();
        let connect = || (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
        let key = |text: &str| ClientKey::address(text.parse().unwrap());
        let mut guests = Vec::new();
        let mut closed = 0;
        // One machine after the other takes all that it gets.
        for machine in 0..40 {
            for _ in 0..40 {
                let (client, server) = connect();
                let (guest, other) = clients.admit(key(&format!("192.0.2.{machine}")), &server).expect("a permit");
                closed += other as usize;
                guests.push((client, guest));
            }
        }
        let waiting = || lock(&clients.waiting).len();
        assert!(waiting() <= UNAUTHENTICATED_MAX, "{}", waiting());
        assert_eq!(closed, guests.len() - waiting());
        // Closed connections learn it.
        guests[0].0.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(guests[0].0.read(&mut [0; 1]).unwrap(), 0);
        drop(guests);
        assert_eq!(waiting(), 0);
        assert!(clients.permits.is_empty(), "every permit is given back");
    }
}
