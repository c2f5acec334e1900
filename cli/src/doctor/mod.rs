//! `wholegrain doctor`: checks an installation for common faults, and gives advice.
//!
//! - In: server.toml or agent.toml, the files that they name, the machine, the running server.
//! - Out: a finding for each check: ok, warn or fail, with advice.
//! - Never: a change, except a file of a few kilobytes that is written beside the data and removed at once.

mod agent;
mod certificates;
mod files;
mod findings;
mod machine;
mod server;

use std::path::{Path, PathBuf};

use clap::Args;

use crate::client_file::ClientOption;
use crate::failure::Failure;
use crate::output::JsonOption;
use findings::Findings;

/// The places of the configurations.
const SERVER: [&str; 2] = ["var/server/server.toml", "/etc/wholegrain/server.toml"];
const AGENT: [&str; 2] = ["var/agent/agent.toml", "/etc/wholegrain/agent.toml"];

const EXAMPLES: &str = "\
Run it as root or as the user of the service: other users cannot read the keys.

Examples:
  wholegrain doctor                                        the installation on this machine
  wholegrain doctor --config /etc/wholegrain/server.toml   the server
  wholegrain doctor --agent /etc/wholegrain/agent.toml     the agent of this node
  wholegrain doctor --json

Exit codes:
  0  no check failed; there may be warnings
  2  usage: the command line is wrong
  4  a check failed";

/// Check configuration, certificates, clock, disk, permissions, ports, limits and the connection to the server
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// A server's configuration [default: ./var/server/server.toml or /etc/wholegrain/server.toml, if there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An agent's configuration [default, without --config: ./var/agent/agent.toml or /etc/wholegrain/agent.toml, if there]
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    #[command(flatten)]
    json: JsonOption,
    #[command(flatten)]
    client: ClientOption,
}

pub fn run(args: &DoctorArgs, client: Option<&Path>) -> Result<(), Failure> {
    let first = |places: &[&str]| places.iter().map(PathBuf::from).find(|path| path.exists());
    let (server, agent) = match (&args.config, &args.agent) {
        (None, None) => (first(&SERVER), first(&AGENT)),
        (server, agent) => (server.clone(), agent.clone()),
    };
    if server.is_none() && agent.is_none() {
        return Err(Failure::Usage(
            "no server.toml and no agent.toml here; name one with --config FILE or --agent FILE".into(),
        ));
    }
    let mut findings = Findings::default();
    machine::clock(&mut findings);
    if let Some(file) = &server {
        server::check(&mut findings, file, args.client.or(client));
    }
    if let Some(file) = &agent {
        agent::check(&mut findings, file);
    }
    args.json.print(&findings, |style, out| findings.write(style, out))?;
    match findings.count_failed() {
        0 => Ok(()),
        1 => Err(Failure::Failed("1 check failed".to_owned())),
        count => Err(Failure::Failed(format!("{count} checks failed"))),
    }
}
