//! The groups that a job needs for the settings of its metrics, and the steps from its running groups to those. Pure.

use std::collections::BTreeMap;

use wholegrain_model::Interval;

use super::super::{Accumulation, MetricSetting, SampleMode, SamplingRate};

/// Identifies a group of a job: metrics with the same key are read together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    pub interval: Interval,
    /// Whether a thread for blocking reads reads them.
    pub blocking: bool,
    /// `None` if every sample is kept.
    pub windows: Option<WindowKey>,
}

/// An accumulation as a part of a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WindowKey {
    pub length: Interval,
    /// The bits of the quantiles, which can be compared.
    quantiles: Vec<u64>,
}

impl WindowKey {
    fn of(accumulation: &Accumulation) -> Self {
        let quantiles = accumulation.quantiles.iter().map(|quantile| quantile.to_bits()).collect();
        Self { length: accumulation.window, quantiles }
    }

    /// Between 0 and 1.
    pub fn quantiles(&self) -> Vec<f64> {
        self.quantiles.iter().map(|bits| f64::from_bits(*bits)).collect()
    }
}

impl GroupKey {
    /// The key of metrics with this rate.
    pub fn of(rate: &SamplingRate, blocking: bool) -> Self {
        let windows = match &rate.mode {
            SampleMode::Raw => None,
            SampleMode::Accumulate(accumulation) => Some(WindowKey::of(accumulation)),
        };
        Self { interval: rate.interval, blocking, windows }
    }

    /// The group's name: `job/4711/1s`; `job/4711/1ms-per-1s`, with quantiles `job/4711/1ms-per-1s-0.5-0.99`; `job/4711/10s-apart` for blocking
    /// reads.
    pub fn name(&self, level: &str) -> String {
        let mut name = format!("job/{level}/{}", self.interval);
        if let Some(windows) = &self.windows {
            name.push_str(&format!("-per-{}", windows.length));
            for quantile in windows.quantiles() {
                name.push_str(&format!("-{quantile}"));
            }
        }
        if self.blocking {
            name.push_str("-apart");
        }
        name
    }

    /// Whether one thread reads both groups at the same ticks.
    fn ticks_with(&self, other: &GroupKey) -> bool {
        (self.interval, self.blocking) == (other.interval, other.blocking)
    }
}

/// One sensor of one metric set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SensorPlace {
    /// The metric set's number, which the job never uses again.
    pub set: u32,
    /// Its index in the metric set.
    pub sensor: u32,
}

/// The sensors of each group, in the order of the row.
pub type PlannedGroups = BTreeMap<GroupKey, Vec<SensorPlace>>;

/// A metric set as planning needs it.
#[derive(Debug, Clone, Copy)]
pub struct SetOffer<'a> {
    pub set: u32,
    /// Whether a thread for blocking reads reads it.
    pub blocking: bool,
    /// The setting of each sensor.
    pub settings: &'a [MetricSetting],
}

/// The groups that the settings ask for.
pub fn plan<'a>(offers: impl Iterator<Item = SetOffer<'a>>) -> PlannedGroups {
    let mut groups = PlannedGroups::new();
    for offer in offers {
        for (sensor, setting) in offer.settings.iter().enumerate() {
            if let MetricSetting::On(rate) = setting {
                let place = SensorPlace { set: offer.set, sensor: sensor as u32 };
                groups.entry(GroupKey::of(rate, offer.blocking)).or_default().push(place);
            }
        }
    }
    groups
}

/// A step from the running groups to the planned ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanStep {
    /// A new group; in step with a running group of the same ticks, because metrics may have moved from there.
    Add(GroupKey, Option<GroupKey>),
    /// The same reader under another name: the accumulation has changed.
    Rename(GroupKey, GroupKey),
    /// The same sensors with another reader.
    Reread(GroupKey),
    /// A group loses or gains sensors and keeps its ticks.
    Reshape(GroupKey),
    Remove(GroupKey),
}

