//! Where the system's loader looks for the libraries that a shared object needs, as the object itself says (elf(5)).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The most entries of the dynamic section that are read.
const ENTRIES_MAX: usize = 4096;
/// The longest text, in bytes.
const TEXT_BYTES_MAX: usize = 4096;
/// Types of program headers: a part that is loaded, and the dynamic section.
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
/// Tags of the dynamic section: the end, a library, the address of the texts, folders of libraries.
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// A part of the file.
#[derive(Debug, Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

fn read<const SIZE: usize>(file: &File, at: u64) -> io::Result<[u8; SIZE]> {
    let mut bytes = [0; SIZE];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn segments(file: &File) -> io::Result<Vec<Segment>> {
    let header: [u8; 64] = read(file, 0)?;
    let (begin, size) = (number(&header, 32), u64::from(u16::from_le_bytes([header[54], header[55]])));
    let count = u64::from(u16::from_le_bytes([header[56], header[57]]));
    let segment = |index: u64| {
        let at = size.checked_mul(index).and_then(|at| at.checked_add(begin)).ok_or(io::ErrorKind::InvalidData)?;
        let bytes: [u8; 56] = read(file, at)?;
        let kind = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(Segment { kind, offset: number(&bytes, 8), address: number(&bytes, 16), size: number(&bytes, 32) })
    };
    (0..count).map(segment).collect()
}

/// The text at a place of the file, up to its NUL.
fn text(file: &File, at: u64) -> io::Result<String> {
    let mut bytes = vec![0; TEXT_BYTES_MAX];
    let count = file.read_at(&mut bytes, at)?;
    let end = bytes[..count].iter().position(|byte| *byte == 0).ok_or(io::ErrorKind::InvalidData)?;
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// The folders in which libraries are looked for besides the system's own, and the libraries that are named with a folder.
pub(super) fn library_places(file: &File) -> io::Result<Vec<String>> {
    let segments = segments(file)?;
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else { return Ok(Vec::new()) };
    let (mut texts, mut found) = (0, Vec::new());
    for index in 0..ENTRIES_MAX as u64 {
        let at = dynamic.offset.checked_add(index * 16).ok_or(io::ErrorKind::InvalidData)?;
        let entry: [u8; 16] = read(file, at)?;
        match (number(&entry, 0), number(&entry, 8)) {
            (DT_NULL, _) => break,
            (DT_STRTAB, address) => texts = address,
            (tag @ (DT_NEEDED | DT_RPATH | DT_RUNPATH), place) => found.push((tag, place)),
            _ => {}
        }
    }
    let loaded = segments.iter().filter(|segment| segment.kind == PT_LOAD);
    let Some(holder) = loaded.into_iter().find(|part| texts >= part.address && texts - part.address < part.size) else {
        return Ok(Vec::new());
    };
    let begin = holder.offset.saturating_add(texts - holder.address);
    let mut places = Vec::new();
    for (tag, place) in found {
        let text = text(file, begin.saturating_add(place))?;
        match tag {
            DT_NEEDED => places.extend(Some(text).filter(|text| text.contains('/'))),
            _ => places.extend(text.split(':').map(str::to_owned)),
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn places_of_a_shared_object() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("a.c");
        std::fs::write(&source, "int a;\n").unwrap();
        let places = |options: &[&str]| {
            let object = dir.path().join("a.so");
            let status =
                Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).args(options).status();
            assert!(status.unwrap().success());
            library_places(&File::open(&object).unwrap()).unwrap()
        };
        assert!(places(&[]).is_empty());
        assert_eq!(places(&["-Wl,-rpath,/tmp/lib:$ORIGIN"]), ["/tmp/lib", "$ORIGIN"]);
        assert_eq!(places(&["-Wl,-rpath,lib,--disable-new-dtags"]), ["lib"]);
    }

    #[test]
    fn any_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.so");
        let good = std::fs::read("/proc/self/exe").unwrap();
        let mut random = wholegrain_testkit::Random::new(7);
        for round in 0..2000 {
            let mut bytes = good[..good.len().min(4096)].to_vec();
            for _ in 0..8 {
                let at = random.below(if round % 2 == 0 { 64 } else { bytes.len() as u64 }) as usize;
                bytes[at] = random.below(256) as u8;
            }
            bytes.truncate(random.below(4097) as usize);
            std::fs::write(&path, &bytes).unwrap();
            let _ = library_places(&File::open(&path).unwrap());
        }
    }
}
