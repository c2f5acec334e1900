//! A plug-in within the agent's process (`isolate = false`): as fast as a source of the agent, and as dangerous.

use std::sync::Arc;

use wholegrain_plugin::{HostError, HostSettings, HostedReader, HostedSource};
use wholegrain_sources::{GroupPlan, ReadProblem, Reader, Reading, Row, Source};

use super::config::PluginConfig;
use super::library;
use super::progress::SharedProgress;
use super::services::{PluginError, PluginServices};
use super::texts::LastingTexts;
use super::trusted::TrustedFile;
use crate::sync::lock;

/// What the plug-in is configured with.
pub(super) fn settings(config: &PluginConfig) -> HostSettings {
    HostSettings { table: config.own.text.clone(), file: config.file.clone(), context: config.context.clone() }
}

/// The message for a plug-in that could not be configured, with file and line.
pub(super) fn refusal(config: &PluginConfig, error: &HostError) -> String {
    match error {
        HostError::Settings { line, .. } => config.message(*line, &error.to_string()),
        error => config.message(0, &format!("the plug-in {}: {error}", config.library.display())),
    }
}

pub(super) struct InProcessSource {
    source: HostedSource,
    texts: Arc<LastingTexts>,
    unseen: Vec<&'static str>,
    /// Groups of the last discovery.
    known: Vec<&'static str>,
    progress: SharedProgress,
}

impl InProcessSource {
    pub fn start(config: &PluginConfig, file: TrustedFile, services: &PluginServices) -> Result<Self, PluginError> {
        let configured = library::configure(&file.file, &settings(config));
        let source = configured.map_err(|error| PluginError(refusal(config, &error)))?;
        let mut progress = lock(&services.progress);
        (progress.state, progress.version) = ("running", source.version().to_owned());
        drop(progress);
        let progress = services.progress.clone();
        Ok(Self { source, texts: Arc::default(), unseen: Vec::new(), known: Vec::new(), progress })
    }
}

impl Drop for InProcessSource {
    fn drop(&mut self) {
        lock(&self.progress).state = "stopped";
    }
}

impl Source for InProcessSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        let found = match self.source.discover() {
            Ok(found) => found,
            Err(error) => {
                report(error.to_string());
                self.unseen.clone_from(&self.known);
                return Vec::new();
            }
        };
        found.notes.into_iter().for_each(report);
        self.unseen = found.keeps.iter().filter_map(|name| self.texts.name(name)).collect();
        self.known = found.groups.iter().filter_map(|group| self.texts.name(&group.name)).collect();
        // One at a time: its reads can wait for a discovery, so they have a thread of their own.
        let can_wait = !self.source.is_concurrent();
        let plans = found.groups.into_iter().map(|group| {
            let sensors = group.sensors.len();
            let reader = InProcessReader {
                reader: group.reader,
                texts: self.texts.clone(),
                values: vec![0; sensors].into(),
                gaps: vec![0; sensors.div_ceil(64)].into(),
            };
            GroupPlan {
                name: group.name,
                sensors: group.sensors,
                reader: Box::new(reader),
                timing: group.timing,
                blocking: group.blocking || can_wait,
            }
        });
        plans.collect()
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

struct InProcessReader {
    reader: HostedReader,
    texts: Arc<LastingTexts>,
    values: Box<[u64]>,
    gaps: Box<[u64]>,
}

/// Copies values that are not gaps into the row.
pub(super) fn fill(row: &mut Row<'_>, values: &[u64], gaps: &[u64]) {
    for (index, value) in values.iter().enumerate().take(row.len()) {
        if gaps[index / 64] >> (index % 64) & 1 == 0 {
            row.set_int(index, *value as i64);
        }
    }
}

impl Reader for InProcessReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let reading = self.reader.read(&mut self.values, &mut self.gaps);
        fill(row, &self.values, &self.gaps);
        Reading {
            layout_changed: reading.layout_changed,
            problem: reading.problem.map(|text| ReadProblem::Message { text: self.texts.problem(text) }),
            gone: false,
            taken_at: reading.taken_at,
            unchanged: reading.unchanged,
        }
    }
}
