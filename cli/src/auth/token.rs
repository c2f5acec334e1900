//! `wholegrain auth token`: the server's file of bearer tokens.

use std::io::Write;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use wholegrain_model::{Interval, Timestamp};
use wholegrain_server::access::Role;
use wholegrain_server::access::audit::AuditEvent;
use wholegrain_server::access::tokens::{self, NewToken, TokenEntry};

use super::files::{ServerOption, failed};
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::values::now;
use crate::output::{JsonLinesOption, print};

const EXAMPLES: &str = "\
A new token is printed once, on standard output; the server keeps only its hash. A running server applies changes within seconds. \
Revoking a token also ends its streams.

Roles:
  admin    reads, writes and administers everything
  support  reads readings, and metrics and status of the server
  user     reads readings, and changes the sampling of own jobs
  agent    writes readings, and reads nothing

Examples:
  wholegrain auth token create grafana --role user --expires 90d
  wholegrain auth token create telegraf --role agent > telegraf.token
  wholegrain auth token list
  wholegrain auth token revoke grafana";

/// Make, list and revoke tokens for HTTP
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
    #[command(flatten)]
    server: ServerOption,
}

#[derive(Subcommand)]
enum TokenCommand {
    /// Make a token and print it
    #[command(after_help = EXAMPLES)]
    Create(CreateArgs),
    /// List tokens with ids, names and roles, without their secrets
    #[command(after_help = EXAMPLES)]
    List(JsonLinesOption),
    /// Revoke a token at once
    #[command(after_help = EXAMPLES)]
    Revoke(RevokeArgs),
}

#[derive(Args)]
struct CreateArgs {
    /// The owner or the purpose of the token
    #[arg(value_name = "NAME")]
    name: String,
    /// The role, which decides the permissions
    #[arg(long, value_parser = role_parser())]
    role: Role,
    /// The end of its validity: a length of time such as 90d, a date, or never
    #[arg(long, value_name = "WHEN", default_value = "never")]
    expires: String,
    /// Print a JSON object with the token and its properties
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct RevokeArgs {
    /// The token's id; or a name, for all tokens with it
    #[arg(value_name = "ID|NAME")]
    token: String,
}

fn role_parser() -> impl TypedValueParser<Value = Role> {
    let role = |name: String| Role::parse(&name).ok_or("expected the name of a role");
    PossibleValuesParser::new(Role::ALL.map(Role::name)).try_map(role)
}

pub fn run(args: &TokenArgs) -> Result<(), Failure> {
    let create = match &args.command {
        TokenCommand::Create(create) => Some((create, expires(&create.expires, now())?)),
        _ => None,
    };
    let server = args.server.load()?;
    let path = &server.files.tokens;
    match &args.command {
        TokenCommand::List(list) => show(&tokens::list(path).map_err(failed)?, list),
        TokenCommand::Revoke(RevokeArgs { token }) => {
            for entry in tokens::revoke(path, token, now()).map_err(failed)? {
                server.audit(AuditEvent::TokenRevoke, &described(&entry));
                eprintln!("Revoked {}; the server refuses it within seconds.", described(&entry));
            }
            Ok(())
        }
        TokenCommand::Create(_) => {
            let Some((create, expires)) = create else { return Ok(()) };
            let new = NewToken { name: create.name.clone(), role: create.role, expires };
            let (token, entry) = tokens::create(path, &new, now()).map_err(failed)?;
            server.audit(AuditEvent::TokenCreate, &described(&entry));
            let until = entry.expires.as_deref().map_or("does not expire".to_owned(), |when| format!("expires {when}"));
            eprintln!("Made {}; it {until}. The token is printed only now:", described(&entry));
            let text = if create.json { with_token(&entry, &token) } else { token };
            print(|_, out| writeln!(out, "{text}"))
        }
    }
}

fn described(entry: &TokenEntry) -> String {
    format!("token {} {:?} of role {}", entry.id, entry.name, entry.role)
}

fn with_token(entry: &TokenEntry, token: &str) -> String {
    let TokenEntry { id, name, role, created, expires, .. } = entry;
    serde_json::json!({ "token": token, "id": id, "name": name, "role": role, "created": created, "expires": expires })
        .to_string()
}

/// `never`, a length of time from `now`, or an instant.
fn expires(text: &str, now: Timestamp) -> Result<Option<Timestamp>, Failure> {
    if text == "never" {
        return Ok(None);
    }
    let length =
        Interval::parse(text).ok().map(|length| now.saturating_add(i64::try_from(length.ns()).unwrap_or(i64::MAX)));
    let end = match length {
        Some(end) => end,
        None => Timestamp::parse(text, now).map_err(|_| {
            Failure::Usage(format!(
                "--expires {text:?}: write a length of time such as 90d, a date such as 2027-01-31, or never"
            ))
        })?,
    };
    if end <= now {
        return Err(Failure::Usage(format!("--expires {text:?} is in the past; write a length of time such as 90d")));
    }
    Ok(Some(end))
}

fn state(entry: &TokenEntry, now: Timestamp) -> &'static str {
    let over = |text: &String| Timestamp::parse(text, now).is_ok_and(|end| end <= now);
    match entry {
        TokenEntry { revoked: Some(_), .. } => "revoked",
        TokenEntry { expires: Some(end), .. } if over(end) => "expired",
        _ => "good",
    }
}

fn show(entries: &[TokenEntry], json: &JsonLinesOption) -> Result<(), Failure> {
    let now = now();
    let properties = |entry: &TokenEntry| {
        let TokenEntry { id, name, role, created, expires, revoked, .. } = entry;
        serde_json::json!({
            "id": id, "name": name, "role": role, "state": state(entry, now), "created": created, "expires": expires, "revoked": revoked,
        })
    };
    json.print(entries.iter().map(properties), || {
        Table::of(
            entries,
            &[
                ("ID", &|entry| entry.id.clone()),
                ("NAME", &|entry| entry.name.clone()),
                ("ROLE", &|entry| entry.role.to_string()),
                ("STATE", &|entry| state(entry, now).to_owned()),
                ("CREATED", &|entry| entry.created.clone()),
                ("EXPIRES", &|entry| entry.expires.clone().unwrap_or_else(|| "never".to_owned())),
            ],
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends() {
        let now = Timestamp(1_769_860_800_000_000_000);
        let at = |text: &str| expires(text, now).map(|end| end.map(|end| end.to_string()));
        assert_eq!(at("never").unwrap(), None);
        assert_eq!(at("90d").unwrap().as_deref(), Some("2026-05-01T12:00:00Z"));
        assert_eq!(at("2027-01-31").unwrap().as_deref(), Some("2027-01-31T00:00:00Z"));
        for bad in ["90", "soon", "2020-01-01", "-1h", "now"] {
            assert!(matches!(at(bad), Err(Failure::Usage(_))), "{bad}");
        }
    }
}
