//! Changes the ports in the three configurations of an installation, and nothing else in them.

use std::fs;
use std::path::Path;

use wholegrain_server::ServerConfig;

use crate::failure::Failure;

/// The files that name a port.
const FILES: [&str; 3] = ["server/server.toml", "agent/agent.toml", "client.toml"];

/// The configuration of the server with the requested ports. Changes no file.
pub fn planned(server_toml: &Path, mqtt: Option<u16>, http: Option<u16>) -> Result<ServerConfig, Failure> {
    let config = ServerConfig::load(server_toml).map_err(Failure::usage)?;
    let changes = changes(&config, mqtt, http);
    let Some((_, text)) = &config.source else { return Ok(config) };
    let base = server_toml.parent().unwrap_or(Path::new("."));
    ServerConfig::from_text(&server_toml.display().to_string(), &replaced(text, &changes), base).map_err(Failure::usage)
}

/// Replaces the ports of server.toml by the requested ones in all files of the installation.
pub fn change(dir: &Path, server_toml: &Path, mqtt: Option<u16>, http: Option<u16>) -> Result<(), Failure> {
    let config = ServerConfig::load(server_toml).map_err(Failure::usage)?;
    let changes = changes(&config, mqtt, http);
    if changes.is_empty() {
        return Ok(());
    }
    let mut changed = Vec::new();
    // Reads all files before it writes one, so that an unreadable file changes nothing.
    for name in FILES {
        let path = dir.join(name);
        let text = fs::read_to_string(&path).map_err(Failure::reading(&path))?;
        let new = replaced(&text, &changes);
        if new != text {
            changed.push((path, new));
        }
    }
    for (path, text) in changed {
        let temporary = path.with_extension("toml.new");
        let write = || fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
        write().map_err(Failure::writing(&path.display().to_string()))?;
    }
    Ok(())
}

/// The ports of server.toml that change, each with the new port.
fn changes(config: &ServerConfig, mqtt: Option<u16>, http: Option<u16>) -> Vec<(u16, u16)> {
    let pairs = [(&config.mqtt.tls_listen, mqtt), (&config.http.listen, http)];
    let pair = |(listen, new): (&Option<String>, Option<u16>)| Some((port_of(listen.as_deref()?)?, new?));
    pairs.into_iter().filter_map(pair).filter(|(old, new)| old != new).collect()
}

/// The port of `host:port`.
pub fn port_of(address: &str) -> Option<u16> {
    address.rsplit_once(':')?.1.parse().ok()
}

/// Replaces each `:old` at the end of a quoted address, all at once, so that two ports can be exchanged.
fn replaced(text: &str, changes: &[(u16, u16)]) -> String {
    let line = |line: &str| {
        let body = line.split('#').next().unwrap_or_default();
        let change =
            changes.iter().find(|(old, _)| body.contains(&format!(":{old}\"")) || body.contains(&format!(":{old}/")));
        match change {
            Some((old, new)) => line
                .replace(&format!(":{old}\""), &format!(":{new}\""))
                .replace(&format!(":{old}/"), &format!(":{new}/")),
            None => line.to_owned(),
        }
    };
    text.split_inclusive('\n').map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_change() {
        let text =
            "# \":8443\"\nurl = \"https://localhost:8443\"\nother = \"x:84431\"\nmqtt = \"mqtts://[::1]:8883\"\n";
        let expected =
            "# \":8443\"\nurl = \"https://localhost:9443\"\nother = \"x:84431\"\nmqtt = \"mqtts://[::1]:8443\"\n";
        assert_eq!(replaced(text, &[(8443, 9443), (8883, 8443)]), expected);
        assert_eq!((port_of("[::]:1"), port_of("localhost:8443"), port_of("x")), (Some(1), Some(8443), None));
    }

    #[test]
    fn an_installation_follows() {
        let dir = tempfile::tempdir().unwrap();
        wholegrain_server::init(dir.path(), &wholegrain_server::InitOptions::default()).unwrap();
        let server_toml = dir.path().join("server/server.toml");
        change(dir.path(), &server_toml, Some(18883), Some(18443)).unwrap();
        let config = ServerConfig::load(&server_toml).unwrap();
        assert_eq!(config.mqtt.tls_listen.as_deref().and_then(port_of), Some(18883));
        assert_eq!(config.http.listen.as_deref().and_then(port_of), Some(18443));
        for (file, port) in [("agent/agent.toml", ":18883"), ("client.toml", ":18443")] {
            assert!(fs::read_to_string(dir.path().join(file)).unwrap().contains(port), "{file}");
        }
    }
}
