//! The allocator arenas of a real server: short-lived threads leave fragments in each, so that there must be no more arenas than processors.
#![cfg(target_env = "gnu")]

use std::num::NonZero;
use std::thread::available_parallelism;

use wholegrain_testing::{Process, Site, wait_until};

/// The size that the C library reserves for each arena after the first (`HEAP_MAX_SIZE` of malloc/arena.c on 64 bits), bytes; its address is a
/// multiple of this.
const ARENA_BYTES: u64 = 64 << 20;

/// The arenas of a process after the first: a used part, and the rest of the reservation.
fn arenas(process: &Process) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.id())).expect("the process runs");
    let part = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some((hex(from)?, hex(to)?, rest.starts_with("rw-p"), rest.starts_with("---p")))
    };
    let parts: Vec<_> = maps.lines().filter_map(part).collect();
    let is_arena = |pair: &&[(u64, u64, bool, bool)]| {
        let [(from, middle, is_used, _), (rest, to, _, is_reserved)] = **pair else { return false };
        is_used && is_reserved && middle == rest && from % ARENA_BYTES == 0 && to - from >= ARENA_BYTES
    };
    parts.windows(2).filter(is_arena).count()
}

#[test]
fn a_server_has_no_more_arenas_than_processors() {
    let most = available_parallelism().map_or(1, NonZero::get).max(2);
    let site = Site::new();
    // With another setting in the environment there are more: the counting works, and there are enough threads.
    let mut command = site.command(&["server", "--config"]);
    command.arg(site.path("server/server.toml")).env("MALLOC_ARENA_MAX", "1000");
    let mut server = Process::start(&mut command, &site.path("server.log"));
    wait_until("a server with an arena for each thread", || site.healthy() && arenas(&server) > most);
    server.stop();
    let mut server = site.start_server();
    for _ in 0..8 {
        assert!(site.healthy());
    }
    let found = arenas(&server);
    assert!((1..=most).contains(&found), "{found} arenas, {most} processors");
    server.stop();
}
