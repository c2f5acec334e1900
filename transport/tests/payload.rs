//! The batch payload: round trips, every mode, damaged bytes, and the examples of FORMAT.md.

mod page;
#[allow(dead_code)]
use wholegrain_model::schema::SensorDef;
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SchemaHash, SensorPath, Value, ValueType,
};
use wholegrain_testkit::Random;
use wholegrain_transport::payload::{
    self, BatchEncoder, PayloadError, Rows, VALUES_MAX, decode_batch, decode_column, encode_batch, for_each_column,
    last_row, read_header, samples_max,
};

fn schema(types: &[ValueType]) -> Schema {
    let sensors = (types.iter().enumerate())
        .map(|(index, value_type)| {
            let sensor = SensorDef::gauge(format!("s{index}"), "1", "");
            if *value_type == ValueType::Float { sensor.float() } else { sensor }
        })
        .collect();
    Schema::new(SensorPath::new("/n1").unwrap(), "g", sensors).unwrap()
}

fn ints(values: &[i64]) -> Column {
    Column { values: ColumnValues::Int(values.to_vec()), gaps: Gaps::default() }
}

fn floats(values: &[f64]) -> Column {
    Column { values: ColumnValues::Float(values.to_vec()), gaps: Gaps::default() }
}

fn with_gaps(mut column: Column, at: &[usize]) -> Column {
    let len = column.len();
    for &index in at {
        column.gaps.set(index, len);
        match &mut column.values {
            ColumnValues::Int(values) => values[index] = 0,
            ColumnValues::Float(values) => values[index] = 0.0,
        }
    }
    column
}

fn batch(times: Vec<i64>, columns: Vec<Column>) -> (Schema, Batch) {
    let types: Vec<_> = columns
        .iter()
        .map(|column| if matches!(column.values, ColumnValues::Int(_)) { ValueType::Int } else { ValueType::Float })
        .collect();
    let schema = schema(&types);
    let header =
        BatchHeader { agent: "n1".into(), boot: 7, seq: 300, schema: schema.hash(), interval_ns: 1_000_000_000 };
    (schema, Batch { header, times, columns })
}

/// Bits, so that a NaN equals itself.
fn bits(column: &Column) -> (Vec<u64>, &Gaps) {
    let bits = match &column.values {
        ColumnValues::Int(values) => values.iter().map(|&value| value as u64).collect(),
        ColumnValues::Float(values) => values.iter().map(|value| value.to_bits()).collect(),
    };
    (bits, &column.gaps)
}

/// Encodes, decodes in every way, compares. Returns the bytes.
fn check(schema: &Schema, batch: &Batch) -> Vec<u8> {
    let bytes = encode_batch(batch);
    let (header, span) = read_header(&bytes).unwrap();
    assert_eq!(header, batch.header);
    assert_eq!((span.samples, span.sensors), (batch.times.len(), batch.columns.len()));
    assert_eq!((span.first_time, span.last_time), (batch.times[0], *batch.times.last().unwrap()));
    let back = decode_batch(&bytes, schema).unwrap();
    assert_eq!(back.header, batch.header);
    assert_eq!(back.times, batch.times);
    assert_eq!(back.columns.len(), batch.columns.len());
    for (sensor, column) in batch.columns.iter().enumerate() {
        assert_eq!(bits(&back.columns[sensor]), bits(column), "sensor {sensor}");
        let (times, alone) = decode_column(&bytes, schema, sensor).unwrap();
        assert_eq!(times, batch.times);
        assert_eq!(bits(&alone), bits(column), "sensor {sensor} alone");
    }
    let times =
        for_each_column(&bytes, schema, |sensor, column| assert_eq!(bits(column), bits(&batch.columns[sensor])));
    assert_eq!(times.unwrap(), batch.times);
    let (time, row) = last_row(&bytes, schema).unwrap();
    assert_eq!(time, *batch.times.last().unwrap());
    for (value, column) in row.iter().zip(&batch.columns) {
        let wanted = column.get(batch.times.len() - 1);
        let same = match (value, wanted) {
            (Some(Value::Float(a)), Some(Value::Float(b))) => a.to_bits() == b.to_bits(),
            (a, b) => *a == b,
        };
        assert!(same, "{value:?} {wanted:?}");
    }
    bytes
}

