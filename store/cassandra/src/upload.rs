//! Uploads sealed blocks of the local store as chunks.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use wholegrain_store::{SealedBlock, Store, StoreError};

use crate::body::BodyEncoder;
use crate::encode::{EncodedRow, SubtreeDraft};
use crate::layout::{CLASSES, SensorPlace, bucket_of};
use crate::session::{CassandraSession, insert_chunk};

/// A batch of rows has at most this many bytes and rows. Cassandra holds a batch in memory as a whole.
const BATCH_BYTES_MAX: usize = 384 << 10;
const BATCH_ROWS_MAX: usize = 128;
/// The most batches in flight.
const BATCHES_IN_FLIGHT: usize = 32;
/// The readings of a sub-tree that are held in memory before rows are made of them.
const SUBTREE_READINGS_MAX: usize = 4 << 20;
/// Level of zstd in the bodies.
const ZSTD_LEVEL: i32 = 3;
/// The most places whose bucket length is remembered, and the most known extents.
const KNOWN_MAX: usize = 1 << 20;

/// Place, length and number of a bucket, and the class of its rows.
type Extent = (Arc<str>, u8, i32, usize);

/// The values of one row in the order of [`insert_chunk`].
type ChunkValues = (String, i8, i32, Vec<u8>, i16, i64, i64, i16, i16, i64, i32, Vec<u8>);

/// What an upload wrote.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct UploadCounts {
    pub rows: u64,
    pub readings: u64,
    pub bytes: u64,
}

/// What uploads remember of each other.
#[derive(Default)]
struct UploadMemory {
    /// The bucket length of each place.
    spans: HashMap<Arc<str>, u8>,
    /// Extents and days that are in their tables.
    extents: HashSet<Extent>,
    days: BTreeSet<i32>,
}

/// Writes the chunks of blocks.
pub(crate) struct Uploader {
    pub session: Arc<CassandraSession>,
    pub handle: Handle,
    pub local: Store,
    /// The number of this server.
    pub server: i16,
    pub shard_levels: u8,
    memory: Mutex<UploadMemory>,
}

/// An upload of one block.
struct BlockUpload<'a> {
    uploader: &'a Uploader,
    stamp: i64,
    writes: JoinSet<Result<(), StoreError>>,
    in_flight: Arc<Semaphore>,
    encoder: BodyEncoder,
    extents: HashSet<Extent>,
    days: BTreeSet<i32>,
    counts: UploadCounts,
}

impl Uploader {
    /// An uploader that has uploaded nothing yet.
    pub fn new(
        session: Arc<CassandraSession>,
        handle: Handle,
        local: Store,
        (server, shard_levels): (i16, u8),
    ) -> Self {
        Self { session, handle, local, server, shard_levels, memory: Mutex::default() }
    }

    /// Where the uploads put a sensor; `None` if it is not known.
    pub fn place_of(&self, path: &str) -> SensorPlace {
        let columns = self.local.sensor_id(path).map(|id| self.local.schema_columns(id)).unwrap_or_default();
        match columns.last() {
            Some((schema, column)) => SensorPlace::of_schema(schema, *column, self.shard_levels),
            None => SensorPlace::of_path(path, self.shard_levels),
        }
    }

    /// Writes all rows of a block with this stamp, and what leads to them. They count when the upload is complete (a row of `commits`).
    /// Called on a thread outside of the runtime.
    pub fn upload(&self, block: &SealedBlock, stamp: i64) -> Result<UploadCounts, StoreError> {
        let encoder = BodyEncoder::new(ZSTD_LEVEL).map_err(|error| StoreError::Sensor(format!("zstd: {error}")))?;
        let mut upload = BlockUpload {
            uploader: self,
            stamp,
            writes: JoinSet::new(),
            in_flight: Arc::new(Semaphore::new(BATCHES_IN_FLIGHT)),
            encoder,
            extents: HashSet::new(),
            days: BTreeSet::new(),
            counts: UploadCounts::default(),
        };
        upload.send_block(block)?;
        self.handle.block_on(upload.finish())
    }

    /// The class of the readings of a sensor: the shortest that is long enough.
    fn class_of(&self, path: &str) -> usize {
        let ever = CLASSES.len() - 1;
        let Some(age) = self.local.readings_age(path) else { return ever };
        let is_enough =
            |class: &(&str, i64)| class.1 > 0 && age.ns() / 1_000_000_000 + 86_400 <= class.1.unsigned_abs();
        CLASSES.iter().position(is_enough).unwrap_or(ever)
    }
}

