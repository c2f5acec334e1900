//! `wholegrain ca list`, `show`, `server` and `revoke`: certificates that are there already.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use wholegrain_model::Timestamp;
use wholegrain_server::access::audit::AuditEvent;
use wholegrain_server::authority::{self, IssuedCertificate};

use crate::auth::files::{ServerFiles, ServerOption, now};
use crate::failure::{EXIT_CODES, Failure};
use crate::init::failed;
use crate::output::style;
use crate::output::table::Table;

/// A certificate that ends within so many days is shown as one that ends soon.
const SOON_DAYS: i64 = 30;
const DAY_NS: i64 = 86_400_000_000_000;

const SERVER_EXAMPLES: &str = "\
The key stays, and so do the names that the certificate is good for already, unless --only. A running server shows the new \
certificate after a reload or a restart.

Examples:
  wholegrain ca server                          the same names, five more years
  wholegrain ca server --host monitor.example --host 10.0.0.7";

const REVOKE_EXAMPLES: &str = "\
Writes the serial number of the agent's certificate into the server's file of revoked certificates, and sets certificate and key \
aside, so that `wholegrain ca agent NAME` makes new ones. A running server refuses the old certificate within seconds and ends \
its connections. A certificate that is not here any more is revoked with --all, by its name: then no certificate of that name \
counts, nor will one, until the line is taken out of the file.

Examples:
  wholegrain ca revoke node0042
  wholegrain ca revoke node0042 --all --server-config /etc/wholegrain/server.toml";

/// List the installation's certificates and when they end
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct ListCertificatesArgs {
    /// The directory of the installation
    #[arg(long, default_value = "var", value_name = "DIR")]
    dir: PathBuf,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerOption,
}

/// Show what a certificate's file says: name, names it is good for, issuer, serial number, when it ends
#[derive(Args)]
#[command(after_help = EXIT_CODES)]
pub struct ShowCertificateArgs {
    /// A PEM file of one or more certificates
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerOption,
}

/// Make a new certificate for the server
#[derive(Args)]
#[command(after_help = format!("{SERVER_EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct ServerArgs {
    /// The installation's directory, in which ca.pem and ca.key are
    #[arg(long, default_value = "var", value_name = "DIR")]
    dir: PathBuf,
    /// Another name or address under which agents and clients reach the server. May be given several times
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    /// Only these, this host's name and localhost; not those of the old certificate
    #[arg(long)]
    only: bool,
    #[command(flatten)]
    server: ServerOption,
}

/// Revoke the certificate of an agent
#[derive(Args)]
#[command(after_help = format!("{REVOKE_EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct RevokeArgs {
    /// The name of the agent
    #[arg(value_name = "NAME")]
    name: String,
    /// The directory of the installation
    #[arg(long, default_value = "var", value_name = "DIR")]
    dir: PathBuf,
    /// Every certificate of that name, wherever it is, also later ones
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    server: ServerOption,
}

/// The server of the installation: the one named, or that of the directory.
fn files(option: &ServerOption, dir: &std::path::Path) -> Result<Option<ServerFiles>, Failure> {
    let own = dir.join("server/server.toml");
    option.find_or(own.exists().then_some(own))
}

pub fn list(args: &ListCertificatesArgs) -> Result<(), Failure> {
    let server = files(&args.server, &args.dir)?;
    let revoked = server.as_ref().map(|server| server.files.revoked.as_path());
    print(&authority::list(&args.dir, revoked).map_err(failed)?, args.json, false)
}

pub fn show(args: &ShowCertificateArgs) -> Result<(), Failure> {
    let server = args.server.find()?;
    let revoked = server.as_ref().map(|server| server.files.revoked.as_path());
    print(&authority::show(&args.file, revoked).map_err(failed)?, args.json, true)
}

pub fn server(args: &ServerArgs) -> Result<(), Failure> {
    let path = authority::renew_server(&args.dir, &args.host, args.only).map_err(failed)?;
    let server = files(&args.server, &args.dir)?;
    let revoked = server.as_ref().map(|server| server.files.revoked.as_path());
    let shown = authority::show(&path, revoked).map_err(failed)?;
    if let (Some(server), Some(made)) = (&server, shown.first()) {
        server.audit(AuditEvent::CertificateIssue, &format!("server, good for {}", made.info.names.join(", ")));
    }
    print(&shown, false, true)?;
    eprintln!("Made {}. The server shows it after a reload or a restart.", path.display());
    Ok(())
}

pub fn revoke(args: &RevokeArgs) -> Result<(), Failure> {
    let Some(server) = files(&args.server, &args.dir)? else {
        return Err(Failure::Usage(format!(
            "no server.toml below {} says where revoked certificates are listed; name it with --server-config FILE",
            args.dir.display()
        )));
    };
    let (name, file) = (&args.name, &server.files.revoked);
    let report = authority::revoke(&args.dir, file, name, args.all).map_err(failed)?;
    let what = report.serials.iter().map(|serial| format!("serial {serial}"));
    let what: Vec<String> = what.chain(report.all.then(|| "every certificate of that name".to_owned())).collect();
    server.audit(AuditEvent::CertificateRevoke, &format!("{name}: {}", what.join(", ")));
    eprintln!("Revoked {name} in {}: {}. The server refuses it within seconds.", file.display(), what.join(", "));
    report.moved.iter().for_each(|path| eprintln!("moved {}", path.display()));
    if !args.all {
        eprintln!("A new one: wholegrain ca agent {name} --dir {}", args.dir.display());
    }
    Ok(())
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

fn print(all: &[IssuedCertificate], json: bool, long: bool) -> Result<(), Failure> {
    let (now, mut out) = (now(), Vec::new());
    let written = if json {
        all.iter().try_for_each(|certificate| {
            let IssuedCertificate { path, info, .. } = certificate;
            let line = serde_json::json!({
                "file": path, "name": info.name, "state": state(certificate, now), "from": info.from.to_string(),
                "until": info.until.to_string(), "days_left": (info.until.0 - now.0).div_euclid(DAY_NS),
                "issuer": info.issuer, "serial": info.serial, "names": info.names, "authority": info.is_authority,
            });
            writeln!(out, "{line}")
        })
    } else if long {
        all.iter().try_for_each(|certificate| {
            let IssuedCertificate { path, info, .. } = certificate;
            let days = (info.until.0 - now.0).div_euclid(DAY_NS);
            writeln!(
                out,
                "file      {}\nname      {}\nstate     {}",
                path.display(),
                info.name,
                state(certificate, now)
            )?;
            writeln!(out, "from      {}\nuntil     {} ({days} days)", info.from, info.until)?;
            writeln!(out, "good for  {}\nissuer    {}\nserial    {}", info.names.join(", "), info.issuer, info.serial)
        })
    } else {
        let mut table = Table::new(&["NAME", "STATE", "UNTIL", ">DAYS", "FILE"]);
        for certificate in all {
            let IssuedCertificate { path, info, .. } = certificate;
            let days = (info.until.0 - now.0).div_euclid(DAY_NS).to_string();
            let state = state(certificate, now).to_owned();
            table.row(vec![info.name.clone(), state, info.until.to_string(), days, path.display().to_string()]);
        }
        table.write(style::on_stdout(), &mut out)
    };
    written.and_then(|()| io::stdout().write_all(&out)).map_err(Failure::writing("standard output"))
}
