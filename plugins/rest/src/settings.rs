//! `[plugins.rest]`: templates and lists of devices with their addresses.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use wholegrain_device_http::{
    AnswerBounds, BODY_BYTES_MAX, DeviceClient, REDIRECTS_MAX, check_credentials_with, check_header, check_url,
};
use wholegrain_devices::config::check_timing;
use wholegrain_devices::{DeviceConfig, PollTiming, WORKERS_MAX, config};
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::check_relative;
use wholegrain_model::size::ByteSize;
use wholegrain_sources::ConfigureContext;

use crate::spec::{CsvKeys, FormatName, PageKeys, PageSpec, TableKeys, ValueKeys};

/// The longest answer without `body_bytes_max`.
const BODY_BYTES_USUAL: u64 = 1 << 20;
/// The most addresses of a device.
const URLS_MAX: usize = 64;
/// The most headers of a request.
const HEADERS_MAX: usize = 32;
/// The longest body of a request: 64 KiB.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// How many intervals an answer's own time may be old, as [`wholegrain_devices::DeviceGroups`] has it.
const STALE_INTERVALS: u64 = 3;
/// Headers that hold secrets, in lower case: they come from a file of credentials only.
const SECRET_HEADERS: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-api-key",
    "api-key",
    "apikey",
    "x-auth-token",
    "x-access-token",
];

/// The plug-in has no keys besides those that all sources of devices have.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoRestKeys {}

/// The keys of a template or a list of devices.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RestKeys {
    scheme: Option<SchemeName>,
    ca: Option<PathBuf>,
    body_bytes_max: Option<String>,
    redirects: Option<u32>,
    secret_headers: BTreeMap<String, String>,
    url: Vec<UrlKeys>,
}