impl BlockUpload<'_> {
    fn send_block(&mut self, block: &SealedBlock) -> Result<(), StoreError> {
        let mut reader = block.reader();
        let mut place: Option<Arc<str>> = None;
        let mut draft = SubtreeDraft::default();
        for at in 0..block.sensors() {
            let path = block.path(at);
            let found = self.uploader.place_of(path);
            if place.as_ref().is_some_and(|place| *place != found.place || draft.readings() > SUBTREE_READINGS_MAX) {
                self.send_subtree(place.as_ref(), std::mem::take(&mut draft))?;
            }
            place = Some(found.place.clone());
            let class = self.uploader.class_of(path);
            for chunk in reader.read(at)? {
                let days =
                    [chunk.times.first(), chunk.times.last()].into_iter().flatten().map(|time| bucket_of(*time, 0));
                if let (Some(first), Some(last)) = (days.clone().min(), days.max()) {
                    self.days.insert(first);
                    match last - first {
                        ..=1 => drop(self.days.insert(last)),
                        _ => self.days.extend(chunk.times.iter().map(|time| bucket_of(*time, 0))),
                    }
                }
                draft.add((found.group, found.band, found.column), class, chunk);
            }
        }
        self.send_subtree(place.as_ref(), draft)
    }

    fn send_subtree(&mut self, place: Option<&Arc<str>>, draft: SubtreeDraft) -> Result<(), StoreError> {
        let (Some(place), true) = (place, draft.readings() > 0) else { return Ok(()) };
        let hint = self.uploader.memory().spans.get(place).copied().unwrap_or(0);
        let (span, mut rows) = draft.encode(&mut self.encoder, hint)?;
        {
            let mut memory = self.uploader.memory();
            if memory.spans.len() >= KNOWN_MAX {
                memory.spans.clear();
            }
            memory.spans.insert(place.clone(), span);
        }
        rows.sort_by_key(|row| (row.class, row.bucket));
        let mut batch: Vec<EncodedRow> = Vec::new();
        let mut bytes = 0;
        for row in rows {
            let is_other = batch.last().is_some_and(|last| (last.class, last.bucket) != (row.class, row.bucket));
            if is_other || bytes + row.body.len() > BATCH_BYTES_MAX || batch.len() >= BATCH_ROWS_MAX {
                self.send_batch(place, span, std::mem::take(&mut batch))?;
                bytes = 0;
            }
            bytes += row.body.len();
            batch.push(row);
        }
        self.send_batch(place, span, batch)
    }

    /// Sends rows of one partition.
    fn send_batch(&mut self, place: &Arc<str>, span: u8, batch: Vec<EncodedRow>) -> Result<(), StoreError> {
        let Some(first) = batch.first() else { return Ok(()) };
        self.extents.insert((place.clone(), span, first.bucket, first.class));
        let insert = insert_chunk(first.class);
        let (stamp, server) = (self.stamp, self.uploader.server);
        let values = |row: EncodedRow| -> ChunkValues {
            let EncodedRow { bucket, group, band, first_time, part, last_time, readings, body, .. } = row;
            let key = (place.to_string(), span.cast_signed(), bucket, group.to_vec(), band, first_time);
            (key.0, key.1, key.2, key.3, key.4, key.5, stamp, server, part, last_time, readings, body)
        };
        for row in &batch {
            self.counts.rows += 1;
            self.counts.readings += u64::try_from(row.readings).unwrap_or(0);
            self.counts.bytes += row.body.len() as u64;
        }
        let rows: Vec<ChunkValues> = batch.into_iter().map(values).collect();
        let session = self.uploader.session.clone();
        let permit = self.uploader.handle.block_on(self.in_flight.clone().acquire_owned());
        let write = async move {
            let _permit = permit;
            session.write_rows("writing chunks", &insert, &rows).await
        };
        self.writes.spawn_on(write, &self.uploader.handle);
        while let Some(done) = self.writes.try_join_next() {
            done.map_err(|error| StoreError::Remote { doing: "writing chunks", reason: error.to_string() })??;
        }
        Ok(())
    }

    /// Waits for the rows, and writes the extents and days that are new.
    async fn finish(mut self) -> Result<UploadCounts, StoreError> {
        while let Some(done) = self.writes.join_next().await {
            done.map_err(|error| StoreError::Remote { doing: "writing chunks", reason: error.to_string() })??;
        }
        let (extents, days) = {
            let memory = self.uploader.memory();
            let extents: Vec<Extent> = self.extents.difference(&memory.extents).cloned().collect();
            let days: Vec<i32> = self.days.difference(&memory.days).copied().collect();
            (extents, days)
        };
        let session = &self.uploader.session;
        let insert = "INSERT INTO $.extents (place, span, bucket, class) VALUES (?, ?, ?, ?)";
        let writes = extents.iter().map(|(place, span, bucket, class)| {
            session.write("writing extents", insert, (&**place, span.cast_signed(), *bucket, CLASSES[*class].0))
        });
        run_bounded(writes).await?;
        let insert = "INSERT INTO $.days (k, day) VALUES (0, ?)";
        run_bounded(days.iter().map(|day| session.write("writing days", insert, (*day,)))).await?;
        // Only what was written is remembered: otherwise rows could not be found.
        let mut memory = self.uploader.memory();
        if memory.extents.len() >= KNOWN_MAX {
            memory.extents.clear();
        }
        memory.extents.extend(extents);
        memory.days.extend(days);
        Ok(self.counts)
    }
}

/// Awaits futures, some at a time; the first error ends it.
async fn run_bounded<F>(writes: impl Iterator<Item = F>) -> Result<(), StoreError>
where
    F: Future<Output = Result<(), StoreError>>,
{
    use futures_util::{StreamExt, TryStreamExt};
    futures_util::stream::iter(writes).buffer_unordered(BATCHES_IN_FLIGHT).try_collect::<()>().await
}

impl Uploader {
    /// The days of all uploads since the start.
    pub fn days(&self) -> BTreeSet<i32> {
        self.memory().days.clone()
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, UploadMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
