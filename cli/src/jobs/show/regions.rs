//! How long a job was in each region of its code: `region/<name>` is the depth, 1 at the outermost begin and 0 at its end.

use std::collections::BTreeMap;

use super::readings::JobReadings;
use super::report::Region;
use crate::failure::Failure;

/// The most marks that are read.
const MARKS_MAX: u64 = 1_000_000;

/// Time within one region on one node, from its marks in the order of time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct RegionClock {
    since: Option<i64>,
    count: u64,
    ns: i64,
}

impl RegionClock {
    fn mark(&mut self, time: i64, depth: Option<f64>) {
        match (self.since, depth) {
            (None, Some(depth)) if depth > 0.0 => {
                self.since = Some(time);
                self.count += 1;
            }
            // After a gap the end of the region is unknown.
            (Some(since), Some(depth)) if depth <= 0.0 => {
                self.ns += time.saturating_sub(since);
                self.since = None;
            }
            (Some(_), None) => self.since = None,
            _ => {}
        }
    }
}

/// All regions of the job.
pub fn of(readings: &mut JobReadings<'_>) -> Result<Vec<Region>, Failure> {
    let mut clocks: BTreeMap<String, RegionClock> = BTreeMap::new();
    let mut marks = 0;
    readings.rows("region/**", &[("limit", MARKS_MAX.to_string())], |sensor, time, depth| {
        marks += 1;
        match clocks.get_mut(sensor) {
            Some(clock) => clock.mark(time, depth),
            None => {
                let mut clock = RegionClock::default();
                clock.mark(time, depth);
                clocks.insert(sensor.to_owned(), clock);
            }
        }
    })?;
    if marks == MARKS_MAX {
        readings.problems.push(format!("regions are summed over the first {MARKS_MAX} marks; there are more"));
    }
    Ok(sum(&clocks))
}

fn sum(clocks: &BTreeMap<String, RegionClock>) -> Vec<Region> {
    let mut regions: BTreeMap<String, Region> = BTreeMap::new();
    for (sensor, clock) in clocks {
        let Some((_, name)) = sensor.split_once("/region/") else { continue };
        let region = regions.entry(name.to_owned()).or_insert_with(|| Region {
            region: name.to_owned(),
            count: 0,
            seconds: 0.0,
            open: 0,
            nodes: 0,
        });
        region.count += clock.count;
        region.seconds += clock.ns as f64 / 1e9;
        region.open += u64::from(clock.since.is_some());
        region.nodes += 1;
    }
    regions.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_from_the_outermost_begin_to_its_end() {
        let mut clock = RegionClock::default();
        for (time, depth) in [(1, 1.0), (2, 2.0), (4, 1.0), (7, 0.0), (9, 0.0), (10, 1.0)] {
            clock.mark(time, Some(depth));
        }
        assert_eq!(clock, RegionClock { since: Some(10), count: 2, ns: 6 });
        clock.mark(12, None);
        clock.mark(15, Some(0.0));
        assert_eq!(clock, RegionClock { since: None, count: 2, ns: 6 }, "what a gap hides is not counted");
        let clocks = ["/a/job/1/region/solve", "/b/job/1/region/solve", "/b/job/1/region/in/put"]
            .map(|path| (path.to_owned(), RegionClock { since: Some(1), count: 2, ns: 1_500_000_000 }));
        let regions = sum(&clocks.into());
        assert_eq!(regions.iter().map(|region| region.region.as_str()).collect::<Vec<_>>(), ["in/put", "solve"]);
        assert_eq!((regions[1].seconds, regions[1].count, regions[1].open, regions[1].nodes), (3.0, 4, 2, 2));
    }
}
