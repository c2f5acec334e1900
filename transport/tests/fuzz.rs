//! Damaged and invented bytes for every decoder: no panic, no memory out of proportion to what came, the same answer however
//! the bytes are cut, and whatever is taken can be written and means the same again. A failing seed is printed.

mod packets;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use bytes::BytesMut;
use packets::random_packet;
use wholegrain_model::schema::SensorDef;
use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Schema, SensorPath, ValueType};
use wholegrain_testkit::Random;
use wholegrain_transport::mqtt::{CodecError, FILTERS_MAX, PROPERTIES_MAX, Packet, Version, decode, encode};
use wholegrain_transport::payload::{self, VALUES_MAX};

/// The bound on packets in these tests.
const PACKET_BYTES_MAX: usize = 1 << 20;
/// How much may be allocated for nothing: a read buffer, an error's text.
const BASE_BYTES: usize = 32 << 10;
/// How much a decoder may hold at its peak for each byte that it was given. The dearest is a property in two bytes.
const BYTES_PER_BYTE: usize = 160;

struct Counting;

thread_local! {
    /// Bytes that this thread holds now, and the most it held since the last look.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn held(change: isize) {
    // A thread that ends has no cell any more, and nothing to measure.
    let _ = HELD.try_with(|cell| {
        let (now, peak) = cell.get();
        cell.set((now + change, peak.max(now + change)));
    });
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        held(layout.size() as isize);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        held(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` gives, and how much this thread held during it beyond what it held before.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.with(|cell| {
        cell.set((cell.get().0, cell.get().0));
        cell.get().0
    });
    let result = work();
    (result, HELD.with(|cell| cell.get().1 - before) as usize)
}

/// Changes a few bytes: flips, other values, cuts, repeats, insertions, ends that are missing.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    const NASTY: [u8; 10] = [0, 1, 0x7f, 0x80, 0xff, 0xfe, 0x0b, 0x26, 0x23, 0xc0];
    for _ in 0..1 + random.index(3) {
        let at = if bytes.is_empty() { 0 } else { random.index(bytes.len()) };
        match random.index(7) {
            _ if bytes.is_empty() => bytes.push(random.draw() as u8),
            0 => bytes[at] ^= 1 << random.index(8),
            1 => bytes[at] = NASTY[random.index(NASTY.len())],
            2 => bytes[at] = random.draw() as u8,
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..bytes.len().min(at + 1 + random.index(4)))),
            5 => {
                let end = bytes.len().min(at + 1 + random.index(8));
                let part = bytes[at..end].to_vec();
                let to = random.index(bytes.len());
                bytes.splice(to..to, part);
            }
            _ => bytes.insert(at, NASTY[random.index(NASTY.len())]),
        }
    }
}

/// Everything in these bytes, fed in pieces that end where `cuts` say: the packets, and how it ended.
fn packets_of(bytes: &[u8], version: Option<Version>, cuts: &[usize]) -> (Vec<Packet>, Result<usize, CodecError>) {
    let (mut buffer, mut found, mut fed) = (BytesMut::new(), Vec::new(), 0);
    for &cut in cuts.iter().chain([&bytes.len()]) {
        buffer.extend_from_slice(&bytes[fed..cut]);
        fed = cut;
        loop {
            match decode(&mut buffer, version, PACKET_BYTES_MAX) {
                Ok(Some(packet)) => found.push(packet),
                Ok(None) => break,
                Err(error) => return (found, Err(error)),
            }
        }
    }
    (found, Ok(buffer.len()))
}

/// What must hold for any bytes.
fn check_packets(random: &mut Random, bytes: &[u8], version: Option<Version>) {
    let (whole, most) = peak(|| packets_of(bytes, version, &[]));
    let bound = BASE_BYTES + BYTES_PER_BYTE * bytes.len();
    assert!(most <= bound, "{most} bytes held for {} bytes of input: {bytes:02x?}", bytes.len());
    let mut cuts: Vec<usize> = (0..random.index(4)).map(|_| random.index(bytes.len() + 1)).collect();
    cuts.sort_unstable();
    assert_eq!(packets_of(bytes, version, &cuts), whole, "cut at {cuts:?}: {bytes:02x?}");
    let version = version.unwrap_or(Version::V5);
    for packet in whole.0 {
        let version = if let Packet::Connect(connect) = &packet { connect.version } else { version };
        let mut again = BytesMut::new();
        encode(&packet, version, &mut again).unwrap_or_else(|e| panic!("{e}: {packet:?} from {bytes:02x?}"));
        let (written, meant) = (again.clone(), decode(&mut again, Some(version), PACKET_BYTES_MAX));
        assert_eq!(meant.as_ref(), Ok(&Some(packet)), "from {bytes:02x?}");
        let mut twice = BytesMut::new();
        encode(&meant.unwrap().unwrap(), version, &mut twice).unwrap();
        assert_eq!(twice, written, "written differently the second time");
    }
}

fn versions(random: &mut Random) -> Option<Version> {
    [None, Some(Version::V311), Some(Version::V5), Some(Version::V5)][random.index(4)]
}

#[test]
fn damaged_packets() {
    let mut random = Random::seeded();
    for _ in 0..40_000 {
        let mut bytes = BytesMut::new();
        let version = versions(&mut random);
        for _ in 0..1 + random.index(3) {
            let packet = random_packet(&mut random);
            // AUTH is none of 3.1.1, and CONNECT is written in its own version.
            let _ = encode(&packet, version.unwrap_or(Version::V5), &mut bytes);
        }
        let mut bytes = bytes.to_vec();
        damage(&mut random, &mut bytes);
        check_packets(&mut random, &bytes, version);
    }
}

#[test]
fn invented_packets() {
    let mut random = Random::seeded();
    for _ in 0..40_000 {
        let count = random.index(60);
        let mut bytes = random.bytes(count);
        if bytes.len() >= 2 && random.chance(80) {
            // A length that is right, so that the body is looked at.
            bytes[1] = (bytes.len() - 2) as u8;
        }
        let version = versions(&mut random);
        check_packets(&mut random, &bytes, version);
    }
}

#[test]
fn packets_cut_at_every_place() {
    let mut random = Random::seeded();
    for _ in 0..300 {
        let mut bytes = BytesMut::new();
        for _ in 0..2 {
            let packet = random_packet(&mut random);
            encode(&packet, Version::V5, &mut bytes).unwrap();
        }
        let whole = packets_of(&bytes, Some(Version::V5), &[]);
        assert_eq!((whole.0.len(), &whole.1), (2, &Ok(0)));
        for cut in 0..bytes.len() {
            assert_eq!(packets_of(&bytes, Some(Version::V5), &[cut]), whole, "cut at {cut}");
        }
    }
}

fn with_length(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    put_length(body.len(), &mut bytes);
    [bytes, body.to_vec()].concat()
}

fn put_length(mut length: usize, out: &mut Vec<u8>) {
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

#[test]
fn a_packet_of_nothing_but_the_smallest_parts() {
    let properties = |one: &[u8], count: usize| {
        let list = one.repeat(count);
        let mut body = vec![0, 1, b'a'];
        put_length(list.len(), &mut body);
        with_length(0x30, &[body, list].concat())
    };
    let filters =
        |first: u8, one: &[u8], count: usize| with_length(first, &[vec![0, 1, 0], one.repeat(count)].concat());
    type Make<'a> = &'a dyn Fn(usize) -> Vec<u8>;
    let cases: [(&str, usize, Make); 4] = [
        ("subscription identifiers", PROPERTIES_MAX, &|count| properties(&[0x0b, 1], count)),
        ("user properties", PROPERTIES_MAX, &|count| properties(&[0x26, 0, 0, 0, 0], count)),
        ("filters to subscribe to", FILTERS_MAX, &|count| filters(0x82, &[0, 1, b'a', 0], count)),
        ("filters to unsubscribe from", FILTERS_MAX, &|count| filters(0xa2, &[0, 1, b'a'], count)),
    ];
    for (what, max, make) in cases {
        let (found, end) = packets_of(&make(max), Some(Version::V5), &[]);
        assert_eq!((found.len(), end), (1, Ok(0)), "{what}: as many as are taken");
        let large = make(180_000);
        let ((found, end), most) = peak(|| packets_of(&large, Some(Version::V5), &[]));
        assert!(found.is_empty() && matches!(end, Err(CodecError::TooMany { .. })), "{what}: {end:?}");
        // Two copies of the bytes (these and the decoder's), and what may be held of the parts.
        let bound = BASE_BYTES + 2 * large.len() + max * 200;
        assert!(most < bound, "{what}: {most} bytes held for {} bytes of input", large.len());
    }
}

fn random_batch(random: &mut Random) -> (Schema, Vec<u8>) {
    let samples = if random.chance(30) { 1 } else { 1 + random.index(20) };
    let mut sensors = Vec::new();
    let mut columns = Vec::new();
    for index in 0..1 + random.index(12) {
        let sensor = SensorDef::gauge(format!("s{index}"), "1", "");
        let float = random.chance(30);
        sensors.push(if float { sensor.float() } else { sensor });
        let (shape, start) = (random.index(4), random.draw() as i64 >> random.index(60));
        let value = |i: usize, random: &mut Random| match shape {
            0 => start,
            1 => start.wrapping_add(7 * i as i64),
            2 => start.wrapping_add(random.index(200) as i64),
            _ => random.draw() as i64,
        };
        let values: Vec<i64> = (0..samples).map(|i| value(i, random)).collect();
        let values = if float {
            ColumnValues::Float(values.iter().map(|v| *v as f64 / 8.0).collect())
        } else {
            ColumnValues::Int(values)
        };
        columns.push(Column { values, gaps: Gaps::default() });
    }
    let schema = Schema::new(SensorPath::new("/site/n1").unwrap(), "g", sensors).unwrap();
    let header = BatchHeader { agent: "n1".into(), boot: 1, seq: 2, schema: schema.hash(), interval_ns: 1 };
    let times = (0..samples as i64).map(|i| 1_000 * i + i64::from(random.chance(20))).collect();
    let bytes = payload::encode_batch(&Batch { header, times, columns });
    (schema, bytes)
}

/// The readings of a batch as text, for NaN differs from itself.
fn rows_of(batch: &Batch) -> Vec<String> {
    let rows = |column: &Column| (0..column.len()).map(|row| column.get(row)).collect::<Vec<_>>();
    batch.columns.iter().map(|column| format!("{:?}", rows(column))).collect()
}

/// What a batch adds to columns that have two rows each, one of them a gap; `None` when it is refused. And whether those two stayed as
/// they were.
fn behind_others(bytes: &[u8], schema: &Schema) -> (Option<Vec<String>>, bool) {
    let before: Vec<Column> = (schema.sensors().iter())
        .map(|sensor| {
            let mut gaps = Gaps::default();
            gaps.set(1, 2);
            let int = sensor.value_type == ValueType::Int;
            let values = if int { ColumnValues::Int(vec![7, 0]) } else { ColumnValues::Float(vec![0.5, 0.0]) };
            Column { values, gaps }
        })
        .collect();
    let (mut columns, mut times) = (before.clone(), vec![1, 2]);
    let taken = payload::append_columns(bytes, schema, &mut times, &mut columns, 40).is_ok();
    let rows = |column: &Column, rows: std::ops::Range<usize>| {
        format!("{:?}", rows.map(|row| column.get(row)).collect::<Vec<_>>())
    };
    let same = (0..before.len()).all(|at| rows(&columns[at], 0..2) == rows(&before[at], 0..2));
    if !taken {
        return (None, same && times == [1, 2] && columns == before);
    }
    assert!(same && columns.iter().all(|column| column.len() == times.len()));
    (Some(columns.iter().map(|column| rows(column, 2..column.len())).collect()), same)
}

/// What must hold for any payload: all ways of reading it agree.
fn check_payload(bytes: &[u8], schema: &Schema) {
    let (decoded, most) = peak(|| payload::decode_batch(bytes, schema));
    // Few bytes may stand for many equal values; that bound is the format's own.
    let bound = BASE_BYTES + BYTES_PER_BYTE * bytes.len() + 2 * 8 * VALUES_MAX;
    assert!(most <= bound, "{most} bytes held for {} bytes of payload", bytes.len());
    let (header, most) = peak(|| payload::read_header(bytes));
    assert!(most <= BASE_BYTES, "{most} bytes held for a header");
    let each = payload::for_each_column(bytes, schema, |_, _| {});
    let last = payload::last_row(bytes, schema);
    let checked = payload::check_batch(bytes, schema);
    let (behind, kept) = behind_others(bytes, schema);
    let Ok(batch) = decoded else {
        assert!(kept, "something stayed of what was refused: {bytes:02x?}");
        assert_eq!(each.as_ref().err(), checked.as_ref().err(), "refused for another reason: {bytes:02x?}");
        assert!(
            behind.is_none() && each.is_err() && last.is_err(),
            "taken by one reader and refused by another: {bytes:02x?}"
        );
        return;
    };
    let (_, span) = header.expect("a header of a batch that was taken");
    assert_eq!((span.samples, span.sensors), (batch.times.len(), batch.columns.len()));
    assert_eq!(each.as_ref(), Ok(&batch.times));
    let checked = checked.expect("a batch that was taken");
    assert_eq!(checked.range.0, *batch.times.iter().min().unwrap());
    assert_eq!(checked.range.1, *batch.times.iter().max().unwrap());
    assert_eq!((checked.agent, checked.seq), (batch.header.agent.as_str(), batch.header.seq));
    assert_eq!(behind, Some(rows_of(&batch)), "{bytes:02x?}");
    assert_eq!(last.expect("a last row").0, span.last_time);
    for (index, column) in batch.columns.iter().enumerate() {
        let (times, alone) = payload::decode_column(bytes, schema, index).expect("a column of a batch that was taken");
        assert_eq!((times, format!("{alone:?}")), (batch.times.clone(), format!("{column:?}")), "{bytes:02x?}");
    }
    let written = payload::encode_batch(&batch);
    let again = payload::decode_batch(&written, schema).expect("what was written itself");
    // NaN differs from itself, so its text is compared.
    assert_eq!(format!("{again:?}"), format!("{batch:?}"), "{bytes:02x?}");
    assert_eq!(payload::encode_batch(&again), written, "written differently the second time");
}

#[test]
fn damaged_batches() {
    let mut random = Random::seeded();
    for _ in 0..15_000 {
        let (schema, mut bytes) = random_batch(&mut random);
        damage(&mut random, &mut bytes);
        check_payload(&bytes, &schema);
    }
}

#[test]
fn damaged_schemas() {
    let mut random = Random::seeded();
    for _ in 0..30_000 {
        let (schema, _) = random_batch(&mut random);
        let mut bytes = schema.encode();
        damage(&mut random, &mut bytes);
        let (decoded, most) = peak(|| Schema::decode(&bytes));
        let bound = BASE_BYTES + BYTES_PER_BYTE * bytes.len();
        assert!(most <= bound, "{most} bytes held for {} bytes of schema: {bytes:02x?}", bytes.len());
        if let Ok(schema) = decoded {
            assert_eq!(schema.encode(), bytes, "two encodings of one schema would have two hashes");
        }
    }
}
