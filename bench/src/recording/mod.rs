//! Readings as an agent sent them: the file and its content. `record` makes a recording, `replay` sends it.

pub mod record;
mod remote_write;
pub mod replay;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use wholegrain_model::{Batch, Column, ColumnValues, Gaps, Schema, SchemaHash, SensorPath};
use wholegrain_transport::payload::{PAYLOAD_BYTES_MAX, decode_batch, encode_batch, read_header};
use wholegrain_transport::topics::Topic;

/// The beginning of the file.
const MAGIC: &[u8; 8] = b"WGSENT01";
/// Resolution of times in VictoriaMetrics and Prometheus, ns.
const MILLISECOND_NS: i64 = 1_000_000;
const TOPIC_BYTES_MAX: usize = 64 << 10;

/// One message: two bytes of its topic's length, the topic, four bytes of the payload's length, the payload; big-endian.
pub fn put_message(topic: &str, payload: &[u8], out: &mut impl Write) -> std::io::Result<()> {
    out.write_all(&(topic.len() as u16).to_be_bytes())?;
    out.write_all(topic.as_bytes())?;
    out.write_all(&(payload.len() as u32).to_be_bytes())?;
    out.write_all(payload)
}

/// Begins a file of messages.
pub fn create(path: &Path) -> anyhow::Result<BufWriter<std::fs::File>> {
    let mut file = BufWriter::new(std::fs::File::create(path).with_context(|| format!("making {}", path.display()))?);
    file.write_all(MAGIC)?;
    Ok(file)
}

/// A message in the order in which it was sent: which schema, and the batch.
#[derive(Debug, Clone)]
pub struct Part {
    /// The batch's index into [`Recording::schemas`].
    pub group: usize,
    pub batch: Batch,
}

/// The messages of one agent.
#[derive(Debug, Clone, Default)]
pub struct Recording {
    pub node: String,
    /// The groups' schemas; one that changed while it was recorded is there twice.
    pub schemas: Vec<Schema>,
    pub parts: Vec<Part>,
}

/// Number and sum of all readings of one sensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct Sum {
    /// How many there are.
    pub count: u64,
    /// Their raw values added up.
    pub sum: f64,
}

/// The sums of each sensor by its path below the node.
pub type Sums = BTreeMap<String, Sum>;

fn read_block(file: &mut impl Read, length_bytes: usize, most: usize) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    file.read_exact(&mut length[4 - length_bytes..])?;
    let length = u32::from_be_bytes(length) as usize;
    if length > most {
        return Err(std::io::Error::new(ErrorKind::InvalidData, "a length that cannot be"));
    }
    let mut block = vec![0; length];
    file.read_exact(&mut block)?;
    Ok(block)
}

