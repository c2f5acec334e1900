//! Runs the checks of every store of readings on the existing stores.

use wholegrain_store::{Store, StoreConfig};
use wholegrain_testing::conformance::memory::{Fault, Memory};
use wholegrain_testing::conformance::{Place, WritableStore, run};

/// A directory with the embedded store.
struct Directory(tempfile::TempDir);

impl Place for Directory {
    fn open(&self) -> Box<dyn WritableStore> {
        let (store, report) = Store::open(StoreConfig::new(self.0.path().join("store"))).expect("the store opens");
        assert!(report.is_clean(), "{report:?}");
        Box::new(store)
    }
}

#[test]
fn the_embedded_store_passes() {
    assert_eq!(run(|| Directory(tempfile::tempdir().unwrap())), Vec::<String>::new());
}

#[test]
fn the_store_in_memory_passes() {
    assert_eq!(run(Memory::default), Vec::<String>::new());
}

#[test]
fn each_fault_is_found() {
    for fault in Fault::ALL {
        let found = run(|| Memory::broken(fault));
        println!("{fault:?}: {found:#?}");
        assert!(!found.is_empty(), "{fault:?} is not found");
    }
}
