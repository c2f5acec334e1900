//! Giving back memory that is not used.
//!
//! Most of the program's code runs once: reading the configuration, looking at the system, shaking hands with the server. The kernel
//! lets go of it when memory is short; until then it counts as the agent's. And it maps 64 KiB around each place that is run,
//! whatever is there, so that the little that runs all the time brings nearly all of the code back. It stops at the end of a
//! mapping, though: with the code in small mappings only what is run is resident.

use std::fs;

/// The code's mappings are made this long, in bytes: 8 KiB. Of 3.4 MB of code 1.0 MB is then resident, with 16 KiB 1.5 MB; each
/// mapping takes about 0.2 KiB of the kernel's memory.
const PIECE_BYTES: usize = 8 << 10;
/// With more mappings than this nothing is divided any more: far below the 65,530 that the kernel allows (vm.max_map_count).
const MAPPINGS_MAX: usize = 8192;

/// A part of a file in memory that is the same as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mapping {
    start: usize,
    length: usize,
}

/// Gives free heap back, and the program's own code. What of it runs is mapped again from the page cache when it next does.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: gives free memory back to the system; takes an integer only.
    unsafe {
        libc::malloc_trim(0);
    }
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else { return };
    let may_divide = maps.lines().count() < MAPPINGS_MAX;
    for mapping in maps.lines().filter_map(code_mapping) {
        if may_divide {
            pieces(mapping).for_each(|piece| advise(piece, libc::MADV_DONTDUMP));
        }
        advise(mapping, libc::MADV_DONTNEED);
    }
}

/// Every second piece of a mapping that is longer than a piece. Neighbours of different kinds stay mappings of their own; leaving
/// them out of a core dump makes no difference, as code is none of it: debuggers read it from the file.
fn pieces(mapping: Mapping) -> impl Iterator<Item = Mapping> {
    let end = mapping.start + mapping.length;
    let starts = (mapping.start..end).step_by(2 * PIECE_BYTES).take_while(move |_| mapping.length > PIECE_BYTES);
    starts.map(move |start| Mapping { start, length: PIECE_BYTES.min(end - start) })
}

fn advise(mapping: Mapping, advice: i32) {
    // SAFETY: the range is a mapping of a file's code that is never written: what is dropped is read from the file again, and
    // what is left out of a core dump changes nothing else. Should the mapping have gone since, the call fails and does nothing.
    unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(mapping.start), mapping.length, advice) };
}

/// The mapping of a line of `/proc/self/maps`, if it is the code of a file, or the constants at its beginning
/// (`proc_pid_maps(5)`); `None` for all others: what the loader has relocated is read-only too but is not in the file.
fn code_mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (range, access, offset, path) = (fields.next()?, fields.next()?, fields.next()?, fields.nth(2)?);
    let (start, end) = range.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    // Of constants only the piece at the beginning of the file once they are divided, and the rest stays: there is little.
    let as_in_file = access == "r-xp" || (access == "r--p" && offset == "00000000");
    (as_in_file && path.starts_with('/')).then(|| Mapping { start, length: end.saturating_sub(start) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_files_is_given_back() {
        let code = "55d4c0a00000-55d4c0c00000 r-xp 00200000 fe:00 1234   /usr/bin/wholegrain-agent";
        assert_eq!(code_mapping(code), Some(Mapping { start: 0x55d4_c0a0_0000, length: 0x20_0000 }));
        assert!(
            code_mapping("55d4c0800000-55d4c0a00000 r--p 00000000 fe:00 1234   /usr/bin/wholegrain-agent").is_some()
        );
        for other in [
            "55d4c0a00000-55d4c0c00000 r--p 00200000 fe:00 1234   /usr/bin/wholegrain-agent",
            "55d4c0a00000-55d4c0c00000 rw-p 00200000 fe:00 1234   /usr/bin/wholegrain-agent",
            "7ffd5a1f0000-7ffd5a1f2000 r-xp 00000000 00:00 0      [vdso]",
            "7ffd5a1f0000-7ffd5a1f2000 r-xp 00000000 00:00 0",
            "",
        ] {
            assert_eq!(code_mapping(other), None, "{other}");
        }
    }

    #[test]
    fn a_mapping_is_divided_once() {
        let of = |length| pieces(Mapping { start: 0x10000, length }).map(|piece| (piece.start, piece.length)).collect();
        let none: Vec<(usize, usize)> = of(PIECE_BYTES);
        assert_eq!(none, [], "one piece already");
        let some: Vec<(usize, usize)> = of(2 * PIECE_BYTES + 4096);
        assert_eq!(some, [(0x10000, PIECE_BYTES), (0x14000, 4096)]);
        let count = || fs::read_to_string("/proc/self/maps").unwrap().lines().filter_map(code_mapping).count();
        let before = count();
        give_back();
        let divided = count();
        assert!(divided > before + 10, "{before}, then {divided}");
        give_back();
        assert!(count() <= divided + 10, "{divided}, then {}", count());
    }
}
