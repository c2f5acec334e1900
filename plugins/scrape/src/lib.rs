//! Prometheus exporters: any program that shows its metrics over HTTP.
//!
//! - In: `[plugins.scrape]` with templates and lists of exporters; answers in Prometheus text 0.0.4 and OpenMetrics 1.0.
//! - Out: one group for each exporter, with one sensor for each of its series, and three about the scrape itself.
//! - Never: a value of an answer that is not whole; an answer or a decompressed body without a bound; an exporter that delays another one.

mod fetch;
mod settings;
mod target;

use std::sync::Arc;

use wholegrain_devices::{DeviceGroup, DeviceGroups, PolledGroup, PooledDevice, WorkerPool};
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_sources::{ConfigureContext, GroupPlan, Source, SourceType};

use crate::settings::{ScrapePlan, TargetPlan};
use crate::target::{ScrapeNotes, ScrapeTarget};

/// The source for the agent and for tests.
pub const SOURCE: SourceType = SourceType {
    name: "scrape",
    summary: "metrics of Prometheus exporters, over HTTP and HTTPS",
    configure,
    jobs: None,
};

wholegrain_plugin::export!(SOURCE);

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let plan = settings::read(section, context)?;
    Ok(Box::new(ScrapeSource { plan, running: None }))
}

/// A configured source. Its threads start with the first discovery.
struct ScrapeSource {
    plan: ScrapePlan,
    running: Option<RunningScrapes>,
}

struct RunningScrapes {
    _pool: WorkerPool,
    groups: DeviceGroups,
    notes: Arc<ScrapeNotes>,
}

impl RunningScrapes {
    fn start(plan: &ScrapePlan) -> std::io::Result<Self> {
        let notes = Arc::<ScrapeNotes>::default();
        let (mut devices, mut groups) = (Vec::new(), Vec::new());
        for target in &plan.targets {
            let TargetPlan { path, host, timing, .. } = target;
            let group = DeviceGroup { name: path.clone(), timing: *timing, slot: Arc::default() };
            devices.push(PooledDevice {
                path: path.clone(),
                host: host.clone(),
                timeout: timing.timeout.duration(),
                groups: vec![PolledGroup { ticks: group.ticks(), slot: group.slot.clone() }],
                protocol: Box::new(ScrapeTarget::new(target, plan, notes.clone())),
            });
            groups.push(group);
        }
        let pool = WorkerPool::start("scrape", devices, plan.workers)?;
        let mut groups = DeviceGroups::new(groups, plan.first_answers);
        groups.show_polls("scrape", pool.counts().clone());
        Ok(Self { _pool: pool, groups, notes })
    }
}

impl Source for ScrapeSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if self.running.is_none() {
            match RunningScrapes::start(&self.plan) {
                Ok(running) => self.running = Some(running),
                Err(error) => {
                    report(format!("scrape: cannot start its threads: {error}"));
                    return Vec::new();
                }
            }
        }
        let Some(running) = &mut self.running else { return Vec::new() };
        let plans = running.groups.discover(report);
        running.notes.report(report);
        plans
    }
}
