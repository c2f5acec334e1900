//! `wholegrain auth user`: the server's file of users with passwords.

use std::io::Write;
use std::path::Path;

use clap::{Args, Subcommand};
use wholegrain_server::access::audit::AuditEvent;
use wholegrain_server::access::passwords::hash_password;
use wholegrain_server::access::users::{self, UserChange};

use super::files::{ServerFiles, ServerOption, failed};
use super::password;
use crate::failure::Failure;
use crate::output::{JsonLinesOption, print, print_json_lines};

const EXAMPLES: &str = "\
A user is an agent or another MQTT client with a password instead of a certificate. The user's name is its identity, so an agent's \
user has the agent's name. The command reads the password from the terminal, or one line of standard input. A running server applies \
the change within seconds, and ends the connections of removed users and of users with a new password.

Examples:
  wholegrain auth user add node0042
  openssl rand -base64 24 | tee password | wholegrain auth user add node0042
  wholegrain auth user list
  wholegrain auth user passwd node0042
  wholegrain auth user remove node0042";

/// Add, list and remove users with passwords
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct UserArgs {
    #[command(subcommand)]
    command: UserCommand,
    #[command(flatten)]
    server: ServerOption,
}

#[derive(Subcommand)]
enum UserCommand {
    /// Add a user; reads the password from the terminal or standard input
    #[command(after_help = EXAMPLES)]
    Add(NameArgument),
    /// List the users with passwords
    #[command(after_help = EXAMPLES)]
    List(JsonLinesOption),
    /// Remove a user and end its connections
    #[command(after_help = EXAMPLES)]
    Remove(NameArgument),
    /// Change the password of a user
    #[command(after_help = EXAMPLES)]
    Passwd(NameArgument),
}

#[derive(Args)]
struct NameArgument {
    /// The user: an agent's name, one level of a sensor path
    #[arg(value_name = "NAME")]
    name: String,
}

pub fn run(args: &UserArgs) -> Result<(), Failure> {
    if let UserCommand::Add(NameArgument { name }) | UserCommand::Passwd(NameArgument { name }) = &args.command {
        check(name)?;
    }
    let server = args.server.load()?;
    let Some(path) = &server.files.passwords else {
        return Err(Failure::Usage(format!(
            "{} has no password_file; add password_file = \"passwords\" to its [mqtt] and restart the server",
            server.config.display()
        )));
    };
    match &args.command {
        UserCommand::Add(NameArgument { name }) => set(&server, path, name, UserChange::Added),
        UserCommand::Passwd(NameArgument { name }) => set(&server, path, name, UserChange::Changed),
        UserCommand::Remove(NameArgument { name }) => {
            users::remove(path, name).map_err(failed)?;
            server.audit(AuditEvent::UserRemove, name);
            eprintln!(
                "User {name} is removed from {}; the server ends its connections within seconds.",
                path.display()
            );
            Ok(())
        }
        UserCommand::List(list) => show(&users::list(path).map_err(failed)?, list),
    }
}

fn set(server: &ServerFiles, path: &Path, name: &str, expected: UserChange) -> Result<(), Failure> {
    // Checked before the user types a password in vain.
    let there = users::list(path).map_err(failed)?.iter().any(|user| user == name);
    if there == (expected == UserChange::Added) {
        return Err(match expected {
            UserChange::Added => Failure::Usage(format!(
                "user {name:?} is in {} already; `wholegrain auth user passwd {name}` changes the password",
                path.display()
            )),
            UserChange::Changed => Failure::Usage(format!(
                "no user {name:?} in {}; `wholegrain auth user add {name}` adds it",
                path.display()
            )),
        });
    }
    let hash = hash_password(&password::read(Some(name))?).map_err(Failure::Failed)?;
    users::set(path, name, &hash, expected).map_err(failed)?;
    let (event, did) = match expected {
        UserChange::Added => (AuditEvent::UserAdd, "is in"),
        UserChange::Changed => (AuditEvent::UserPassword, "has another password in"),
    };
    server.audit(event, name);
    eprintln!("User {name} {did} {}; a running server applies it within seconds.", path.display());
    Ok(())
}

fn show(names: &[String], json: &JsonLinesOption) -> Result<(), Failure> {
    if json.json {
        return print_json_lines(names.iter().map(|name| serde_json::json!({ "name": name })));
    }
    if names.is_empty() {
        eprintln!("No users; `wholegrain auth user add NAME` adds one.");
    }
    print(|_, out| names.iter().try_for_each(|name| writeln!(out, "{name}")))
}

/// Checks a name: it must be a valid agent name, and the file's first `:` ends it.
pub fn check(user: &str) -> Result<(), Failure> {
    let reason = match wholegrain_model::name::check_relative(user) {
        Err(error) => error.to_string(),
        Ok(()) if user.contains(['/', ':']) => "expected one level of a sensor path, without `/` and `:`".to_owned(),
        Ok(()) if user.starts_with('#') => "a line that begins with # is a comment".to_owned(),
        Ok(()) => return Ok(()),
    };
    Err(Failure::Usage(format!("{user:?} cannot be a user's name: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_cannot_be() {
        for user in ["", "a/b", "a:b", "a b", "#a"] {
            assert!(check(user).is_err(), "{user:?}");
        }
        check("node-0042.rack7").unwrap();
    }
}
