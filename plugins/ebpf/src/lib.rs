//! Histograms of waits in the kernel, for the node and for each job, by eBPF.
//!
//! - In: `[plugins.ebpf]`, the kernel's tracepoints of scheduler, block layer and TCP, its BTF, and the agent's records of jobs.
//! - Out: the group `ebpf` of the node, and `job/<id>/ebpf` for each job, with counters that only rise.
//! - Never: an event in user space: the kernel counts, a read takes the sums. A change of what the kernel does. A job's name from a process.

mod counts;
mod kernel;
mod processes;
mod programs;
mod read;
mod records;
mod rights;
mod settings;
mod shares;
mod slots;
mod source;
mod syscall;

pub use source::SOURCE;

wholegrain_plugin::export!(SOURCE);
