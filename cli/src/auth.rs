//! `wholegrain auth`: users with passwords, and tokens.

use std::io::Write;

use clap::{Args, Subcommand};
use wholegrain_server::access::passwords::hash_password;

use crate::failure::Failure;
use crate::output::print;

pub mod files;
mod password;
mod token;
mod user;

const EXAMPLES: &str = "\
Users are agents and other MQTT clients with a password instead of a certificate. Tokens are for HTTP: for people, \
dashboards, and programs that write readings. A running server applies changes within seconds.

Examples:
  wholegrain auth user add node0042
  wholegrain auth token create grafana --role user --expires 90d
  wholegrain auth token list";

const HASH_EXAMPLES: &str = "\
The command reads the password from the terminal without echo, or one line of standard input; on the command line other users \
could see it. `wholegrain auth user add` does this and the rest in one step on the server's machine. The agent's [mqtt] needs \
user and password_file, a file with the password in its first line.

Examples:
  wholegrain auth hash --user node0042 >> /etc/wholegrain/passwords
  openssl rand -base64 24 | tee password | wholegrain auth hash --user node0042";

/// Manage users with passwords, and tokens with roles
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct AuthArgs {
    #[command(subcommand)]
    command: AuthCommand,
}

#[derive(Subcommand)]
enum AuthCommand {
    User(user::UserArgs),
    Token(token::TokenArgs),
    Hash(HashArgs),
}

/// Read a password and print its hash, for a password file on another machine
#[derive(Args)]
#[command(after_help = HASH_EXAMPLES)]
struct HashArgs {
    /// Print a whole line of the password file, NAME:HASH; the user is the agent's name [default: the hash alone]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

pub fn run(args: &AuthArgs) -> Result<(), Failure> {
    match &args.command {
        AuthCommand::User(args) => user::run(args),
        AuthCommand::Token(args) => token::run(args),
        AuthCommand::Hash(args) => hash(args),
    }
}

fn hash(args: &HashArgs) -> Result<(), Failure> {
    let user = args.user.as_deref();
    if let Some(user) = user {
        user::check(user)?;
    }
    let hash = hash_password(&password::read(user)?).map_err(Failure::Failed)?;
    let line = user.map_or_else(|| format!("{hash}\n"), |user| format!("{user}:{hash}\n"));
    print(|_, out| out.write_all(line.as_bytes()))
}
