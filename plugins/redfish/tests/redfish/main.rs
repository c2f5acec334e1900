//! The source against sushy-tools, and against services that do everything wrong.

mod config;
mod events;
mod hostile;
mod large;
mod mockup;
mod service;
mod sessions;
mod tls;

use wholegrain_model::config::ConfigError;
use wholegrain_plugin_redfish::SOURCE;
use wholegrain_source_testkit::{SampledSource, configure_plugin};
use wholegrain_sources::Source;

fn configure_in(folder: &std::path::Path, text: &str) -> Result<Box<dyn Source>, ConfigError> {
    configure_plugin(&SOURCE, folder, text)
}

/// A running source without files of its own.
fn started(text: &str) -> SampledSource {
    SampledSource::of(configure_in("".as_ref(), text).unwrap_or_else(|error| panic!("{error}")))
}
