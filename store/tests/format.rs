//! `FORMAT.md` describes the files: its examples are read, and its statements about blocks are checked in a block.

use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use wholegrain_model::{
    Batch, BatchHeader, Column, ColumnValues, Gaps, Kind, Pattern, Schema, SensorDef, SensorPath, Value, ValueType,
};
use wholegrain_store::{Reading, SchemalessSensor, Store, StoreConfig};
use wholegrain_transport::payload::encode_batch;

const PAGE: &str = include_str!("../FORMAT.md");

/// The schema and the batch of the example in `FORMAT.md`.
fn example() -> (Schema, Batch) {
    let sensors = vec![SensorDef::gauge("load", "1", "").float(), SensorDef::counter("ticks", "1", "")];
    let schema = Schema::new(SensorPath::new("/n1").unwrap(), "g", sensors).unwrap();
    let gaps = Gaps(vec![0b10]);
    let batch = Batch {
        header: BatchHeader { agent: "n1".into(), boot: 7, seq: 1, schema: schema.hash(), interval_ns: 1_000_000_000 },
        times: vec![1_767_225_600_000_000_000, 1_767_225_601_000_000_000, 1_767_225_602_000_000_000],
        columns: vec![
            Column { values: ColumnValues::Float(vec![0.5, 0.0, 0.75]), gaps },
            Column { values: ColumnValues::Int(vec![100, 105, 107]), gaps: Gaps::default() },
        ],
    };
    (schema, batch)
}

/// The bytes of a block of hexadecimal digits in `FORMAT.md`: two digits for each byte; an explanation follows two spaces.
fn bytes_of_the_page(which: usize) -> Vec<u8> {
    let block =
        PAGE.split("```hex\n").nth(which + 1).and_then(|rest| rest.split("```").next()).expect("a block of hex");
    let digits = block.lines().flat_map(|line| line.split("  ").next().unwrap_or_default().split_whitespace());
    digits.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

fn open(dir: &Path) -> Store {
    Store::open(StoreConfig { background: false, ..StoreConfig::new(dir) }).unwrap().0
}

#[test]
fn the_segment_on_the_page_is_what_the_journal_writes_and_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal/0000000001.wal");
    let (schema, batch) = example();
    let store = open(dir.path());
    store.register_schema(&schema).unwrap();
    store.append_blocking(encode_batch(&batch).into()).unwrap();
    drop(store);
    let written = std::fs::read(&path).unwrap();
    let hex: Vec<String> = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(written, bytes_of_the_page(0), "the journal writes {}", hex.join(" "));
    let store = open(dir.path());
    let id = store.sensors(&[Pattern::new("/n1/load").unwrap()])[0].id;
    let chunks: Vec<_> = store.snapshot().scan(id, i64::MIN, i64::MAX).unwrap().map(Result::unwrap).collect();
    assert_eq!(chunks[0].times, batch.times);
    assert_eq!((chunks[0].column.get(0), chunks[0].column.get(1)), (Some(Value::Float(0.5)), None));
}

#[test]
fn the_readings_on_the_page_are_what_the_journal_writes_and_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal/0000000001.wal");
    let store = open(dir.path());
    let sensor = |path: &str| SchemalessSensor {
        path: SensorPath::new(path).unwrap(),
        unit: String::new(),
        kind: Kind::Gauge,
        value_type: ValueType::Float,
        scale: 1.0,
        description: String::new(),
    };
    let ids = store.register_sensors("gw", &[sensor("/a"), sensor("/b")]).unwrap();
    let time = 1_767_225_600_000_000_000;
    let readings = vec![
        Reading { sensor: ids[0], time, value: Value::Float(0.5) },
        Reading { sensor: ids[1], time: time + 1_000_000_000, value: Value::Int(7) },
    ];
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    store.append_readings("gw", readings, Box::new(move |result| drop(sender.send(result))));
    receiver.recv().unwrap().unwrap();
    drop(store);
    let written = std::fs::read(&path).unwrap();
    let hex: Vec<String> = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(written, bytes_of_the_page(1), "the journal writes {}", hex.join(" "));
    let store = open(dir.path());
    let newest = [Some((time, Some(Value::Float(0.5)))), Some((time + 1_000_000_000, Some(Value::Int(7))))];
    assert_eq!(store.newest(&ids), newest);
}

