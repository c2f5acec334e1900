//! The groups: their files, whether and when they are read without settings, and the formats.

use wholegrain_model::Interval;

use super::context::{FileRoot, PlanContext, ProcFile};
use super::parser::ProcParser;
use super::{counts, devices, file_systems, loadavg, meminfo, network, numa, pairs, stat, vmstat};
use crate::plan::SensorPlan;
use crate::pressure;

const fn needed(path: &'static str) -> ProcFile {
    ProcFile { root: FileRoot::Proc, path, is_needed: true }
}

const fn optional(path: &'static str) -> ProcFile {
    ProcFile { root: FileRoot::Proc, path, is_needed: false }
}

const fn of_sys(path: &'static str) -> ProcFile {
    ProcFile { root: FileRoot::Sys, path, is_needed: false }
}

/// A group: the name is that in the configuration and of the group.
#[derive(Debug)]
pub struct ProcGroup {
    pub name: &'static str,
    pub files: &'static [ProcFile],
    /// Whether it is read without settings.
    pub is_on: bool,
    /// The interval without settings; `None` for the agent's default.
    pub interval: Option<Interval>,
    /// Whether a read can take milliseconds: work for each CPU, interrupt or zone under locks of the kernel.
    pub blocking: bool,
    pub plan: fn(&PlanContext<'_>, &[u8], &mut SensorPlan<'_>) -> ProcParser,
}

impl PartialEq for ProcGroup {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A cheap group that is read at the agent's interval.
const fn fast(
    name: &'static str,
    files: &'static [ProcFile],
    plan: fn(&PlanContext<'_>, &[u8], &mut SensorPlan<'_>) -> ProcParser,
) -> ProcGroup {
    ProcGroup { name, files, is_on: true, interval: None, blocking: false, plan }
}

impl ProcGroup {
    const fn every(self, seconds: u64) -> Self {
        Self { interval: Some(Interval::from_s(seconds)), ..self }
    }

    const fn off(self) -> Self {
        Self { is_on: false, ..self }
    }

    const fn blocking(self) -> Self {
        Self { blocking: true, ..self }
    }
}

/// All groups, in the order of lists.
pub static GROUPS: &[ProcGroup] = &[
    fast("meminfo", &[needed("meminfo")], |_, bytes, plan| ProcParser::OneRecord(meminfo::plan(bytes, plan))),
    fast("vmstat", &[needed("vmstat")], |_, bytes, plan| ProcParser::KnownLast(vmstat::plan(bytes, plan))),
    fast("stat", &[needed("stat")], |context, bytes, plan| {
        ProcParser::OneRecord(stat::plan(bytes, context.cpus, context.ticks_hz, plan))
    }),
    fast("loadavg", &[needed("loadavg")], |_, _, plan| ProcParser::Load(loadavg::plan(plan))),
    fast("net/dev", &[needed("net/dev")], |context, bytes, plan| {
        ProcParser::UnknownLast(devices::plan_net(bytes, context.devices, plan))
    }),
    fast("net/snmp", &[needed("net/snmp")], plan_pairs),
    fast("net/netstat", &[needed("net/netstat")], plan_pairs),
    fast("diskstats", &[needed("diskstats")], |context, bytes, plan| {
        ProcParser::UnknownLast(devices::plan_disk(bytes, context.devices, plan))
    }),
    fast(
        "pressure",
        &[needed("pressure/cpu"), needed("pressure/memory"), needed("pressure/io"), optional("pressure/irq")],
        |context, bytes, plan| {
            let resource = context.file.path.trim_start_matches("pressure/");
            ProcParser::Pressure(pressure::plan(resource, bytes, plan))
        },
    ),
    fast("net/sockstat", &[optional("net/sockstat"), optional("net/sockstat6")], |_, bytes, plan| {
        ProcParser::Words(network::plan_sockstat(bytes, plan))
    }),
    fast("net/softnet", &[optional("net/softnet_stat")], |context, bytes, plan| {
        ProcParser::Columns(network::plan_softnet(context, bytes, plan))
    }),
    fast("net/snmp6", &[optional("net/snmp6")], |_, bytes, plan| {
        ProcParser::UnknownLast(network::plan_snmp6(bytes, plan))
    })
    .every(10),
    fast(
        "conntrack",
        &[
            optional("sys/net/netfilter/nf_conntrack_count"),
            optional("sys/net/netfilter/nf_conntrack_max"),
            optional("net/stat/nf_conntrack"),
        ],
        network::plan_conntrack,
    )
    .every(10),
    fast("filefd", &[optional("sys/fs/file-nr")], |_, bytes, plan| {
        ProcParser::Words(counts::plan_file_nr(bytes, plan))
    }),
    fast(
        "numa",
        &[of_sys("devices/system/node/node*/meminfo"), of_sys("devices/system/node/node*/numastat")],
        |context, bytes, plan| {
            let table = if context.file.path.ends_with("meminfo") { numa::plan_meminfo } else { numa::plan_numastat };
            ProcParser::OneRecord(table(bytes, context.captures, plan))
        },
    )
    .every(10),
    fast("mce", &[optional("interrupts")], |_, bytes, plan| {
        ProcParser::Rows(counts::plan_rows(bytes, counts::machine_check, plan))
    })
    .every(60)
    .blocking(),
    fast("xfs", &[of_sys("fs/xfs/*/stats/stats")], |context, bytes, plan| {
        ProcParser::OneRecord(file_systems::plan_xfs(bytes, context.captures, plan))
    })
    .every(10),
    fast("zfs/arcstats", &[optional("spl/kstat/zfs/arcstats")], |_, bytes, plan| {
        ProcParser::UnknownLast(file_systems::plan_arcstats(bytes, plan))
    })
    .every(10),
    fast("zfs/pools", &[optional("spl/kstat/zfs/*/state")], |context, _, plan| {
        ProcParser::State(file_systems::plan_pool(context.captures, plan))
    })
    .every(10),
    fast("zfs/datasets", &[optional("spl/kstat/zfs/*/objset-*")], |_, bytes, plan| {
        ProcParser::UnknownLast(file_systems::plan_dataset(bytes, plan))
    })
    .every(10)
    .off()
    .blocking(),
    fast("schedstat", &[optional("schedstat")], |context, bytes, plan| {
        ProcParser::Columns(counts::plan_schedstat(context, bytes, plan))
    })
    .every(10)
    .off()
    .blocking(),
    fast("interrupts", &[optional("interrupts")], |_, bytes, plan| {
        ProcParser::Rows(counts::plan_rows(bytes, counts::interrupt, plan))
    })
    .every(10)
    .off()
    .blocking(),
    fast("softirqs", &[optional("softirqs")], |_, bytes, plan| {
        ProcParser::Rows(counts::plan_rows(bytes, counts::soft_interrupt, plan))
    })
    .every(10)
    .off()
    .blocking(),
    fast("buddyinfo", &[optional("buddyinfo")], |_, bytes, plan| {
        ProcParser::UnknownLast(counts::plan_buddyinfo(bytes, plan))
    })
    .every(10)
    .off()
    .blocking(),
    fast("slab", &[optional("slabinfo")], |_, bytes, plan| ProcParser::UnknownLast(counts::plan_slab(bytes, plan)))
        .every(60)
        .off()
        .blocking(),
];

fn plan_pairs(context: &PlanContext<'_>, bytes: &[u8], plan: &mut SensorPlan<'_>) -> ProcParser {
    ProcParser::Pairs(pairs::plan(context.group, bytes, plan))
}
