//! `[plugins.redfish]`: templates and lists of management controllers.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use wholegrain_device_http::{AnswerBounds, BODY_BYTES_MAX, DeviceClient, check_credentials, check_url};
use wholegrain_devices::config::{self, TIMEOUT_MAX, check_timing};
use wholegrain_devices::{DeviceConfig, PollTiming, WORKERS_MAX};
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::Filter;
use wholegrain_model::size::ByteSize;
use wholegrain_sources::ConfigureContext;

use crate::connection::{LoginMode, RedfishConnection};
use crate::subsystem::{Subsystem, SubsystemIntervals};

/// The longest answer without `body_bytes_max`: 4 MiB.
const BODY_BYTES_USUAL: u64 = 4 << 20;
/// The default of `rediscover`: 1 h.
const REDISCOVER_USUAL: Interval = Interval::from_s(3600);
/// The default of `poll_timeout`: 60 s.
const POLL_TIMEOUT_USUAL: Interval = Interval::from_s(60);
/// The longest `poll_timeout`: 10 min.
const POLL_TIMEOUT_MAX: Interval = Interval::from_s(600);
/// The default of `resources_max`.
const RESOURCES_USUAL: usize = 500;
/// The largest value that `resources_max` can have.
const RESOURCES_MAX: usize = 10_000;
/// The default of `sensors_max`.
const SENSORS_USUAL: usize = 2_000;
/// The largest value that `sensors_max` can have.
const SENSORS_MAX: usize = 20_000;
/// The most devices with `events`: each has a thread of its own.
const EVENT_STREAMS_MAX: usize = 256;
/// Timing without keys of the configuration. Management controllers take a second for an answer, and some take five.
const TIMING_USUAL: PollTiming = PollTiming {
    interval: Interval::from_s(30),
    offset: Interval::from_s(0),
    timeout: Interval::from_s(10),
    retries: 0,
    stale_after: None,
};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoPluginKeys {}

/// The keys of a template or a list of controllers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RedfishKeys {
    scheme: Option<ServiceScheme>,
    ca: Option<PathBuf>,
    insecure: Option<bool>,
    authentication: Option<AuthenticationKey>,
    subsystems: Option<Vec<Subsystem>>,
    prefer: Option<ModelPreference>,
    sensors: Option<Filter>,
    intervals: Option<SubsystemIntervals>,
    rediscover: Option<Interval>,
    poll_timeout: Option<Interval>,
    resources_max: Option<usize>,
    sensors_max: Option<usize>,
    body_bytes_max: Option<String>,
    thresholds: Option<bool>,
    health: Option<bool>,
    events: Option<EventKey>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ServiceScheme {
    Http,
    #[default]
    Https,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AuthenticationKey {
    #[default]
    Session,
    Basic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EventKey {
    #[default]
    Off,
    Sse,
}

/// Which resources are read where a chassis has the old ones (`Thermal`, `Power`) and the new ones (`ThermalSubsystem`, `PowerSubsystem`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelPreference {
    /// One request for all temperatures and fans of a chassis.
    #[default]
    Legacy,
    /// A request for the temperatures, and one for each fan unless the service expands collections.
    Subsystems,
}

/// The checked settings of the plug-in.
pub struct RedfishPlan {
    pub devices: Vec<ControllerPlan>,
    pub workers: usize,
    pub first_answers: Interval,
    /// What the administrator is reminded of.
    pub warnings: Vec<String>,
}

/// The checked settings of one controller.
pub struct ControllerPlan {
    /// Below the agent's prefix.
    pub path: String,
    pub host: String,
    pub poll_timeout: Interval,
    /// The subsystems in the order of the pool's groups, with their timing.
    pub subsystems: Vec<(Subsystem, PollTiming)>,
    pub has_events: bool,
    pub limits: Arc<ReadLimits>,
    pub connection: Arc<RedfishConnection>,
}

/// What is read of a controller, and how much.
pub struct ReadLimits {
    pub prefer: ModelPreference,
    /// Whether the `Sensors` of a chassis are read beside its other resources: `subsystems` names them.
    pub all_sensors: bool,
    /// Names below the controller's path.
    pub sensors: Filter,
    pub rediscover: Interval,
    pub resources_max: usize,
    pub sensors_max: usize,
    pub thresholds: bool,
    pub health: bool,
}

/// Reads and checks the plug-in's table.
pub fn read(section: &Section, context: &ConfigureContext) -> Result<RedfishPlan, ConfigError> {
    let config = config::read_with::<NoPluginKeys, RedfishKeys>(section, context, TIMING_USUAL)?;
    let NoPluginKeys {} = config.own;
    let (mut devices, mut insecure, mut streams) = (Vec::new(), Vec::new(), 0);
    for device in &config.devices {
        let plan = controller(device, context)?;
        if device.protocol.insecure == Some(true) {
            insecure.push(plan.path.clone());
        }
        streams += usize::from(plan.has_events);
        if streams > EVENT_STREAMS_MAX {
            let message =
                format!("events of more than {EVENT_STREAMS_MAX} controllers; use a second agent for the others");
            return Err(device.section.error("events", message));
        }
        devices.push(plan);
    }
    let warnings = insecure.first().map(|first| {
        let who = match insecure.len() - 1 {
            0 => format!("{first} has"),
            more => format!("{first} and {more} more have"),
        };
        format!("redfish: {who} insecure = true: anybody on the way can read the password; write ca = \"bmc-ca.pem\" instead")
    });
    let workers = config.in_flight.min(WORKERS_MAX);
    Ok(RedfishPlan { devices, workers, first_answers: config.first_answers, warnings: warnings.into_iter().collect() })
}

fn controller(device: &DeviceConfig<RedfishKeys>, context: &ConfigureContext) -> Result<ControllerPlan, ConfigError> {
    let (keys, section) = (&*device.protocol, &device.section);
    let poll_timeout = keys.poll_timeout.unwrap_or(POLL_TIMEOUT_USUAL.max(device.timing.timeout));
    if poll_timeout < device.timing.timeout || poll_timeout > POLL_TIMEOUT_MAX {
        let message = format!(
            "poll_timeout is {poll_timeout}; expected timeout ({}) to {POLL_TIMEOUT_MAX}",
            device.timing.timeout
        );
        return Err(section.error("poll_timeout", message));
    }
    let within = |key: &'static str, value: Option<usize>, usual: usize, most: usize| match value.unwrap_or(usual) {
        value if (1..=most).contains(&value) => Ok(value),
        value => Err(section.error(key, format!("{key} is {value}; expected 1 to {most}"))),
    };
    let rediscover = keys.rediscover.unwrap_or(REDISCOVER_USUAL);
    if rediscover < Interval::from_s(1) {
        return Err(section.error("rediscover", format!("rediscover is {rediscover}; expected 1s or more")));
    }
    let chosen = keys.subsystems.clone().unwrap_or_else(|| Subsystem::USUAL.to_vec());
    if chosen.is_empty() {
        return Err(section.error("subsystems", "subsystems is empty; leave it out for the usual ones"));
    }
    let mut subsystems = Vec::new();
    for subsystem in Subsystem::ALL.into_iter().filter(|one| chosen.contains(one)) {
        let interval = keys.intervals.as_ref().and_then(|all| all.of(subsystem)).unwrap_or(device.timing.interval);
        let timing = PollTiming { interval, ..device.timing };
        check_timing(section, &timing)?;
        subsystems.push((subsystem, timing));
    }
    let limits = ReadLimits {
        prefer: keys.prefer.unwrap_or_default(),
        all_sensors: keys.subsystems.as_ref().is_some_and(|named| named.contains(&Subsystem::Sensors)),
        sensors: keys.sensors.clone().unwrap_or_default(),
        rediscover,
        resources_max: within("resources_max", keys.resources_max, RESOURCES_USUAL, RESOURCES_MAX)?,
        sensors_max: within("sensors_max", keys.sensors_max, SENSORS_USUAL, SENSORS_MAX)?,
        thresholds: keys.thresholds.unwrap_or(false),
        health: keys.health.unwrap_or(false),
    };
    Ok(ControllerPlan {
        path: device.path.clone(),
        host: device.host.text.clone(),
        poll_timeout,
        subsystems,
        has_events: keys.events == Some(EventKey::Sse),
        limits: Arc::new(limits),
        connection: Arc::new(connection(device, context)?),
    })
}