#[test]
fn blocks_are_as_the_page_says() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, batch) = example();
    let store = open(dir.path());
    store.register_schema(&schema).unwrap();
    store.append_blocking(encode_batch(&batch).into()).unwrap();
    store.seal().unwrap();
    let day = dir.path().join("blocks/2026/01/01");
    for (name, value, encoding) in [
        ("1767225600000000000-2-int.parquet", "OPTIONAL INT64 value", "DELTA_BINARY_PACKED"),
        ("1767225600000000000-1-float.parquet", "OPTIONAL DOUBLE value", "BYTE_STREAM_SPLIT"),
    ] {
        assert!(PAGE.contains(encoding));
        let file = SerializedFileReader::new(std::fs::File::open(day.join(name)).unwrap()).unwrap();
        let mut text = Vec::new();
        parquet::schema::printer::print_schema(&mut text, file.metadata().file_metadata().schema());
        let text = String::from_utf8(text).unwrap();
        for line in ["REQUIRED BYTE_ARRAY sensor (STRING)", "REQUIRED INT64 time (TIMESTAMP(NANOS,true))", value] {
            assert!(text.contains(line), "{text}");
        }
        let columns = file.metadata().row_group(0).columns();
        let encodings = |at: usize| columns[at].encodings().map(|e| e.to_string()).collect::<Vec<_>>();
        assert!(encodings(0).contains(&"RLE_DICTIONARY".to_owned()), "{:?}", encodings(0));
        assert!(encodings(1).contains(&"PLAIN".to_owned()), "{:?}", encodings(1));
        assert!(encodings(2).contains(&encoding.to_owned()), "{:?}", encodings(2));
        let pairs = file.metadata().file_metadata().key_value_metadata().unwrap();
        for key in ["ARROW:schema", "wholegrain.version", "wholegrain.index"] {
            assert!(PAGE.contains(key) && pairs.iter().any(|pair| pair.key == key), "{key}");
        }
        // The library's own reader, which knows nothing of the index, sees the same rows.
        let rows: Vec<String> = file.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
        assert_eq!(rows.len(), 3);
        let sensor = if name.contains("int") { "/n1/ticks" } else { "/n1/load" };
        assert!(rows.iter().all(|row| row.contains(sensor)), "{rows:?}");
        assert_eq!(rows[1].contains("value: null"), name.contains("float"), "{rows:?}");
    }
}

#[test]
fn the_properties_beside_the_blocks_are_as_the_page_says() {
    let dir = tempfile::tempdir().unwrap();
    let (schema, batch) = example();
    let store = open(dir.path());
    store.register_schema(&schema).unwrap();
    store.append_blocking(encode_batch(&batch).into()).unwrap();
    store.seal().unwrap();
    let text = std::fs::read_to_string(dir.path().join("sensors.csv")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "sensor,unit,kind,type,scale,wraps_at,interval_ns,description",
            "/n1/load,\"1\",gauge,float,1,,1000000000,\"\"",
            "/n1/ticks,\"1\",counter,int,1,,1000000000,\"\"",
        ]
    );
    assert!(lines[0].split(',').all(|name| PAGE.contains(name)));

    // A later schema is in the file after the next seal.
    let sensor = SensorDef::gauge("more", "By", "Says \"more\".").scaled(1024.0);
    let schema = Schema::new(SensorPath::new("/n1").unwrap(), "h", vec![sensor]).unwrap();
    store.register_schema(&schema).unwrap();
    let header = BatchHeader { seq: 2, schema: schema.hash(), ..batch.header };
    let columns = vec![Column { values: ColumnValues::Int(vec![1, 2, 3]), gaps: Gaps::default() }];
    store.append_blocking(encode_batch(&Batch { header, columns, ..batch }).into()).unwrap();
    store.seal().unwrap();
    let text = std::fs::read_to_string(dir.path().join("sensors.csv")).unwrap();
    assert!(text.contains("/n1/more,\"By\",gauge,int,1024,,1000000000,\"Says \"\"more\"\".\"\n"), "{text}");
}
