//! Jobs on this node: which there are, what is read of each, and how often.
//!
//! - In: the cgroup tree, rules from the configuration and from people, marks from the jobs themselves.
//! - Out: groups of each job for the samplers, job records for the server, a view for the API.
//! - Never: anything on the sampling path; a job that waits for the agent; a user's hand on another user's job.
//!
//! [`tracker`] finds jobs and keeps their records until the server has them; [`rules`] say, for each metric of each job, how often it is read and
//! what is kept of it, and who may say so; [`groups`] makes the samplers' groups of that; [`marks`] takes what jobs say of
//! themselves.

pub mod bounds;
pub mod caller;
pub mod command;
pub mod config;
pub mod control;
pub mod groups;
pub mod marks;
pub mod rules;
pub mod setting;
pub mod tracker;
pub mod view;

pub use bounds::JobBounds;
pub use caller::{CallerIdentity, Role};
pub use command::{JobsAction, JobsCommand, JobsOutcome};
pub use config::JobsConfig;
pub use setting::{Accumulation, MetricSetting, SampleMode, SamplingRate};
pub use view::{JobView, JobsView, MetricView, RuleView};
