//! Completes a packaged installation: the package has the configuration; keys, certificates and tokens are created on the machine.

use std::fs;
use std::path::Path;

use wholegrain_store::path_owners::check_directory;
use wholegrain_transport::host_name;

use super::{InitError, InitOptions, InitReport, InstallationFiles, PASSWORDS, io_error, new_token};
use crate::access::tokens;
use crate::authority::check_hosts;
use crate::pki;

/// Creates the files that `packaging/server.toml` names in `dir`, such as `/etc/wholegrain`: an authority, the server's certificate, a token with
/// its hash, a file for users, and a client.toml. Existing files stay unchanged. Secrets are readable by their owner only; an administrator who runs
/// the server as another user makes `server.key`, `tokens` and `passwords` readable to it.
pub fn init_system(dir: &Path, options: &InitOptions) -> Result<InitReport, InitError> {
    let host = host_name();
    check_hosts(&options.reached_as)?;
    check_directory(dir).map_err(InitError::Refused)?;
    fs::create_dir_all(dir).map_err(io_error("create the directory", dir))?;
    let mut files = InstallationFiles { dir, report: InitReport { agent: host.clone(), ..InitReport::default() } };
    let authority = files.pair("ca.pem", "ca.key", || pki::new_authority(&host))?;
    files.pair("server.pem", "server.key", || pki::new_server(&authority, &host, &options.reached_as))?;
    let hashes = dir.join("tokens");
    if hashes.exists() {
        files.report.kept.push(hashes);
    } else {
        let (new, now) = new_token();
        let (token, _) = tokens::create(&hashes, &new, now)?;
        files.report.created.push(hashes);
        files.text("token", 0o600, &format!("{token}\n"))?;
    }
    files.text("passwords", 0o600, PASSWORDS)?;
    let client = format!(
        "# Where the `wholegrain` command finds the server and the agent. Relative paths count from this file.\n\
         url = \"https://localhost:{}\"\ntoken_file = \"token\"\nca = \"ca.pem\"\nagent_socket = \"/run/wholegrain/agent.sock\"\n",
        options.http_port
    );
    files.text("client.toml", 0o644, &client)?;
    Ok(files.report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerConfig;

    #[test]
    fn the_packaged_configuration_finds_all_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let first = init_system(dir.path(), &InitOptions::default()).unwrap();
        assert_eq!((first.created.len(), first.kept.len()), (8, 0), "{first:?}");
        let text = include_str!("../../../packaging/server.toml");
        let here = dir.path().display().to_string();
        let text = text.replace("\"/etc/wholegrain", &format!("\"{here}")).replace("/var/lib/wholegrain", &here);
        let file = dir.path().join("server.toml");
        fs::write(&file, text).unwrap();
        let config = ServerConfig::load(&file).unwrap();
        for path in
            [&config.mqtt.cert, &config.mqtt.key, config.mqtt.client_ca.as_ref().unwrap(), &config.http.tokens_file]
        {
            assert!(path.is_file() && path.starts_with(dir.path()), "{}", path.display());
        }
        let second = init_system(dir.path(), &InitOptions::default()).unwrap();
        assert_eq!((second.created.len(), second.kept.len()), (0, 7), "{second:?}");
    }
}
