//! The content of a file in pieces of whole lines, decompressed from gzip or zstd, and its hash.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sha2::{Digest, Sha256};

use crate::failure::Failure;

/// The longest line, in bytes. A file with a longer one is not a table.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// The number of bytes in which the format is detected.
pub const SAMPLE_BYTES: usize = 1 << 20;
/// The number of bytes read at once.
const READ_BYTES: usize = 256 << 10;
/// The beginnings of compressed files.
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// The byte order mark of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Whole lines of a file.
#[derive(Debug)]
pub struct Piece {
    /// Its number, from 0.
    pub index: u64,
    /// The number of its first line, from 1.
    pub first_line: u64,
    pub bytes: Vec<u8>,
}

/// A file being read.
pub struct FileSource {
    path: PathBuf,
    reader: Box<dyn Read + Send>,
    /// The number of bytes read from the file, before decompression.
    pub taken: Arc<AtomicU64>,
    rest: Vec<u8>,
    ended: bool,
    next: u64,
    line: u64,
    piece_bytes: usize,
}

/// Counts the bytes that are read.
struct CountingReader(File, Arc<AtomicU64>);

impl Read for CountingReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(out)?;
        self.1.fetch_add(read as u64, Relaxed);
        Ok(read)
    }
}

impl FileSource {
    /// Opens it; pieces have about `piece_bytes`.
    pub fn open(path: &Path, piece_bytes: usize) -> Result<Self, Failure> {
        let failed = Failure::reading(path);
        let mut file = File::open(path).map_err(&failed)?;
        if file.metadata().map_err(&failed)?.is_dir() {
            return Err(Failure::Usage(format!("{} is a directory; name its files", path.display())));
        }
        let mut begin = [0; 4];
        let mut length = 0;
        while length < begin.len() {
            match file.read(&mut begin[length..]).map_err(&failed)? {
                0 => break,
                read => length += read,
            }
        }
        let taken: Arc<AtomicU64> = Arc::default();
        let whole = CountingReader(File::open(path).map_err(&failed)?, taken.clone());
        let begin = &begin[..length];
        let reader: Box<dyn Read + Send> = if begin.starts_with(&GZIP) {
            Box::new(flate2::read::MultiGzDecoder::new(BufReader::with_capacity(READ_BYTES, whole)))
        } else if begin.starts_with(&ZSTD) {
            Box::new(zstd::stream::read::Decoder::new(whole).map_err(&failed)?)
        } else {
            Box::new(whole)
        };
        let mut source = Self {
            path: path.to_owned(),
            reader,
            taken,
            rest: Vec::new(),
            ended: false,
            next: 0,
            line: 1,
            piece_bytes,
        };
        source.fill(BYTE_ORDER_MARK.len())?;
        if source.rest.starts_with(BYTE_ORDER_MARK) {
            source.rest.drain(..BYTE_ORDER_MARK.len());
        }
        if source.rest.starts_with(b"\xff\xfe") || source.rest.starts_with(b"\xfe\xff") {
            let advice = format!("convert it to UTF-8: iconv -f UTF-16 -t UTF-8 {}", path.display());
            return Err(Failure::Usage(format!("{} is UTF-16; {advice}", path.display())));
        }
        Ok(source)
    }

