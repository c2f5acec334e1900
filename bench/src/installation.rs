//! The server under load: its installation and its metrics.

use anyhow::Context;
use wholegrain_testing::{Site, free_port};

use crate::load::fleet::Target;

/// An installation without authentication, without TLS and with it, and its plain port. Each setting is
/// table, key and value of server.toml.
pub fn installation(settings: &[(&str, &str, &str)]) -> (Site, Target) {
    let site = Site::new();
    let port = free_port();
    let file = "server/server.toml";
    site.set(file, "mqtt", "listen", &format!("\"0.0.0.0:{port}\""));
    site.set(file, "mqtt", "tls_listen", &format!("\"0.0.0.0:{}\"", site.mqtt_port));
    site.set(file, "mqtt", "anonymous", "true");
    for (table, key, value) in settings {
        site.set(file, table, key, value);
    }
    (site, Target::on_loopback(port))
}

/// A metric of the server; an error when it does not answer.
pub fn metric(site: &Site, name: &str) -> anyhow::Result<f64> {
    site.metric(&format!("wholegrain_server_{name} ")).with_context(|| format!("the server does not tell {name}"))
}
