//! Jobs on this node: their discovery, their groups, their rules and their records.
//!
//! - In: the cgroup tree, rules from the configuration and from people, marks from the jobs themselves.
//! - Out: groups of each job for the samplers, job records for the server, a view for the API.
//! - Never: work on the sampling path; a job that waits for the agent; a user who changes another user's job.
//!
//! [`tracker`] finds jobs and keeps their records until the server has them. [`rules`] give each metric of each job an interval and an accumulation,
//! and decide who may change them. [`groups`] makes groups of both. [`marks`] stores what jobs report about themselves.

pub mod bounds;
pub mod caller;
pub mod command;
pub mod config;
pub mod control;
pub mod groups;
pub mod marks;
pub mod pending_records;
pub mod rules;
pub mod setting;
mod state_file;
pub mod tracker;
pub mod view;

pub use bounds::JobBounds;
pub use caller::{CallerIdentity, Role};
pub use command::{JobsAction, JobsCommand, JobsOutcome};
pub use config::JobsConfig;
pub use setting::{Accumulation, MetricSetting, SampleMode, SamplingRate};
pub use view::{JobView, JobsView, MetricView, RuleView, SharedJobsView};
