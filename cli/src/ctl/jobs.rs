//! Jobs and rules of an agent: `ctl jobs`, `job`, `rules` and `rule`.

use clap::{Args, Subcommand};
use serde_json::Value;
use wholegrain_api::AddJobRule;

use super::request::AgentRequest;
use crate::rule::RuleArgs;
use crate::socket::encoded;

pub const EXAMPLES: &str = "\
Patterns are matched against metric names below the job, such as cpu/usage, memory/anon or perf/instructions; `wholegrain ctl job \
ID` lists them. A rule of a user needs an end (--for), cannot lower a rate below the administrators' rules, and must keep to \
[jobs.limits] of the agent; a rule of an administrator may last until it is removed. The last rule that matches a metric applies. Rules \
survive a restart of the agent.

Examples:
  wholegrain ctl rule add --job 4711 --metrics 'perf/*' --every 1ms --for 10m
  wholegrain ctl rule add --metrics 'memory/**' --every 10ms --for 1h --accumulate 1s --quantiles 0.5,0.99
  wholegrain ctl rule add --job 4711 --metrics 'io/**' --every 100ms --for 10m --dry-run
  wholegrain ctl rules
  wholegrain ctl rule remove 10001";

/// The subcommands for rules.
#[derive(Debug, Clone, Subcommand)]
pub enum RuleCommand {
    /// Sample metrics of a running job at another interval for a time
    Add(AddArgs),
    /// End a rule before its end time
    #[command(after_help = EXAMPLES)]
    Remove {
        /// The number in `ctl rules`
        #[arg(value_name = "NUMBER")]
        id: u64,
    },
}

#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct AddArgs {
    /// The job's id, with * for any text [default: your running jobs; for an administrator every job]
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    #[command(flatten)]
    rule: RuleArgs,
}

/// The request for one job.
pub fn job(id: &str) -> AgentRequest {
    AgentRequest::get(&format!("/v1/jobs/{}", encoded(id)), vec![])
}

impl RuleCommand {
    /// The request to the agent.
    pub fn request(&self) -> AgentRequest {
        match self {
            RuleCommand::Add(args) => AgentRequest {
                method: "POST",
                path: "/v1/rules".to_owned(),
                query: if args.rule.dry_run { vec![("try", "1".to_owned())] } else { vec![] },
                body: Some(args.rule()),
            },
            RuleCommand::Remove { id } => {
                AgentRequest { method: "DELETE", path: format!("/v1/rules/{id}"), query: vec![], body: None }
            }
        }
    }
}

impl AddArgs {
    fn rule(&self) -> Value {
        let rule = AddJobRule { jobs: self.job.clone(), ..self.rule.request() };
        serde_json::to_value(rule).unwrap_or_default()
    }
}
