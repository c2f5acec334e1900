//! `[sources.procfs]`: the source's keys.

use wholegrain_model::Interval;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::{Filter, Pattern};

use crate::options::GroupOptions;

/// The groups there are, each a file of /proc (pressure: a folder of them).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub enum Group {
    /// /proc/meminfo.
    #[serde(rename = "meminfo")]
    Meminfo,
    /// /proc/vmstat.
    #[serde(rename = "vmstat")]
    Vmstat,
    /// /proc/stat.
    #[serde(rename = "stat")]
    Stat,
    /// /proc/loadavg.
    #[serde(rename = "loadavg")]
    Loadavg,
    /// /proc/net/dev.
    #[serde(rename = "net/dev")]
    NetDev,
    /// /proc/net/snmp.
    #[serde(rename = "net/snmp")]
    NetSnmp,
    /// /proc/net/netstat.
    #[serde(rename = "net/netstat")]
    NetNetstat,
    /// /proc/diskstats.
    #[serde(rename = "diskstats")]
    Diskstats,
    /// /proc/pressure/*.
    #[serde(rename = "pressure")]
    Pressure,
}

impl Group {
    /// All of them, in the order in which they are shown.
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

    /// The group's name, which is its file's below /proc too.
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

/// The table as it is written.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default = "all_groups")]
    groups: Vec<Group>,
    interval: Option<Interval>,
    offset: Option<Interval>,
    synchronous: Option<bool>,
    #[serde(default)]
    metrics: Filter,
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

/// The configuration, checked.
#[derive(Debug)]
pub struct Config {
    /// What is sampled, each group once, with its own keys.
    pub groups: Vec<(Group, GroupOptions)>,
    /// The keys for all groups.
    pub common: GroupOptions,
    /// Which network and block devices, by name.
    pub devices: Filter,
    /// Which CPUs, by number.
    pub cpus: Filter,
}

impl Config {
    /// Reads and checks the source's table.
    pub fn read(section: &Section) -> Result<Self, ConfigError> {
        let mut table: Table = section.parse()?;
        let wanted = std::mem::take(&mut table.groups);
        let common = GroupOptions {
            interval: table.interval,
            offset: table.offset,
            synchronous: table.synchronous,
            metrics: std::mem::take(&mut table.metrics),
        };
        common.check(section)?;
        let mut groups = Vec::new();
        for group in Group::ALL {
            let options = table.options(group);
            options.check(&section.child(group.name()))?;
            if wanted.contains(&group) {
                groups.push((group, options));
            }
        }
        Ok(Self { groups, common, devices: table.devices, cpus: table.cpus })
    }
}

impl Table {
    fn options(&mut self, group: Group) -> GroupOptions {
        std::mem::take(match group {
            Group::Meminfo => &mut self.meminfo,
            Group::Vmstat => &mut self.vmstat,
            Group::Stat => &mut self.stat,
            Group::Loadavg => &mut self.loadavg,
            Group::NetDev => &mut self.net_dev,
            Group::NetSnmp => &mut self.net_snmp,
            Group::NetNetstat => &mut self.net_netstat,
            Group::Diskstats => &mut self.diskstats,
            Group::Pressure => &mut self.pressure,
        })
    }
}

fn all_groups() -> Vec<Group> {
    Group::ALL.to_vec()
}

/// All but loop devices and RAM disks, of which there are many that nothing uses.
fn default_devices() -> Filter {
    let exclude = ["loop*", "ram*"].into_iter().filter_map(|pattern| Pattern::new(pattern).ok());
    Filter { include: Vec::new(), exclude: exclude.collect() }
}
