//! Requests about an agent's plug-ins.

use clap::Subcommand;

use super::request::AgentRequest;
use crate::socket::encoded;

pub(super) const EXAMPLES: &str = "\
Examples:
  wholegrain ctl plugin list
  wholegrain ctl plugin restart snmp";

#[derive(Debug, Clone, Subcommand)]
pub(super) enum PluginCommand {
    /// List plug-ins with their state, restarts and last fault
    #[command(after_help = "Examples:\n  wholegrain ctl plugin list --format json")]
    List,
    /// Start a plug-in, with its table of the configuration as it is now
    #[command(after_help = "Examples:\n  wholegrain ctl plugin load snmp")]
    Load {
        /// The name of its table, [plugins.NAME]
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// End a plug-in until it is loaded or the agent restarts
    #[command(after_help = "Examples:\n  wholegrain ctl plugin unload snmp")]
    Unload {
        /// The name in `ctl plugin list`
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// End a plug-in and start it with its file as it is now
    #[command(after_help = "Examples:\n  wholegrain ctl plugin restart snmp")]
    Restart {
        /// The name in `ctl plugin list`
        #[arg(value_name = "NAME")]
        name: String,
    },
}

impl PluginCommand {
    pub fn request(&self) -> AgentRequest {
        let (name, action) = match self {
            Self::List => return AgentRequest::get("/v1/plugins", vec![]),
            Self::Load { name } => (name, "load"),
            Self::Unload { name } => (name, "unload"),
            Self::Restart { name } => (name, "restart"),
        };
        let path = format!("/v1/plugins/{}/{action}", encoded(name));
        AgentRequest { method: "POST", path, query: vec![], body: None }
    }
}
