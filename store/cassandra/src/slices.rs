//! Slices: the rows of one band in one partition and range of times. Sensors of a band share them, and they are fetched ahead of their use.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use wholegrain_store::{Chunk, StoreError};

use crate::body::{BodyColumns, OpenBody};
use crate::layout::CLASSES;
use crate::session::CassandraSession;
use crate::view::SharedView;

/// The most slices that are being fetched for one query.
const FETCHES_MAX: usize = 48;
/// Slices that are fetched ahead of the one that is read: at first, at most, and so few that slices like the largest have these bytes.
const AHEAD_FIRST: usize = 8;
const AHEAD_MAX: usize = 96;
const AHEAD_BYTES_MAX: usize = 64 << 20;
/// Memory of one query for columns that are decoded together, in bytes.
const DECODED_BYTES_MAX: usize = 64 << 20;

/// Which rows a slice has: those of the band that begin within `from <= time < to`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SliceKey {
    pub class: usize,
    pub place: Arc<str>,
    pub span: u8,
    pub bucket: i32,
    pub group: [u8; 16],
    pub band: i16,
    pub from: i64,
    pub to: i64,
}

/// A row of a slice. Its upload is complete.
#[derive(Debug)]
pub(crate) struct SliceRow {
    pub first_time: i64,
    pub last_time: i64,
    pub stamp: i64,
    pub server: i16,
    body: Vec<u8>,
    /// All columns, if several sensors are read; `None` if there was no room for them.
    decoded: OnceLock<Option<BodyColumns>>,
}

impl SliceRow {
    /// The readings of a column; `None` if it is not here. The error says what is wrong with the row. If several sensors of the row are read, its
    /// columns are decoded together, as far as `room` bytes are left for them.
    pub fn column(&self, column: u8, room: Option<&AtomicUsize>) -> Result<Option<Chunk>, String> {
        let Some(room) = room else { return OpenBody::open(&self.body)?.column(column) };
        if let Some(Some(columns)) = self.decoded.get() {
            return Ok(columns.column(column));
        }
        let open = OpenBody::open(&self.body)?;
        if self.decoded.get().is_some() {
            return open.column(column);
        }
        let columns = open.columns()?;
        let found = columns.column(column);
        let bytes = columns.bytes();
        let take = |left: usize| left.checked_sub(bytes);
        let has_room = room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        let _ = self.decoded.set(has_room.then_some(columns));
        Ok(found)
    }
}

impl Slice {
    /// The rows, sorted by time.
    pub fn rows(&self) -> &[SliceRow] {
        &self.rows
    }

    /// The room for decoded columns, if several sensors read the slice.
    pub fn room(&self) -> Option<&AtomicUsize> {
        self.room.as_deref()
    }
}

/// The rows of a slice.
pub(crate) struct Slice {
    rows: Vec<SliceRow>,
    room: Option<Arc<AtomicUsize>>,
}

impl Drop for Slice {
    fn drop(&mut self) {
        let Some(room) = &self.room else { return };
        let bytes = self.rows.iter().filter_map(|row| row.decoded.get()?.as_ref()).map(BodyColumns::bytes).sum();
        room.fetch_add(bytes, Ordering::Relaxed);
    }
}

pub(crate) type SliceRows = Arc<Slice>;
type Fetch = Shared<BoxFuture<'static, Result<SliceRows, StoreError>>>;

/// The columns of a row in the order of the statement: first time, stamp, server, last time, body.
type RawRow = (i64, i64, i16, i64, Vec<u8>);

struct Slot {
    /// How many scans will still read it, and whether there are several in all.
    users: usize,
    is_shared: bool,
    fetch: Option<Fetch>,
}

struct SlotTable {
    slots: HashMap<SliceKey, Slot>,
    /// The keys in the order in which scans will read them.
    order: Vec<SliceKey>,
    places: HashMap<SliceKey, usize>,
}

/// Fetches the slices of one query.
pub(crate) struct SliceFetcher {
    session: Arc<CassandraSession>,
    handle: Handle,
    view: Arc<SharedView>,
    permits: Arc<Semaphore>,
    /// Bytes that are left for decoded columns.
    room: Arc<AtomicUsize>,
    /// Bytes of the largest slice so far.
    largest: Arc<AtomicUsize>,
    table: Mutex<SlotTable>,
}

