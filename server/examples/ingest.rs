//! CPU time of the server for each reading that it takes in, from the socket to fsync, without the publisher's own.
//!
//! `cargo run --release -p wholegrain-server --example ingest [SENSORS] [SAMPLES] [BATCHES]`

use std::time::{Duration, Instant};

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorDef, SensorPath};
use wholegrain_server::{ServerConfig, run};
use wholegrain_transport::client::{Client, ClientConfig, Event};
use wholegrain_transport::payload;

/// How long an acknowledgement may take.
const ACK_TIME_MAX: Duration = Duration::from_secs(30);

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (sensors, samples, batches) = (next(285)?, next(10)?, next(2000)?);
    let dir = std::env::temp_dir().join(format!("wholegrain-ingest-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let text = "[mqtt]\nlisten = \"127.0.0.1:0\"\ntls_listen = \"off\"\nanonymous = true\n[http]\nlisten = \"off\"\n";
    let config = ServerConfig::from_text("ingest", text, &dir)?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        run(config, |addresses| ready.send(*addresses).unwrap_or_default(), async { drop(stopped.await) })
    });
    let address = is_ready.recv()?.mqtt.ok_or_else(|| anyhow::anyhow!("the server does not listen"))?;

    let config =
        ClientConfig { url: format!("mqtt://{address}"), client_id: "n1".to_owned(), ..ClientConfig::default() };
    let mut client = Client::connect(&config)?;
    let defs = (0..sensors).map(|i| SensorDef::counter(format!("s{i}"), "1", "")).collect();
    let schema = Schema::new(SensorPath::new("/n1")?, "g", defs)?;
    let payloads: Vec<Vec<u8>> = (0..batches).map(|seq| encode(&schema, seq, samples)).collect();
    client.publish("wholegrain/v1/schema/n1/g", &schema.encode(), true, false)?;

    let (began, all, own) = (Instant::now(), cpu(libc::RUSAGE_SELF), cpu(libc::RUSAGE_THREAD));
    for payload in &payloads {
        while client.in_flight() >= usize::from(client.receive_max()) {
            acknowledged(&mut client)?;
        }
        client.publish("wholegrain/v1/batch/n1/g", payload, true, false)?;
    }
    while client.in_flight() > 0 {
        acknowledged(&mut client)?;
    }
    let spent = (cpu(libc::RUSAGE_SELF) - all).saturating_sub(cpu(libc::RUSAGE_THREAD) - own);
    let readings = sensors * samples * batches;
    let bytes: usize = payloads.iter().map(Vec::len).sum();
    let wall = began.elapsed();
    println!(
        "{batches} batches of {sensors} sensors x {samples} samples, {:.2} bytes a reading",
        bytes as f64 / readings as f64
    );
    println!(
        "{:.1} ns CPU of the server a reading, {:.1} us a batch",
        nanos(spent) / readings as f64,
        nanos(spent) / 1e3 / batches as f64
    );
    println!(
        "{:.0} readings/s through one connection, {} in flight at most",
        readings as f64 / wall.as_secs_f64(),
        client.receive_max()
    );
    drop(stop);
    server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

fn encode(schema: &Schema, seq: usize, samples: usize) -> Vec<u8> {
    let header = BatchHeader {
        agent: "n1".to_owned(),
        boot: 1,
        seq: seq as u64 + 1,
        schema: schema.hash(),
        interval_ns: 1_000_000_000,
    };
    let first = seq * samples;
    let times = (first..first + samples).map(|i| 1_769_860_800_000_000_000 + i as i64 * 1_000_000_000).collect();
    let column = |sensor: usize| {
        let values = (first..first + samples).map(|i| (i * (sensor % 50) * 13 + i * i % 7) as i64).collect();
        Column { values: ColumnValues::Int(values), gaps: Gaps::default() }
    };
    payload::encode_batch(&Batch { header, times, columns: (0..schema.len()).map(column).collect() })
}

fn acknowledged(client: &mut Client) -> anyhow::Result<()> {
    match client.poll(ACK_TIME_MAX)? {
        Some(Event::Acked { reason, .. }) if !reason.is_error() => Ok(()),
        other => anyhow::bail!("no acknowledgement but {other:?}"),
    }
}

fn nanos(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// CPU time of this process or thread.
fn cpu(who: libc::c_int) -> Duration {
    // SAFETY: all zeros is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call, which only writes it.
    unsafe { libc::getrusage(who, &mut usage) };
    let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
