//! The tar format (POSIX ustar), as far as a backup needs it: plain files with short names.
//!
//! The crate `tar` is not used because it reads a stream that ends between two files as complete; a backup that was cut off must be refused.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;
/// Bytes of a name: backups have none longer.
const NAME_BYTES: usize = 100;
/// Sizes from here on do not fit into eleven octal digits.
const OCTAL_MAX: u64 = 0o77_777_777_777;

/// The header of a file.
pub(super) fn header(name: &str, bytes: u64) -> io::Result<[u8; BLOCK]> {
    if name.len() > NAME_BYTES {
        return Err(io::Error::other(format!("{name} is too long a name")));
    }
    let mut head = [0; BLOCK];
    head[..name.len()].copy_from_slice(name.as_bytes());
    head[100..108].copy_from_slice(b"0000640\0");
    head[108..116].copy_from_slice(b"0000000\0");
    head[116..124].copy_from_slice(b"0000000\0");
    if bytes > OCTAL_MAX {
        // As GNU tar writes it: a set bit, and the number in binary.
        head[124] = 0x80;
        head[128..136].copy_from_slice(&bytes.to_be_bytes());
    } else {
        head[124..136].copy_from_slice(format!("{bytes:011o}\0").as_bytes());
    }
    head[136..148].copy_from_slice(b"00000000000\0");
    head[156] = b'0';
    head[257..265].copy_from_slice(b"ustar\x0000");
    head[148..156].copy_from_slice(b"        ");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(head)
}

/// What follows a file's content.
pub(super) fn padding(bytes: u64) -> &'static [u8] {
    static ZEROS: [u8; BLOCK] = [0; BLOCK];
    &ZEROS[..((BLOCK as u64 - bytes % BLOCK as u64) % BLOCK as u64) as usize]
}

/// Writes the end of the archive.
pub(super) fn finish(out: &mut dyn Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

/// Reads an archive file by file.
pub(super) struct TarReader<R> {
    stream: R,
    /// Bytes of the file at hand that are not read yet, and of what follows it.
    left: u64,
    padding: u64,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Self { stream, left: 0, padding: 0 }
    }

    /// What it reads from.
    pub fn into_inner(self) -> R {
        self.stream
    }

    /// The next file's name and length; its content is read from the reader until it ends.
    pub fn next(&mut self) -> io::Result<Option<(String, u64)>> {
        let skip = self.left + self.padding;
        io::copy(&mut self.stream.by_ref().take(skip), &mut io::sink())?;
        let mut head = [0; BLOCK];
        self.stream.read_exact(&mut head).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "it ends before its end"),
            _ => error,
        })?;
        if head.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("it is no tar file: {what}"));
        let sum: u32 = head
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) })
            .sum();
        if octal(&head[148..156]) != Some(u64::from(sum)) || &head[257..262] != b"ustar" {
            return Err(broken("a header does not have its checksum"));
        }
        if !matches!(head[156], b'0' | 0) {
            return Err(broken("it holds something else than files"));
        }
        let name = head[..NAME_BYTES].split(|byte| *byte == 0).next().unwrap_or_default();
        let name = std::str::from_utf8(name).map_err(|_| broken("a name that is no text"))?.to_owned();
        let bytes = match head[124] {
            0x80 => head[128..136].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
            _ => octal(&head[124..136]).ok_or_else(|| broken("a file without a length"))?,
        };
        (self.left, self.padding) = (bytes, padding(bytes).len() as u64);
        Ok(Some((name, bytes)))
    }
}

impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        if most == 0 {
            return Ok(0);
        }
        let read = self.stream.read(&mut out[..most])?;
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends before its end"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

fn octal(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_by_other_programs_too() {
        let mut archive = Vec::new();
        for (name, content) in [("a/b", &b"hello"[..]), ("empty", b""), ("c", &[7; 1024])] {
            archive.extend_from_slice(&header(name, content.len() as u64).unwrap());
            archive.extend_from_slice(content);
            archive.extend_from_slice(padding(content.len() as u64));
        }
        finish(&mut archive).unwrap();
        let mut reader = TarReader::new(&archive[..]);
        let mut found = Vec::new();
        while let Some((name, bytes)) = reader.next().unwrap() {
            let mut content = Vec::new();
            if name != "c" {
                reader.read_to_end(&mut content).unwrap();
            }
            found.push((name, bytes, content));
        }
        assert_eq!(
            found,
            [("a/b".into(), 5, b"hello".to_vec()), ("empty".into(), 0, vec![]), ("c".into(), 1024, vec![])]
        );
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x.tar"), &archive).unwrap();
        let tar = std::process::Command::new("tar").args(["tf", "x.tar"]).current_dir(dir.path()).output().unwrap();
        assert_eq!(String::from_utf8(tar.stdout).unwrap(), "a/b\nempty\nc\n");
        let mut cut = TarReader::new(&archive[..600]);
        cut.next().unwrap();
        assert_eq!(cut.next().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let big = header("big", u64::from(u32::MAX) * 8).unwrap();
        assert_eq!(TarReader::new(&big[..]).next().unwrap().unwrap().1, u64::from(u32::MAX) * 8);
        archive[0] ^= 1;
        assert!(TarReader::new(&archive[..]).next().is_err());
    }
}
