//! The server's files, and entries in the audit log for changes of them.

use std::path::{Path, PathBuf};

use clap::Args;
use wholegrain_server::SecurityFiles;
use wholegrain_server::access::audit::{self, AuditEntry, AuditEvent, AuditOutcome};
use wholegrain_server::access::files::FileError;
use wholegrain_server::path_owners::check_above_as_root;

use crate::client_file::check_owner;
use crate::failure::Failure;

/// The option of subcommands that change files of the server.
#[derive(Debug, Args)]
pub struct ServerOption {
    /// The server's server.toml, which names the files [default: the first of ./var/server/server.toml,
    /// /etc/wholegrain/server.toml, /etc/wholegrain/server/server.toml]
    #[arg(long, value_name = "FILE", env = "WHOLEGRAIN_SERVER_CONFIG", hide_env_values = true, global = true)]
    server_config: Option<PathBuf>,
}

/// The places of server.toml, in this order.
const PLACES: [&str; 3] =
    ["var/server/server.toml", "/etc/wholegrain/server.toml", "/etc/wholegrain/server/server.toml"];

pub struct ServerFiles {
    /// The server.toml with their names.
    pub config: PathBuf,
    pub files: SecurityFiles,
}

impl ServerOption {
    /// Reads the named server.toml, or the first existing one; `None` without any.
    pub fn find(&self) -> Result<Option<ServerFiles>, Failure> {
        self.find_or(PLACES.iter().map(PathBuf::from).find(|path| path.exists()))
    }

    /// Reads the named server.toml, or `other`.
    pub fn find_or(&self, other: Option<PathBuf>) -> Result<Option<ServerFiles>, Failure> {
        let Some(config) = self.server_config.clone().or(other) else { return Ok(None) };
        if self.server_config.is_none() {
            check_trusted(&config)?;
        }
        let files = SecurityFiles::load(&config).map_err(Failure::usage)?;
        Ok(Some(ServerFiles { config, files }))
    }

    /// As [`Self::find`]; a missing file is an error.
    pub fn load(&self) -> Result<ServerFiles, Failure> {
        self.find()?.ok_or_else(|| {
            Failure::Usage(format!(
                "found no server.toml in {}. Name it with --server-config FILE, on the server's machine",
                PLACES.join(", ")
            ))
        })
    }
}

/// Refuses a server.toml that another user could have written or replaced, because it names the files to write.
fn check_trusted(config: &Path) -> Result<(), Failure> {
    check_owner(config, "--server-config")?;
    check_above_as_root(config).map_err(|reason| {
        let shown = config.display();
        Failure::Usage(format!(
            "{shown} is not used: {reason}; or name it with --server-config {shown} if you trust it"
        ))
    })
}

impl ServerFiles {
    /// Writes an entry to the audit log. A failure is only reported, because the change is made.
    pub fn audit(&self, event: AuditEvent, object: &str) {
        let Some(path) = &self.files.audit.path else { return };
        // SAFETY: getuid takes nothing and cannot fail.
        let user = format!("uid {}", unsafe { libc::getuid() });
        if let Err(error) =
            audit::append(path, &self.files.audit, &AuditEntry::new(event, AuditOutcome::Ok, &user, "local", object))
        {
            eprintln!("wholegrain: the change is made, but cannot write the audit log {}: {error}", path.display());
        }
    }
}

/// Maps an error of a file to a wrong command line or a failure.
pub fn failed(error: FileError) -> Failure {
    match error {
        FileError::Content { reason, .. } if !reason.starts_with("line ") => Failure::Usage(reason),
        FileError::Content { .. } => Failure::Failed(error.to_string()),
        FileError::Io { .. } => Failure::Failed(format!("{error}; check the permissions")),
    }
}
