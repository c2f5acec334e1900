//! The plug-in in this machine's kernel: what it counts is compared with what the kernel itself counts of the same events.
//!
//! Without the rights for it (root, or CAP_BPF and CAP_PERFMON) or without BTF these tests write a line that begins with SKIPPED.

mod agent;
mod block;
mod faults;
mod jobs;
mod machine;
mod scheduler;
mod tcp;
mod workload;
