//! `[jobs]`: the meters from which the energy of a job is computed.

use serde::Deserialize;
use wholegrain_model::Pattern;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_query::jobs::energy::{EnergyMeter, EnergyShare};

const METERS_MAX: usize = 32;
/// The most nodes of a facility.
const NODES_MAX: u64 = 10_000_000;

#[derive(Debug, Clone)]
pub struct JobsConfig {
    /// Meters of nodes; the first that a node has is used.
    pub power: Vec<EnergyMeter>,
    /// The share of a job in the energy of a node that it did not have alone.
    pub share: EnergyShare,
    /// Meters of all nodes together; may be empty.
    pub facility_power: Vec<Pattern>,
    /// The number of nodes behind these meters.
    pub facility_nodes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawJobs {
    power: Vec<String>,
    share: EnergyShare,
    facility_power: Vec<Pattern>,
    facility_nodes: Option<u64>,
}

impl Default for RawJobs {
    fn default() -> Self {
        let power =
            ["power", "energy", "powercap/psys*/energy", "powercap/package-*/energy + powercap/package-*/dram/energy"];
        Self {
            power: power.map(str::to_owned).to_vec(),
            share: EnergyShare::default(),
            facility_power: Vec::new(),
            facility_nodes: None,
        }
    }
}

impl RawJobs {
    /// Checks it; `section` is `[jobs]`, for messages.
    pub(crate) fn check(self, section: &Section) -> Result<JobsConfig, ConfigError> {
        if self.power.len() > METERS_MAX {
            return Err(
                section.error("power", format!("has {} meters; at most {METERS_MAX} are taken", self.power.len()))
            );
        }
        let power: Result<Vec<EnergyMeter>, String> = self.power.iter().map(|text| EnergyMeter::new(text)).collect();
        let facility_nodes = match (self.facility_power.is_empty(), self.facility_nodes) {
            (true, None) => 0,
            (true, Some(_)) => {
                return Err(section.error("facility_nodes", "is there without facility_power; give both"));
            }
            (false, None) => {
                let message = "needs facility_nodes, the number of nodes that these sensors feed";
                return Err(section.error("facility_power", message));
            }
            (false, Some(nodes)) if !(1..=NODES_MAX).contains(&nodes) => {
                return Err(section.error("facility_nodes", format!("is {nodes}; set 1 to {NODES_MAX}")));
            }
            (false, Some(nodes)) => nodes,
        };
        Ok(JobsConfig {
            power: power.map_err(|why| section.error("power", why))?,
            share: self.share,
            facility_power: self.facility_power,
            facility_nodes,
        })
    }
}
