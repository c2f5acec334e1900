//! The settings of `[sources.procfs]`.

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::{Filter, Pattern};

use crate::options::{self, GroupOptions};

/// The groups. Each is a file of /proc; `pressure` is a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum ProcGroup {
    #[serde(rename = "meminfo")]
    Meminfo,
    #[serde(rename = "vmstat")]
    Vmstat,
    #[serde(rename = "stat")]
    Stat,
    #[serde(rename = "loadavg")]
    Loadavg,
    #[serde(rename = "net/dev")]
    NetDev,
    #[serde(rename = "net/snmp")]
    NetSnmp,
    #[serde(rename = "net/netstat")]
    NetNetstat,
    #[serde(rename = "diskstats")]
    Diskstats,
    #[serde(rename = "pressure")]
    Pressure,
}

impl ProcGroup {
    /// All groups, in the order of lists.
    pub const ALL: [Self; 9] = [
        Self::Meminfo,
        Self::Vmstat,
        Self::Stat,
        Self::Loadavg,
        Self::NetDev,
        Self::NetSnmp,
        Self::NetNetstat,
        Self::Diskstats,
        Self::Pressure,
    ];

    /// The name of the group, and of its file below /proc.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meminfo => "meminfo",
            Self::Vmstat => "vmstat",
            Self::Stat => "stat",
            Self::Loadavg => "loadavg",
            Self::NetDev => "net/dev",
            Self::NetSnmp => "net/snmp",
            Self::NetNetstat => "net/netstat",
            Self::Diskstats => "diskstats",
            Self::Pressure => "pressure",
        }
    }
}

/// The keys of the source's table besides those of [`GroupOptions`].
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ProcfsKeys {
    #[serde(default = "all_groups")]
    groups: Vec<ProcGroup>,
    #[serde(default = "default_devices")]
    devices: Filter,
    #[serde(default)]
    cpus: Filter,
    #[serde(default)]
    meminfo: GroupOptions,
    #[serde(default)]
    vmstat: GroupOptions,
    #[serde(default)]
    stat: GroupOptions,
    #[serde(default)]
    loadavg: GroupOptions,
    #[serde(default, rename = "net/dev")]
    net_dev: GroupOptions,
    #[serde(default, rename = "net/snmp")]
    net_snmp: GroupOptions,
    #[serde(default, rename = "net/netstat")]
    net_netstat: GroupOptions,
    #[serde(default)]
    diskstats: GroupOptions,
    #[serde(default)]
    pressure: GroupOptions,
}

/// The checked settings of the source.
#[derive(Debug)]
pub struct ProcfsConfig {
    /// The sampled groups, each once, with their own settings.
    pub groups: Vec<(ProcGroup, GroupOptions)>,
    /// The settings for all groups.
    pub common: GroupOptions,
    /// Filter of network and block devices, by name.
    pub devices: Filter,
    /// Filter of CPUs, by number.
    pub cpus: Filter,
}

impl ProcfsConfig {
    /// Reads and checks the table of the source.
    pub fn read(section: &Section) -> Result<Self, ConfigError> {
        let (common, mut own): (GroupOptions, ProcfsKeys) = options::read(section)?;
        let mut groups = Vec::new();
        for group in ProcGroup::ALL {
            let options = own.take_options(group);
            options.check(&section.child(group.name()))?;
            if own.groups.contains(&group) {
                groups.push((group, options));
            }
        }
        Ok(Self { groups, common, devices: own.devices, cpus: own.cpus })
    }
}

impl ProcfsKeys {
    fn take_options(&mut self, group: ProcGroup) -> GroupOptions {
        std::mem::take(match group {
            ProcGroup::Meminfo => &mut self.meminfo,
            ProcGroup::Vmstat => &mut self.vmstat,
            ProcGroup::Stat => &mut self.stat,
            ProcGroup::Loadavg => &mut self.loadavg,
            ProcGroup::NetDev => &mut self.net_dev,
            ProcGroup::NetSnmp => &mut self.net_snmp,
            ProcGroup::NetNetstat => &mut self.net_netstat,
            ProcGroup::Diskstats => &mut self.diskstats,
            ProcGroup::Pressure => &mut self.pressure,
        })
    }
}

fn all_groups() -> Vec<ProcGroup> {
    ProcGroup::ALL.to_vec()
}

/// All devices except loop devices and RAM disks, most of which are unused.
fn default_devices() -> Filter {
    let exclude = ["loop*", "ram*"].into_iter().filter_map(|pattern| Pattern::new(pattern).ok());
    Filter { include: Vec::new(), exclude: exclude.collect() }
}
