//! `wholegrain ca`: the certificate authority of the installation.

mod certificates;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use wholegrain_model::SensorPath;
use wholegrain_server::AgentOptions;

use crate::failure::{EXIT_CODES, Failure};
use crate::init::{failed, print_files};

const EXAMPLES: &str = "\
Examples:
  wholegrain ca agent node0042
  wholegrain ca agent node0042 --prefix /lab/rack07/node0042 --server monitor.example:8883
  wholegrain ca list
  wholegrain ca server --host monitor.example
  wholegrain ca revoke node0042";

const AGENT_EXAMPLES: &str = "\
Makes agents/NAME.pem, agents/NAME.key and agents/NAME.toml in the installation's directory, and prints what to copy to the node. \
Existing files are kept. Run it where the authority's key is, on the machine of `wholegrain init` or `wholegrain up`. The server need \
not run, and needs no reload.

Examples:
  wholegrain ca agent node0042
  wholegrain ca agent node0042 --prefix /lab/rack07/node0042 --server monitor.example:8883
  for node in node0001 node0002; do wholegrain ca agent $node --dir /etc/wholegrain; done";

/// Make, list and revoke certificates of agents and the server
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"), arg_required_else_help = true)]
pub struct CaArgs {
    #[command(subcommand)]
    command: CaCommand,
}

#[derive(Subcommand)]
enum CaCommand {
    Agent(AgentArgs),
    List(certificates::ListCertificatesArgs),
    Show(certificates::ShowCertificateArgs),
    Server(certificates::ServerArgs),
    Revoke(certificates::RevokeArgs),
}

/// Make certificate, key and configuration of one more node's agent
#[derive(Args)]
#[command(after_help = format!("{AGENT_EXAMPLES}\n\n{EXIT_CODES}"))]
struct AgentArgs {
    /// The agent's name, usually the node's: one level of a sensor path
    #[arg(value_name = "NAME")]
    name: String,
    /// The installation's directory, in which ca.pem and ca.key are
    #[arg(long, default_value = "var", value_name = "DIR")]
    dir: PathBuf,
    /// What the agent's sensors are below; NAME should be one of its levels [default: /NAME]
    #[arg(long, value_name = "PATH")]
    prefix: Option<SensorPath>,
    /// Where the agent reaches the server [default: this host's name and the port of server.toml]
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
}

pub fn run(args: &CaArgs) -> Result<(), Failure> {
    match &args.command {
        CaCommand::Agent(args) => agent(args),
        CaCommand::List(args) => certificates::list(args),
        CaCommand::Show(args) => certificates::show(args),
        CaCommand::Server(args) => certificates::server(args),
        CaCommand::Revoke(args) => certificates::revoke(args),
    }
}

fn agent(args: &AgentArgs) -> Result<(), Failure> {
    let options = AgentOptions { name: args.name.clone(), prefix: args.prefix.clone(), server: args.server.clone() };
    let report = wholegrain_server::add_agent(&args.dir, &options).map_err(failed)?;
    print_files(&report.files);
    let [.., toml] = &report.to_copy;
    if report.files.kept.contains(toml) && (args.prefix.is_some() || args.server.is_some()) {
        println!("\n{} was there and is as it was: --prefix and --server changed nothing.", toml.display());
    }
    let name = &args.name;
    let files: Vec<String> = report.to_copy.iter().map(|path| path.display().to_string()).collect();
    println!("\nCopy these into one directory on the node, where the program wholegrain-agent is, and start it:");
    println!("  ssh {name} mkdir -p /etc/wholegrain");
    println!("  scp {} {name}:/etc/wholegrain/", files.join(" "));
    println!("  ssh {name} wholegrain-agent --config /etc/wholegrain/{name}.toml");
    println!("\nIt sends to {}. Its sensors appear in: wholegrain sensors", report.server);
    let server_toml = args.dir.join("server/server.toml");
    let server_toml = server_toml.display();
    if let Some(address) = &report.listens_only_here {
        let port = address.rsplit_once(':').map_or("8883", |(_, port)| port);
        println!(
            "\nNote: the server listens on {address}, which other machines cannot reach. Set tls_listen = \"[::]:{port}\" in \
             {server_toml} and start it again."
        );
    }
    if let Some(names) = &report.certificate_names {
        println!(
            "\nNote: the server's certificate is good for {}, and not for the host of {}; agents will refuse it. Name one of \
             these with --server, or make it good for more with `wholegrain ca server --dir {dir} --host NAME` and start the server \
             again.",
            names.join(", "),
            report.server,
            dir = args.dir.display()
        );
    }
    if report.prefix_must_be_listed {
        println!(
            "\nNote: {name} is no level of the prefix, so the server takes its sensors only if {server_toml} lists it under \
             [mqtt.prefixes]."
        );
    }
    Ok(())
}
