//! As much of Cassandra's native protocol, version 4, as inserting and selecting rows takes
//! (`doc/native_protocol_v4.spec` of Apache Cassandra), with many requests on their way at once on one connection.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

/// Requests of one connection that wait for their answer.
const IN_FLIGHT_MAX: usize = 128;
/// Bytes written at once.
const WRITE_BYTES: usize = 64 << 10;
/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(90);
/// The largest answer.
const FRAME_BYTES_MAX: usize = 256 << 20;

const VERSION: u8 = 4;
const HEADER_BYTES: usize = 9;
/// One replica's word is enough; there is only one.
const CONSISTENCY_ONE: [u8; 2] = [0, 1];

/// What frames are.
mod opcode {
    pub const ERROR: u8 = 0x00;
    pub const STARTUP: u8 = 0x01;
    pub const QUERY: u8 = 0x07;
    pub const RESULT: u8 = 0x08;
    pub const PREPARE: u8 = 0x09;
    pub const EXECUTE: u8 = 0x0a;
    pub const BATCH: u8 = 0x0d;
}

/// A connection.
pub struct Connection {
    output: TcpStream,
    input: BufReader<TcpStream>,
}

/// The number of a prepared statement.
pub type Prepared = Vec<u8>;

fn put_long_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_short(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn put_values(values: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(&(values.len() as u16).to_be_bytes());
    for value in values {
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        out.extend_from_slice(value);
    }
}

fn frame(opcode: u8, content: &[u8]) -> Vec<u8> {
    // The stream's number is set when it is sent.
    let mut frame = vec![VERSION, 0, 0, 0, opcode];
    frame.extend_from_slice(&(content.len() as u32).to_be_bytes());
    frame.extend_from_slice(content);
    frame
}

/// A prepared statement with its values; rows come without the description of their columns.
pub fn execute(prepared: &[u8], values: &[&[u8]]) -> Vec<u8> {
    let mut content = Vec::new();
    put_short(prepared, &mut content);
    content.extend_from_slice(&CONSISTENCY_ONE);
    content.push(0x01 | 0x02);
    put_values(values, &mut content);
    frame(opcode::EXECUTE, &content)
}

/// The same statement with many rows' values, unlogged.
pub fn batch<'a>(prepared: &[u8], rows: impl ExactSizeIterator<Item = [&'a [u8]; 4]>) -> Vec<u8> {
    let mut content = vec![1];
    content.extend_from_slice(&(rows.len() as u16).to_be_bytes());
    for values in rows {
        content.push(1);
        put_short(prepared, &mut content);
        put_values(&values, &mut content);
    }
    content.extend_from_slice(&CONSISTENCY_ONE);
    content.push(0);
    frame(opcode::BATCH, &content)
}

/// A part of an answer that is read from its begin.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> anyhow::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).context("Cassandra's answer is cut short")?;
        self.0 = rest;
        Ok(taken)
    }

    fn int(&mut self) -> anyhow::Result<i32> {
        Ok(i32::from_be_bytes(self.take(4)?.try_into()?))
    }

    fn short(&mut self) -> anyhow::Result<&'a [u8]> {
        let length = u16::from_be_bytes(self.take(2)?.try_into()?);
        self.take(length.into())
    }
}

/// The rows of an answer whose columns are all of eight bytes.
pub fn rows<const N: usize>(answer: &[u8]) -> anyhow::Result<Vec<[i64; N]>> {
    /// Kind of a result that has rows; flags of what stands before them.
    const ROWS: i32 = 2;
    const MORE: i32 = 2;
    const NO_METADATA: i32 = 4;
    let mut answer = Bytes(answer);
    ensure!(answer.int()? == ROWS, "Cassandra answers without rows");
    let (flags, columns) = (answer.int()?, answer.int()?);
    ensure!(
        flags & MORE == 0 && flags & NO_METADATA != 0,
        "Cassandra's answer comes in pages or with its columns: {flags}"
    );
    ensure!(columns as usize == N, "{columns} columns came, {N} are wanted");
    let count = answer.int()?;
    let mut rows = Vec::with_capacity(count.clamp(0, 1 << 20) as usize);
    for _ in 0..count {
        let mut row = [0; N];
        for value in &mut row {
            ensure!(answer.int()? == 8, "a value is not of eight bytes");
            *value = i64::from_be_bytes(answer.take(8)?.try_into()?);
        }
        rows.push(row);
    }
    Ok(rows)
}

