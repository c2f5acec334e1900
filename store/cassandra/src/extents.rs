//! Which partitions a sub-tree has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt, TryStreamExt};
use tokio::runtime::Handle;
use wholegrain_store::StoreError;

use crate::layout::CLASSES;
use crate::session::CassandraSession;
use crate::slices::{SliceKey, wait};
use crate::view::SharedView;

/// The most sub-trees whose partitions are remembered.
const PLACES_MAX: usize = 65_536;
/// Reads at the same time.
const READS_MAX: usize = 48;

/// A partition of a sub-tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub span: u8,
    pub bucket: i32,
    pub class: usize,
}

/// The partitions of some sub-trees.
pub(crate) type PlaceExtents = BTreeMap<Arc<str>, Arc<Vec<Extent>>>;

/// The extents that were read for one state of the uploads.
#[derive(Default)]
pub(crate) struct ExtentCache(Mutex<CachedExtents>);

#[derive(Default)]
struct CachedExtents {
    /// The state of the uploads that the entries belong to.
    vector: BTreeMap<i16, i64>,
    places: HashMap<Arc<str>, Arc<Vec<Extent>>>,
}

impl ExtentCache {
    /// The partitions of these places that a view shows; others may be among them.
    pub fn of(
        &self,
        session: &Arc<CassandraSession>,
        handle: &Handle,
        view: &SharedView,
        places: impl Iterator<Item = Arc<str>>,
    ) -> Result<PlaceExtents, StoreError> {
        let places: BTreeSet<Arc<str>> = places.collect();
        let mut found = PlaceExtents::new();
        let mut missing = Vec::new();
        {
            let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            for place in places {
                // Extents are only added: an entry of a later state has those of an earlier one.
                let is_new_enough = view.vector.iter().all(|(server, stamp)| cached.vector.get(server) >= Some(stamp));
                match cached.places.get(&place).filter(|_| is_new_enough) {
                    Some(extents) => drop(found.insert(place, extents.clone())),
                    None => missing.push(place),
                }
            }
        }
        if missing.is_empty() {
            return Ok(found);
        }
        let session = session.clone();
        let read = async move {
            let reads = missing.into_iter().map(|place| read(&session, place));
            futures_util::stream::iter(reads).buffer_unordered(READS_MAX).try_collect::<Vec<_>>().await
        };
        let read = wait(handle, read)?;
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.vector != view.vector {
            let is_later = view.vector.iter().all(|(server, stamp)| cached.vector.get(server) <= Some(stamp));
            if is_later {
                cached.places.clear();
                cached.vector = view.vector.clone();
            }
        }
        for (place, extents) in read {
            if cached.places.len() < PLACES_MAX && cached.vector == view.vector {
                cached.places.insert(place.clone(), extents.clone());
            }
            found.insert(place, extents);
        }
        Ok(found)
    }
}

async fn read(session: &CassandraSession, place: Arc<str>) -> Result<(Arc<str>, Arc<Vec<Extent>>), StoreError> {
    let text = "SELECT span, bucket, class FROM $.extents WHERE place = ?";
    let rows = session.rows::<(i8, i32, String)>("reading extents", text, (&*place,)).await?;
    let extent = |(span, bucket, class): (i8, i32, String)| {
        let class = CLASSES.iter().position(|(name, _)| *name == class)?;
        Some(Extent { span: span.cast_unsigned().min(3), bucket, class })
    };
    Ok((place, Arc::new(rows.into_iter().filter_map(extent).collect())))
}

/// The first time of the newest row of a band in a partition, complete or not.
pub(crate) async fn newest_time(session: &CassandraSession, key: &SliceKey) -> Result<Option<i64>, StoreError> {
    let text = format!(
        "SELECT t0 FROM $.chunks_{} WHERE place = ? AND span = ? AND bucket = ? AND grp = ? AND band = ? \
         ORDER BY grp DESC, band DESC, t0 DESC LIMIT 1",
        CLASSES[key.class].0
    );
    let values = (&*key.place, key.span.cast_signed(), key.bucket, key.group.as_slice(), key.band);
    let rows = session.rows::<(i64,)>("reading the newest chunk", &text, values).await?;
    Ok(rows.first().map(|(time,)| *time))
}
