//! The keys of devices, checked.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use wholegrain_devices::config::check_timing;
use wholegrain_devices::{Credentials, DeviceConfig, PollTiming, SecretText};
use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section, unknown};
use wholegrain_model::name::check_relative;
use wholegrain_model::pattern::{Filter, Pattern};

use crate::bmc::BmcGroup;
use crate::session::{LanIdentity, PASSWORD_BYTES_MAX, USER_BYTES_MAX};
use crate::suite::CipherSuite;

/// The keys of a file of credentials.
const CREDENTIALS: [&str; 3] = ["user", "password", "kg"];
/// The longest interval at which a session can stay open: 45 s. Controllers close one that is idle for 60 s.
const KEPT_INTERVAL_MAX: Interval = Interval::from_s(45);
/// The names of privilege levels with their numbers.
const LEVELS: [(&str, u8); 3] = [("user", 2), ("operator", 3), ("administrator", 4)];

/// The keys of the plug-in's table beside those that all sources of devices have.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpmiOwnKeys {
    pub local: Option<LocalKeys>,
}

/// The controller of this machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalKeys {
    #[serde(default = "local_device")]
    pub device: PathBuf,
    #[serde(default = "local_path")]
    pub path: String,
    interval: Option<Interval>,
    power_interval: Option<Interval>,
    sel_interval: Option<Interval>,
    groups: Option<Vec<String>>,
    #[serde(default)]
    include: Vec<Pattern>,
    #[serde(default)]
    exclude: Vec<Pattern>,
}

fn local_device() -> PathBuf {
    "/dev/ipmi0".into()
}

fn local_path() -> String {
    "bmc".to_owned()
}

/// The keys of a template or a list of devices.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpmiKeys {
    power_interval: Option<Interval>,
    sel_interval: Option<Interval>,
    groups: Option<Vec<String>>,
    #[serde(default)]
    include: Vec<Pattern>,
    #[serde(default)]
    exclude: Vec<Pattern>,
    privilege: Option<String>,
    cipher_suites: Option<Vec<u32>>,
    session: Option<String>,
}

/// The groups of a device with their timing.
pub struct GroupsConfig {
    pub groups: Vec<(BmcGroup, PollTiming)>,
    pub filter: Arc<Filter>,
}

impl GroupsConfig {
    /// The groups without their timing.
    pub fn kinds(&self) -> Vec<BmcGroup> {
        self.groups.iter().map(|(group, _)| *group).collect()
    }
}

/// Keys of groups that a device on the network and that of this machine have.
struct GroupKeys<'a> {
    groups: &'a Option<Vec<String>>,
    power: Option<Interval>,
    sel: Option<Interval>,
    include: &'a [Pattern],
    exclude: &'a [Pattern],
}

fn groups(section: &Section, timing: PollTiming, keys: &GroupKeys<'_>) -> Result<GroupsConfig, ConfigError> {
    let known = BmcGroup::NAMES.map(|(name, _)| name);
    let mut groups = Vec::new();
    match keys.groups {
        None => groups.extend(BmcGroup::NAMES.map(|(_, group)| group)),
        Some(names) => {
            for name in names {
                let Some((_, group)) = BmcGroup::NAMES.iter().find(|(known, _)| known == name) else {
                    return Err(section.error("groups", unknown("group", name, &known)));
                };
                if !groups.contains(group) {
                    groups.push(*group);
                }
            }
        }
    }
    if groups.is_empty() {
        return Err(section.error("groups", format!("groups is empty; expected some of {}", known.join(", "))));
    }
    let filter = Arc::new(Filter { include: keys.include.to_vec(), exclude: keys.exclude.to_vec() });
    let mut timed = Vec::new();
    for group in groups {
        let own = match group {
            BmcGroup::Sensors => None,
            BmcGroup::Power => keys.power,
            BmcGroup::Events => keys.sel,
        };
        let timing = PollTiming { interval: own.unwrap_or(timing.interval), ..timing };
        check_timing(section, &timing)?;
        timed.push((group, timing));
    }
    Ok(GroupsConfig { groups: timed, filter })
}

