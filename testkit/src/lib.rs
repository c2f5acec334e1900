//! Tools for the tests of all crates: random input with a seed, waiting with a deadline, free ports, the files of the checkout.
//!
//! The crate depends on no other, so that every crate can use it as a dev-dependency.

pub mod checkout;
mod port;
mod random;
mod wait;

pub use port::free_port;
pub use random::{Random, seed};
pub use wait::{DEADLINE, wait_for, wait_until};
