//! A result reports readings that are missing because a block is damaged.

use std::path::{Path, PathBuf};

use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Pattern, Schema, SensorDef, SensorPath, Timestamp,
};
use wholegrain_query::{Query, run};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

fn file_under(dir: &Path) -> PathBuf {
    let entry = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    if entry.is_dir() { file_under(&entry) } else { entry }
}

fn answer(store: &Store, from: i64) -> (usize, Vec<String>, Vec<String>) {
    let query = Query {
        patterns: vec![Pattern::new("/**").unwrap()],
        from: Timestamp(from),
        to: Timestamp(1_000_000),
        ..Query::default()
    };
    let mut result = run(store, &query).unwrap();
    let rows = result.batches.by_ref().map(|batch| batch.unwrap().num_rows()).sum();
    (rows, result.warnings, result.batches.warnings())
}

#[test]
fn a_damaged_block_is_reported_before_or_after_the_rows() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Store::open(StoreConfig { background: false, ..StoreConfig::new(dir.path()) }).unwrap().0;
    let store = open();
    let schema = Schema::new(SensorPath::new("/n").unwrap(), "g", vec![SensorDef::gauge("x", "1", "")]).unwrap();
    store.register_schema(&schema).unwrap();
    let header = BatchHeader { agent: "n".to_owned(), boot: 1, seq: 1, schema: schema.hash(), interval_ns: 1000 };
    let column = Column { values: ColumnValues::Int((0..100).collect()), gaps: Gaps::default() };
    let times = (0..100).map(|i| i * 1000).collect();
    store.append_blocking(encode_batch(&Batch { header, times, columns: vec![column] }).into()).unwrap();
    store.seal().unwrap();
    assert_eq!(answer(&store, 0), (100, vec![], vec![]));
    drop(store);
    // The length of the footer: found when it is read.
    let path = file_under(&dir.path().join("blocks"));
    let mut content = std::fs::read(&path).unwrap();
    let at = content.len() - 6;
    content[at] ^= 0xff;
    std::fs::write(&path, &content).unwrap();
    let store = open();
    assert_eq!(answer(&store, 500_000), (0, vec![], vec![]), "nothing is missing in this range");
    let (rows, before, after) = answer(&store, 0);
    assert_eq!((rows, before.len(), after.len()), (0, 0, 1));
    assert!(after[0].contains(path.to_str().unwrap()), "{after:?}");
    assert_eq!(answer(&store, 0).1, after, "known from now on");
    drop(store);
    // Gone altogether: known from the beginning.
    std::fs::remove_file(&path).unwrap();
    assert_eq!(answer(&open(), 0).1.len(), 1);
}
