use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

use crate::Random;

/// Below the ports that Linux gives to outgoing connections, which tests open in large numbers.
const PORTS: std::ops::Range<u64> = 12_000..30_000;
/// The most ports that are tried.
const ATTEMPTS: usize = 1000;

/// The names that this process has taken, one for each port that it has received.
static NAMES: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());

/// Returns a loopback port without a listener. Until the end of this process no test or benchmark of this machine receives it, and no outgoing
/// connection uses it.
pub fn free_port() -> u16 {
    let clock = std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
    let mut random = Random::new(clock ^ u64::from(std::process::id()) << 40);
    let mut ports = (0..ATTEMPTS).map(|_| random.within(PORTS.start, PORTS.end) as u16);
    ports.find(|port| is_free(*port) && reserve(*port)).expect("a free loopback port")
}

/// Takes the name of the port, which bench/harness.py takes, too: a socket without a file, which the kernel keeps until this process ends.
fn reserve(port: u16) -> bool {
    let name = format!("wholegrain-port-{port}");
    let taken = SocketAddr::from_abstract_name(name).and_then(|name| UnixListener::bind_addr(&name));
    let is_ours = taken.is_ok();
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).extend(taken);
    is_ours
}

/// IPv6 may be disabled: only a listener makes the port unusable there.
fn is_free(port: u16) -> bool {
    let is_used = |error: std::io::Error| error.kind() == ErrorKind::AddrInUse;
    TcpListener::bind(("127.0.0.1", port)).is_ok() && !TcpListener::bind(("::1", port)).is_err_and(is_used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_port_is_given_once_and_has_no_listener() {
        let ports: BTreeSet<u16> = (0..100).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 100);
        let port = free_port();
        assert!(!reserve(port), "nobody else receives it");
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        assert!(!is_free(port));
        drop(listener);
        assert!(is_free(port));
    }
}
