//! The sources of readings: one folder for each source, one line for each in [`SOURCES`].
//!
//! - In: the source's table of the configuration, and the roots of /proc, /sys and the cgroup tree.
//! - Out: groups ([`GroupPlan`]) with their sensors, and a [`Reader`] that fills a [`Row`].
//! - Never: a clock or a network; a thread only for calls that may never return ([`filesystems`]). Once warm, [`Reader::read`] neither allocates nor locks nor looks up a path.
//!
//! `docs/adding-a-source.md` shows how to add a source.

// The example of docs/adding-a-source.md.
#[cfg(test)]
mod example;
mod file;
mod glob;
mod graphics_cards;
mod keyed;
mod line_file;
mod line_table;
mod parse;
mod plan;
mod pressure;
mod reader;
mod scan;
mod source;
mod source_type;
mod states;
#[cfg(test)]
mod testing;
mod text_file;
mod trusted;

pub mod amdgpu;
pub mod beegfs;
pub mod ceph;
pub mod cgroup;
pub mod confinement;
pub mod descriptors;
pub mod ethtool;
pub mod exec;
pub mod exposition;
pub mod filesystems;
pub mod gpfs;
pub mod infiniband;
pub mod intelgpu;
pub mod inventory;
pub mod job;
pub mod lustre;
pub mod nfs;
pub mod options;
pub mod perf;
pub mod processes;
pub mod procfs;
pub mod slingshot;
pub mod sysfs;
pub mod tasks;
pub mod tester;
pub mod textfile;
pub mod timex;

pub use line_file::LineFileSource;
pub use plan::Slot;
pub use reader::{ReadProblem, Reader, Reading, Row};
pub use source::{Configure, ConfigureContext, GroupPlan, Roots, Source, Timing};
pub use source_type::SourceType;

/// All sources, in the order in which lists show them. A new source is one line here.
pub static SOURCES: &[SourceType] = &[
    procfs::SOURCE,
    sysfs::SOURCE,
    timex::SOURCE,
    processes::SOURCE,
    inventory::SOURCE,
    cgroup::SOURCE,
    tasks::SOURCE,
    perf::SOURCE,
    filesystems::SOURCE,
    nfs::SOURCE,
    lustre::SOURCE,
    amdgpu::SOURCE,
    intelgpu::SOURCE,
    textfile::SOURCE,
    exec::SOURCE,
    infiniband::SOURCE,
    slingshot::SOURCE,
    ethtool::SOURCE,
    gpfs::SOURCE,
    beegfs::SOURCE,
    ceph::SOURCE,
    tester::SOURCE,
];
