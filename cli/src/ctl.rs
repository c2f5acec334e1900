//! `wholegrain ctl`: shows and changes the state of an agent, over its Unix socket or HTTPS.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;
use wholegrain_model::{Interval, Pattern};

use self::jobs::RuleCommand;
use self::plugins::PluginCommand;
use self::request::AgentRequest;
use crate::client_file::{ClientConfig, ClientOption, nowhere};
use crate::connection::{Connection, refusal};
use crate::failure::Failure;
use crate::output::{ResultFormat, print};
use crate::range::range;
use crate::socket::{self, encoded};

mod jobs;
mod plugins;
mod request;
mod show;

/// The socket of a packaged agent.
const SOCKET: &str = "/run/wholegrain/agent.sock";

/// The socket for all users, in the same directory.
const USERS_SOCKET: &str = "jobs.sock";

const EXAMPLES: &str = "\
Without --socket and --url the command uses the agent_socket of client.toml, else /run/wholegrain/agent.sock. Users without permission \
for it use jobs.sock in the same directory, which serves every user for their own jobs: jobs, job, rules, rule, sensors, newest, average \
and history. With --url, token and authority come from client.toml.

Examples:
  wholegrain ctl status
  wholegrain ctl newest 'meminfo/*'
  wholegrain ctl average 'cpu/*/user' --window 10s
  wholegrain ctl history MemAvailable --from -1m --format json
  wholegrain ctl interval meminfo 100ms
  wholegrain ctl stop procfs
  wholegrain ctl plugin list
  wholegrain ctl log debug --for 10min
  wholegrain ctl jobs
  wholegrain ctl rule add --job 4711 --metrics 'perf/*' --every 1ms --for 10m
  wholegrain ctl --url https://node0042:8444 groups";

