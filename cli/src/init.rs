//! `wholegrain init`: makes the files of a new installation.

use std::path::PathBuf;

use clap::Args;
use wholegrain_server::init::InitError;
use wholegrain_server::{InitOptions, InitReport};

use crate::failure::Failure;

const EXAMPLES: &str = "\
Existing files are kept.

Examples:
  wholegrain init                        into ./var, for this machine only
  wholegrain init /etc/wholegrain --listen '[::]' --host monitor.example
                                         for agents on other machines as well
  wholegrain init --system /etc/wholegrain --host monitor.example
                                         the secrets of a packaged installation
  wholegrain init --cassandra /etc/wholegrain
                                         the keyspace that [store.cassandra] of server.toml names
  wholegrain ca agent node0042           then adds an agent";

/// Make the files of a new installation: authority, certificates, token, configurations
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct InitArgs {
    /// The directory of the installation
    #[arg(default_value = "var", value_name = "DIR")]
    dir: PathBuf,
    /// Only the missing files of a packaged installation: authority, certificate, token and client.toml, for the server.toml in DIR
    #[arg(long, conflicts_with_all = ["agent", "listen", "mqtt_port"])]
    system: bool,
    /// Only the keyspace in Cassandra that the server.toml in DIR names, with its tables; existing ones are brought up to date
    #[arg(long, conflicts_with_all = ["system", "agent", "listen", "host", "mqtt_port", "http_port"])]
    cassandra: bool,
    /// The name of this machine's agent [default: the host's name]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The host or address on which the server listens: localhost for clients of this machine only, '[::]' for all
    #[arg(long, default_value = "localhost", value_name = "HOST")]
    listen: String,
    /// Another name or address of the server for its certificate, besides this host's name and localhost; can be repeated
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Port for MQTT over TLS, for agents
    #[arg(long, default_value_t = 8883, value_name = "PORT")]
    mqtt_port: u16,
    /// Port for HTTPS, for `wholegrain query` and other clients
    #[arg(long, default_value_t = 8443, value_name = "PORT")]
    http_port: u16,
}

pub fn run(args: &InitArgs) -> Result<(), Failure> {
    if args.cassandra {
        let keyspace = wholegrain_server::init_cassandra(&args.dir);
        let keyspace = keyspace.map_err(|error| Failure::Failed(format!("{error:#}")))?;
        println!("the keyspace {keyspace} is ready");
        return Ok(());
    }
    let options = InitOptions {
        agent: args.agent.clone(),
        listen_host: args.listen.clone(),
        reached_as: args.host.clone(),
        mqtt_port: args.mqtt_port,
        http_port: args.http_port,
    };
    if args.system {
        print_files(&wholegrain_server::init_system(&args.dir, &options).map_err(failed)?);
        return Ok(());
    }
    let report = wholegrain_server::init(&args.dir, &options).map_err(failed)?;
    print_files(&report);
    let dir = args.dir.display();
    println!("\nNext: wholegrain server --config {dir}/server/server.toml");
    println!("      wholegrain-agent --config {dir}/agent/agent.toml");
    println!("Another node: wholegrain ca agent NAME --dir {dir}");
    Ok(())
}

/// Prints the files that were made, changed and kept.
pub fn print_files(report: &InitReport) {
    for (verb, paths) in [("made", &report.created), ("changed", &report.changed), ("kept", &report.kept)] {
        paths.iter().for_each(|path| println!("{verb} {}", path.display()));
    }
}

/// Maps an error to a wrong command line or a failure.
pub fn failed(error: InitError) -> Failure {
    match error {
        InitError::Name(..) | InitError::Address(_) | InitError::NoAuthority { .. } | InitError::Refused(_) => {
            Failure::Usage(error.to_string())
        }
        InitError::File(error) => crate::auth::files::failed(error),
        error => Failure::Failed(error.to_string()),
    }
}