/// The steps, to be taken together. `looks_same` says whether a running group has the planned sensors. Other groups stay as they are.
pub fn diff(running: &PlannedGroups, wanted: &PlannedGroups, looks_same: impl Fn(&GroupKey) -> bool) -> Vec<PlanStep> {
    let mut ending: Vec<&GroupKey> = running.keys().filter(|key| !wanted.contains_key(key)).collect();
    let (mut added, mut steps) = (Vec::new(), Vec::new());
    for (key, places) in wanted {
        if let Some(now) = running.get(key) {
            if now != places {
                steps.push(if looks_same(key) {
                    PlanStep::Reread(key.clone())
                } else {
                    PlanStep::Reshape(key.clone())
                });
            }
            continue;
        }
        if let Some(at) = ending.iter().position(|old| old.ticks_with(key) && running[*old] == *places) {
            steps.push(PlanStep::Rename(ending.swap_remove(at).clone(), key.clone()));
            continue;
        }
        let beside = running.keys().find(|old| old.ticks_with(key));
        added.push(PlanStep::Add(key.clone(), beside.cloned()));
    }
    // Additions first: they take their ticks from groups that may end in the same change.
    added.extend(steps);
    added.extend(ending.into_iter().cloned().map(PlanStep::Remove));
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(ms: u64) -> MetricSetting {
        MetricSetting::On(SamplingRate { interval: Interval::from_ms(ms), mode: SampleMode::Raw })
    }

    fn folded(ms: u64, quantiles: &[f64]) -> MetricSetting {
        let accumulation = Accumulation { window: Interval::from_s(1), quantiles: quantiles.to_vec() };
        MetricSetting::On(SamplingRate { interval: Interval::from_ms(ms), mode: SampleMode::Accumulate(accumulation) })
    }

    /// Groups of one metric set, and of another one that blocks.
    fn groups(settings: &[MetricSetting], blocking: &[MetricSetting]) -> PlannedGroups {
        let offers =
            [SetOffer { set: 1, blocking: false, settings }, SetOffer { set: 2, blocking: true, settings: blocking }];
        plan(offers.into_iter())
    }

    fn shown(groups: &PlannedGroups) -> Vec<String> {
        let places = |places: &[SensorPlace]| {
            places.iter().map(|place| format!(" {}.{}", place.set, place.sensor)).collect::<String>()
        };
        groups.iter().map(|(key, list)| format!("{}{}", key.name("J"), places(list))).collect()
    }

    #[test]
    fn metrics_with_the_same_setting_are_one_group() {
        let settings =
            [every(1000), every(1), MetricSetting::Off, every(1000), folded(1, &[]), folded(1, &[0.5, 0.99])];
        assert_eq!(
            shown(&groups(&settings, &[every(1000), every(1000)])),
            [
                "job/J/1ms 1.1",
                "job/J/1ms-per-1s 1.4",
                "job/J/1ms-per-1s-0.5-0.99 1.5",
                "job/J/1s 1.0 1.3",
                "job/J/1s-apart 2.0 2.1",
            ]
        );
        assert!(groups(&[MetricSetting::Off], &[]).is_empty());
    }

    fn check(before: &[MetricSetting], after: &[MetricSetting], expected: &[&str]) {
        let name = |key: &GroupKey| key.name("").replacen("job//", "", 1);
        let steps = diff(&groups(before, &[]), &groups(after, &[]), |_| false);
        let shown: Vec<String> = steps
            .iter()
            .map(|step| match step {
                PlanStep::Add(key, beside) => {
                    format!(
                        "add {} {}",
                        name(key),
                        beside.as_ref().map_or("at once".to_owned(), |beside| format!("with {}", name(beside)))
                    )
                }
                PlanStep::Rename(from, to) => format!("rename {} {}", name(from), name(to)),
                PlanStep::Reread(key) => format!("reread {}", name(key)),
                PlanStep::Reshape(key) => format!("reshape {}", name(key)),
                PlanStep::Remove(key) => format!("remove {}", name(key)),
            })
            .collect();
        assert_eq!(shown, expected);
    }

    #[test]
    fn steps_touch_what_changes_and_nothing_else() {
        let s = || every(1000);
        check(&[], &[s(), s()], &["add 1s at once"]);
        check(&[s(), s()], &[s(), s()], &[]);
        check(&[s(), s(), every(1)], &[s(), s(), every(10)], &["add 10ms at once", "remove 1ms"]);
        check(&[s(), s()], &[s(), every(1)], &["add 1ms at once", "reshape 1s"]);
        check(&[s(), s(), every(10)], &[s(), every(1), every(10)], &["add 1ms at once", "reshape 1s"]);
        check(&[s(), every(1)], &[s(), s()], &["reshape 1s", "remove 1ms"]);
        check(&[s(), every(1)], &[s(), folded(1, &[])], &["rename 1ms 1ms-per-1s"]);
        check(&[s(), folded(1, &[])], &[s(), folded(1, &[0.5])], &["rename 1ms-per-1s 1ms-per-1s-0.5"]);
        check(&[every(1), every(1)], &[every(1), folded(1, &[])], &["add 1ms-per-1s with 1ms", "reshape 1ms"]);
        check(
            &[every(1), every(1)],
            &[folded(1, &[]), folded(1, &[0.5])],
            &["add 1ms-per-1s with 1ms", "add 1ms-per-1s-0.5 with 1ms", "remove 1ms"],
        );
        check(&[s()], &[MetricSetting::Off], &["remove 1s"]);
    }

    #[test]
    fn another_part_with_the_same_sensors_is_another_reader() {
        let offer = |set| plan([SetOffer { set, blocking: false, settings: &[every(1)] }].into_iter());
        let key = offer(1).into_keys().next().unwrap();
        assert_eq!(diff(&offer(1), &offer(2), |_| true), [PlanStep::Reread(key.clone())]);
        assert_eq!(diff(&offer(1), &offer(2), |_| false), [PlanStep::Reshape(key)]);
    }
}
