//! The bytes on disk of the readings of a recorded agent, column by column.
//!
//! `cargo run --release -p wholegrain-store --example bytes_of_messages FILE [DIRECTORY]`
//!
//! The file is what `wholegrain-bench beside` records: `WGSENT01`, then each message as two bytes of its topic's length, the topic, four
//! bytes of the payload's length, the payload; big-endian. Sealed each `seal_bytes`, merged as when the day is over.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use wholegrain_model::Schema;
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::read_header;

/// The time between two seals, in ns of the readings' times.
const SEAL_NS: i64 = 60_000_000_000;

fn block(file: &mut impl Read, length_bytes: usize) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    file.read_exact(&mut length[4 - length_bytes..])?;
    let mut block = vec![0; u32::from_be_bytes(length) as usize];
    file.read_exact(&mut block)?;
    Ok(block)
}

/// Adds up the compressed bytes of each column of the files below a folder, and the files' own bytes.
fn columns(dir: &Path, sums: &mut BTreeMap<String, i64>) -> Result<(), Box<dyn std::error::Error>> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            columns(&path, sums)?;
            continue;
        }
        let kind = if path.to_string_lossy().ends_with("-int.parquet") { "int" } else { "float" };
        let reader = SerializedFileReader::new(std::fs::File::open(&path)?)?;
        let mut left = std::fs::metadata(&path)?.len().cast_signed();
        for group in reader.metadata().row_groups() {
            for column in group.columns() {
                *sums.entry(format!("{kind} {}", column.column_path())).or_default() += column.compressed_size();
                left -= column.compressed_size();
            }
        }
        *sums.entry(format!("{kind} footer")).or_default() += left;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let file = words.next().ok_or("give the file")?;
    let dir = words.next().map_or_else(|| std::env::temp_dir().join("wholegrain-bytes-of-messages"), Into::into);
    let _ = std::fs::remove_dir_all(&dir);
    let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(&dir) })?;
    let mut file = BufReader::new(std::fs::File::open(file)?);
    let mut magic = [0; 8];
    file.read_exact(&mut magic)?;
    if &magic != b"WGSENT01" {
        return Err("no recording".into());
    }
    let (mut sealed, mut last, mut readings) = (None, 0, 0u64);
    while let Ok(topic) = block(&mut file, 2) {
        let Ok(payload) = block(&mut file, 4) else { break };
        match read_header(&payload) {
            Ok((_, span)) => {
                readings += (span.samples * span.sensors) as u64;
                last = span.last_time;
                store.append_blocking(payload.into())?;
                if span.last_time > *sealed.get_or_insert(span.last_time) + SEAL_NS {
                    sealed = Some(span.last_time);
                    store.seal()?;
                    store.maintain(span.last_time)?;
                }
            }
            Err(_) if String::from_utf8_lossy(&topic).contains("/schema/") => {
                store.register_schema(&Schema::decode(&payload)?)?
            }
            Err(_) => {}
        }
    }
    store.seal()?;
    store.maintain(last + 2 * 86_400 * 1_000_000_000)?;
    let stats = store.stats();
    let each = |bytes: f64| bytes / readings as f64;
    println!("readings {readings}, in {} blocks {:.4} bytes each", stats.blocks, each(stats.block_bytes as f64));
    let mut sums = BTreeMap::new();
    columns(&dir.join("blocks"), &mut sums)?;
    sums.iter().for_each(|(column, bytes)| println!("  {column:14} {:.4}", each(*bytes as f64)));
    store.close()?;
    Ok(())
}
