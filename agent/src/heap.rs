//! Keeps the heap small: one arena for all threads, and free memory returned to the system.

/// Sets the allocator's parameters: one arena for all threads; blocks from 128 KiB are mapped, and unmapped when freed. Call it before
/// the first thread starts.
pub fn limit() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets parameters of the allocator; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// Returns free pages of the heap to the system (`malloc_trim(3)`).
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes an integer only, and touches only pages that the allocator has free.
    unsafe {
        libc::malloc_trim(0);
    }
}
