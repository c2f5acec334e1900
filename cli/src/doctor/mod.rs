//! `wholegrain doctor`: looks at everything that commonly goes wrong, and says what to do about it.
//!
//! - In: server.toml or agent.toml, the files that they name, the machine, the running server.
//! - Out: a finding for each check: ok, warn or fail, with what to do.
//! - Never: a change to anything, but for a file of a few kilobytes that is written beside the data and removed at once.

mod agent;
mod certificates;
mod files;
mod machine;
mod server;

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::client_file::ClientOption;
use crate::failure::Failure;
use crate::output::Output;
use crate::output::style::{self, Style};

/// Where the configurations are looked for.
const SERVER: [&str; 2] = ["var/server/server.toml", "/etc/wholegrain/server.toml"];
const AGENT: [&str; 2] = ["var/agent/agent.toml", "/etc/wholegrain/agent.toml"];

const EXAMPLES: &str = "\
Run it as the user that the service runs as, or as root: others may not read the keys.

Examples:
  wholegrain doctor                                        what is installed here
  wholegrain doctor --config /etc/wholegrain/server.toml   the server
  wholegrain doctor --agent /etc/wholegrain/agent.toml     the agent of this node
  wholegrain doctor --json

Exit codes:
  0  nothing is broken; there may be warnings
  2  usage: the command line makes no sense
  4  something is broken";

/// Check configuration, certificates, clock, disk, permissions, ports, limits and the way to the server
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DoctorArgs {
    /// A server's configuration [default: ./var/server/server.toml or /etc/wholegrain/server.toml, if there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// An agent's configuration [default, without --config: ./var/agent/agent.toml or /etc/wholegrain/agent.toml, if there]
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    client: ClientOption,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warn,
    Fail,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

/// The findings so far.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, check: &'static str, text: impl Into<String>) {
        self.0.push(Finding { check, level: Level::Ok, text: text.into(), advice: None });
    }

    fn warn(&mut self, check: &'static str, text: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Finding { check, level: Level::Warn, text: text.into(), advice: Some(advice.into()) });
    }

    fn fail(&mut self, check: &'static str, text: impl Into<String>, advice: impl Into<String>) {
        self.0.push(Finding { check, level: Level::Fail, text: text.into(), advice: Some(advice.into()) });
    }
}

pub fn run(args: &DoctorArgs, client: Option<&Path>) -> Result<(), Failure> {
    let there = |places: &[&str]| places.iter().map(PathBuf::from).find(|path| path.exists());
    let (server, agent) = match (&args.config, &args.agent) {
        (None, None) => (there(&SERVER), there(&AGENT)),
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
    let Findings(findings) = findings;
    let mut output = Output::open(None)?;
    let written = if args.json {
        serde_json::to_writer_pretty(&mut output, &serde_json::json!({ "findings": findings }))
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(output))
    } else {
        print(&findings, style::on_stdout(), &mut output)
    };
    written.map_err(Failure::writing("standard output"))?;
    output.finish()?;
    match findings.iter().filter(|finding| finding.level == Level::Fail).count() {
        0 => Ok(()),
        broken => Err(Failure::Failed(format!("{broken} of {} checks found something broken", findings.len()))),
    }
}

fn print(findings: &[Finding], style: Style, out: &mut impl Write) -> std::io::Result<()> {
    let widest = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    for finding in findings {
        let word = match finding.level {
            Level::Ok => style.good("ok  "),
            Level::Warn => style.head("warn"),
            Level::Fail => style.error("FAIL"),
        };
        writeln!(out, "{word}  {:<widest$}  {}", finding.check, finding.text)?;
        if let Some(advice) = &finding.advice {
            writeln!(out, "      {:<widest$}  -> {advice}", "")?;
        }
    }
    Ok(())
}
