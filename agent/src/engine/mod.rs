//! The sampling engine: the schedule, the thread that reads, and the memory from which others read the samples.
//!
//! - In: groups with their readers and their timing.
//! - Out: complete samples in each group's [`ring`], counts, lags.
//! - Never, on a sampler thread: an allocation once warm, a lock, a blocking system call except the sleep to the next tick and the reads of the
//!   sources.

pub mod accumulate;
pub mod clock;
pub mod cpu_placement;
pub mod group;
mod idle;
pub mod lag;
pub mod mailbox;
pub mod passes;
pub mod ring;
pub mod sampler;
pub mod schedule;

pub use accumulate::Accumulated;
pub use group::{Group, GroupStats};
pub use sampler::{GroupStart, Sampled, Sampler, SamplerChange};