impl Recording {
    /// Reads a file. A last message that is cut short is ignored: a recording can end at any byte.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let not_one = || {
            format!(
                "{} is no recording; `wholegrain-bench beside --data DIR` makes one in an empty folder",
                path.display()
            )
        };
        let file = std::fs::File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let mut file = BufReader::new(file);
        let mut magic = [0; MAGIC.len()];
        file.read_exact(&mut magic).with_context(not_one)?;
        ensure!(&magic == MAGIC, not_one());
        let (mut recording, mut known) = (Self::default(), BTreeMap::<SchemaHash, usize>::new());
        loop {
            let message = read_block(&mut file, 2, TOPIC_BYTES_MAX)
                .and_then(|topic| Ok((topic, read_block(&mut file, 4, PAYLOAD_BYTES_MAX)?)));
            let (topic, payload) = match message {
                Ok(message) => message,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error).with_context(not_one),
            };
            let topic = String::from_utf8(topic).with_context(not_one)?;
            match Topic::parse(&topic) {
                Some(Topic::Schema { agent, .. }) => {
                    ensure!(
                        recording.node.is_empty() || recording.node == agent,
                        "more than one agent is in {}",
                        path.display()
                    );
                    agent.clone_into(&mut recording.node);
                    let schema = Schema::decode(&payload).with_context(not_one)?;
                    known.entry(schema.hash()).or_insert_with(|| {
                        recording.schemas.push(schema);
                        recording.schemas.len() - 1
                    });
                }
                Some(Topic::Batch { .. }) => {
                    let (header, _) = read_header(&payload).with_context(not_one)?;
                    let group =
                        *known.get(&header.schema).with_context(|| format!("{topic} came before its schema"))?;
                    recording.parts.push(Part { group, batch: decode_batch(&payload, &recording.schemas[group])? });
                }
                _ => {}
            }
        }
        ensure!(!recording.parts.is_empty(), "{} has no readings", path.display());
        Ok(recording)
    }

    /// The first and the last time, ns.
    pub fn span(&self) -> (i64, i64) {
        let times = || self.parts.iter().flat_map(|part| part.batch.times.iter().copied());
        (times().min().unwrap_or(0), times().max().unwrap_or(0))
    }

    /// Readings in it; a gap is none.
    pub fn readings(&self) -> u64 {
        let gaps = |batch: &Batch| batch.columns.iter().map(|column| column.gaps.count()).sum::<usize>();
        self.parts
            .iter()
            .map(|part| (part.batch.times.len() * part.batch.columns.len() - gaps(&part.batch)) as u64)
            .sum()
    }

    /// The same readings as another node's, all of them later by `by_ns`.
    pub fn moved(&self, node: &str, by_ns: i64) -> anyhow::Result<Self> {
        let prefix = SensorPath::new(format!("/bench/{node}"))?;
        let schema = |old: &Schema| Schema::new(prefix.clone(), old.group(), old.sensors().to_vec());
        let schemas = self.schemas.iter().map(schema).collect::<Result<Vec<_>, _>>()?;
        let mut parts = self.parts.clone();
        for (seq, part) in parts.iter_mut().enumerate() {
            part.batch.times.iter_mut().for_each(|time| *time += by_ns);
            let header = &mut part.batch.header;
            (header.agent, header.seq) = (node.to_owned(), seq as u64 + 1);
            header.schema = schemas[part.group].hash();
        }
        Ok(Self { node: node.to_owned(), schemas, parts })
    }

    /// The same readings with one sample in each batch.
    pub fn singles(&self) -> Self {
        let mut parts = Vec::new();
        for Part { group, batch } in &self.parts {
            for at in 0..batch.times.len() {
                parts.push(Part { group: *group, batch: samples_of(batch, &[at]) });
            }
        }
        // As they would be sent: by their times, each group in turn.
        parts.sort_by_key(|part| part.batch.times[0]);
        for (seq, part) in parts.iter_mut().enumerate() {
            part.batch.header.seq = seq as u64 + 1;
        }
        Self { parts, ..self.clone() }
    }

    /// Keeps only the first sample of a group in each millisecond; also returns the number of readings left out. On a busy machine a
    /// late sample and the next can share a millisecond, and stores with a resolution of milliseconds keep one of them, or refuse both.
    /// Times keep their nanoseconds: a later move by whole milliseconds makes no new collision.
    pub fn one_per_millisecond(&self) -> (Self, u64) {
        let mut taken: BTreeMap<&str, BTreeSet<i64>> = BTreeMap::new();
        let mut parts = Vec::with_capacity(self.parts.len());
        for Part { group, batch } in &self.parts {
            let taken = taken.entry(self.schemas[*group].group()).or_default();
            let times = batch.times.iter().enumerate();
            let first: Vec<usize> =
                times.filter(|(_, time)| taken.insert(time.div_euclid(MILLISECOND_NS))).map(|(at, _)| at).collect();
            if first.len() == batch.times.len() {
                parts.push(Part { group: *group, batch: batch.clone() });
            } else if !first.is_empty() {
                parts.push(Part { group: *group, batch: samples_of(batch, &first) });
            }
        }
        let kept = Self { node: self.node.clone(), schemas: self.schemas.clone(), parts };
        let left_out = self.readings() - kept.readings();
        (kept, left_out)
    }

    /// Number and sum of each sensor's readings.
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::new();
        for Part { group, batch } in &self.parts {
            for (def, column) in self.schemas[*group].sensors().iter().zip(&batch.columns) {
                let values = (0..batch.times.len()).filter_map(|at| column.get(at));
                let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value.as_f64()));
                if count > 0 {
                    let all = sums.entry(def.name.clone()).or_default();
                    all.count += count;
                    all.sum += sum;
                }
            }
        }
        sums
    }

    /// Messages in their order, by send: each group of the agent at most once.
    pub fn sends(&self) -> Vec<&[Part]> {
        let (mut sends, mut begin) = (Vec::new(), 0);
        for at in 0..self.parts.len() {
            if self.parts[begin..at].iter().any(|part| part.group == self.parts[at].group) {
                sends.push(&self.parts[begin..at]);
                begin = at;
            }
        }
        if begin < self.parts.len() {
            sends.push(&self.parts[begin..]);
        }
        sends
    }

    /// Topics and payloads, the schemas first.
    pub fn messages(&self) -> Vec<(String, Vec<u8>)> {
        let agent = self.node.as_str();
        let schemas = self
            .schemas
            .iter()
            .map(|schema| (Topic::Schema { agent, group: schema.group() }.to_string(), schema.encode()));
        let batches = self.parts.iter().map(|part| {
            let group = self.schemas[part.group].group();
            (Topic::Batch { agent, group }.to_string(), encode_batch(&part.batch))
        });
        schemas.chain(batches).collect()
    }
}