#[test]
fn every_mode_and_the_ends_of_the_ranges() {
    let (min, max) = (i64::MIN, i64::MAX);
    let nan = f64::from_bits(0x7ff8_dead_beef_0001);
    let columns = vec![
        ints(&[5; 9]),
        ints(&[min; 9]),
        ints(&[10, 20, 30, 40, 50, 60, 70, 80, 90]),
        ints(&[min, max, min, max, 0, -1, 1, min, max]),
        ints(&[0, 0, 0, 0, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1 << 40]),
        ints(&[1000, 1003, 1001, 1007, 1002, 1000, 1003, 1004, 1001]),
        ints(&[0, 1, 1 << 35, 2, 3, 4, 5, 6, 7]),
        with_gaps(ints(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), &[0, 4, 8]),
        with_gaps(ints(&[0; 9]), &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
        with_gaps(ints(&[7; 9]), &[0, 1, 2, 3, 4, 5, 6, 7]),
        floats(&[0.0; 9]),
        floats(&[nan; 9]),
        floats(&[0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, nan, f64::MIN_POSITIVE, 5e-324, 1.5, -1e300]),
        floats(&[0.1, 0.2, 0.30000000000000004, 0.4, 0.123456789, 9.87654321, 1e-9, 3.3, 7.7]),
        with_gaps(floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]), &[1, 7]),
        with_gaps(floats(&[0.0; 9]), &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ];
    let steady: Vec<i64> = (0..9).map(|i| 1_700_000_000_000_000_000 + i * 100_000_000).collect();
    let jumping = vec![5, 4, 4, min, max, 0, -7, 8, 9];
    for times in [steady, jumping] {
        let (schema, batch) = batch(times, columns.clone());
        check(&schema, &batch);
    }
}

#[test]
fn one_sample_costs_a_varint_a_value() {
    let columns: Vec<_> = (0..250).map(|value| ints(&[value - 60])).collect();
    let (schema, batch) = batch(vec![1], columns);
    let bytes = check(&schema, &batch);
    let header = 2 + 1 + 1 + 3 + 8 + 2 + 16 + 5 + 1 + 2 + 8;
    // -60 to 63 take one byte, 64 to 189 two; one run of one mode takes three.
    assert_eq!(bytes.len(), header + 3 + 124 + 2 * 126);
}

#[test]
fn constant_columns_cost_their_value() {
    let columns: Vec<_> = (0..250).map(|_| ints(&[3; 1000])).collect();
    let (schema, batch) = batch((0..1000).collect(), columns);
    let bytes = check(&schema, &batch);
    assert!(bytes.len() < 310, "{}", bytes.len());
}

fn random_values(random: &mut Random, samples: usize) -> Vec<i64> {
    let shape = random.index(8);
    let width = random.index(64) as u32;
    let mut value = random.draw() as i64 >> width;
    (0..samples)
        .map(|_| {
            let step = random.draw() as i64 >> random.index(64).max(width as usize);
            match shape {
                0 => {}
                1 => value = value.wrapping_add(1 << (width / 2)),
                2 if random.chance(90) => {}
                3 => value = value.wrapping_add(step.wrapping_abs()),
                4 => value = random.draw() as i64,
                _ => value = value.wrapping_add(step),
            }
            value
        })
        .collect()
}

fn random_batch(random: &mut Random) -> (Schema, Batch) {
    let samples = if random.chance(30) { 1 } else { 1 + random.index(200) };
    let sensors_max = if random.chance(10) { 400 } else { 12 };
    let sensors = 1 + random.index(sensors_max);
    let mut columns = Vec::new();
    while columns.len() < sensors {
        let values = random_values(random, samples);
        let mut column = if random.chance(70) {
            ints(&values)
        } else if random.chance(50) {
            floats(&values.iter().map(|&value| value as f64 / 16.0).collect::<Vec<_>>())
        } else {
            floats(&values.iter().map(|&value| f64::from_bits(value as u64)).collect::<Vec<_>>())
        };
        if random.chance(20) {
            let percent = random.draw() % 101;
            let gaps: Vec<usize> = (0..samples).filter(|_| random.chance(percent)).collect();
            column = with_gaps(column, &gaps);
        }
        for _ in 0..=if random.chance(10) { random.index(20) } else { 0 } {
            columns.push(column.clone());
        }
    }
    let start = random.draw() as i64 >> random.index(20);
    let mut time = start;
    let steady = random.chance(60);
    let times = (0..samples)
        .map(|_| {
            time = time.wrapping_add(if steady { 1000 } else { random.draw() as i64 >> random.index(64) });
            time
        })
        .collect();
    batch(times, columns)
}