impl SliceFetcher {
    /// A fetcher of the rows that a view shows. `planned` are the slices that scans will read, in their order; some are read several times.
    pub fn new(
        session: Arc<CassandraSession>,
        handle: Handle,
        view: Arc<SharedView>,
        planned: impl Iterator<Item = SliceKey>,
    ) -> Self {
        let mut table = SlotTable { slots: HashMap::new(), order: Vec::new(), places: HashMap::new() };
        for key in planned {
            let slot = table.slots.entry(key.clone()).or_insert(Slot { users: 0, is_shared: false, fetch: None });
            slot.users += 1;
            slot.is_shared = slot.users > 1;
            if slot.users == 1 {
                table.places.insert(key.clone(), table.order.len());
                table.order.push(key);
            }
        }
        let (permits, room) = (Arc::new(Semaphore::new(FETCHES_MAX)), Arc::new(AtomicUsize::new(DECODED_BYTES_MAX)));
        Self { session, handle, view, permits, room, largest: Arc::default(), table: Mutex::new(table) }
    }

    fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetch(&self, key: SliceKey, is_shared: bool) -> Fetch {
        let (session, view, permits) = (self.session.clone(), self.view.clone(), self.permits.clone());
        let (room, largest) = (is_shared.then(|| self.room.clone()), self.largest.clone());
        let fetch = async move {
            let _permit = permits.acquire_owned().await;
            let rows = fetch(&session, &view, &key).await?;
            largest.fetch_max(rows.iter().map(|row| row.body.len()).sum(), Ordering::Relaxed);
            Ok(Arc::new(Slice { rows, room }))
        };
        let fetch = fetch.boxed().shared();
        // Without a task, a shared future only proceeds while somebody waits for it.
        self.handle.spawn(fetch.clone());
        fetch
    }

    /// The rows of a slice, sorted by time. Begins to fetch the slices after it.
    pub fn rows(&self, key: &SliceKey) -> Result<SliceRows, StoreError> {
        let fetch = {
            let mut table = self.table();
            let start = table.places.get(key).copied();
            if let Some(start) = start {
                let ahead = match self.largest.load(Ordering::Relaxed) {
                    0 => AHEAD_FIRST,
                    bytes => (AHEAD_BYTES_MAX / bytes).clamp(1, AHEAD_MAX),
                };
                let end = table.order.len().min(start + ahead);
                for at in start..end {
                    let key = table.order[at].clone();
                    if let Some(slot) = table.slots.get_mut(&key)
                        && slot.fetch.is_none()
                    {
                        slot.fetch = Some(self.fetch(key, slot.is_shared));
                    }
                }
            }
            match table.slots.get_mut(key) {
                Some(slot) => {
                    slot.users = slot.users.saturating_sub(1);
                    let fetch = slot.fetch.clone();
                    if slot.users == 0 {
                        table.slots.remove(key);
                    }
                    fetch
                }
                None => None,
            }
        };
        let fetch = fetch.unwrap_or_else(|| self.fetch(key.clone(), false));
        wait(&self.handle, fetch)
    }
}

/// Waits for a future on a thread that is not the runtime's.
pub(crate) fn wait<T: Send + 'static>(
    handle: &Handle,
    future: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    handle.spawn(async move { drop(sender.send(future.await)) });
    receiver.recv().unwrap_or(Err(StoreError::Closed))
}

/// The statement that reads a slice of a class.
fn select_slice(class: usize) -> String {
    format!(
        "SELECT t0, stamp, server, t1, body FROM $.chunks_{} WHERE place = ? AND span = ? AND bucket = ? AND grp = ? AND band = ? AND t0 >= ? AND t0 < ?",
        CLASSES[class].0
    )
}

/// Reads the complete rows of a slice.
pub(crate) async fn fetch(
    session: &CassandraSession,
    view: &SharedView,
    key: &SliceKey,
) -> Result<Vec<SliceRow>, StoreError> {
    let SliceKey { class, place, span, bucket, group, band, from, to } = key;
    let values = (&**place, span.cast_signed(), *bucket, group.as_slice(), *band, *from, *to);
    let rows = session.rows::<RawRow>("reading chunks", &select_slice(*class), values).await?;
    Ok(rows.into_iter().filter_map(|row| visible(view, row)).collect())
}

/// A row whose upload is complete in a view.
fn visible(view: &SharedView, row: RawRow) -> Option<SliceRow> {
    let (first_time, stamp, server, last_time, body) = row;
    let is_visible = view.vector.get(&server).is_some_and(|newest| stamp <= *newest);
    is_visible.then(|| SliceRow { first_time, last_time, stamp, server, body, decoded: OnceLock::new() })
}
