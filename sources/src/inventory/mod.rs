//! What the node is made of: processors, memory, disks, boot, and the names of hardware and kernel.
//!
//! - In: `[sources.inventory]`; files below `roots.proc` and `roots.sys`, and os-release. Discovery reads them, not the sampling thread.
//! - Out: the group `inventory`. A fact that is a number is a value. A fact that is text is the description of a sensor whose value is 1.
//! - Never: serial numbers, which only root may read in /sys and every reader of the sensors could then see.

mod facts;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, SensorDef};

use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::SensorPlan;
use crate::reader::{Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Roots, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "inventory",
    summary: "what the node is made of: processors, memory, disks, hardware, kernel, distribution",
    configure,
    jobs: None,
};

/// The name of the source and of its group.
const NAME: &str = SOURCE.name;
/// The interval without settings: facts hardly ever change.
const INTERVAL: Interval = Interval::from_s(300);

/// The keys of `[sources.inventory]` besides those of [`GroupOptions`].
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct InventoryKeys {
    #[serde(default = "default_os_release")]
    os_release: PathBuf,
}

fn default_os_release() -> PathBuf {
    "/etc/os-release".into()
}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, keys): (GroupOptions, InventoryKeys) = options::read(section)?;
    let os_release = context.resolve(&keys.os_release);
    Ok(Box::new(InventorySource { options, roots: context.roots.clone(), os_release, offered: None }))
}

/// The sensors of the last discovery, and their values, which its readers share.
type Offered = (Vec<SensorDef>, Arc<[AtomicI64]>);

struct InventorySource {
    options: GroupOptions,
    roots: Roots,
    os_release: PathBuf,
    offered: Option<Offered>,
}

impl Source for InventorySource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let mut plan = SensorPlan::new(&self.options, &NO_OPTIONS, report);
        let mut values = Vec::new();
        for (sensor, value) in facts::all(&self.roots, &self.os_release) {
            if plan.add(sensor).is_some() {
                values.push(value);
            }
        }
        let sensors = plan.into_sensors();
        if sensors.is_empty() {
            return Vec::new();
        }
        let values = self.shared(&sensors, &values);
        let timing = self.options.timing_or(&NO_OPTIONS, Some(INTERVAL));
        vec![GroupPlan {
            name: NAME.to_owned(),
            sensors,
            reader: Box::new(FactReader(values)),
            timing,
            blocking: false,
        }]
    }
}

impl InventorySource {
    /// The values for the readers. The agent keeps the reader of a group with the same sensors, so that its values are changed in place.
    fn shared(&mut self, sensors: &[SensorDef], values: &[i64]) -> Arc<[AtomicI64]> {
        if let Some((known, shared)) = self.offered.as_ref().filter(|(known, _)| known == sensors) {
            debug_assert_eq!(known.len(), shared.len());
            shared.iter().zip(values).for_each(|(place, value)| place.store(*value, Ordering::Relaxed));
            return shared.clone();
        }
        let shared: Arc<[AtomicI64]> = values.iter().map(|value| AtomicI64::new(*value)).collect();
        self.offered = Some((sensors.to_vec(), shared.clone()));
        shared
    }
}

struct FactReader(Arc<[AtomicI64]>);

impl Reader for FactReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        row.set_all(|index| self.0.get(index).map_or(0, |value| value.load(Ordering::Relaxed)).cast_unsigned());
        Reading::default()
    }
}
