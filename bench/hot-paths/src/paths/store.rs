//! The store's part of a reading's life: journal, block, merged block with its tiers.

use bytes::Bytes;
use tempfile::TempDir;
use wholegrain_model::Schema;
use wholegrain_model::size::ByteSize;
use wholegrain_store::{Clock, Store, StoreConfig};

use super::Work;
use super::readings::{Moving, SECOND, START, payload, schema};

const AGENTS: usize = 16;
const SENSORS: usize = 250;
/// Samples of a batch.
const SAMPLES: usize = 10;
/// Seconds that are sealed together.
const SECONDS: usize = 60;
/// Readings that are sealed together.
const READINGS: u64 = (AGENTS * SENSORS * SECONDS) as u64;

/// A store of its own in a folder of its own, which works only when it is called and at a time of its own.
pub fn open() -> anyhow::Result<(TempDir, Store)> {
    let dir = tempfile::tempdir()?;
    let config = StoreConfig {
        background: false,
        clock: Clock::new(|| START + 3600 * SECOND),
        result_cache_bytes: ByteSize(0),
        ..StoreConfig::new(dir.path())
    };
    let (store, _) = Store::open(config)?;
    Ok((dir, store))
}

/// Agents that send to a store.
struct Fleet {
    _dir: TempDir,
    store: Store,
    schemas: Vec<Schema>,
    moving: Vec<Moving>,
    seq: u64,
    second: usize,
}

impl Fleet {
    fn new() -> anyhow::Result<Self> {
        let (dir, store) = open()?;
        let schemas = (0..AGENTS).map(|agent| schema(agent, SENSORS)).collect::<anyhow::Result<Vec<Schema>>>()?;
        schemas.iter().try_for_each(|schema| store.register_schema(schema))?;
        let moving = (0..AGENTS).map(|_| Moving::new(SENSORS)).collect();
        Ok(Self { _dir: dir, store, schemas, moving, seq: 0, second: 0 })
    }

    /// The next batch of each agent.
    fn batches(&mut self) -> Vec<Bytes> {
        self.seq += 1;
        let second = self.second;
        self.second += SAMPLES;
        let agents = self.schemas.iter().zip(&mut self.moving).enumerate();
        agents
            .map(|(agent, (schema, moving))| payload(schema, agent, self.seq, second, SAMPLES, moving).into())
            .collect()
    }

    /// A minute of all agents into the journal.
    fn minute(&mut self) -> anyhow::Result<()> {
        for _ in 0..SECONDS / SAMPLES {
            for batch in self.batches() {
                self.store.append_blocking(batch)?;
            }
        }
        Ok(())
    }
}

struct Append {
    fleet: Fleet,
    batches: Vec<Bytes>,
}

pub fn append() -> anyhow::Result<Box<dyn Work>> {
    Ok(Box::new(Append { fleet: Fleet::new()?, batches: Vec::new() }))
}

impl Work for Append {
    fn prepare(&mut self) -> anyhow::Result<()> {
        self.batches = (0..SECONDS / SAMPLES).flat_map(|_| self.fleet.batches()).collect();
        Ok(())
    }

    /// One after another, so that each is a commit of its own: how many share one depends on the machine.
    fn work(&mut self) -> anyhow::Result<u64> {
        let batches = std::mem::take(&mut self.batches);
        let count = batches.len() as u64;
        batches.into_iter().try_for_each(|batch| self.fleet.store.append_blocking(batch).map(drop))?;
        Ok(count)
    }
}

struct Seal(Fleet);

pub fn seal() -> anyhow::Result<Box<dyn Work>> {
    Ok(Box::new(Seal(Fleet::new()?)))
}

impl Work for Seal {
    fn prepare(&mut self) -> anyhow::Result<()> {
        self.0.minute()
    }

    fn work(&mut self) -> anyhow::Result<u64> {
        self.0.store.seal()?;
        Ok(READINGS)
    }
}

/// Blocks of a day that is over become one, and windows are made of them.
struct Merge {
    fleet: Fleet,
    day: usize,
}

/// Blocks that are merged.
const BLOCKS: usize = 3;

pub fn merge() -> anyhow::Result<Box<dyn Work>> {
    Ok(Box::new(Merge { fleet: Fleet::new()?, day: 0 }))
}

impl Work for Merge {
    fn prepare(&mut self) -> anyhow::Result<()> {
        self.fleet.second = self.day * 86_400;
        for _ in 0..BLOCKS {
            self.fleet.minute()?;
            self.fleet.store.seal()?;
        }
        self.day += 1;
        Ok(())
    }

    fn work(&mut self) -> anyhow::Result<u64> {
        self.fleet.store.maintain(START + (self.day as i64 + 1) * 86_400 * SECOND)?;
        Ok(READINGS * BLOCKS as u64)
    }
}
