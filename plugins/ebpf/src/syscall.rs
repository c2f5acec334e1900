//! The two calls of bpf(2) that a read makes. The library allocates for each of them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Commands of bpf(2) (include/uapi/linux/bpf.h).
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
/// The words of `struct bpf_prog_info` up to `recursion_misses`.
const PROGRAM_INFO_WORDS: usize = 27;
/// The word `recursion_misses` of `struct bpf_prog_info`.
const RECURSION_MISSES: usize = 26;

#[repr(C)]
struct LookupAttributes {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct InfoAttributes {
    descriptor: u32,
    bytes: u32,
    info: u64,
}

fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<()> {
    // SAFETY: attributes of the command, which outlive the call; their pointers are of buffers of the callers, which are as long as the kernel writes.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an element of a map with keys of 4 bytes. `value` has as many words as an element has on all possible CPUs.
pub fn look_up(map: BorrowedFd<'_>, key: u32, value: &mut [u64]) -> io::Result<()> {
    let (key, value) = (std::ptr::from_ref(&key) as u64, value.as_mut_ptr() as u64);
    bpf(MAP_LOOKUP_ELEM, &mut LookupAttributes { map: map.as_raw_fd() as u32, padding: 0, key, value, flags: 0 })
}

/// How often a program did not run, because it ran on that CPU already. 0 before Linux 5.12.
pub fn recursion_misses(program: BorrowedFd<'_>) -> io::Result<u64> {
    let mut info = [0_u64; PROGRAM_INFO_WORDS];
    let bytes = size_of_val(&info) as u32;
    let address = info.as_mut_ptr() as u64;
    bpf(OBJ_GET_INFO_BY_FD, &mut InfoAttributes { descriptor: program.as_raw_fd() as u32, bytes, info: address })?;
    Ok(info[RECURSION_MISSES])
}
