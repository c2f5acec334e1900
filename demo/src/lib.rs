//! A model of a small computing centre: racks of nodes, jobs, power, and water cooling.
//!
//! - In: a seed, the number of nodes, the start time, the current time as an argument.
//! - Out: schemas, batches and job records, which [`send`] publishes with one connection for each node.
//! - Never: a reading that depends on anything but the seed and the times; a clock of its own; readings outside of [`ROOT`].
//!
//! [`plan`] decides which jobs run where and when. [`centre`] computes the readings. [`water`] is the cooling circuit, which tests use too.
//! [`send`] publishes the readings. [`boosts`] handles commands of the server.

pub mod boosts;
pub mod centre;
pub mod plan;
pub mod send;
pub mod water;

/// The prefix of all sensors of the centre. It marks them as made up.
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

/// A pseudo-random number, uniform in 0..1.
fn uniform(seed: u64, key: u64, time: i64) -> f64 {
    (hash(seed, key, time) >> 11) as f64 / (1u64 << 53) as f64
}

/// A pseudo-random number between -1 and 1 with a triangular distribution.
fn noise(seed: u64, key: u64, time: i64) -> f64 {
    uniform(seed, key, time) - uniform(seed, !key, time)
}