fn connection(
    device: &DeviceConfig<RedfishKeys>,
    context: &ConfigureContext,
) -> Result<RedfishConnection, ConfigError> {
    let (keys, section) = (&*device.protocol, &device.section);
    let is_https = keys.scheme.unwrap_or_default() == ServiceScheme::Https;
    let is_insecure = keys.insecure == Some(true);
    let credentials = device.credentials.as_deref();
    check_credentials(credentials, is_https).map_err(|error| section.error("credentials", error))?;
    if !is_https && credentials.is_some() && !is_insecure {
        let message = "http sends the password readable; write scheme = \"https\", or insecure = true";
        return Err(section.error("scheme", message));
    }
    let authority = match &keys.ca {
        None if is_https && !is_insecure => {
            let message =
                "https needs ca = \"bmc-ca.pem\", the authority of the controllers' certificates, or insecure = true";
            return Err(section.error("ca", message));
        }
        None => Vec::new(),
        Some(_) if is_insecure => {
            return Err(section.error("insecure", "ca is not used with insecure = true; remove one"));
        }
        Some(path) => {
            let path = context.resolve(path);
            let pem = std::fs::read(&path);
            pem.map_err(|error| section.error("ca", format!("cannot read {}: {error}", path.display())))?
        }
    };
    let bytes_max = match keys.body_bytes_max.as_deref().map(ByteSize::parse).transpose() {
        Ok(size) => size.map_or(BODY_BYTES_USUAL, |ByteSize(bytes)| bytes),
        Err(error) => return Err(section.error("body_bytes_max", error.to_string())),
    };
    if bytes_max == 0 || bytes_max > BODY_BYTES_MAX {
        let most = ByteSize(BODY_BYTES_MAX);
        return Err(section.error("body_bytes_max", format!("body_bytes_max is {bytes_max}; expected 1B to {most}")));
    }
    let bounds = AnswerBounds { bytes_max, redirects: 0, checks_certificate: !is_insecure };
    let client = DeviceClient::new(&authority, credentials, bounds);
    let client = client.map_err(|(key, message)| section.error(key, message))?;
    let secret = |key: &str| credentials.and_then(|credentials| credentials.get(key)).cloned();
    let mode = match (keys.authentication.unwrap_or_default(), secret("user"), secret("password")) {
        (AuthenticationKey::Session, Some(user), Some(password)) => LoginMode::Session { user, password },
        _ if credentials.is_some() => LoginMode::Header,
        _ => LoginMode::Open,
    };
    let name = &device.host.name;
    let name = if name.contains(':') { format!("[{name}]") } else { name.clone() };
    let port = device.port.map(|port| format!(":{port}")).unwrap_or_default();
    let base = format!("{}://{name}{port}", if is_https { "https" } else { "http" });
    check_url(&base).map_err(|error| section.error("hosts", error))?;
    let timeout = device.timing.timeout.min(TIMEOUT_MAX).duration();
    Ok(RedfishConnection::new(client, base, mode, timeout))
}