/// Show and change the state of an agent
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct CtlArgs {
    /// The agent's Unix socket
    #[arg(long, value_name = "PATH", conflicts_with = "url", global = true)]
    socket: Option<PathBuf>,
    /// The agent's HTTPS address, such as https://node0042:8444
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    /// The format of the output
    #[arg(long, short, value_enum, default_value_t = ResultFormat::Table, global = true)]
    format: ResultFormat,
    #[command(flatten)]
    client: ClientOption,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum CtlCommand {
    /// Show the agent's name, cost, lag, queue and losses
    #[command(after_help = EXAMPLES)]
    Status,
    /// List sources and whether they run
    #[command(after_help = "Examples:\n  wholegrain ctl sources")]
    Sources,
    /// List groups with intervals, ticks and lag
    #[command(after_help = "Examples:\n  wholegrain ctl groups\n  wholegrain ctl groups --format json")]
    Groups,
    /// List the agent's sensors
    #[command(after_help = "Examples:\n  wholegrain ctl sensors\n  wholegrain ctl sensors 'meminfo/*'")]
    Sensors {
        /// Patterns of the sensors [default: all]
        #[arg(value_name = "PATTERN")]
        patterns: Vec<Pattern>,
    },
    /// Show newest values from the agent's memory, without the server
    #[command(after_help = "Examples:\n  wholegrain ctl newest 'meminfo/*'")]
    Newest {
        /// Patterns of the sensors
        #[arg(required = true, value_name = "PATTERN")]
        patterns: Vec<Pattern>,
    },
    /// Show means over the last seconds from the agent's memory
    #[command(after_help = "Examples:\n  wholegrain ctl average 'cpu/*/user' --window 10s")]
    Average {
        /// Patterns of the sensors
        #[arg(required = true, value_name = "PATTERN")]
        patterns: Vec<Pattern>,
        /// The length of the window, such as 10s or 1min
        #[arg(long, default_value = "10s", value_name = "LENGTH")]
        window: Interval,
    },
    /// Show values of the last minutes from the agent's memory
    #[command(after_help = "Examples:\n  wholegrain ctl history MemAvailable --from -1m --format json")]
    History {
        /// Patterns of the sensors
        #[arg(required = true, value_name = "PATTERN")]
        patterns: Vec<Pattern>,
        /// Start of the range, included
        #[arg(long, default_value = "-1m", value_name = "TIME", allow_hyphen_values = true)]
        from: String,
        /// End of the range, excluded
        #[arg(long, default_value = "now", value_name = "TIME", allow_hyphen_values = true)]
        to: String,
    },
    /// Stop reading a source
    #[command(after_help = "Examples:\n  wholegrain ctl stop procfs")]
    Stop {
        /// The name in `ctl sources`
        #[arg(value_name = "SOURCE")]
        source: String,
    },
    /// Start a stopped source again
    #[command(after_help = "Examples:\n  wholegrain ctl start procfs")]
    Start {
        /// The name in `ctl sources`
        #[arg(value_name = "SOURCE")]
        source: String,
    },
    /// Change a group's interval until the next reload
    #[command(after_help = "Examples:\n  wholegrain ctl interval meminfo 100ms")]
    Interval {
        /// The name in `ctl groups`
        #[arg(value_name = "GROUP")]
        group: String,
        /// The new interval, such as 100ms; at least 1ms
        #[arg(value_name = "LENGTH")]
        interval: Interval,
    },
    /// Show or change the agent's log level
    #[command(after_help = "Examples:\n  wholegrain ctl log\n  wholegrain ctl log debug --for 10min")]
    Log {
        /// error, warn, info, debug or trace [default: print the current level]
        #[arg(value_name = "LEVEL")]
        level: Option<String>,
        /// How long, such as 10min; then the configured level applies again [default: until a reload or restart]
        #[arg(long = "for", value_name = "LENGTH", requires = "level")]
        within: Option<Interval>,
    },
    /// List, load, unload and restart plug-ins
    #[command(subcommand, after_help = plugins::EXAMPLES)]
    Plugin(PluginCommand),
    /// List running jobs on the node: all, or your own
    #[command(after_help = "Examples:\n  wholegrain ctl jobs")]
    Jobs,
    /// Show one job with the intervals of its metrics
    #[command(after_help = "Examples:\n  wholegrain ctl job 4711")]
    Job {
        /// The id in `ctl jobs`
        #[arg(value_name = "ID")]
        id: String,
    },
    /// List the rules for intervals of job metrics; the last matching rule applies
    #[command(after_help = "Examples:\n  wholegrain ctl rules")]
    Rules,
    /// Add or remove rules for intervals of job metrics
    #[command(subcommand, after_help = jobs::EXAMPLES)]
    Rule(RuleCommand),
    /// Reload the configuration; unchanged groups lose no sample
    #[command(after_help = "Examples:\n  wholegrain ctl reload")]
    Reload,
}

pub fn run(args: &CtlArgs, client: Option<&Path>) -> Result<(), Failure> {
    let client = args.client.or(client);
    let request = args.command.request()?;
    let body = match &args.url {
        Some(url) => send_https(url, &request, client)?,
        None => match &args.socket {
            Some(socket) => send_socket(socket, &request)?,
            None => send_nearest(&socket_of(client)?, &request)?,
        },
    };
    let response: Value = serde_json::from_slice(&body).map_err(|error| {
        Failure::Unreachable(format!("the agent's response is not JSON: {error}; is this an agent of this version?"))
    })?;
    print(|style, out| match args.format {
        // As the agent sent it.
        ResultFormat::Json => {
            out.write_all(&body).and_then(|()| if body.ends_with(b"\n") { Ok(()) } else { writeln!(out) })
        }
        ResultFormat::Table => show::write(&response, style, out),
    })?;
    if matches!(args.command, CtlCommand::Plugin(PluginCommand::List)) && show::is_empty(&response) {
        // An agent without plug-ins is in order.
        eprintln!("note: the agent's configuration has no [plugins]");
        return Ok(());
    }
    if show::is_empty(&response) {
        return Err(Failure::NothingMatched(match args.command {
            CtlCommand::Jobs => "no job that you may see runs on this node".into(),
            CtlCommand::Sensors { .. }
            | CtlCommand::Newest { .. }
            | CtlCommand::Average { .. }
            | CtlCommand::History { .. } => {
                "no sensor of the agent matches; `wholegrain ctl sensors` lists them".into()
            }
            _ => "the list is empty".into(),
        }));
    }
    Ok(())
}

impl CtlCommand {
    fn request(&self) -> Result<AgentRequest, Failure> {
        let get = AgentRequest::get;
        let post = |path: String, query| AgentRequest { method: "POST", path, query, body: None };
        let select = |patterns: &[Pattern]| patterns.iter().map(|p| ("pattern", p.to_string())).collect::<Vec<_>>();
        Ok(match self {
            CtlCommand::Status => get("/v1/status", vec![]),
            CtlCommand::Sources => get("/v1/sources", vec![]),
            CtlCommand::Groups => get("/v1/groups", vec![]),
            CtlCommand::Sensors { patterns } => get("/v1/sensors", select(patterns)),
            CtlCommand::Newest { patterns } => get("/v1/newest", select(patterns)),
            CtlCommand::Average { patterns, window } => {
                let mut query = select(patterns);
                query.push(("window", window.to_string()));
                get("/v1/average", query)
            }
            CtlCommand::History { patterns, from, to } => {
                let now = crate::output::values::now();
                let (from, to) = range(Some(from), Some(to), now)?;
                let (from, to) = (from.unwrap_or(now), to.unwrap_or(now));
                let mut query = select(patterns);
                query.extend([("from", from.to_string()), ("to", to.to_string())]);
                get("/v1/history", query)
            }
            CtlCommand::Stop { source } => post(format!("/v1/sources/{}/stop", encoded(source)), vec![]),
            CtlCommand::Start { source } => post(format!("/v1/sources/{}/start", encoded(source)), vec![]),
            CtlCommand::Interval { group, interval } => {
                if interval.ns() < wholegrain_model::interval::SAMPLING_INTERVAL_NS_MIN {
                    return Err(Failure::Usage(format!("an interval of {interval} is too short; the shortest is 1ms")));
                }
                post(format!("/v1/groups/{}/interval", encoded(group)), vec![("value", interval.to_string())])
            }
            CtlCommand::Log { level: None, .. } => get("/v1/log", vec![]),
            CtlCommand::Log { level: Some(level), within } => {
                let mut query = vec![("level", level.clone())];
                query.extend(within.map(|within| ("for", within.to_string())));
                post("/v1/log".to_owned(), query)
            }
            CtlCommand::Plugin(plugin) => plugin.request(),
            CtlCommand::Jobs => get("/v1/jobs", vec![]),
            CtlCommand::Job { id } => jobs::job(id),
            CtlCommand::Rules => get("/v1/rules", vec![]),
            CtlCommand::Rule(rule) => rule.request(),
            CtlCommand::Reload => post("/v1/reload".to_owned(), vec![]),
        })
    }
}

/// The administrator's socket. A malformed client.toml is an error, a missing one is not.
fn socket_of(client: Option<&Path>) -> Result<PathBuf, Failure> {
    let configured = ClientConfig::find(client)?.and_then(|config| config.agent_socket);
    Ok(configured.unwrap_or_else(|| SOCKET.into()))
}

/// Sends the request to the administrator's socket, or to the users' socket if the first is missing or refuses access.
fn send_nearest(socket: &Path, request: &AgentRequest) -> Result<Vec<u8>, Failure> {
    let error = match try_socket(socket, request) {
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound) => error,
        other => return check(socket, other),
    };
    let users = socket.with_file_name(USERS_SOCKET);
    match try_socket(&users, request) {
        // Report the error of the administrator's socket: the users' one is optional.
        Err(second) if second.kind() == ErrorKind::NotFound => check(socket, Err(error)),
        other => {
            eprintln!("note: {}: {error}; used {}, which serves your own jobs only", socket.display(), users.display());
            check(&users, other)
        }
    }
}

