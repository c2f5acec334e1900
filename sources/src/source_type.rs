//! How a source is registered: its name in the configuration and the functions that read its settings.

use crate::job::ConfigureJobs;
use crate::source::Configure;

/// A registered source: the table `[sources.<name>]` of the configuration configures it.
#[derive(Clone, Copy)]
pub struct SourceType {
    /// Name in the configuration, such as `procfs`.
    pub name: &'static str,
    /// One line for lists of sources.
    pub summary: &'static str,
    /// Reads the table of the configuration; opens nothing yet.
    pub configure: Configure,
    /// The same for the job scope, for sources that have one. Both functions read the same table.
    pub jobs: Option<ConfigureJobs>,
}
