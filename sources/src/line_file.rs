//! A source that reads one file of lines `<name> <integer>`.

use std::path::PathBuf;

use wholegrain_model::SensorDef;

use crate::file;
use crate::line_table::LineTable;
use crate::options::{GroupOptions, NO_OPTIONS};
use crate::plan::SensorPlan;
use crate::reader::{Reader, Reading, Row};
use crate::source::{GroupPlan, Source};
use crate::text_file::TextFile;

/// A source with one group, whose sensors are the lines of one file.
pub struct LineFileSource {
    /// The name of the source and of its group.
    pub name: &'static str,
    pub file: PathBuf,
    pub options: GroupOptions,
    /// The sensor of a name in the file; `None` for names without a sensor.
    pub sensor_of: fn(&str) -> Option<SensorDef>,
    /// The group, while the file could not be opened for another reason than its absence.
    unseen: Vec<&'static str>,
}

impl LineFileSource {
    /// A source of this file, which it does not open yet.
    pub fn new(
        name: &'static str,
        file: PathBuf,
        options: GroupOptions,
        sensor_of: fn(&str) -> Option<SensorDef>,
    ) -> Self {
        Self { name, file, options, sensor_of, unseen: Vec::new() }
    }
}

impl Source for LineFileSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        self.unseen.clear();
        let bytes = match file::read_file(&self.file) {
            Ok(bytes) => bytes,
            Err(error) => {
                let file = std::path::absolute(&self.file).unwrap_or_else(|_| self.file.clone());
                report(format!("{0}: cannot read {1}: {error}; check [sources.{0}]", self.name, file.display()));
                if !file::is_absent(&error) {
                    self.unseen.push(self.name);
                }
                return Vec::new();
            }
        };
        let mut plan = SensorPlan::new(&self.options, &NO_OPTIONS, report);
        let table = LineTable::of_names_and_integers(self.name, &bytes, &mut plan, self.sensor_of);
        let sensors = plan.into_sensors();
        if sensors.is_empty() {
            return Vec::new();
        }
        let reader = Box::new(LineFileReader(TextFile::new(self.name, &self.file, &bytes, table)));
        let timing = self.options.timing(&NO_OPTIONS);
        vec![GroupPlan { name: self.name.to_owned(), sensors, reader, timing, blocking: false }]
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

struct LineFileReader(TextFile<LineTable>);

impl Reader for LineFileReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        self.0.read(row, LineTable::ends_with_last_line)
    }
}
