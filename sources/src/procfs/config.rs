//! The settings of `[sources.procfs]`.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::{Filter, Pattern};

use super::groups::{GROUPS, ProcGroup};
use crate::options::{self, GROUPS_ALL, GROUPS_DEFAULT, GroupOptions};

/// The names of the groups in the settings.
static NAMES: LazyLock<Vec<&str>> = LazyLock::new(|| GROUPS.iter().map(|group| group.name).collect());
/// What a list of groups may contain.
static WORDS: LazyLock<Vec<&str>> =
    LazyLock::new(|| NAMES.iter().copied().chain([GROUPS_DEFAULT, GROUPS_ALL]).collect());

/// An entry of the key `groups`.
#[derive(Debug)]
struct GroupName(&'static str);

impl<'de> Deserialize<'de> for GroupName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        options::group_name(deserializer, &WORDS).map(Self)
    }
}

/// The keys of the source's table besides those of [`GroupOptions`] and the groups' tables.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProcfsKeys {
    #[serde(default = "default_groups")]
    groups: Vec<GroupName>,
    #[serde(default = "default_devices")]
    devices: Filter,
    #[serde(default)]
    cpus: Filter,
    #[serde(default)]
    per_cpu: bool,
}

/// The checked settings of the source.
#[derive(Debug)]
pub struct ProcfsConfig {
    /// The sampled groups, each once, with their own settings.
    pub groups: Vec<(&'static ProcGroup, GroupOptions)>,
    /// The settings for all groups.
    pub common: GroupOptions,
    /// Filter of network and block devices, by name.
    pub devices: Filter,
    /// Filter of CPUs, by number.
    pub cpus: Filter,
    /// Whether `net/softnet` and `schedstat` have values of each CPU beside the sums.
    pub per_cpu: bool,
}

impl ProcfsConfig {
    /// Reads and checks the table of the source.
    pub fn read(section: &Section) -> Result<Self, ConfigError> {
        let (common, mut tables, own): (_, _, ProcfsKeys) = options::read_groups(section, &NAMES)?;
        let list: Vec<&str> = own.groups.iter().map(|name| name.0).collect();
        let groups = GROUPS.iter().filter(|group| options::selects(&list, group.name, group.is_on));
        let groups = groups.map(|group| (group, tables.remove(group.name).unwrap_or_default())).collect();
        Ok(Self { groups, common, devices: own.devices, cpus: own.cpus, per_cpu: own.per_cpu })
    }
}

fn default_groups() -> Vec<GroupName> {
    vec![GroupName(GROUPS_DEFAULT)]
}

/// All devices except loop devices and RAM disks, most of which are unused.
fn default_devices() -> Filter {
    let exclude = ["loop*", "ram*"].into_iter().filter_map(|pattern| Pattern::new(pattern).ok());
    Filter { include: Vec::new(), exclude: exclude.collect() }
}
