//! NFS: the operations of each mount, and the requests of the client and the server.
//!
//! - In: `[sources.nfs]`, /proc/self/mountstats, /proc/net/rpc/nfs, /proc/net/rpc/nfsd, /proc/fs/nfsd/pool_stats.
//! - Out: the groups `nfs/mounts`, `nfs/client`, `nfs/server` and `nfs/pools`. A machine without NFS has none.
//! - Never: a request to a server.

mod config;
mod mountstats;
mod rpc;

use std::path::PathBuf;

use wholegrain_model::config::{ConfigError, Section};

use self::config::{NfsConfig, NfsGroup};
use self::mountstats::MountStats;
use self::rpc::{PoolStats, RpcStats};
use crate::keyed::KeyedGroup;
use crate::plan::SensorPlan;
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "nfs",
    summary: "NFS: operations of each mount, requests of the client and the server",
    configure,
    jobs: None,
};

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    Ok(Box::new(NfsSource { config: NfsConfig::read(section)?, proc: context.roots.proc.clone(), unseen: Vec::new() }))
}

struct NfsSource {
    config: NfsConfig,
    proc: PathBuf,
    unseen: Vec<&'static str>,
}

impl Source for NfsSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let Self { config, proc, unseen } = self;
        unseen.clear();
        let mut plans = Vec::new();
        for (group, options) in &config.groups {
            let plan = SensorPlan::new(&config.common, options, report);
            let mut files = KeyedGroup::new(group.name(), plan);
            match group {
                NfsGroup::Mounts => {
                    files.add_with("self/mountstats", &proc.join("self/mountstats"), |text| {
                        Box::new(MountStats::of(text, config))
                    });
                }
                NfsGroup::Client => {
                    files.add("net/rpc/nfs", &proc.join("net/rpc/nfs"), Box::new(RpcStats::client()));
                }
                NfsGroup::Server => {
                    files.add("net/rpc/nfsd", &proc.join("net/rpc/nfsd"), Box::new(RpcStats::server()));
                }
                NfsGroup::Pools => {
                    files.add("fs/nfsd/pool_stats", &proc.join("fs/nfsd/pool_stats"), Box::new(PoolStats));
                }
            }
            // The list of mounts is locked while one is unmounted, which waits for its server.
            let blocking = *group == NfsGroup::Mounts;
            plans.extend(files.into_plan(options.timing(&config.common), blocking, unseen));
        }
        plans
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}
