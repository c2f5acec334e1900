//! `wholegrain server`: the server in this process.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use wholegrain_server::ServerConfig;

use crate::failure::{EXIT_CODES, Failure};

const EXAMPLES: &str = "\
Examples:
  wholegrain server --config var/server/server.toml --check
  wholegrain server --config /etc/wholegrain/server.toml";

/// Run the server: takes what agents publish, keeps it, and answers
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct ServerArgs {
    /// Its configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Only read the configuration, say what it means, and end
    #[arg(long)]
    check: bool,
}

/// Runs the subcommand; ends on SIGINT or SIGTERM.
pub fn run(args: &ServerArgs) -> Result<(), Failure> {
    let config = ServerConfig::load(&args.config).map_err(|error| Failure::Usage(error.to_string()))?;
    if args.check {
        let off = || "off".to_owned();
        println!("{} is good", args.config.display());
        println!("data      {}", config.data.display());
        println!("MQTT/TLS  {}", config.mqtt.tls_listen.clone().unwrap_or_else(off));
        println!("MQTT      {}", config.mqtt.listen.clone().unwrap_or_else(off));
        println!("HTTPS     {}", config.http.listen.clone().unwrap_or_else(off));
        return Ok(());
    }
    tracing_subscriber::fmt()
        .with_max_level(config.log.filter())
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
        .with_target(false)
        .init();
    // The server itself logs where it listens.
    wholegrain_server::run_until_signal(config, |_| {})?;
    Ok(())
}
