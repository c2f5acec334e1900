//! NVIDIA GPUs and their MIG instances, by NVIDIA's management library (NVML).
//!
//! - In: `[plugins.nvml]`, the driver's `libnvidia-ml.so.1`, which is loaded at run time, `/proc/<pid>/cgroup` of processes on GPUs, and the agent's
//!   records of jobs.
//! - Out: for each GPU the groups `gpu/<name>`, `gpu/<name>/health` and `gpu/<name>/nvlink`, for each MIG instance `mig/<name>`, and the group
//!   `nvml/jobs` with what each job's processes use.
//! - Never: a change of a device; a value in place of one that the driver does not give; a function that an older driver lacks.

mod config;
mod directories;
mod library;
mod processes;
mod quantities;
mod read;
mod session;
mod source;

pub use source::SOURCE;

wholegrain_plugin::export!(SOURCE);