/// The keys of an address.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UrlKeys {
    name: String,
    uri: Option<String>,
    url: Option<String>,
    interval: Option<Interval>,
    offset: Option<Interval>,
    method: Option<MethodName>,
    headers: BTreeMap<String, String>,
    body: Option<toml::Value>,
    format: FormatName,
    csv: Option<CsvKeys>,
    time: Option<String>,
    time_format: Option<String>,
    time_zone: Option<String>,
    series_max: Option<usize>,
    value: Vec<ValueKeys>,
    table: Vec<TableKeys>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SchemeName {
    Http,
    Https,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum MethodName {
    Get,
    Post,
}

/// The checked settings of the plug-in.
pub struct RestPlan {
    pub devices: Vec<DevicePlan>,
    pub workers: usize,
    pub first_answers: Interval,
}

/// The checked settings of one device.
pub struct DevicePlan {
    /// Below the agent's prefix.
    pub path: String,
    pub host: String,
    pub timing: PollTiming,
    pub client: DeviceClient,
    pub urls: Vec<UrlPlan>,
}

/// What is asked for, and what is read of the answer.
#[derive(Clone)]
pub struct UrlPlan {
    pub name: String,
    pub timing: PollTiming,
    /// The age from which on an answer with a time of its own counts no more.
    pub stale_ns: i64,
    pub request: Arc<UrlRequest>,
    pub spec: Arc<PageSpec>,
}

/// A request without its secrets.
pub struct UrlRequest {
    pub method: &'static str,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<String>,
}

/// Specifications by the keys from which they were made, so that equal devices share them.
type SharedSpecs = HashMap<*const RestKeys, Vec<Arc<PageSpec>>>;

/// Reads and checks the plug-in's table.
pub fn read(section: &Section, context: &ConfigureContext) -> Result<RestPlan, ConfigError> {
    let config = config::read::<NoRestKeys, RestKeys>(section, context)?;
    let NoRestKeys {} = config.own;
    let mut specs = SharedSpecs::new();
    let mut authorities = HashMap::new();
    let mut devices = Vec::new();
    for device in &config.devices {
        devices.push(device_plan(device, context, &mut specs, &mut authorities)?);
    }
    check_paths(&config.devices, &devices)?;
    let (workers, first_answers) = (config.in_flight.min(WORKERS_MAX), config.first_answers);
    Ok(RestPlan { devices, workers, first_answers })
}

fn device_plan(
    device: &DeviceConfig<RestKeys>,
    context: &ConfigureContext,
    specs: &mut SharedSpecs,
    authorities: &mut HashMap<PathBuf, Arc<Vec<u8>>>,
) -> Result<DevicePlan, ConfigError> {
    let (keys, section) = (&*device.protocol, &device.section);
    let wrong = |key: &'static str| move |message: String| section.error(key, message);
    let specs = match specs.get(&Arc::as_ptr(&device.protocol)) {
        Some(specs) => specs.clone(),
        None => {
            let made: Result<Vec<_>, ConfigError> =
                keys.url.iter().map(|url| page_spec(url).map(Arc::new).map_err(wrong("url"))).collect();
            specs.entry(Arc::as_ptr(&device.protocol)).or_insert(made?).clone()
        }
    };
    check_urls(keys).map_err(wrong("url"))?;
    let mut urls = Vec::new();
    for (url, spec) in keys.url.iter().zip(specs) {
        let in_url = |message: String| section.error("url", format!("url {:?}: {message}", url.name));
        let timing = PollTiming {
            interval: url.interval.unwrap_or(device.timing.interval),
            offset: url.offset.unwrap_or(device.timing.offset),
            ..device.timing
        };
        check_timing(section, &timing)?;
        let stale_ns = timing.stale_after.map_or(timing.interval.ns().saturating_mul(STALE_INTERVALS), Interval::ns);
        let stale_ns = i64::try_from(stale_ns).unwrap_or(i64::MAX);
        let request = Arc::new(request(device, url).map_err(in_url)?);
        urls.push(UrlPlan { name: url.name.clone(), timing, stale_ns, request, spec });
    }
    let client = client(device, &urls, context, authorities)?;
    let (path, host) = (device.path.clone(), device.host.text.clone());
    Ok(DevicePlan { path, host, timing: device.timing, client, urls })
}

fn page_spec(url: &UrlKeys) -> Result<PageSpec, String> {
    let keys = PageKeys {
        format: url.format,
        csv: url.csv.as_ref(),
        time: url.time.as_deref(),
        time_format: url.time_format.as_deref(),
        time_zone: url.time_zone.as_deref(),
        values: &url.value,
        tables: &url.table,
        series_max: url.series_max,
    };
    PageSpec::new(&keys).map_err(|message| format!("url {:?}: {message}", url.name))
}

/// Refuses addresses and sensors of one device that would have the same name.
fn check_urls(keys: &RestKeys) -> Result<(), String> {
    if keys.url.is_empty() || keys.url.len() > URLS_MAX {
        return Err(format!(
            "{} addresses of a device; write [[…url]] with name and uri, at most {URLS_MAX}",
            keys.url.len()
        ));
    }
    let (mut names, mut values) = (HashSet::new(), HashSet::new());
    for url in &keys.url {
        check_relative(&url.name).map_err(|error| format!("name: {error}"))?;
        if !names.insert(&url.name) {
            return Err(format!("two addresses of a device have the name {:?}", url.name));
        }
        if let Some(value) = url.value.iter().find(|value| !values.insert(&value.name)) {
            return Err(format!("two values of a device have the name {:?}", value.name));
        }
        // Sensors about the answers are there.
        if let Some(value) = url.value.iter().find(|value| value.name.starts_with("rest/")) {
            return Err(format!("{:?}: names below rest/ are those of the plug-in's own sensors", value.name));
        }
    }
    Ok(())
}

/// Refuses a device with tables whose rows could have the names of another device's sensors.
fn check_paths(configs: &[DeviceConfig<RestKeys>], plans: &[DevicePlan]) -> Result<(), ConfigError> {
    let all: HashMap<&str, usize> =
        plans.iter().enumerate().map(|(number, plan)| (plan.path.as_str(), number)).collect();
    for (config, plan) in configs.iter().zip(plans) {
        for (at, _) in plan.path.match_indices('/') {
            let Some(outer) = all.get(&plan.path[..at]).map(|number| &plans[*number]) else { continue };
            if outer.urls.iter().any(|url| !url.spec.tables.is_empty()) {
                let message = format!(
                    "the path {} is below that of {}, whose tables could have the same sensors: give it another path",
                    plan.path, outer.path
                );
                return Err(config.section.error("path", message));
            }
        }
    }
    Ok(())
}

fn request(device: &DeviceConfig<RestKeys>, keys: &UrlKeys) -> Result<UrlRequest, String> {
    let url = url(device, keys)?;
    check_url(&url)?;
    if keys.headers.len() > HEADERS_MAX {
        return Err(format!("more than {HEADERS_MAX} headers"));
    }
    for (name, value) in &keys.headers {
        if SECRET_HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(format!(
                "the header {name} is a secret: write secret_headers = {{ {name} = \"KEY\" }}, and KEY in the file of credentials"
            ));
        }
        check_header(name, value)?;
    }
    let body = match &keys.body {
        None => None,
        Some(toml::Value::String(text)) => Some(text.clone()),
        Some(value) => Some(serde_json::to_string(value).map_err(|error| format!("the body cannot be JSON: {error}"))?),
    };
    if body.as_ref().is_some_and(|body| body.len() > REQUEST_BYTES_MAX) {
        return Err(format!("the body is longer than {REQUEST_BYTES_MAX} bytes"));
    }
    let method = match (keys.method, &body) {
        (Some(MethodName::Get), Some(_)) => {
            return Err("a GET has no body; leave out the method or the body".to_owned());
        }
        (Some(MethodName::Post), _) | (None, Some(_)) => "POST",
        (Some(MethodName::Get) | None, None) => "GET",
    };
    let mut headers: Vec<(String, String)> =
        keys.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("accept")) {
        let accept = match keys.format {
            FormatName::Json => "application/json, */*;q=0.1",
            FormatName::Csv => "text/csv, text/plain;q=0.5, */*;q=0.1",
            FormatName::Xml => "application/xml, text/xml, */*;q=0.1",
        };
        headers.push(("Accept".to_owned(), accept.to_owned()));
    }
    // A POST without a body has a length of 0.
    let body = if method == "POST" { Some(body.unwrap_or_default()) } else { None };
    Ok(UrlRequest { method, url, headers, body })
}

