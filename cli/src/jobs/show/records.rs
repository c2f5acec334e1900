//! The records of one job on all its nodes.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;
use wholegrain_api::{JobAllocation, JobDetails};
use wholegrain_model::Pattern;

use crate::failure::Failure;

/// Separates an agent's prefix from a job's level in a path.
const LEVEL: &str = "/job/";

/// The records of a job, and an index of its allocations.
#[derive(Debug, Serialize)]
pub struct JobRecords {
    #[serde(flatten)]
    pub details: JobDetails,
    /// Allocations by the path above their sensors.
    #[serde(skip)]
    places: HashMap<String, usize>,
}

impl JobRecords {
    pub fn new(details: JobDetails) -> Self {
        let place = |one: &JobAllocation| format!("{}{LEVEL}{}", one.prefix, one.level);
        let places = details.allocations.iter().enumerate().map(|(index, one)| (place(one), index)).collect();
        Self { details, places }
    }

    /// The allocation of a sensor and the sensor's name below the job, if it is a sensor of this job.
    pub fn place<'a>(&self, path: &'a str) -> Option<(usize, &'a str)> {
        path.match_indices(LEVEL).find_map(|(at, _)| {
            let end = at + LEVEL.len() + path[at + LEVEL.len()..].find('/')?;
            Some((*self.places.get(&path[..end])?, &path[end + 1..]))
        })
    }

    /// Patterns of a name below the job, on all nodes.
    pub fn patterns(&self, below: &str) -> Result<Vec<Pattern>, Failure> {
        let levels: BTreeSet<&str> = self.details.allocations.iter().map(|one| one.level.as_str()).collect();
        let pattern = |level: &str| {
            Pattern::new(format!("/**/job/{level}/{below}"))
                .map_err(|error| Failure::Failed(format!("the level {level:?} of the job: {error}")))
        };
        levels.into_iter().map(pattern).collect()
    }
}
