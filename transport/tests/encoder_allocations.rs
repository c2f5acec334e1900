//! The encoder allocates nothing once warm. Alone in its program, because it counts every allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use wholegrain_model::{BatchHeader, SchemaHash, ValueType};
use wholegrain_transport::payload::{BatchEncoder, Rows};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Every mode, and gaps.
struct Synthetic {
    round: u64,
}

impl Rows for Synthetic {
    fn value(&self, sensor: usize, sample: usize) -> u64 {
        let (sensor, sample) = (sensor as u64, sample as u64);
        let noise = (sensor * 31 + sample * 17 + self.round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match sensor % 6 {
            0 => 7,
            1 => sample * 10,
            2 => noise >> 50,
            3 => u64::from(sample % 5 == 4) << 30,
            4 => (noise as f64).to_bits(),
            _ => noise,
        }
    }

    fn is_gap(&self, sensor: usize, sample: usize) -> bool {
        sensor % 7 == 6 && sample % 3 == 1 || sensor % 29 == 28
    }
}

#[test]
fn no_allocation_once_warm() {
    let types: Vec<_> =
        (0..300).map(|sensor| if sensor % 6 == 4 { ValueType::Float } else { ValueType::Int }).collect();
    let header = BatchHeader { agent: "n1".into(), boot: 1, seq: 1, schema: SchemaHash([0; 16]), interval_ns: 1 };
    let mut encoder = BatchEncoder::new();
    let mut out = Vec::with_capacity(1 << 20);
    let times: Vec<i64> = (0..60).map(|sample| sample * 3).collect();
    let mut encode = |samples: usize, round: u64| {
        out.clear();
        encoder.encode(&header, &types, &times[..samples], &Synthetic { round }, &mut out);
        out.len()
    };
    // The first batches find the buffers' sizes; noise makes later ones a little longer now and then.
    (0..50).for_each(|round| _ = encode(60, round));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let bytes: usize = (0..50).map(|round| encode([60, 10, 1][round as usize % 3], round)).sum();
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert!(bytes > 0);
    assert_eq!(after - before, 0, "allocations in 50 batches");
}
