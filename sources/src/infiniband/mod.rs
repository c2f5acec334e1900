//! InfiniBand and RoCE: the state and the rate of each port. The counters are in the source `sysfs`.
//!
//! - In: `[sources.infiniband]` and /sys/class/infiniband/*/ports/*/.
//! - Out: the group `infiniband/links`, with the sensors `infiniband/<device>/<port>/<quantity>` beside those of the counters.
//! - Never: a change of a port.

mod links;

use std::path::PathBuf;

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::name::sanitize_level;

use self::links::{LINK_FILES, LinkText};
use crate::glob::{self, PathMatch};
use crate::keyed::KeyedGroup;
use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::SensorPlan;
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "infiniband",
    summary: "InfiniBand and RoCE: state and rate of each port",
    configure,
    jobs: None,
};

/// The keys of the source's table besides those of the group.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct InfinibandKeys {}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, InfinibandKeys {}) = options::read(section)?;
    Ok(Box::new(InfinibandSource { options, sys: context.roots.sys.clone(), unseen: Vec::new() }))
}

struct InfinibandSource {
    options: GroupOptions,
    sys: PathBuf,
    unseen: Vec<&'static str>,
}

impl Source for InfinibandSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        self.unseen.clear();
        let mut files = KeyedGroup::new("infiniband/links", SensorPlan::new(&self.options, &NO_OPTIONS, report));
        for (name, kind) in LINK_FILES {
            for PathMatch { path, captures } in glob::find(&self.sys, &format!("class/infiniband/*/ports/*/{name}")) {
                let levels: Vec<String> = captures.iter().map(|capture| sanitize_level(capture)).collect();
                let folder = format!("infiniband/{}", levels.join("/"));
                files.add(name, &path, Box::new(LinkText { folder, kind: *kind }));
            }
        }
        // A read asks the adapter's firmware.
        files.into_plan(self.options.timing(&NO_OPTIONS), true, &mut self.unseen).into_iter().collect()
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}
