//! `wholegrain ca`: the certificate authority of the installation.

mod certificates;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use wholegrain_model::SensorPath;
use wholegrain_server::AgentOptions;

use crate::failure::Failure;
use crate::init::{failed, print_files};

const EXAMPLES: &str = "\
Examples:
  wholegrain ca agent node0042
  wholegrain ca agent node0042 --prefix /lab/rack07/node0042 --server monitor.example:8883
  wholegrain ca list
  wholegrain ca show var/server/server.pem
  wholegrain ca server --host monitor.example
  wholegrain ca revoke node0042";

const AGENT_EXAMPLES: &str = "\
Makes agents/NAME.pem, agents/NAME.key and agents/NAME.toml in the installation's directory, and prints what to copy to the node. \
Existing files are kept. Run the command on the machine with the authority's key, where `wholegrain init` or `wholegrain up` ran. The \
server need not run, and needs no reload.

Examples:
  wholegrain ca agent node0042
  wholegrain ca agent node0042 --prefix /lab/rack07/node0042 --server monitor.example:8883
  for node in node0001 node0002; do wholegrain ca agent $node --dir /etc/wholegrain; done";

/// Make, list and revoke certificates of agents and the server
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
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

/// Make certificate, key and configuration for the agent of another node
#[derive(Args)]
#[command(after_help = AGENT_EXAMPLES)]
struct AgentArgs {
    /// The agent's name, usually the node's: one level of a sensor path
    #[arg(value_name = "NAME")]
    name: String,
    /// The directory of the installation, with ca.pem and ca.key
    #[arg(long, default_value = "var", value_name = "DIR")]
    dir: PathBuf,
    /// The path above the agent's sensors; NAME should be one of its levels [default: /NAME]
    #[arg(long, value_name = "PATH")]
    prefix: Option<SensorPath>,
    /// The address of the server for the agent [default: this host's name and the port of server.toml]
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
        println!("\n{} existed and is unchanged: --prefix and --server had no effect.", toml.display());
    }
    let name = &args.name;
    let files: Vec<String> = report.to_copy.iter().map(|path| path.display().to_string()).collect();
    println!(
        "\nCopy these files into one directory on the node, which needs the program wholegrain-agent, and start it:"
    );
    println!("  ssh {name} mkdir -p /etc/wholegrain");
    println!("  scp {} {name}:/etc/wholegrain/", files.join(" "));
    println!("  ssh {name} wholegrain-agent --config /etc/wholegrain/{name}.toml");
    println!("\nThe agent sends to {}. `wholegrain sensors` lists its sensors.", report.server);
    let server_toml = args.dir.join("server/server.toml");
    let server_toml = server_toml.display();
    if let Some(address) = &report.listens_only_here {
        let port = address.rsplit_once(':').map_or("8883", |(_, port)| port);
        println!(
            "\nNote: the server listens on {address}, which other machines cannot reach. Set tls_listen = \"[::]:{port}\" in \
             {server_toml} and restart the server."
        );
    }
    if let Some(names) = &report.certificate_names {
        println!(
            "\nNote: the server's certificate is valid for {}, not for the host of {}; agents will refuse it. Name one of \
             these with --server, or add the host with `wholegrain ca server --dir {dir} --host NAME` and restart the server.",
            names.join(", "),
            report.server,
            dir = args.dir.display()
        );
    }
    if report.prefix_must_be_listed {
        println!(
            "\nNote: {name} is not a level of the prefix, so the server accepts its sensors only if {server_toml} lists the prefix in \
             [mqtt.prefixes]."
        );
    }
    Ok(())
}