fn send_socket(path: &Path, request: &AgentRequest) -> Result<Vec<u8>, Failure> {
    check(path, try_socket(path, request))
}

fn try_socket(path: &Path, request: &AgentRequest) -> std::io::Result<(u16, Vec<u8>)> {
    let body = request.body.as_ref().map(Value::to_string);
    socket::send(path, request.method, &request.path_and_query(), body.as_deref().map(str::as_bytes))
}

fn check(path: &Path, result: std::io::Result<(u16, Vec<u8>)>) -> Result<Vec<u8>, Failure> {
    let shown = path.display().to_string();
    let (status, body) = result.map_err(|error| {
        Failure::Unreachable(match error.kind() {
            ErrorKind::PermissionDenied => format!("cannot reach the agent at {shown}: {error}; try again as root"),
            ErrorKind::InvalidData => format!("the agent at {shown} did not respond in HTTP: {error}"),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                format!("the agent at {shown} did not respond in time; is it stopped, or in a debugger?")
            }
            _ => format!(
                "cannot reach the agent at {shown}: {error}; is it running? Start it with `make up` or `wholegrain-agent --config \
                 FILE`, or name its socket with --socket"
            ),
        })
    })?;
    if (200..300).contains(&status) {
        return Ok(body);
    }
    // A socket needs no token, so the message must not mention one.
    let refused = serde_json::from_slice::<Value>(&body).ok().filter(|_| status == 403);
    if let Some(reason) = refused.as_ref().and_then(|body| body["error"].as_str()) {
        return Err(Failure::Usage(reason.to_owned()));
    }
    Err(refusal(status, &String::from_utf8_lossy(&body), &format!("the agent at {shown}"), "client.toml"))
}