impl Connection {
    /// On a loopback port.
    pub fn open(port: u16) -> anyhow::Result<Self> {
        let output = TcpStream::connect(("127.0.0.1", port)).context("connecting to Cassandra")?;
        output.set_nodelay(true)?;
        output.set_read_timeout(Some(ANSWER_MAX))?;
        let input = BufReader::with_capacity(WRITE_BYTES, output.try_clone()?);
        let mut connection = Self { output, input };
        let mut content = vec![0, 1];
        put_short(b"CQL_VERSION", &mut content);
        put_short(b"3.0.0", &mut content);
        connection.one(frame(opcode::STARTUP, &content))?;
        Ok(connection)
    }

    /// A statement without values.
    pub fn query(&mut self, text: &str) -> anyhow::Result<()> {
        let mut content = Vec::new();
        put_long_text(text, &mut content);
        content.extend_from_slice(&CONSISTENCY_ONE);
        content.push(0);
        self.one(frame(opcode::QUERY, &content)).with_context(|| text.to_owned())?;
        Ok(())
    }

    /// Has a statement prepared.
    pub fn prepare(&mut self, text: &str) -> anyhow::Result<Prepared> {
        let mut content = Vec::new();
        put_long_text(text, &mut content);
        let answer = self.one(frame(opcode::PREPARE, &content)).with_context(|| text.to_owned())?;
        let mut answer = Bytes(&answer);
        answer.int()?;
        Ok(answer.short()?.to_vec())
    }

    /// Sends one request and gives its answer.
    pub fn one(&mut self, frame: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        let mut found = Vec::new();
        self.all(&[frame], |_, answer| {
            found = answer;
            Ok(())
        })?;
        Ok(found)
    }

    /// Sends requests; gives each one's place and answer, as they come.
    pub fn all(
        &mut self,
        frames: &[impl AsRef<[u8]>],
        mut each: impl FnMut(usize, Vec<u8>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut free: Vec<u16> = (0..IN_FLIGHT_MAX as u16).collect();
        let (mut places, mut output) = (vec![0; IN_FLIGHT_MAX], Vec::new());
        let (mut next, mut answered) = (0, 0);
        while answered < frames.len() {
            while next < frames.len() && output.len() < WRITE_BYTES {
                let Some(stream) = free.pop() else { break };
                let begin = output.len();
                output.extend_from_slice(frames[next].as_ref());
                output[begin + 2..begin + 4].copy_from_slice(&stream.to_be_bytes());
                places[usize::from(stream)] = next;
                next += 1;
            }
            self.output.write_all(&output).context("writing to Cassandra")?;
            output.clear();
            // Everything that is there, so that as much goes at once.
            loop {
                let (stream, answer) = self.answer()?;
                let place = *places.get(usize::from(stream)).context("an answer to nothing")?;
                free.push(stream);
                answered += 1;
                each(place, answer)?;
                if self.input.buffer().len() < HEADER_BYTES || answered == next {
                    break;
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> anyhow::Result<(u16, Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        self.input.read_exact(&mut header).context("reading from Cassandra")?;
        let [_, _, high, low, opcode, length @ ..] = header;
        let length = u32::from_be_bytes(length) as usize;
        ensure!(length <= FRAME_BYTES_MAX, "Cassandra's answer has {length} bytes");
        let mut content = vec![0; length];
        self.input.read_exact(&mut content).context("reading from Cassandra")?;
        match opcode {
            opcode::ERROR => {
                let mut content = Bytes(&content);
                let code = content.int()?;
                bail!("Cassandra refuses ({code:#x}): {}", String::from_utf8_lossy(content.short()?))
            }
            _ if content.is_empty() || opcode == opcode::RESULT => Ok((u16::from_be_bytes([high, low]), content)),
            other => bail!("Cassandra answers with a frame of kind {other:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_what_is_cut_is_refused() {
        let mut answer = Vec::new();
        for int in [2i32, 4, 2, 2] {
            answer.extend_from_slice(&int.to_be_bytes());
        }
        for value in [7i64, -1, 8, i64::MAX] {
            answer.extend_from_slice(&8i32.to_be_bytes());
            answer.extend_from_slice(&value.to_be_bytes());
        }
        assert_eq!(rows::<2>(&answer).unwrap(), [[7, -1], [8, i64::MAX]]);
        assert!((0..answer.len()).all(|end| rows::<2>(&answer[..end]).is_err()));
        assert!(rows::<1>(&answer).is_err());
    }

    #[test]
    fn an_execute_frame_has_its_lengths() {
        let frame = execute(b"id", &[b"abc", b"z"]);
        assert_eq!(frame[..5], [4, 0, 0, 0, 0x0a]);
        assert_eq!(u32::from_be_bytes(frame[5..9].try_into().unwrap()) as usize, frame.len() - 9);
        assert_eq!(frame[9..], *b"\0\x02id\0\x01\x03\0\x02\0\0\0\x03abc\0\0\0\x01z");
    }
}