/// Some samples of a batch.
fn samples_of(batch: &Batch, places: &[usize]) -> Batch {
    let column = |column: &Column| {
        let values = match &column.values {
            ColumnValues::Int(values) => ColumnValues::Int(places.iter().map(|at| values[*at]).collect()),
            ColumnValues::Float(values) => ColumnValues::Float(places.iter().map(|at| values[*at]).collect()),
        };
        let mut gaps = Gaps::default();
        let of_gaps = places.iter().enumerate().filter(|(_, at)| column.gaps.is_gap(**at));
        of_gaps.for_each(|(new, _)| gaps.set(new, places.len()));
        Column { values, gaps }
    };
    Batch {
        header: batch.header.clone(),
        times: places.iter().map(|at| batch.times[*at]).collect(),
        columns: batch.columns.iter().map(column).collect(),
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::{BatchHeader, SensorDef};

    use super::*;

    /// Three batches of two samples in two groups; the last value of the first group's is a gap.
    fn recording() -> Recording {
        let prefix = || SensorPath::new("/node").unwrap();
        let schema = |group: &str, names: &[&str]| {
            Schema::new(prefix(), group, names.iter().map(|name| SensorDef::gauge(*name, "1", "")).collect()).unwrap()
        };
        let schemas = vec![schema("one", &["one/a", "one/b"]), schema("two", &["two/c"])];
        let part = |group: usize, seq: u64, first: i64| {
            let count = schemas[group].len();
            let mut columns: Vec<Column> = (0..count as i64)
                .map(|at| Column {
                    values: ColumnValues::Int(vec![first + at, 10 * first + at]),
                    gaps: Gaps::default(),
                })
                .collect();
            if seq == 3 {
                columns[count - 1].gaps.set(1, 2);
            }
            let header =
                BatchHeader { agent: "node".into(), boot: 1, seq, schema: schemas[group].hash(), interval_ns: 5 };
            Part { group, batch: Batch { header, times: vec![first, first + 5], columns } }
        };
        let parts = vec![part(0, 1, 10), part(1, 2, 10), part(0, 3, 20)];
        Recording { node: "node".into(), schemas, parts }
    }

    #[test]
    fn a_file_gives_back_what_was_sent_and_passes_over_what_is_cut() {
        let (recording, dir) = (recording(), tempfile::tempdir().unwrap());
        let path = dir.path().join("sent.bin");
        let mut file = create(&path).unwrap();
        recording.messages().iter().for_each(|(topic, payload)| put_message(topic, payload, &mut file).unwrap());
        drop(file);
        let read = Recording::load(&path).unwrap();
        assert_eq!((read.readings(), read.span(), read.sums()), (9, (10, 25), recording.sums()));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(Recording::load(&path).unwrap().readings(), 6);
        std::fs::write(&path, b"no recording").unwrap();
        assert!(Recording::load(&path).is_err());
    }

    #[test]
    fn what_is_made_of_a_recording_has_its_readings() {
        let recording = recording();
        let sums = recording.sums();
        assert_eq!(sums["one/b"], Sum { count: 3, sum: 11.0 + 101.0 + 21.0 });
        let moved = recording.moved("n1", 1000).unwrap();
        assert_eq!(
            (moved.sums(), moved.span(), moved.schemas[1].path(0)),
            (sums.clone(), (1010, 1025), "/bench/n1/two/c".into())
        );
        let singles = recording.singles();
        assert_eq!((singles.sums(), singles.parts.len(), singles.readings()), (sums, 6, 9));
        assert!(singles.parts.is_sorted_by_key(|part| part.batch.header.seq));
        assert_eq!(recording.sends().iter().map(|send| send.len()).collect::<Vec<_>>(), [2, 1]);
        assert!(Recording::default().sends().is_empty());
    }

    #[test]
    fn of_samples_in_one_millisecond_the_first_is_kept_as_it_was_taken() {
        let mut recording = recording();
        // Group `one`: the second batch begins within the last millisecond of the first; `two` has times of its own.
        recording.parts[0].batch.times = vec![1_000_000, 2_999_998];
        recording.parts[1].batch.times = vec![2_000_000, 2_999_999];
        recording.parts[2].batch.times = vec![2_999_999, 3_000_000];
        let (apart, left_out) = recording.one_per_millisecond();
        let times: Vec<&[i64]> = apart.parts.iter().map(|part| part.batch.times.as_slice()).collect();
        assert_eq!(times, [&[1_000_000, 2_999_998][..], &[2_000_000], &[3_000_000]]);
        // The last of `two`, and the first of the second batch of `one`, whose gap stays where it was.
        assert_eq!((left_out, apart.readings()), (1 + 2, 9 - 3));
        assert_eq!(apart.parts[2].batch.columns[1].get(0), None);
        assert_eq!(apart.sums()["one/a"], Sum { count: 3, sum: 10.0 + 100.0 + 200.0 });
        let (again, none) = apart.moved("n1", 7_000_000_000).unwrap().one_per_millisecond();
        assert_eq!((again.sums(), none), (apart.sums(), 0));
    }
}
