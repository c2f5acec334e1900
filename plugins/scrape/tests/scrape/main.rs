//! The source against real exporters, and against servers that do everything wrong.

mod exporters;
mod hostile;
mod stub;
mod tls;

use wholegrain_model::config::ConfigError;
use wholegrain_plugin_scrape::SOURCE;
use wholegrain_source_testkit::{SampledSource, configure_plugin};
use wholegrain_sources::Source;

fn configure_in(folder: &std::path::Path, text: &str) -> Result<Box<dyn Source>, ConfigError> {
    configure_plugin(&SOURCE, folder, text)
}

/// A running source without files of its own.
fn started(text: &str) -> SampledSource {
    SampledSource::of(configure_in("".as_ref(), text).unwrap_or_else(|error| panic!("{error}")))
}
