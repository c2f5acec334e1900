//! Checks that no server runs on the installation's store and that its ports are free. Changes no file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::path::Path;

use wholegrain_server::{InitOptions, ServerConfig};

use super::ports;
use crate::failure::Failure;

/// Checks an installation, or the ports of a new one with `options`. Returns the lock of the store if there is one; while it is held, no
/// server starts.
pub fn check(
    server_toml: &Path,
    options: &InitOptions,
    mqtt: Option<u16>,
    http: Option<u16>,
) -> Result<Option<File>, Failure> {
    if !server_toml.exists() {
        let address = |port: u16| Some(format!("{}:{port}", options.listen_host));
        check_ports(&address(options.mqtt_port), &None, &address(options.http_port))?;
        return Ok(None);
    }
    let config = ports::planned(server_toml, mqtt, http)?;
    let held = lock(&config)?;
    check_ports(&config.mqtt.tls_listen, &config.mqtt.listen, &config.http.listen)?;
    Ok(held)
}

/// Takes the store's lock without a change to its file; `None` if no server has run yet.
fn lock(config: &ServerConfig) -> Result<Option<File>, Failure> {
    let path = config.store.dir.join("lock");
    let failed = |error: io::Error| Failure::Failed(format!("cannot take the lock {}: {error}", path.display()));
    let file = match OpenOptions::new().read(true).write(true).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    // SAFETY: the descriptor belongs to `file`, which lives past the call; closing it gives the lock back.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(Some(file));
    }
    match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::WouldBlock => {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            Err(Failure::Failed(format!(
                "a server runs here already: process {} uses the store {}; stop it first (another `wholegrain up`?), or choose \
                 another directory with --dir",
                pid.trim(),
                config.store.dir.display()
            )))
        }
        error => Err(failed(error)),
    }
}

/// Fails if a port is taken, before a program is started.
fn check_ports(tls: &Option<String>, plain: &Option<String>, http: &Option<String>) -> Result<(), Failure> {
    let listens = [(tls, "MQTT over TLS", " --mqtt-port N"), (plain, "MQTT", ""), (http, "HTTPS", " --http-port N")];
    for (address, what, option) in listens {
        let Some(address) = address else { continue };
        if let Err(error) = TcpListener::bind(address.as_str()) {
            let advice = if option.is_empty() {
                "choose another in server.toml".to_owned()
            } else {
                format!("choose another with `wholegrain up{option}`")
            };
            return Err(Failure::Failed(match error.kind() {
                io::ErrorKind::AddrInUse => format!(
                    "{address}, for {what}, is taken by another program (another `wholegrain up`?); stop that one, or {advice}"
                ),
                _ => format!("cannot listen on {address} for {what}: {error}; {advice}"),
            }));
        }
    }
    Ok(())
}
