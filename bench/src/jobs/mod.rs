//! Native parts of the costs of jobs: cgroups with processes in them, and a loop that performs the same reads as the agent and nothing else.

pub mod bare;
pub mod group;
