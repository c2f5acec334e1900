//! The cost of storing: CPU time of the process for each reading through append, seal and merge, on the real file system.
//!
//! `cargo run --release -p wholegrain-store --example ingest_cost [DIRECTORY [SENSORS [SAMPLES [AGENTS [MINUTES]]]]]`
//!
//! Batches of 250 sensors x 10 samples at 1 s, of 16 agents, unless asked otherwise; an hour of them, sealed each minute, merged as in
//! service. The values move as those of /proc do: most stand still, some count up. `… /tmp/x 250 1 100 10` is the smallest batches.

use std::time::Instant;

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath};
use wholegrain_store::{Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const SECOND: i64 = 1_000_000_000;
const START: i64 = 20_000 * 86_400 * SECOND;

fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec, which `time` is.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Three of five sensors stand still; the others count up by a varying amount.
fn value(sensor: usize, second: usize, noise: &mut u64) -> i64 {
    *noise ^= *noise << 13;
    *noise ^= *noise >> 7;
    *noise ^= *noise << 17;
    match sensor % 5 {
        0 => (second * 100 * sensor) as i64 + (*noise % 200) as i64,
        1 => 4_000_000 + (*noise % 5_000) as i64,
        _ => (sensor * 7919) as i64,
    }
}

fn batches(schemas: &[Schema], seq: u64, from: usize, samples: usize, noise: &mut u64) -> Vec<Vec<u8>> {
    let times: Vec<i64> = (from..from + samples).map(|s| START + s as i64 * SECOND).collect();
    let mut batch = |(agent, schema): (usize, &Schema)| {
        let mut column = |sensor| {
            let values = (from..from + samples).map(|second| value(sensor, second, noise)).collect();
            Column { values: ColumnValues::Int(values), gaps: Gaps::default() }
        };
        let columns = (0..schema.len()).map(&mut column).collect();
        let header =
            BatchHeader { agent: format!("n{agent}"), boot: 1, seq, schema: schema.hash(), interval_ns: SECOND as u64 };
        encode_batch(&Batch { header, times: times.clone(), columns })
    };
    schemas.iter().enumerate().map(&mut batch).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |at, otherwise: usize| std::env::args().nth(at).map_or(Ok(otherwise), |text| text.parse());
    let (sensors, samples, agents, minutes) = (number(2, 250)?, number(3, 10)?, number(4, 16)?, number(5, 60)?);
    let dir = std::env::args().nth(1).map_or_else(|| std::env::temp_dir().join("wholegrain-ingest-cost"), Into::into);
    let _ = std::fs::remove_dir_all(&dir);
    let (store, _) = Store::open(StoreConfig { background: false, ..StoreConfig::new(&dir) })?;
    let all = || (0..sensors).map(|i| SensorDef::gauge(format!("proc/sensor{i}"), "1", "")).collect();
    let schema = |agent| Schema::new(SensorPath::new(format!("/lab/n{agent}"))?, "proc", all()).map_err(Into::into);
    let schemas = (0..agents).map(schema).collect::<Result<Vec<Schema>, Box<dyn std::error::Error>>>()?;
    schemas.iter().try_for_each(|schema| store.register_schema(schema))?;
    let (mut append, mut seal, mut merge, mut seq, mut noise) = (0, 0, 0, 0, 0x9e37_79b9u64);
    let started = Instant::now();
    for minute in 0..minutes {
        for part in 0..60 / samples {
            seq += 1;
            let payloads = batches(&schemas, seq, minute * 60 + part * samples, samples, &mut noise);
            let before = cpu_ns();
            let (sender, receiver) = std::sync::mpsc::channel();
            for payload in payloads {
                let sender = sender.clone();
                store.append(payload.into(), Box::new(move |result| drop(sender.send(result))));
            }
            drop(sender);
            receiver.iter().collect::<Result<Vec<_>, _>>()?;
            append += cpu_ns() - before;
        }
        let before = cpu_ns();
        store.seal()?;
        seal += cpu_ns() - before;
        let before = cpu_ns();
        store.maintain(START + (minute as i64 + 1) * 60 * SECOND)?;
        merge += cpu_ns() - before;
    }
    let before = cpu_ns();
    store.maintain(START + 2 * 86_400 * SECOND)?;
    merge += cpu_ns() - before;
    let readings = (agents * sensors * minutes * 60) as f64;
    let stats = store.stats();
    let each = |ns: u64| ns as f64 / readings;
    println!("readings {readings}, {:.1} s", started.elapsed().as_secs_f64());
    println!("payload        {:6.3} bytes/reading", stats.payload_bytes as f64 / readings);
    println!("blocks         {:6.3} bytes/reading in {} blocks", stats.block_bytes as f64 / readings, stats.blocks);
    println!("tiers          {:6.3} bytes/reading in {} files", stats.tier_bytes as f64 / readings, stats.tiers);
    let merged = (stats.merge_bytes + stats.tier_bytes_written) as f64 / stats.block_bytes as f64;
    println!("merged         {merged:6.3} bytes written by merges and tiers for each byte of blocks that is left");
    println!("append         {:6.1} ns CPU/reading", each(append));
    println!("seal           {:6.1} ns CPU/reading", each(seal));
    println!("merge          {:6.1} ns CPU/reading in {} merges", each(merge), stats.merges);
    println!("all            {:6.1} ns CPU/reading", each(append + seal + merge));
    store.close()?;
    drop(store);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
