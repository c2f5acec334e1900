//! What the payload costs: `cargo run --release -p wholegrain-transport --example payload_cost`.
//!
//! Prints bytes and nanoseconds a value for data shaped like a node's meminfo, vmstat and stat, by batch length. With the
//! argument `proc` the data are this machine's own, read ten times a second for as many samples.

use std::hint::black_box;
use std::time::{Duration, Instant};

use wholegrain_model::schema::SensorDef;
use wholegrain_model::{BatchHeader, Schema, SensorPath, ValueType};
use wholegrain_transport::payload::{BatchEncoder, Rows, decode_batch, decode_column, for_each_column, read_header};

/// Sample after sample, as the agent's ring holds them.
struct Samples {
    values: Vec<u64>,
    sensors: usize,
}

impl Rows for Samples {
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        self.values[sample * self.sensors + sensor]
    }

    fn is_gap(&self, _: usize, _: usize) -> bool {
        false
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Of 285 sensors two thirds do not change in a batch, a sixth change now and then, the rest are busy counters and gauges.
fn synthetic(samples: usize) -> Samples {
    const SENSORS: usize = 285;
    let mut state = 0x2545_f491_4f6c_dd1d;
    let mut now: Vec<u64> = (0..SENSORS).map(|_| random(&mut state) >> (40 + random(&mut state) % 20)).collect();
    let mut values = Vec::with_capacity(samples * SENSORS);
    for _ in 0..samples {
        for (sensor, value) in now.iter_mut().enumerate() {
            match sensor % 12 {
                8 | 9 if random(&mut state).is_multiple_of(8) => *value += random(&mut state) % 16,
                10 => *value += 1000 + random(&mut state) % 400,
                11 => *value = value.wrapping_add(random(&mut state) % 2000).wrapping_sub(1000),
                _ => {}
            }
        }
        values.extend_from_slice(&now);
    }
    Samples { values, sensors: SENSORS }
}

/// Every number in the three files.
fn recorded(samples: usize) -> Samples {
    let mut values: Vec<u64> = Vec::new();
    let mut sensors = 0;
    for sample in 0..samples {
        let before = values.len();
        for file in ["meminfo", "vmstat", "stat"] {
            let text = std::fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
            let text: String = text.lines().filter(|line| !line.starts_with("intr ")).collect::<Vec<_>>().join("\n");
            values.extend(text.split_whitespace().filter_map(|word| word.parse::<u64>().ok()));
        }
        match sample {
            0 => sensors = values.len(),
            _ => values.resize(before + sensors, 0),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Samples { values, sensors }
}

/// Nanoseconds a value: the best of several tries, each long enough to be timed.
fn cost(values: usize, mut run: impl FnMut()) -> f64 {
    let rounds = (2_000_000 / values).max(3);
    (0..7)
        .map(|_| {
            let start = Instant::now();
            (0..rounds).for_each(|_| run());
            start.elapsed().as_nanos() as f64 / (rounds * values) as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn main() {
    let own = std::env::args().nth(1).as_deref() == Some("proc");
    println!(
        "{:>8} {:>8} {:>12} {:>10} {:>10} {:>10} {:>12} {:>10}",
        "sensors", "samples", "bytes/value", "encode ns", "decode ns", "visit ns", "1 column us", "header ns"
    );
    for samples in [1, 10, 60, 600] {
        let rows = if own { recorded(samples.min(60)) } else { synthetic(samples) };
        let samples = rows.values.len() / rows.sensors;
        let sensors = (0..rows.sensors).map(|index| SensorDef::gauge(format!("s{index}"), "1", "")).collect();
        let prefix = SensorPath::new("/n").expect("a good name");
        let schema = Schema::new(prefix, "g", sensors).expect("good sensors");
        let types = vec![ValueType::Int; rows.sensors];
        let times: Vec<i64> = (0..samples as i64).map(|sample| sample * 1_000_000_000).collect();
        let header = BatchHeader {
            agent: "node0042".into(),
            boot: 1,
            seq: 1,
            schema: schema.hash(),
            interval_ns: 1_000_000_000,
        };
        let mut encoder = BatchEncoder::new();
        let mut out = Vec::new();
        let values = samples * rows.sensors;
        let encode = cost(values, || {
            out.clear();
            encoder.encode(&header, &types, &times, black_box(&rows), &mut out);
        });
        let decode = cost(values, || drop(black_box(decode_batch(black_box(&out), &schema))));
        let visit = cost(values, || drop(for_each_column(black_box(&out), &schema, |_, column| _ = black_box(column))));
        let last = rows.sensors - 1;
        let column =
            cost(values, || drop(black_box(decode_column(black_box(&out), &schema, last)))) * values as f64 / 1000.0;
        let head = cost(values, || drop(black_box(read_header(black_box(&out))))) * values as f64;
        let bytes = out.len() as f64 / values as f64;
        println!(
            "{:>8} {samples:>8} {bytes:>12.3} {encode:>10.2} {decode:>10.2} {visit:>10.2} {column:>12.2} {head:>10.0}",
            rows.sensors
        );
    }
}