    /// Reads until the buffer has this number of bytes, or the file ends.
    fn fill(&mut self, bytes: usize) -> Result<(), Failure> {
        while !self.ended && self.rest.len() < bytes {
            let before = self.rest.len();
            self.rest.resize(before + READ_BYTES.max(bytes - before), 0);
            let read = self.reader.read(&mut self.rest[before..]);
            self.rest.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(read) => self.ended = read == 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let path = self.path.display();
                    return Err(Failure::Failed(format!("cannot read {path}: {error}; is the file complete?")));
                }
            }
        }
        Ok(())
    }

    /// The first lines, without consuming them.
    pub fn sample(&mut self) -> Result<&[u8], Failure> {
        self.fill(SAMPLE_BYTES)?;
        let all = &self.rest[..self.rest.len().min(SAMPLE_BYTES)];
        // The last line may be cut.
        let end = if self.ended && all.len() == self.rest.len() {
            all.len()
        } else {
            memchr::memrchr(b'\n', all).map_or(0, |at| at + 1)
        };
        Ok(&all[..end])
    }

    /// The next whole lines.
    pub fn piece(&mut self) -> Result<Option<Piece>, Failure> {
        self.fill(self.piece_bytes)?;
        let mut end = self.rest.len().min(self.piece_bytes);
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.rest[end.saturating_sub(1).min(self.rest.len())..]) {
                end = end.saturating_sub(1) + at + 1;
                break;
            }
            end = self.rest.len();
            if self.ended {
                break;
            }
            if end > self.piece_bytes + LINE_BYTES_MAX {
                let path = self.path.display();
                return Err(Failure::Usage(format!(
                    "{path} has a line of over {LINE_BYTES_MAX} bytes after line {}; is it a table?",
                    self.line
                )));
            }
            self.fill(self.rest.len() + READ_BYTES)?;
        }
        if end == 0 {
            return Ok(None);
        }
        let after = self.rest.split_off(end);
        let bytes = std::mem::replace(&mut self.rest, after);
        let piece = Piece { index: self.next, first_line: self.line, bytes };
        self.next += 1;
        self.line += memchr::memchr_iter(b'\n', &piece.bytes).count() as u64;
        Ok(Some(piece))
    }
}

/// The size and a hash of a file.
pub fn fingerprint(path: &Path) -> Result<(u64, Sha256), Failure> {
    let failed = Failure::reading(path);
    let mut file = File::open(path).map_err(&failed)?;
    let (mut hash, mut size) = (Sha256::new(), 0);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = match file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(&failed)?,
        };
        if read == 0 {
            return Ok((size, hash));
        }
        hash.update(&buffer[..read]);
        size += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn pieces(path: &Path, bytes: usize) -> Vec<(u64, String)> {
        let mut source = FileSource::open(path, bytes).unwrap();
        let mut found = Vec::new();
        while let Some(piece) = source.piece().unwrap() {
            assert_eq!(piece.index as usize, found.len());
            found.push((piece.first_line, String::from_utf8(piece.bytes).unwrap()));
        }
        found
    }

    #[test]
    fn pieces_are_whole_lines_and_together_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let text = "one\ntwo\n\nfour and more\nfive";
        std::fs::write(&path, format!("\u{feff}{text}")).unwrap();
        for bytes in 1..40 {
            let pieces = pieces(&path, bytes);
            assert_eq!(pieces.iter().map(|piece| piece.1.as_str()).collect::<String>(), text, "{bytes}");
            let mut before = String::new();
            for (line, piece) in &pieces {
                assert_eq!(*line as usize, 1 + before.matches('\n').count(), "{bytes}");
                before.push_str(piece);
            }
            assert!(pieces.iter().rev().skip(1).all(|piece| piece.1.ends_with('\n')), "{bytes}");
        }
        assert_eq!((pieces(&path, 1).len(), pieces(&path, 4).len()), (5, 4));
    }

    #[test]
    fn packed_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let text = "a,b\n1,2\n".repeat(100_000);
        std::fs::write(&path, zstd::bulk::compress(text.as_bytes(), 1).unwrap()).unwrap();
        assert_eq!(pieces(&path, 100_000).iter().map(|piece| piece.1.len()).sum::<usize>(), text.len());
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        let packed = packed.finish().unwrap();
        std::fs::write(&path, &packed).unwrap();
        assert_eq!(pieces(&path, 100_000).iter().map(|piece| piece.1.len()).sum::<usize>(), text.len());
        std::fs::write(&path, &packed[..packed.len() / 2]).unwrap();
        let mut source = FileSource::open(&path, 100_000).unwrap();
        let error = loop {
            match source.piece() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("half a file is no file"),
                Err(Failure::Failed(error)) => break error,
                Err(other) => panic!("{other:?}"),
            }
        };
        assert!(error.contains("complete"), "{error}");
    }
}
