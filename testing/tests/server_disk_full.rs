//! A server with a full disk: it acknowledges nothing that it cannot store, says why, damages no data, and continues when there is room again. Its
//! store is on a small file system, which a ballast file fills.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use wholegrain_testing::probe::{Probe, assert_unbroken, now_ns};
use wholegrain_testing::{Process, Site, wait_until};

/// A file beside the store's that fills the disk.
struct Ballast(PathBuf);

impl Ballast {
    fn new(site: &Site, server: &Process) -> Self {
        Self(server.sees(&site.path("server/store/ballast")))
    }

    /// Uses all remaining space.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(&self.0).expect("a file beside the store's");
        let block = [0x5a; 4096];
        while file.write(&block).is_ok_and(|written| written > 0) {}
    }

    fn remove(&self) {
        std::fs::remove_file(&self.0).expect("the ballast can go");
    }
}

#[test]
fn a_full_disk_stops_only_acknowledgements_until_there_is_room() {
    let site = Site::new();
    site.set("server/server.toml", "store", "seal_after", "\"1s\"");
    let old = Probe::new(&site, "old", "old-spool", "16MiB");
    let new = Probe::new(&site, "new", "new-spool", "16MiB");
    let mut server = site.start_server_on_small_disk("48m");
    let ballast = Ballast::new(&site, &server);
    let mut old_agent = old.start();
    wait_until("readings in blocks", || {
        site.metric("wholegrain_server_store_blocks ").is_some_and(|blocks| blocks > 0.0)
    });

    ballast.fill();
    wait_until("the store has failed to write", || server.log().contains("the disk is full"));
    // A new sensor: the catalogue has no room for its schema either.
    let mut new_agent = new.start();
    wait_until("both agents keep their batches", || {
        ballast.fill();
        [&old, &new].iter().all(|probe| probe.status()["spool_bytes"].as_u64().is_some_and(|bytes| bytes > 200_000))
    });
    let acknowledged_before = old.stored();
    assert!(!acknowledged_before.is_empty(), "what is there is still there for readers");
    assert_unbroken(&acknowledged_before);
    assert!(server.runs(), "a full disk does not end the server");
    assert!(server.log().lines().count() < 300, "at a bounded rate: {}", server.log());

    ballast.remove();
    let room = now_ns();
    wait_until("both agents' readings come again", || old.has_later_than(room) && new.has_later_than(room));
    wait_until("both spools are empty", || {
        [&old, &new].iter().all(|probe| probe.status()["spool_bytes"].as_u64() == Some(0))
    });
    let sealed_before = site.metric("wholegrain_server_store_seals_total ");
    wait_until("sealing goes on", || site.metric("wholegrain_server_store_seals_total ") > sealed_before);
    for probe in [&old, &new] {
        assert_unbroken(&probe.stored());
        assert_eq!(probe.status()["dropped_batches"], 0, "nothing was dropped");
    }
    let rows = old.stored();
    assert!(rows.starts_with(&acknowledged_before), "what was acknowledged before is what it was");
    assert!(old_agent.stop().success() && new_agent.stop().success() && server.stop().success());
}
