//! The settings of `[sources.lustre]`.

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::pattern::Filter;

use super::files::LustreGroup;
use crate::options::{self, GroupOptions};

/// The keys of the source's table besides those of [`GroupOptions`], and the tables of its groups.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LustreKeys {
    #[serde(default = "groups_by_default")]
    groups: Vec<LustreGroup>,
    #[serde(default)]
    job_ids: Filter,
    #[serde(default = "jobs_by_default")]
    jobs_max: usize,
    #[serde(default)]
    peers: Filter,
    #[serde(default = "peers_by_default")]
    peers_max: usize,
    #[serde(default)]
    llite: GroupOptions,
    #[serde(default)]
    osc: GroupOptions,
    #[serde(default)]
    mdc: GroupOptions,
    #[serde(default)]
    ost: GroupOptions,
    #[serde(default)]
    mdt: GroupOptions,
    #[serde(default)]
    brw: GroupOptions,
    #[serde(default)]
    jobs: GroupOptions,
    #[serde(default)]
    lnet: GroupOptions,
}

/// All groups but `osc`, which has hundreds of devices on a client of a large file system, and the histograms.
fn groups_by_default() -> Vec<LustreGroup> {
    use LustreGroup::{Jobs, Llite, Lnet, Mdc, Mdt, Ost};
    vec![Llite, Mdc, Ost, Mdt, Jobs, Lnet]
}

fn jobs_by_default() -> usize {
    256
}

fn peers_by_default() -> usize {
    64
}

/// The checked settings of the source.
#[derive(Debug)]
pub struct LustreConfig {
    pub common: GroupOptions,
    /// The enabled groups, each once.
    pub groups: Vec<(LustreGroup, GroupOptions)>,
    /// Filters by the id of a job, with `/` for a level.
    pub job_ids: Filter,
    /// The most jobs with sensors on a target.
    pub jobs_max: usize,
    /// Filters by the NID of a peer or an interface.
    pub peers: Filter,
    pub peers_max: usize,
}

impl LustreConfig {
    /// Reads and checks the table of the source.
    pub fn read(section: &Section) -> Result<Self, ConfigError> {
        let (common, keys): (GroupOptions, LustreKeys) = options::read(section)?;
        let all = [
            (LustreGroup::Llite, keys.llite),
            (LustreGroup::Osc, keys.osc),
            (LustreGroup::Mdc, keys.mdc),
            (LustreGroup::Ost, keys.ost),
            (LustreGroup::Mdt, keys.mdt),
            (LustreGroup::Brw, keys.brw),
            (LustreGroup::Jobs, keys.jobs),
            (LustreGroup::Lnet, keys.lnet),
        ];
        let mut groups = Vec::new();
        for (group, options) in all {
            options.check(&section.child(group.name().trim_start_matches("lustre/")))?;
            if keys.groups.contains(&group) {
                groups.push((group, options));
            }
        }
        let LustreKeys { job_ids, jobs_max, peers, peers_max, .. } = keys;
        Ok(Self { common, groups, job_ids, jobs_max, peers, peers_max })
    }
}
