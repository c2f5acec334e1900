//! The files of groups, and what the format of a file may need besides its content.

use wholegrain_model::pattern::Filter;

/// The folder that a file's path begins at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRoot {
    Proc,
    Sys,
}

/// A file of a group, or several by a pattern with `*`.
#[derive(Debug)]
pub struct ProcFile {
    pub root: FileRoot,
    pub path: &'static str,
    /// Whether its absence is reported. Files of devices and of modules may be absent.
    pub is_needed: bool,
}

/// What the format of a file may need besides its content.
pub struct PlanContext<'a> {
    /// The name of the group.
    pub group: &'static str,
    pub file: &'static ProcFile,
    /// The text that each `*` of the file's path matched.
    pub captures: &'a [String],
    /// Filter of network and block devices, by name.
    pub devices: &'a Filter,
    /// Filter of CPUs, by number.
    pub cpus: &'a Filter,
    /// Whether each CPU has its values beside the sums.
    pub per_cpu: bool,
    /// Ticks of CPU time in a second.
    pub ticks_hz: u32,
}

impl PlanContext<'_> {
    /// Whether a CPU has its values beside the sums.
    pub fn samples_cpu(&self, cpu: &str) -> bool {
        self.per_cpu && self.cpus.keeps(cpu)
    }
}
