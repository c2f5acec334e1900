//! Writes docs/job-metrics.md, the list of the default metrics of a job, with `UPDATE_EXPECT=1`.

mod tree;

use std::collections::BTreeMap;
use std::fmt::Write;

use expect_test::expect_file;
use tree::{V1_JOB, V2_JOB, cgroups, fixture, job_source, metric_sets, roots};
use wholegrain_model::{Kind, SensorDef};
use wholegrain_sources::Roots;
use wholegrain_sources::job::JobCgroups;

/// The minimum of default metrics of a job from its cgroups, where there is a unified hierarchy.
const METRICS_MIN: usize = 67;

/// A metric with its file in each version.
struct Metric {
    sensor: SensorDef,
    v1: Option<String>,
    v2: Option<String>,
}

fn cgroup_metrics() -> BTreeMap<String, Metric> {
    let mut source = job_source("cgroup", "", &roots(&fixture("handmade"))).unwrap();
    let root = fixture("handmade/cgroup");
    let mut metrics = BTreeMap::new();
    for (v1, v2) in [(V1_JOB, "none"), ("none", V2_JOB)] {
        let cgroups = cgroups(&root, v1, v2);
        for set in metric_sets(source.as_mut(), &cgroups).0.into_values() {
            for mut sensor in set.sensors {
                // One device represents all.
                if sensor.name.starts_with("io/") && sensor.name.matches('/').count() == 2 {
                    if !sensor.name.starts_with("io/sda/") {
                        continue;
                    }
                    sensor.name = sensor.name.replace("/sda/", "/<device>/");
                }
                let fresh = Metric { sensor: sensor.clone(), v1: None, v2: None };
                let metric = metrics.entry(sensor.name).or_insert(fresh);
                match set.name.strip_prefix("v1/") {
                    Some(name) => metric.v1 = Some(name.to_owned()),
                    None => metric.v2 = Some(set.name.clone()),
                }
            }
        }
    }
    metrics
}

/// All metrics of the source on any kernel.
fn tasks_metrics() -> Vec<SensorDef> {
    let mut source = job_source("tasks", "", &Roots::default()).unwrap();
    let cgroups = JobCgroups { level: "1".to_owned(), ..JobCgroups::default() };
    let set = metric_sets(source.as_mut(), &cgroups).0.remove("tasks").unwrap();
    let known: Vec<String> = set.sensors.into_iter().map(|sensor| sensor.name).collect();
    let all = wholegrain_sources::tasks::sensors();
    assert!(known.iter().all(|name| all.iter().any(|sensor| sensor.name == *name)), "{known:?}");
    all
}

fn kind(sensor: &SensorDef) -> &'static str {
    match sensor.kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
    }
}

fn document() -> String {
    let (cgroup, tasks) = (cgroup_metrics(), tasks_metrics());
    let of_jobs = |has: &dyn Fn(&Metric) -> bool| {
        cgroup.values().filter(|metric| has(metric) && !metric.sensor.name.contains('<')).count()
    };
    let in_unified = |metric: &Metric| metric.sensor.name.starts_with("pressure/") || metric.sensor.name == "cpu/nice";
    // A job of version 1 has its pressure from the unified hierarchy, where there is one.
    let mixed = of_jobs(&|metric| metric.v1.is_some() || in_unified(metric));
    let (v1, v2) = (of_jobs(&|metric| metric.v1.is_some()), of_jobs(&|metric| metric.v2.is_some()));
    assert!(mixed >= METRICS_MIN && v2 >= METRICS_MIN, "{mixed} {v2}");
    let mut out = String::from("# The metrics of a job\n\n");
    write!(
        out,
        "The agent reads these metrics of every job by default. The name of a sensor is `<prefix>/job/<level>/<metric>`. A job of cgroup version 2 \
         has {v2} of them from its own files, a job of version 1 has {v1} ({mixed} on a machine that has a unified hierarchy too), each block device \
         adds 6, and the sums over processes add {} if the kernel has all of them. Names, units and kinds do not depend on the version. A metric \
         without a file in the column of a version does not exist in that version. Values are integers; the scale of the sensor converts them to \
         the unit.\n\n\
         `UPDATE_EXPECT=1 cargo test -p wholegrain-sources --test job_metrics` writes this page, and the same test checks it. Metrics that a kernel \
         lacks are left out and reported; keys that a newer kernel adds become metrics with their own names. The configuration of the source perf \
         selects the metrics `perf/…`.\n\n## From the job's own files: the source cgroup\n\n\
         | metric | unit | kind | version 1 | version 2 | description |\n|---|---|---|---|---|---|\n",
        tasks.len()
    )
    .unwrap();
    for (name, Metric { sensor, v1, v2 }) in &cgroup {
        let (v1, v2) = (v1.as_deref().unwrap_or_default(), v2.as_deref().unwrap_or_default());
        let SensorDef { unit, description, .. } = sensor;
        writeln!(out, "| `{name}` | {unit} | {} | {v1} | {v2} | {description} |", kind(sensor)).unwrap();
    }
    out.push_str(
        "\n## From the job's processes: the source tasks\n\n| metric | unit | kind | needs taskstats | description |\n|---|---|---|---|---|\n",
    );
    for sensor in &tasks {
        let is_of_cpus = sensor.name.starts_with("tasks/delay/cpu/");
        let needs = if sensor.name.starts_with("tasks/delay/") && !is_of_cpus { "yes" } else { "" };
        let SensorDef { name, unit, description, .. } = sensor;
        writeln!(out, "| `{name}` | {unit} | {} | {needs} | {description} |", kind(sensor)).unwrap();
    }
    out
}

#[test]
fn the_page_shows_every_metric() {
    expect_file!["../../docs/job-metrics.md"].assert_eq(&document());
}
