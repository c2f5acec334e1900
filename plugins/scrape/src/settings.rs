//! `[plugins.scrape]`: templates and lists of exporters.

use std::path::PathBuf;

use serde::Deserialize;
use wholegrain_device_http::{AnswerBounds, BODY_BYTES_MAX, DeviceClient, REDIRECTS_MAX, check_credentials, check_url};
use wholegrain_devices::{DeviceConfig, PollTiming, WORKERS_MAX, config};
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::Filter;
use wholegrain_model::schema::SENSORS_MAX;
use wholegrain_model::size::ByteSize;
use wholegrain_sources::ConfigureContext;
use wholegrain_sources::exposition::{MetricRule, PathTemplate, SensorNaming};

use crate::fetch::Fetcher;

/// The page of an exporter without `uri`.
const URI_USUAL: &str = "/metrics";
/// The longest answer without `body_bytes_max`.
const BODY_BYTES_USUAL: u64 = 8 << 20;
/// The most series of an exporter without `series_max`.
const SERIES_USUAL: usize = 10_000;
/// The sensors of a group that are about the scrape itself.
const OWN_SENSORS: usize = 3;

/// The keys of the plug-in's table besides those of all sources of devices.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScrapeKeys {
    #[serde(default)]
    names: PathTemplate,
    #[serde(default)]
    rules: Vec<MetricRule>,
    #[serde(default)]
    metrics: Filter,
}

/// The keys of a template or a list of exporters.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetKeys {
    scheme: Option<UrlScheme>,
    uri: Option<String>,
    url: Option<String>,
    ca: Option<PathBuf>,
    body_bytes_max: Option<String>,
    series_max: Option<usize>,
    redirects: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum UrlScheme {
    #[default]
    Http,
    Https,
}

/// The checked settings of the plug-in.
pub struct ScrapePlan {
    pub targets: Vec<TargetPlan>,
    pub naming: SensorNaming,
    pub metrics: Filter,
    pub workers: usize,
    pub first_answers: Interval,
}

/// The checked settings of one exporter.
pub struct TargetPlan {
    /// Below the agent's prefix.
    pub path: String,
    pub host: String,
    pub timing: PollTiming,
    pub series_max: usize,
    pub fetcher: Fetcher,
}

/// Reads and checks the plug-in's table.
pub fn read(section: &Section, context: &ConfigureContext) -> Result<ScrapePlan, ConfigError> {
    let config = config::read::<ScrapeKeys, TargetKeys>(section, context)?;
    let ScrapeKeys { names, rules, metrics } = config.own;
    let naming = SensorNaming { path: names, rules, ..SensorNaming::default() };
    if let Some(mistake) = naming.mistake() {
        return Err(section.error("rules", mistake));
    }
    let targets = config.devices.iter().map(|device| target(device, context));
    let (workers, first_answers) = (config.in_flight.min(WORKERS_MAX), config.first_answers);
    Ok(ScrapePlan { targets: targets.collect::<Result<_, _>>()?, naming, metrics, workers, first_answers })
}

fn target(device: &DeviceConfig<TargetKeys>, context: &ConfigureContext) -> Result<TargetPlan, ConfigError> {
    let (keys, section) = (&*device.protocol, &device.section);
    let url = url(device)?;
    let series_max = keys.series_max.unwrap_or(SERIES_USUAL);
    let most = SENSORS_MAX - OWN_SENSORS;
    if series_max == 0 || series_max > most {
        return Err(section.error("series_max", format!("series_max is {series_max}; expected 1 to {most}")));
    }
    let bytes = match keys.body_bytes_max.as_deref().map(ByteSize::parse).transpose() {
        Ok(size) => size.map_or(BODY_BYTES_USUAL, |ByteSize(bytes)| bytes),
        Err(error) => return Err(section.error("body_bytes_max", error.to_string())),
    };
    if bytes == 0 || bytes > BODY_BYTES_MAX {
        let most = ByteSize(BODY_BYTES_MAX);
        return Err(section.error("body_bytes_max", format!("body_bytes_max is {bytes}; expected 1B to {most}")));
    }
    let redirects = keys.redirects.unwrap_or(0);
    if redirects > REDIRECTS_MAX {
        return Err(section.error("redirects", format!("redirects is {redirects}; at most {REDIRECTS_MAX}")));
    }
    let credentials = device.credentials.as_deref();
    check_credentials(credentials, url.starts_with("https:")).map_err(|error| section.error("credentials", error))?;
    let authority = match &keys.ca {
        None if url.starts_with("https:") => {
            return Err(section.error("ca", "https needs ca = \"ca.pem\", the authority of the exporter's certificate"));
        }
        None => Vec::new(),
        Some(path) => {
            let path = context.resolve(path);
            let pem = std::fs::read(&path);
            pem.map_err(|error| section.error("ca", format!("cannot read {}: {error}", path.display())))?
        }
    };
    let bounds = AnswerBounds { bytes_max: bytes, redirects, checks_certificate: true };
    let client = DeviceClient::new(&authority, credentials, bounds);
    let client = client.map_err(|(key, message)| section.error(key, message))?;
    check_url(&url).map_err(|error| section.error("url", error))?;
    let fetcher = Fetcher { client, url };
    let (path, host) = (device.path.clone(), device.host.text.clone());
    Ok(TargetPlan { path, host, timing: device.timing, series_max, fetcher })
}

/// The address of an exporter's page.
fn url(device: &DeviceConfig<TargetKeys>) -> Result<String, ConfigError> {
    let (keys, section) = (&*device.protocol, &device.section);
    if let Some(url) = &keys.url {
        if keys.scheme.is_some() || keys.uri.is_some() || device.port.is_some() {
            return Err(section.error("url", "url has scheme, port and path: leave scheme, port and uri out"));
        }
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(section.error("url", format!("url {url:?} begins with neither http:// nor https://")));
        }
        return Ok(url.clone());
    }
    let Some(port) = device.port else {
        let message = "port is missing; write it in hosts (\"node[01-40]:9100\"), or port = 9100";
        return Err(section.error("port", message));
    };
    let uri = keys.uri.as_deref().unwrap_or(URI_USUAL);
    if !uri.starts_with('/') {
        return Err(section.error("uri", format!("uri {uri:?} does not begin with /")));
    }
    let name = &device.host.name;
    let name = if name.contains(':') { format!("[{name}]") } else { name.clone() };
    let scheme = if keys.scheme == Some(UrlScheme::Https) { "https" } else { "http" };
    Ok(format!("{scheme}://{name}:{port}{uri}"))
}
