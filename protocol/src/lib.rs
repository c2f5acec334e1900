//! The protocol of several servers over one database: who acknowledges what and when, takeover, deletion, snapshots.
//!
//! In: the variant of the rules, sizes and bounds of disturbances. Out: worlds, the actions that are possible in them, and broken invariants.
//! Never: I/O, time, threads, randomness. `docs/protocol.md` states the rules and the invariants.

mod action;
mod agent;
mod batches;
mod database;
mod reduction;
mod rules;
mod server;
mod snapshot;
mod step;
mod symmetry;
mod world;

pub use action::Action;
pub use agent::Agent;
pub use batches::{BATCHES_MAX, BatchSet};
pub use database::{
    CommitRow, CutRow, CutState, Database, JournalRecord, RecordState, RunId, RunRow, RunState, SERVERS_MAX, Stamp,
    Upload, Vector,
};
pub use rules::{Acknowledgement, Fault, Recovery, Rules};
pub use server::{
    CUTS_MAX, CutProgress, JournalScan, Process, Reception, Server, UploadSource, UploadStep, UploadTask,
};
pub use snapshot::SnapshotTask;
pub use world::{Bounds, History, Invariant, Remaining, World};
