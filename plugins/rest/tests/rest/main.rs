//! The source against a real API, and against servers that do everything wrong.

mod documents;
mod fleet;
mod hostile;
mod prometheus;
#[path = "../../../http/tests/http/stub.rs"]
mod stub;
mod tables;
mod values;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use stub::StubServer;
use wholegrain_model::config::ConfigError;
use wholegrain_plugin_rest::SOURCE;
use wholegrain_source_testkit::{SampledSource, configure_plugin};
use wholegrain_sources::Source;

fn configure_in(folder: &Path, text: &str) -> Result<Box<dyn Source>, ConfigError> {
    configure_plugin(&SOURCE, folder, text)
}

/// Writes files of credentials with the modes that they need.
fn write_credentials(folder: &Path, files: &[(&str, &str)]) {
    let credentials = folder.join("credentials");
    std::fs::create_dir_all(&credentials).unwrap();
    std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
    for (name, text) in files {
        std::fs::write(credentials.join(name), text).unwrap();
        std::fs::set_permissions(credentials.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
}

/// Settings with one device `d` with one address `u`; `keys` are those of the address, `common` those of the plug-in.
fn config(server: &StubServer, common: &str, keys: &str) -> String {
    format!(
        "[plugins.rest]\ninterval = \"40ms\"\nstale_after = \"1s\"\ntimeout = \"10s\"\n{common}\n[[plugins.rest.device]]\n\
         hosts = [\"127.0.0.1:{}\"]\npath = \"d\"\n[[plugins.rest.device.url]]\nname = \"u\"\nuri = \"/x\"\n{keys}\n",
        server.port
    )
}

/// A running source without files of its own.
fn started(text: &str) -> SampledSource {
    SampledSource::of(configure_in("".as_ref(), text).unwrap_or_else(|error| panic!("{error}")))
}
