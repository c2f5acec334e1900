//! The sources at job scope as the agent keeps them: configured, stopped by people, failed; and what they had to say.

use wholegrain_model::config::ConfigError;
use wholegrain_sources::Roots;
use wholegrain_sources::job::{JobPart, JobPlace, JobSource, Last};

use crate::config::SourceConfig;

/// What one source keeps of what it had to say: so many lines.
const NOTES_MAX: usize = 100;

pub struct JobSourceHandle {
    /// Its name in the configuration.
    pub name: &'static str,
    source: Option<Box<dyn JobSource>>,
    notes: Vec<String>,
}

impl JobSourceHandle {
    /// Of this name; `None` while it is stopped.
    pub fn new(name: &'static str, source: Option<Box<dyn JobSource>>) -> Self {
        Self { name, source, notes: Vec::new() }
    }

    /// Of the configuration, if it has a job scope. One that cannot be made offers nothing and says why.
    pub fn of(config: &SourceConfig, roots: &Roots) -> Option<Self> {
        let mut supply = Self::new(config.name, None);
        supply.start(config.build_jobs(roots)?);
        Some(supply)
    }

    pub fn start(&mut self, built: Result<Box<dyn JobSource>, ConfigError>) {
        self.notes.clear();
        match built {
            Ok(source) => self.source = Some(source),
            Err(error) => self.note(error.to_string()),
        }
    }

    /// Stops it: it offers nothing any more.
    pub fn stop(&mut self) {
        self.source = None;
    }

    pub fn is_running(&self) -> bool {
        self.source.is_some()
    }

    /// What there is to read of a job.
    pub fn parts(&mut self, place: &JobPlace) -> Vec<JobPart> {
        let mut notes = Vec::new();
        let parts = self.source.as_mut().map(|source| source.parts(place, &mut |text| notes.push(text)));
        notes.into_iter().for_each(|text| self.note(text));
        parts.unwrap_or_default()
    }

    /// The last of a job's counters that are read at intervals only.
    pub fn last(&mut self, place: &JobPlace) -> Option<Last> {
        self.source.as_mut()?.last(place)
    }

    /// A job is over.
    pub fn forget(&mut self, place: &JobPlace) {
        if let Some(source) = &mut self.source {
            source.forget(place);
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
