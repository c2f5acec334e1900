//! The programs for the kernel: what each set of them needs and measures.

use crate::counts::{Histogram, SlotQuantity};

/// The compiled programs. Empty if there was no clang.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/programs.o"));

/// Programs that measure together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgramSet {
    Scheduler,
    Block,
    Tcp,
}

/// Where a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramPlace {
    Tracepoint(&'static str),
    /// Runs once for each task, when it is started.
    Tasks,
}

/// A program of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelProgram {
    /// The name of the function in `programs.bpf.c`.
    pub name: &'static str,
    pub place: ProgramPlace,
}

const fn at(name: &'static str, tracepoint: &'static str) -> KernelProgram {
    KernelProgram { name, place: ProgramPlace::Tracepoint(tracepoint) }
}

impl ProgramSet {
    pub const ALL: [Self; 3] = [Self::Scheduler, Self::Block, Self::Tcp];

    /// The name in settings and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Block => "block",
            Self::Tcp => "tcp",
        }
    }

    /// The programs in the order in which they are attached: first those for new kernels, then those for kernels without their tracepoints.
    pub fn variants(self) -> Vec<Vec<KernelProgram>> {
        match self {
            // New tasks first, then the tasks that exist: none is missed. Switches last: each task has its state.
            Self::Scheduler => vec![vec![
                at("on_new_task", "task_newtask"),
                KernelProgram { name: "begin_tasks", place: ProgramPlace::Tasks },
                at("on_switch", "sched_switch"),
            ]],
            Self::Block => vec![
                vec![at("on_io_start", "block_io_start"), at("on_io_complete", "block_rq_complete")],
                vec![
                    at("on_io_insert", "block_rq_insert"),
                    at("on_io_issue", "block_rq_issue"),
                    at("on_io_complete", "block_rq_complete"),
                ],
            ],
            Self::Tcp => vec![vec![
                at("on_retransmit", "tcp_retransmit_skb"),
                at("on_retransmit_synack", "tcp_retransmit_synack"),
            ]],
        }
    }

    pub fn quantities(self) -> Vec<SlotQuantity> {
        match self {
            Self::Scheduler => {
                [Histogram::RunQueue, Histogram::OffCpu].into_iter().flat_map(SlotQuantity::of).collect()
            }
            Self::Block => SlotQuantity::of(Histogram::Block).collect(),
            Self::Tcp => vec![SlotQuantity::Retransmits],
        }
    }
}
