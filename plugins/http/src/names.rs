//! The addresses of the hosts of one client. They are resolved on the few threads of [`NameThreads`], not on a thread for each request.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use wholegrain_devices::NameThreads;

/// How long addresses are used before the name is resolved again: 60 s. A request that fails ends it.
const LIFETIME: Duration = Duration::from_secs(60);
/// The most names of one client: those of its addresses and of redirects.
const NAMES_MAX: usize = 64;
/// The most addresses of a name that are tried, as ureq has it.
const ADDRESSES_MAX: usize = 16;

/// There is no thread that could resolve a name.
#[derive(Debug, thiserror::Error)]
#[error("no thread to resolve a name")]
pub struct NoThread;

/// What is known of a name.
#[derive(Debug)]
enum NameState {
    /// It is being resolved, for this request or for one that has ended since.
    Asked,
    Known(Vec<SocketAddr>, Instant),
    Failed,
}

type HostPort = (String, u16);

#[derive(Debug, Default)]
struct NameTable {
    names: Mutex<HashMap<HostPort, NameState>>,
    changed: Condvar,
}

impl NameTable {
    fn lock(&self) -> MutexGuard<'_, HashMap<HostPort, NameState>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The names of one client. A name has at most one request at a time, also if nobody waits for it any more: the next request finds its result.
#[derive(Debug, Clone, Default)]
pub struct ClientNames(Arc<NameTable>);

impl ClientNames {
    /// Has the names resolved again, as after a fault of the device.
    pub fn forget(&self) {
        self.0.lock().retain(|_, state| matches!(state, NameState::Asked));
    }

    fn addresses(&self, host: &str, port: u16, until: Instant) -> Result<Vec<SocketAddr>, ureq::Error> {
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let key = (host.to_owned(), port);
        let mut names = self.0.lock();
        let mut has_waited = false;
        loop {
            match names.get(&key) {
                Some(NameState::Known(addresses, at)) if at.elapsed() < LIFETIME => return Ok(addresses.clone()),
                Some(NameState::Failed) if has_waited => return Err(ureq::Error::HostNotFound),
                Some(NameState::Asked) => {}
                _ => self.ask(&mut names, &key)?,
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ureq::Error::HostNotFound);
            }
            has_waited = true;
            names = self.0.changed.wait_timeout(names, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ask(&self, names: &mut HashMap<HostPort, NameState>, key: &HostPort) -> Result<(), ureq::Error> {
        if names.len() >= NAMES_MAX {
            names.retain(|_, state| matches!(state, NameState::Asked));
        }
        if names.len() >= NAMES_MAX {
            return Err(ureq::Error::HostNotFound);
        }
        let (table, name) = (self.0.clone(), key.clone());
        let answer = move |addresses: Option<Vec<SocketAddr>>| {
            let state = addresses.map_or(NameState::Failed, |addresses| NameState::Known(addresses, Instant::now()));
            table.lock().insert(name, state);
            table.changed.notify_all();
        };
        let (host, port) = key;
        NameThreads::shared()
            .resolve(host, *port, Box::new(answer))
            .map_err(|_| ureq::Error::Other(Box::new(NoThread)))?;
        names.insert(key.clone(), NameState::Asked);
        Ok(())
    }
}

impl Resolver for ClientNames {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        let host = uri.host().ok_or(ureq::Error::HostNotFound)?;
        let until = Instant::now() + (*timeout.after).min(LIFETIME);
        let found = self.addresses(host, uri.port_u16().unwrap_or(usual), until)?;
        let mut addresses = self.empty();
        for address in config.ip_family().keep_wanted(found.into_iter()).take(ADDRESSES_MAX) {
            addresses.push(address);
        }
        if addresses.is_empty() { Err(ureq::Error::HostNotFound) } else { Ok(addresses) }
    }
}
