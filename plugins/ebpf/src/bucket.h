// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The bucket of a time. A file of its own, so that a test runs it outside the kernel too.

typedef unsigned int u32;
typedef unsigned long long u64;

#define INLINE static inline __attribute__((always_inline))
// Bounds of 1 us to 2^24 us, and one bucket for what is longer.
#define BUCKETS 26

// The index of the first bound that is not below the time.
INLINE u32 bucket_of(u64 ns)
{
    u64 us = (ns + 999) / 1000;
    u32 index = 1;
    if (us <= 1)
        return 0;
    us -= 1;
    if (us >> 32)
        return BUCKETS - 1;
    u32 rest = us;
    if (rest >> 16) {
        rest >>= 16;
        index += 16;
    }
    if (rest >> 8) {
        rest >>= 8;
        index += 8;
    }
    if (rest >> 4) {
        rest >>= 4;
        index += 4;
    }
    if (rest >> 2) {
        rest >>= 2;
        index += 2;
    }
    if (rest >> 1)
        index += 1;
    return index < BUCKETS ? index : BUCKETS - 1;
}