/// The whole address, with scheme and port.
fn url(device: &DeviceConfig<RestKeys>, keys: &UrlKeys) -> Result<String, String> {
    if let Some(url) = &keys.url {
        if keys.uri.is_some() {
            return Err("url has scheme, port and path: leave uri out".to_owned());
        }
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(format!("url {url:?} begins with neither http:// nor https://"));
        }
        return Ok(url.clone());
    }
    let Some(uri) = &keys.uri else { return Err("uri is missing; write uri = \"/api/status\"".to_owned()) };
    if !uri.starts_with('/') {
        return Err(format!("uri {uri:?} does not begin with /"));
    }
    let name = &device.host.name;
    let name = if name.contains(':') { format!("[{name}]") } else { name.clone() };
    let scheme = if device.protocol.scheme == Some(SchemeName::Https) { "https" } else { "http" };
    let port = device.port.map(|port| format!(":{port}")).unwrap_or_default();
    Ok(format!("{scheme}://{name}{port}{uri}"))
}

fn client(
    device: &DeviceConfig<RestKeys>,
    urls: &[UrlPlan],
    context: &ConfigureContext,
    authorities: &mut HashMap<PathBuf, Arc<Vec<u8>>>,
) -> Result<DeviceClient, ConfigError> {
    let (keys, section) = (&*device.protocol, &device.section);
    let bytes_max = match keys.body_bytes_max.as_deref().map(ByteSize::parse).transpose() {
        Ok(size) => size.map_or(BODY_BYTES_USUAL, |ByteSize(bytes)| bytes),
        Err(error) => return Err(section.error("body_bytes_max", error.to_string())),
    };
    if bytes_max == 0 || bytes_max > BODY_BYTES_MAX {
        let most = ByteSize(BODY_BYTES_MAX);
        return Err(section.error("body_bytes_max", format!("body_bytes_max is {bytes_max}; expected 1B to {most}")));
    }
    let redirects = keys.redirects.unwrap_or(0);
    if redirects > REDIRECTS_MAX {
        return Err(section.error("redirects", format!("redirects is {redirects}; at most {REDIRECTS_MAX}")));
    }
    let is_https = urls.iter().any(|url| url.request.url.starts_with("https:"));
    let authority = match &keys.ca {
        None if is_https => {
            return Err(section.error("ca", "https needs ca = \"ca.pem\", the authority of the device's certificate"));
        }
        None => Arc::default(),
        Some(path) => {
            let path = context.resolve(path);
            match authorities.get(&path) {
                Some(pem) => pem.clone(),
                None => {
                    let pem = std::fs::read(&path);
                    let pem =
                        pem.map_err(|error| section.error("ca", format!("cannot read {}: {error}", path.display())))?;
                    authorities.entry(path).or_insert(Arc::new(pem)).clone()
                }
            }
        }
    };
    let credentials = device.credentials.as_deref();
    let more: Vec<&str> = keys.secret_headers.values().map(String::as_str).collect();
    check_credentials_with(credentials, is_https, &more).map_err(|error| section.error("credentials", error))?;
    let bounds = AnswerBounds { bytes_max, redirects, checks_certificate: true };
    let mut client =
        DeviceClient::new(&authority, credentials, bounds).map_err(|(key, message)| section.error(key, message))?;
    if keys.secret_headers.len() > HEADERS_MAX {
        return Err(section.error("secret_headers", format!("more than {HEADERS_MAX} headers")));
    }
    for (header, key) in &keys.secret_headers {
        let wrong = |message: String| section.error("secret_headers", message);
        let Some(credentials) = credentials else {
            return Err(wrong(format!("{header} needs credentials = \"NAME\", a file with the key {key:?}")));
        };
        let secret = credentials.require(key).map_err(wrong)?;
        client = client.with_secret_header(header, secret).map_err(wrong)?;
    }
    Ok(client)
}
