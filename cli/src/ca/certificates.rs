//! `wholegrain ca list`, `show`, `server` and `revoke`.

use std::path::{Path, PathBuf};

use clap::Args;
use wholegrain_model::Timestamp;
use wholegrain_server::access::audit::AuditEvent;
use wholegrain_server::authority::{self, IssuedCertificate};

use crate::auth::files::{ServerFiles, ServerOption};
use crate::failure::Failure;
use crate::init::failed;
use crate::output::table::Table;
use crate::output::values::now;
use crate::output::{JsonLinesOption, print, print_json_lines, write_properties};

/// A certificate that expires within this number of days has the state `ends soon`.
const SOON_DAYS: i64 = 30;
const DAY_NS: i64 = 86_400_000_000_000;

const SERVER_EXAMPLES: &str = "\
The new certificate keeps the key and, without --only, the names of the old one. A running server uses it after a reload or a restart.

Examples:
  wholegrain ca server                          the same names, five more years
  wholegrain ca server --host monitor.example --host 10.0.0.7";

const LIST_EXAMPLES: &str = "\
Examples:
  wholegrain ca list
  wholegrain ca list --dir /etc/wholegrain --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  wholegrain ca show var/server/server.pem
  wholegrain ca show var/agents/node0042.pem --json";

const REVOKE_EXAMPLES: &str = "\
Writes the serial number of the agent's certificate to the server's file of revoked certificates, and renames certificate and key, so \
that `wholegrain ca agent NAME` makes new ones. A running server refuses the old certificate within seconds and ends its connections. \
--all revokes every certificate of this name, also lost and later ones, until the line is removed from the file.

Examples:
  wholegrain ca revoke node0042
  wholegrain ca revoke node0042 --all --server-config /etc/wholegrain/server.toml";

/// List the installation's certificates and when they expire
#[derive(Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListCertificatesArgs {
    /// The directory of the installation
    #[arg(long, default_value = "var", value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    json: JsonLinesOption,
    #[command(flatten)]
    server: ServerOption,
}

/// Show the certificates of a file: names, issuer, serial number, when they expire
#[derive(Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct ShowCertificateArgs {
    /// A PEM file of one or more certificates
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    json: JsonLinesOption,
    #[command(flatten)]
    server: ServerOption,
}

/// Make a new certificate for the server
#[derive(Args)]
#[command(after_help = SERVER_EXAMPLES)]
pub struct ServerArgs {
    /// The directory of the installation, with ca.pem and ca.key
    #[arg(long, default_value = "var", value_name = "DIR")]
    dir: PathBuf,
    /// Another name or address of the server for agents and clients; can be repeated
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Only these names, this host's name and localhost, not the names of the old certificate
    #[arg(long)]
    only: bool,
    #[command(flatten)]
    server: ServerOption,
}

/// Revoke the certificate of an agent
#[derive(Args)]
#[command(after_help = REVOKE_EXAMPLES)]
pub struct RevokeArgs {
    /// The name of the agent
    #[arg(value_name = "NAME")]
    name: String,
    /// The directory of the installation
    #[arg(long, default_value = "var", value_name = "DIR")]
    dir: PathBuf,
    /// Revoke every certificate of this name, also later ones
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    server: ServerOption,
}

/// The files of the named server, or of the server of the installation.
fn files(option: &ServerOption, dir: &Path) -> Result<Option<ServerFiles>, Failure> {
    let own = dir.join("server/server.toml");
    option.find_or(own.exists().then_some(own))
}

pub fn list(args: &ListCertificatesArgs) -> Result<(), Failure> {
    let server = files(&args.server, &args.dir)?;
    let all = authority::list(&args.dir, revoked(server.as_ref())).map_err(failed)?;
    let now = now();
    args.json.print(all.iter().map(|certificate| properties(certificate, now)), || {
        Table::of(
            &all,
            &[
                ("NAME", &|one| one.info.name.clone()),
                ("STATE", &|one| state(one, now).to_owned()),
                ("UNTIL", &|one| one.info.until.to_string()),
                (">DAYS", &|one| days_left(one, now).to_string()),
                ("FILE", &|one| one.path.display().to_string()),
            ],
        )
    })
}