/// Tells what is constant before it is asked for.
struct Knowing<'a>(&'a Batch);

impl Rows for Knowing<'_> {
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        assert!(sample == 0 || !self.is_constant(sensor), "sensor {sensor} is asked for more than once");
        bits(&self.0.columns[sensor]).0[sample]
    }

    fn is_gap(&self, sensor: usize, sample: usize) -> bool {
        self.0.columns[sensor].gaps.is_gap(sample)
    }

    fn is_constant(&self, sensor: usize) -> bool {
        let (values, gaps) = bits(&self.0.columns[sensor]);
        gaps.0.is_empty() && values.iter().all(|value| *value == values[0])
    }
}

#[test]
fn random_batches_come_back() {
    let mut random = Random::seeded();
    let mut encoder = BatchEncoder::new();
    for _ in 0..400 {
        let (schema, batch) = random_batch(&mut random);
        let bytes = check(&schema, &batch);
        let types: Vec<ValueType> = schema.sensors().iter().map(|sensor| sensor.value_type).collect();
        let mut constant = Vec::new();
        encoder.encode(&batch.header, &types, &batch.times, &Knowing(&batch), &mut constant);
        assert!(constant == bytes, "what is known to be constant is written in another way");
    }
}

#[test]
fn damaged_bytes_never_panic_and_cut_ones_are_refused() {
    let mut random = Random::seeded();
    for round in 0..150 {
        let (schema, batch) = random_batch(&mut random);
        let bytes = encode_batch(&batch);
        for _ in 0..50 {
            let mut bad = bytes.clone();
            for _ in 0..=random.index(4) {
                let at = random.index(bad.len());
                bad[at] = random.draw() as u8;
            }
            if random.chance(20) {
                bad.truncate(random.index(bad.len()));
            }
            let _ = read_header(&bad);
            let _ = decode_batch(&bad, &schema);
            let _ = last_row(&bad, &schema);
            let _ = decode_column(&bad, &schema, random.index(schema.len()));
        }
        if round < 20 {
            for end in (0..bytes.len()).step_by(1 + bytes.len() / 300) {
                assert!(decode_batch(&bytes[..end], &schema).is_err(), "cut at {end}");
            }
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(decode_batch(&longer, &schema).is_err());
    }
}

#[test]
fn what_does_not_fit_is_refused_and_says_why() {
    let (schema_a, batch_a) = batch(vec![1, 2], vec![ints(&[1, 2]), ints(&[3, 4])]);
    let bytes = encode_batch(&batch_a);
    let refused = |result: Result<Batch, PayloadError>, part: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    };
    let other = schema(&[ValueType::Int]);
    refused(decode_batch(&bytes, &other), "asked to decode it with schema");
    let mut fewer = batch_a.clone();
    fewer.header.schema = other.hash();
    refused(decode_batch(&encode_batch(&fewer), &other), "it has 2 sensors, the schema 1");
    let float_schema = schema(&[ValueType::Float, ValueType::Int]);
    let mut typed = batch_a.clone();
    typed.header.schema = float_schema.hash();
    refused(decode_batch(&encode_batch(&typed), &float_schema), "where the schema has floats");
    refused(decode_batch(b"hello", &schema_a), "does not begin with WG");
    let mut newer = bytes.clone();
    newer[2] = 9;
    refused(decode_batch(&newer, &schema_a), "version 9");
    assert!(matches!(decode_column(&bytes, &schema_a, 2), Err(PayloadError::NoSuchSensor { sensor: 2, sensors: 2 })));
}