/// The groups of a device on the network.
pub fn device_groups(device: &DeviceConfig<IpmiKeys>) -> Result<GroupsConfig, ConfigError> {
    let keys = &*device.protocol;
    let keys = GroupKeys {
        groups: &keys.groups,
        power: keys.power_interval,
        sel: keys.sel_interval,
        include: &keys.include,
        exclude: &keys.exclude,
    };
    groups(&device.section, device.timing, &keys)
}

/// The groups of this machine's controller. `section` is its table.
pub fn local_groups(section: &Section, local: &LocalKeys) -> Result<GroupsConfig, ConfigError> {
    check_relative(&local.path).map_err(|error| section.error("path", error.to_string()))?;
    let default = PollTiming::default();
    let timing = PollTiming { interval: local.interval.unwrap_or(default.interval), ..default };
    let keys = GroupKeys {
        groups: &local.groups,
        power: local.power_interval,
        sel: local.sel_interval,
        include: &local.include,
        exclude: &local.exclude,
    };
    groups(section, timing, &keys)
}

/// Whether the sessions of a device stay open between polls.
pub fn is_kept(device: &DeviceConfig<IpmiKeys>, groups: &GroupsConfig) -> Result<bool, ConfigError> {
    let shortest = groups.groups.iter().map(|(_, timing)| timing.interval).min().unwrap_or_default();
    match device.protocol.session.as_deref() {
        None | Some("keep") => Ok(shortest <= KEPT_INTERVAL_MAX),
        Some("close") => Ok(false),
        Some(other) => Err(device.section.error("session", unknown("value", other, &["keep", "close"]))),
    }
}

/// Who we are for a device.
pub fn identity(device: &DeviceConfig<IpmiKeys>) -> Result<LanIdentity, ConfigError> {
    let (section, keys) = (&device.section, &*device.protocol);
    let level = keys.privilege.as_deref().unwrap_or("user");
    let Some((_, level)) = LEVELS.iter().find(|(name, _)| *name == level) else {
        return Err(section.error("privilege", unknown("value", level, &LEVELS.map(|(name, _)| name))));
    };
    let mut suites = Vec::new();
    for number in keys.cipher_suites.as_deref().unwrap_or(&[17, 3]) {
        suites.push(match number {
            3 => CipherSuite::Sha1,
            17 => CipherSuite::Sha256,
            other => {
                let message = format!("cipher suite {other}; expected 17 or 3: others do not protect what is sent");
                return Err(section.error("cipher_suites", message));
            }
        });
    }
    if suites.is_empty() || suites.len() > 2 {
        return Err(section.error("cipher_suites", "expected one or both of 17 and 3, the best first"));
    }
    let Some(credentials) = device.credentials.as_deref() else {
        let message = "credentials is missing; it names a file with user and password";
        return Err(section.error("credentials", message));
    };
    let (user, password, kg) = secrets(credentials).map_err(|message| section.error("credentials", message))?;
    Ok(LanIdentity { user, password, kg, level: *level, suites })
}

/// User, password and key of a file of credentials. Messages do not have them.
fn secrets(credentials: &Credentials) -> Result<(Vec<u8>, SecretText, Option<SecretText>), String> {
    credentials.check_keys(&CREDENTIALS)?;
    let bounded = |key: &str, max: usize| match credentials.get(key) {
        Some(text) if text.expose().len() > max => {
            Err(format!("credentials {:?}: `{key}` has more than {max} bytes", credentials.name()))
        }
        text => Ok(text.cloned()),
    };
    let user = bounded("user", USER_BYTES_MAX)?.map(|user| user.expose().as_bytes().to_vec()).unwrap_or_default();
    credentials.require("password")?;
    let password = bounded("password", PASSWORD_BYTES_MAX)?.unwrap_or_else(|| SecretText::new(""));
    Ok((user, password, bounded("kg", PASSWORD_BYTES_MAX)?))
}