pub fn show(args: &ShowCertificateArgs) -> Result<(), Failure> {
    let server = args.server.find()?;
    let all = authority::show(&args.file, revoked(server.as_ref())).map_err(failed)?;
    if args.json.json {
        let now = now();
        return print_json_lines(all.iter().map(|certificate| properties(certificate, now)));
    }
    print_details(&all)
}

pub fn server(args: &ServerArgs) -> Result<(), Failure> {
    let path = authority::renew_server(&args.dir, &args.host, args.only).map_err(failed)?;
    let server = files(&args.server, &args.dir)?;
    let shown = authority::show(&path, revoked(server.as_ref())).map_err(failed)?;
    if let (Some(server), Some(made)) = (&server, shown.first()) {
        server.audit(AuditEvent::CertificateIssue, &format!("server, valid for {}", made.info.names.join(", ")));
    }
    print_details(&shown)?;
    eprintln!("Made {}. The server uses it after a reload or a restart.", path.display());
    Ok(())
}

pub fn revoke(args: &RevokeArgs) -> Result<(), Failure> {
    let Some(server) = files(&args.server, &args.dir)? else {
        return Err(Failure::Usage(format!(
            "found no server.toml below {}, which names the file of revoked certificates; name it with --server-config FILE",
            args.dir.display()
        )));
    };
    let (name, file) = (&args.name, &server.files.revoked);
    let report = authority::revoke(&args.dir, file, name, args.all).map_err(failed)?;
    let serials = report.serials.iter().map(|serial| format!("serial {serial}"));
    let revoked: Vec<String> = serials.chain(report.all.then(|| "every certificate of this name".to_owned())).collect();
    let revoked = revoked.join(", ");
    server.audit(AuditEvent::CertificateRevoke, &format!("{name}: {revoked}"));
    eprintln!("Revoked {name} in {}: {revoked}. The server refuses it within seconds.", file.display());
    report.moved.iter().for_each(|path| eprintln!("moved {}", path.display()));
    if !args.all {
        eprintln!("To make a new one: wholegrain ca agent {name} --dir {}", args.dir.display());
    }
    Ok(())
}

fn revoked(server: Option<&ServerFiles>) -> Option<&Path> {
    server.map(|server| server.files.revoked.as_path())
}

fn state(certificate: &IssuedCertificate, now: Timestamp) -> &'static str {
    match certificate.info.until.0 - now.0 {
        _ if certificate.revoked => "revoked",
        left if left <= 0 => "expired",
        left if left < SOON_DAYS * DAY_NS => "ends soon",
        _ if certificate.info.from > now => "not yet",
        _ => "good",
    }
}

fn days_left(certificate: &IssuedCertificate, now: Timestamp) -> i64 {
    (certificate.info.until.0 - now.0).div_euclid(DAY_NS)
}

fn properties(certificate: &IssuedCertificate, now: Timestamp) -> serde_json::Value {
    let IssuedCertificate { path, info, .. } = certificate;
    serde_json::json!({
        "file": path, "name": info.name, "state": state(certificate, now), "from": info.from.to_string(),
        "until": info.until.to_string(), "days_left": days_left(certificate, now), "issuer": info.issuer, "serial": info.serial,
        "names": info.names, "authority": info.is_authority,
    })
}

fn print_details(all: &[IssuedCertificate]) -> Result<(), Failure> {
    let now = now();
    print(|style, out| {
        all.iter().try_for_each(|certificate| {
            let info = &certificate.info;
            let properties = [
                ("file", certificate.path.display().to_string()),
                ("name", info.name.clone()),
                ("state", state(certificate, now).to_owned()),
                ("from", info.from.to_string()),
                ("until", format!("{} ({} days)", info.until, days_left(certificate, now))),
                ("valid for", info.names.join(", ")),
                ("issuer", info.issuer.clone()),
                ("serial", info.serial.clone()),
            ];
            write_properties(&properties, style, out)
        })
    })
}
