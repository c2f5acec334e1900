//! A small computing centre in a model: racks of nodes, their jobs, their power, the water that cools them.
//!
//! - In: a seed, the number of nodes, when the centre began, the current time as an argument.
//! - Out: schemas, batches and job records, which [`send::Agents`] publishes as one agent for each node would.
//! - Never: a reading that depends on anything but the seed and the times; a clock of its own; readings outside of [`ROOT`].
//!
//! [`plan`] decides which jobs run where and when, [`centre`] computes what the sensors show, [`water`] is the cooling circuit (tests replay
//! it too), [`send`] publishes, and [`boosts`] answers the server's orders.

pub mod boosts;
pub mod centre;
pub mod plan;
pub mod send;
pub mod water;

/// What all sensors of the centre are below, so that nobody takes them for real ones.
pub const ROOT: &str = "/demo";

/// A pseudo-random number that depends on its arguments alone (the finaliser of SplitMix64).
fn hash(seed: u64, key: u64, time: i64) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(key.wrapping_mul(0xd134_2543_de82_ef95))
        .wrapping_add(time.cast_unsigned());
    for _ in 0..2 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    z
}

/// The same, evenly distributed in 0..1.
fn uniform(seed: u64, key: u64, time: i64) -> f64 {
    (hash(seed, key, time) >> 11) as f64 / (1u64 << 53) as f64
}

/// The same, between -1 and 1, values near 0 more often.
fn noise(seed: u64, key: u64, time: i64) -> f64 {
    uniform(seed, key, time) - uniform(seed, !key, time)
}