fn send_https(url: &str, request: &AgentRequest, client: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let Some(config) = ClientConfig::find(client)? else { return Err(Failure::Usage(nowhere())) };
    let advice = "is the agent running, and its HTTPS enabled?";
    let connection = Connection::to(url, &config, advice)?;
    let path = request.path_and_query();
    let https = match request.method {
        "POST" => connection.post(path),
        "DELETE" => connection.delete(path),
        _ => connection.get(path),
    };
    request.body.iter().fold(https, |https, body| https.json(body)).send()?.read()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        ctl: CtlArgs,
    }

    #[track_caller]
    fn check(line: &str, expected: &str) {
        let parsed =
            Line::try_parse_from(std::iter::once("ctl").chain(line.split(' '))).unwrap_or_else(|e| panic!("{e}"));
        let request = match parsed.ctl.command.request() {
            Ok(request) => {
                let body = request.body.as_ref().map_or(String::new(), |body| format!(" {body}"));
                format!("{} {}{body}", request.method, request.path_and_query())
            }
            Err(failure) => failure.report().1.unwrap_or_default().to_owned(),
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn requests() {
        check("status", "GET /v1/status");
        check("sources --format json", "GET /v1/sources");
        check("sensors", "GET /v1/sensors");
        check("newest meminfo/* /n/**", "GET /v1/newest?pattern=meminfo%2F%2A&pattern=%2Fn%2F%2A%2A");
        check("average load --window 1m", "GET /v1/average?pattern=load&window=1min");
        check(
            "history load --from @1 --to @2",
            "GET /v1/history?pattern=load&from=1970-01-01T00%3A00%3A01Z&to=1970-01-01T00%3A00%3A02Z",
        );
        check(
            "history load --from @3 --to @2",
            "--from (1970-01-01T00:00:03Z) is after --to (1970-01-01T00:00:02Z); exchange them",
        );
        check("stop procfs", "POST /v1/sources/procfs/stop");
        check("start procfs", "POST /v1/sources/procfs/start");
        check("interval net/dev 100ms", "POST /v1/groups/net%2Fdev/interval?value=100ms");
        check("interval net/dev 1us", "an interval of 1us is too short; the shortest is 1ms");
        check("reload", "POST /v1/reload");
        check("plugin list", "GET /v1/plugins");
        check("plugin load snmp", "POST /v1/plugins/snmp/load");
        check("plugin unload snmp", "POST /v1/plugins/snmp/unload");
        check("plugin restart snmp", "POST /v1/plugins/snmp/restart");
        check("jobs", "GET /v1/jobs");
        check("job 4711.pbs/1", "GET /v1/jobs/4711.pbs%2F1");
        check("rules", "GET /v1/rules");
        check(
            "rule add --job 4711 --metrics perf/* --metrics cpu/* --every 1ms --for 10m",
            r#"POST /v1/rules {"every":"1ms","for":"10min","jobs":"4711","metrics":["perf/*","cpu/*"]}"#,
        );
        check(
            "rule add --metrics ** --every 1ms --accumulate 1s --quantiles 0.5,0.99 --dry-run",
            r#"POST /v1/rules?try=1 {"accumulate":{"quantiles":[0.5,0.99],"window":"1s"},"every":"1ms","metrics":["**"]}"#,
        );
        check("rule remove 10001", "DELETE /v1/rules/10001");
        check("log", "GET /v1/log");
        check("log debug --for 10min", "POST /v1/log?level=debug&for=10min");
    }
}
