//! A source at job scope: configured, stopped through the API, or failed; with its notes.

use wholegrain_model::config::ConfigError;
use wholegrain_sources::job::{FinalCounters, JobCgroups, JobSource, MetricSet};

/// The most notes of one source.
const NOTES_MAX: usize = 100;

pub struct JobSourceHandle {
    /// Its name in the configuration.
    pub name: &'static str,
    source: Option<Box<dyn JobSource>>,
    notes: Vec<String>,
}

impl JobSourceHandle {
    /// A source that offers nothing before it is started.
    pub fn new(name: &'static str) -> Self {
        Self { name, source: None, notes: Vec::new() }
    }

    /// A source with the result of its configuration; one that failed offers nothing and has a note.
    pub fn started(name: &'static str, built: Result<Box<dyn JobSource>, ConfigError>) -> Self {
        let mut source = Self::new(name);
        source.start(built);
        source
    }

    pub fn start(&mut self, built: Result<Box<dyn JobSource>, ConfigError>) {
        self.notes.clear();
        match built {
            Ok(source) => self.source = Some(source),
            Err(error) => self.note(error.to_string()),
        }
    }

    /// Stops the source: it offers nothing any more.
    pub fn stop(&mut self) {
        self.source = None;
    }

    pub fn is_running(&self) -> bool {
        self.source.is_some()
    }

    /// The metric sets of a job that it offers.
    pub fn metric_sets(&mut self, cgroups: &JobCgroups) -> Vec<MetricSet> {
        let mut notes = Vec::new();
        let sets = self.source.as_mut().map(|source| source.metric_sets(cgroups, &mut |text| notes.push(text)));
        notes.into_iter().for_each(|text| self.note(text));
        sets.unwrap_or_default()
    }

    /// The final values of a job's counters that are read at intervals only.
    pub fn last(&mut self, cgroups: &JobCgroups) -> Option<FinalCounters> {
        self.source.as_mut()?.final_counters(cgroups)
    }

    /// Releases what the source holds for an ended job.
    pub fn forget(&mut self, cgroups: &JobCgroups) {
        if let Some(source) = &mut self.source {
            source.forget(cgroups);
        }
    }

    pub fn note(&mut self, text: String) {
        if !self.notes.contains(&text) && self.notes.len() < NOTES_MAX {
            tracing::info!("source {}, jobs: {text}", self.name);
            self.notes.push(text);
        }
    }

    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}
