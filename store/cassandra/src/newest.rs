//! The newest readings of sensors in the chunks, for those that the local store has nothing newer of.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt};
use wholegrain_store::{Chunk, StoreError};

use crate::encode::part;
use crate::extents::{Extent, newest_time};
use crate::layout::{SensorPlace, bucket_times, cell_of};
use crate::slices::{SliceKey, SliceRow, fetch, wait};
use crate::snapshot::{ChunkReader, decode};
use crate::view::{Cut, SharedView};

/// Bands that are read at the same time.
const READS_MAX: usize = 48;

/// The newest reading of each sensor, as a chunk of one row. Sensors of one band are read together.
pub(crate) fn newest_of(
    reader: &ChunkReader,
    view: &Arc<SharedView>,
    paths: &[Arc<str>],
) -> Result<Vec<Option<Chunk>>, StoreError> {
    let places: Vec<Vec<SensorPlace>> = paths.iter().map(|path| reader.places(path)).collect();
    let extents = reader.extents(view, places.iter().flatten().map(|place| place.place.clone()))?;
    // The last partition of each band that sensors are in, if they are in one only.
    let mut last: HashMap<SliceKey, Vec<usize>> = HashMap::new();
    for (at, places) in places.iter().enumerate() {
        let [place] = &places[..] else { continue };
        let end = |extent: &&Extent| bucket_times(extent.bucket, extent.span).1;
        let Some(extents) = extents.get(&place.place) else { continue };
        let Some(extent) = extents.iter().max_by_key(end) else { continue };
        let key = whole_bucket(place, extent);
        // Another class or length can have newer readings of the same time.
        if extents.iter().all(|other| other == extent || end(&other) <= key.from) {
            last.entry(key).or_default().push(at);
        }
    }
    let session = reader.session.clone();
    let (keys, of_view): (Vec<SliceKey>, _) = (last.keys().cloned().collect(), view.clone());
    let read = async move {
        let one = async |key: SliceKey| {
            let Some(time) = newest_time(&session, &key).await? else { return Ok((key, Vec::new())) };
            let cell = SliceKey { from: cell_of(time, key.span).max(key.from), ..key.clone() };
            Ok::<_, StoreError>((key, fetch(&session, &of_view, &cell).await?))
        };
        futures_util::stream::iter(keys.into_iter().map(one)).buffer_unordered(READS_MAX).try_collect::<Vec<_>>().await
    };
    let mut found: Vec<Option<Chunk>> = vec![None; paths.len()];
    for (key, mut rows) in wait(&reader.handle, read)? {
        sort_by_upload(&mut rows);
        for at in last.remove(&key).unwrap_or_default() {
            let column = places[at].first().map_or(0, |place| place.column);
            found[at] = last_in(&rows, column, &deletions_of(view, &paths[at]))?;
        }
    }
    // The others: in several bands, or silent since an earlier cell.
    for (at, found) in found.iter_mut().enumerate().filter(|(_, found)| found.is_none()) {
        *found = newest(reader, view, &paths[at])?;
    }
    Ok(found)
}

fn deletions_of(view: &SharedView, path: &str) -> Vec<Cut> {
    view.cuts.iter().filter(|cut| cut.chooses(path)).cloned().collect()
}

/// The key of all rows of a band in a partition.
fn whole_bucket(place: &SensorPlace, extent: &Extent) -> SliceKey {
    let (from, to) = bucket_times(extent.bucket, extent.span);
    SliceKey {
        class: extent.class,
        place: place.place.clone(),
        span: extent.span,
        bucket: extent.bucket,
        group: place.group,
        band: place.band,
        from,
        to,
    }
}

/// Of equal times the one of the later upload counts.
fn sort_by_upload(rows: &mut [SliceRow]) {
    rows.sort_by_key(|row| (row.stamp, row.server));
}

/// The newest reading of a sensor, from the newest partition back.
fn newest(reader: &ChunkReader, view: &Arc<SharedView>, path: &str) -> Result<Option<Chunk>, StoreError> {
    let places = reader.places(path);
    let extents = reader.extents(view, places.iter().map(|place| place.place.clone()))?;
    let cuts = deletions_of(view, path);
    let mut buckets: Vec<(&SensorPlace, &Extent)> = Vec::new();
    for place in &places {
        buckets.extend(extents.get(&place.place).into_iter().flat_map(|of| of.iter()).map(|extent| (place, extent)));
    }
    buckets.sort_by_key(|(_, extent)| std::cmp::Reverse(bucket_times(extent.bucket, extent.span).1));
    let mut best: Option<Chunk> = None;
    for (place, extent) in buckets {
        let whole = whole_bucket(place, extent);
        if best.as_ref().is_some_and(|best| best.times[0] >= whole.to) {
            break;
        }
        let (session, key) = (reader.session.clone(), whole.clone());
        let last = wait(&reader.handle, async move { newest_time(&session, &key).await })?;
        let Some(last) = last else { continue };
        // Mostly the newest reading is in the last cell. The rest is read only if all of that is hidden.
        let cell = SliceKey { from: cell_of(last, extent.span).max(whole.from), ..whole.clone() };
        let found = last_reading(reader, view, (&cell, place.column), &cuts)?;
        let found = match found {
            Some(found) => Some(found),
            None => last_reading(reader, view, (&whole, place.column), &cuts)?,
        };
        if let Some(found) = found
            && best.as_ref().is_none_or(|best| found.times[0] > best.times[0])
        {
            best = Some(found);
        }
    }
    Ok(best)
}

/// The newest reading of a column in a slice.
fn last_reading(
    reader: &ChunkReader,
    view: &Arc<SharedView>,
    (key, column): (&SliceKey, u8),
    cuts: &[Cut],
) -> Result<Option<Chunk>, StoreError> {
    let (session, of, key) = (reader.session.clone(), view.clone(), key.clone());
    let mut rows = wait(&reader.handle, async move { fetch(&session, &of, &key).await })?;
    sort_by_upload(&mut rows);
    last_in(&rows, column, cuts)
}

/// The newest reading of a column in rows that are sorted by upload.
fn last_in(rows: &[SliceRow], column: u8, cuts: &[Cut]) -> Result<Option<Chunk>, StoreError> {
    let mut best: Option<Chunk> = None;
    for chunk in rows.iter().flat_map(|row| decode(row, None, column, (i64::MIN, i64::MAX), cuts)) {
        let chunk = chunk?;
        let at = chunk.times.len() - 1;
        if best.as_ref().is_none_or(|best| chunk.times[at] >= best.times[0]) {
            best = Some(Chunk { times: vec![chunk.times[at]], column: part(&chunk.column, at, at + 1) });
        }
    }
    Ok(best)
}
