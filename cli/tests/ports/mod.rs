//! Loopback ports for programs that are told theirs.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A loopback port that nobody listens on now. Below those that systems give to outgoing connections and to listeners that leave the
/// choice to them: no other test gets it in between.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 15_000) as u16;
    let mut ports = (0..15_000).map(|_| 12_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed) % 15_000) % 15_000);
    ports.find(|port| TcpListener::bind(("localhost", *port)).is_ok()).expect("a free loopback port")
}
