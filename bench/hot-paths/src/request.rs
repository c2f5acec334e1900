//! Requests of a program to callgrind: instructions that do nothing elsewhere.

/// Counts from here on, on all threads.
const START_INSTRUMENTATION: u64 = request(4);
const STOP_INSTRUMENTATION: u64 = request(5);
/// Writes the count under a name.
const DUMP_STATS_AT: u64 = request(3);

/// The number of callgrind's n-th request: its tool code is `CT` (callgrind.h).
const fn request(number: u64) -> u64 {
    (b'C' as u64) << 24 | (b'T' as u64) << 16 | number
}

/// Counts the instructions of `work` and writes them under `name`.
pub fn counted<T>(name: &std::ffi::CStr, work: impl FnOnce() -> T) -> T {
    ask(START_INSTRUMENTATION, 0);
    let result = work();
    ask(DUMP_STATS_AT, name.as_ptr() as u64);
    ask(STOP_INSTRUMENTATION, 0);
    result
}

/// Valgrind knows a request by four rotations of a register that restore its value, and an exchange of a register with
/// itself (valgrind.h).
#[cfg(target_arch = "x86_64")]
#[inline(never)]
fn ask(request: u64, argument: u64) {
    let arguments = [request, argument, 0, 0, 0, 0];
    // SAFETY: the rotations come to 128 bits, which leaves rdi unchanged, and the exchange changes nothing; valgrind reads the six
    // words that rax points to, and the text that one of them does, and writes only rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") arguments.as_ptr(),
            inout("rdx") 0_u64 => _,
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn ask(_request: u64, _argument: u64) {}