/// A hundred bytes that claim 65,536 samples of 65,536 sensors must not cost gigabytes.
#[test]
fn counts_that_lie_are_refused_before_anything_is_allocated() {
    let head = |samples: u64, sensors: u64| {
        let mut bytes = b"WG\x01\x01\x01n".to_vec();
        bytes.extend_from_slice(&[0; 8]);
        bytes.push(1);
        bytes.extend_from_slice(&[0; 16]);
        bytes.push(0);
        wholegrain_model::schema::put_varint(samples, &mut bytes);
        wholegrain_model::schema::put_varint(sensors, &mut bytes);
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&[0; 64]);
        bytes
    };
    assert!(read_header(&head(16, 65_536)).is_ok());
    for (samples, sensors) in
        [(65_536, 65_536), (17, 65_536), (65_537, 1), (1, 65_537), (0, 1), (1, 0), (u64::MAX, u64::MAX)]
    {
        assert!(read_header(&head(samples, sensors)).is_err(), "{samples} {sensors}");
    }
    assert_eq!(samples_max(65_536) * 65_536, VALUES_MAX);
    assert_eq!(samples_max(1), 65_536);
}

/// The largest batch that the bounds allow, of the values that compress worst, fits the bound on bytes.
#[test]
fn the_largest_batch_fits() {
    let mut random = Random::seeded();
    let mut wild = |count: usize| -> Vec<i64> { (0..count).map(|_| random.draw() as i64 | i64::MIN >> 1).collect() };
    for sensors in [1usize, 16, 16_384, 65_536] {
        let samples = samples_max(sensors);
        let times = wild(samples);
        let columns = (0..sensors).map(|_| with_gaps(ints(&wild(samples)), &[samples / 2])).collect();
        let (schema, batch) = batch(times, columns);
        let bytes = encode_batch(&batch);
        assert!(bytes.len() <= payload::PAYLOAD_BYTES_MAX, "{} bytes of {sensors} sensors", bytes.len());
        assert_eq!(decode_batch(&bytes, &schema).unwrap().times, batch.times);
    }
}

fn page_schema() -> Schema {
    let sensors = vec![
        SensorDef::gauge("MemTotal", "By", "").scaled(1024.0),
        SensorDef::gauge("MemFree", "By", "").scaled(1024.0),
        SensorDef::counter("pgfault", "1", "Page faults."),
        SensorDef::gauge("load1", "1", "").float(),
    ];
    Schema::new(SensorPath::new("/lab/n1").unwrap(), "mem", sensors).unwrap()
}

fn page_batch(samples: usize) -> Batch {
    let keep = |mut column: Column| {
        match &mut column.values {
            ColumnValues::Int(values) => values.truncate(samples),
            ColumnValues::Float(values) => values.truncate(samples),
        }
        column
    };
    let columns = vec![
        keep(ints(&[4000; 4])),
        keep(ints(&[1000, 990, 1012, 1001])),
        keep(ints(&[50, 60, 70, 80])),
        if samples == 1 { with_gaps(floats(&[0.0]), &[0]) } else { with_gaps(floats(&[0.5, 0.0, 0.75, 0.75]), &[1]) },
    ];
    let header = BatchHeader {
        agent: "n1".into(),
        boot: 1_700_000_000_000_000_000,
        seq: if samples == 1 { 1 } else { 2 },
        schema: page_schema().hash(),
        interval_ns: 1_000_000_000,
    };
    let times = (0..samples as i64).map(|i| 1_700_000_001_000_000_000 + i * 1_000_000_000).collect();
    Batch { header, times, columns }
}

#[test]
fn the_examples_of_the_page_are_what_the_code_reads_and_writes() {
    let schema = page_schema();
    let dump = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    assert_eq!(dump(&page::example("schema")), dump(&schema.encode()));
    assert_eq!(Schema::decode(&page::example("schema")).unwrap().sensors(), schema.sensors());
    assert_eq!(page::example("hash"), schema.hash().0);
    assert_eq!(page::example("need"), [schema.hash().0, SchemaHash([0xff; 16]).0].concat());
    for (name, samples) in [("batch of one", 1), ("batch of four", 4)] {
        let batch = page_batch(samples);
        assert_eq!(dump(&page::example(name)), dump(&encode_batch(&batch)), "{name}");
        check(&schema, &batch);
        assert_eq!(decode_batch(&page::example(name), &schema).unwrap(), batch, "{name}");
    }
}
