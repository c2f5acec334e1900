//! `client.toml`: the server's address, the trusted authority, the token, the agent's socket.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use wholegrain_model::config::Document;

use crate::failure::Failure;

/// The option of subcommands that send requests.
#[derive(Debug, Args)]
pub struct ClientOption {
    /// The client.toml with the server's address [default: the first of ./var/client.toml,
    /// ~/.config/wholegrain/client.toml, /etc/wholegrain/client.toml] [env: WHOLEGRAIN_CLIENT]
    #[arg(long = "client", id = "asked_client", global = true, value_name = "FILE")]
    client: Option<PathBuf>,
}

impl ClientOption {
    /// The file named by this option, else the one named before the subcommand or in the environment.
    pub fn or<'a>(&'a self, before: Option<&'a Path>) -> Option<&'a Path> {
        self.client.as_deref().or(before)
    }
}

/// `client.toml` with its paths resolved.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientConfig {
    /// The path of the file.
    #[serde(skip)]
    pub file: PathBuf,
    pub url: Option<String>,
    /// File with the bearer token.
    pub token_file: Option<PathBuf>,
    /// The certificates of the only trusted authority.
    pub ca: Option<PathBuf>,
    /// Socket of the agent on this machine.
    pub agent_socket: Option<PathBuf>,
}

impl ClientConfig {
    /// Reads the named file, or the first existing one; `None` without any.
    pub fn find(named: Option<&Path>) -> Result<Option<Self>, Failure> {
        if let Some(path) = named {
            return Self::read(path).map(Some);
        }
        match places().into_iter().find(|path| path.exists()) {
            Some(path) if path.is_relative() => {
                check_owner(&path, "--client").and_then(|()| Self::read(&path)).map(Some)
            }
            Some(path) => Self::read(&path).map(Some),
            None => Ok(None),
        }
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|error| {
            Failure::Failed(format!(
                "cannot read {}: {error}; name another file with --client, or make one with `wholegrain init`",
                path.display()
            ))
        })?;
        let mut config: Self = Document::new(&path.display().to_string(), &text).parse().map_err(Failure::usage)?;
        config.file = path.to_owned();
        let base = path.parent().unwrap_or(Path::new("."));
        for path in [&mut config.token_file, &mut config.ca, &mut config.agent_socket].into_iter().flatten() {
            *path = base.join(&*path);
        }
        Ok(config)
    }
}

/// Refuses a file that another user could have written, unless `option` names it: the file decides where the token is sent or which files are
/// written.
pub fn check_owner(path: &Path, option: &str) -> Result<(), Failure> {
    let shown = path.display();
    let metadata = fs::metadata(path).map_err(|error| Failure::Failed(format!("cannot read {shown}: {error}")))?;
    // SAFETY: it takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    if (metadata.uid() == user || metadata.uid() == 0) && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{shown} belongs to another user, or others can write it, so it is not used; name it with {option} {shown} if you trust it"
    )))
}

/// The places of client.toml, in this order.
pub fn places() -> Vec<PathBuf> {
    let mut places = vec![PathBuf::from("var/client.toml")];
    if let Some(home) = std::env::var_os("HOME").filter(|home| !home.is_empty()) {
        places.push(PathBuf::from(home).join(".config/wholegrain/client.toml"));
    }
    places.push(PathBuf::from("/etc/wholegrain/client.toml"));
    places
}

/// The message for a missing client.toml.
pub fn nowhere() -> String {
    let looked: Vec<String> = places().iter().map(|path| path.display().to_string()).collect();
    format!(
        "found no client.toml in {}. Start a server here with `make up` (or `wholegrain up`), or name \
         the file with --client FILE or in WHOLEGRAIN_CLIENT",
        looked.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_count_from_the_file_and_mistakes_name_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client.toml");
        fs::write(&path, "url = \"https://h:1\"\ntoken_file = \"token\"\nca = \"/abs/ca.pem\"\n").unwrap();
        let config = ClientConfig::find(Some(&path)).unwrap().unwrap();
        assert_eq!(config.token_file, Some(dir.path().join("token")));
        assert_eq!(config.ca, Some(PathBuf::from("/abs/ca.pem")));
        fs::write(&path, "url = \"https://h:1\"\ntokn_file = \"token\"\n").unwrap();
        let Err(Failure::Usage(text)) = ClientConfig::find(Some(&path)) else { panic!() };
        assert!(text.contains("client.toml:2:1") && text.contains("did you mean `token_file`?"), "{text}");
        assert!(matches!(ClientConfig::find(Some(&dir.path().join("none.toml"))), Err(Failure::Failed(_))));
    }
}
