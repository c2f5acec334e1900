//! Files that scripts write: `*.prom` (Prometheus text or OpenMetrics) and `*.txt` (`name value` lines) in one folder.
//!
//! - In: `[sources.textfile]` and the files of its folder, which are opened again at each read because scripts replace them.
//! - Out: a group for each file, whose sensors are its series; all of them gaps while the file is half-written, too old or gone.
//! - Never: a link that is followed, a file of another user, a value of a file that is not whole.

mod config;
mod reader;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{SensorDef, name};

use self::config::FolderSettings;
use self::reader::{ExpositionFile, ExpositionFileReader};
use crate::exposition::{Dialect, SensorNaming, SeriesCatalogue, SeriesTable};
use crate::options::{self, NO_OPTIONS};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;
use crate::trusted::TrustedFolder;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "textfile",
    summary: "files that scripts write: Prometheus text, OpenMetrics, or lines with name and value",
    configure,
    jobs: None,
};

/// The most entries of the folder that are listed.
const ENTRIES_MAX: usize = 10_000;
/// A series that is in none of so many discoveries is forgotten.
const FORGET_AFTER: u32 = 10;

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let settings = Arc::new(FolderSettings::read(section, context)?);
    Ok(Box::new(TextfileSource { settings, files: BTreeMap::new(), unseen: Vec::new() }))
}

struct TextfileSource {
    settings: Arc<FolderSettings>,
    /// By the name of the file without its ending.
    files: BTreeMap<String, KnownFile>,
    unseen: Vec<&'static str>,
}

/// A file that was listed.
struct KnownFile {
    name: String,
    dialect: Dialect,
    catalogue: SeriesCatalogue,
}

impl Source for TextfileSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        self.unseen.clear();
        let settings = self.settings.clone();
        let folder = TrustedFolder::open(&settings.dir, settings.owners());
        match folder.and_then(|folder| folder.names(ENTRIES_MAX)) {
            Ok(names) => self.list(names.iter().filter_map(|name| name.to_str()), report),
            Err(error) => {
                // The groups stay, with gaps, and the agent looks again soon.
                report(format!("textfile: {error}"));
                self.unseen.push(SOURCE.name);
            }
        }
        let mut taken: HashMap<String, String> = HashMap::new();
        self.files.iter_mut().filter_map(|(stem, file)| file.plan(stem, &settings, &mut taken, report)).collect()
    }

    fn unseen(&self) -> &[&'static str] {
        &self.unseen
    }
}

/// The ending of a name that says what is in the file.
fn dialect_of_name(name: &str) -> Option<(&str, Dialect)> {
    let (stem, ending) = name.rsplit_once('.')?;
    let dialect = match ending {
        "prom" => Dialect::Text,
        "txt" => Dialect::Plain,
        _ => return None,
    };
    (!stem.is_empty() && !stem.starts_with('.')).then_some((stem, dialect))
}

impl TextfileSource {
    /// Takes the files of the folder, sorted by name, so that which of them count does not depend on the order of the folder.
    fn list<'a>(&mut self, names: impl Iterator<Item = &'a str>, report: &mut dyn FnMut(String)) {
        let mut names: Vec<(&str, &str, Dialect)> =
            names.filter_map(|name| dialect_of_name(name).map(|(stem, dialect)| (stem, name, dialect))).collect();
        names.sort_unstable_by_key(|(stem, name, _)| (*stem, *name));
        self.files.retain(|_, file| names.iter().any(|(_, name, _)| *name == file.name));
        let mut count = 0;
        for pair in names.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            report(format!("textfile: {:?} and {:?} have the same name: the second is left out", pair[0].1, pair[1].1));
        }
        names.dedup_by_key(|(stem, ..)| *stem);
        for (stem, name, dialect) in names {
            if name::check_relative(&format!("textfile/{stem}")).is_err() || stem.contains('/') {
                report(format!("textfile: {name:?} is left out: the name is no level of a path"));
                continue;
            }
            count += 1;
            if count > self.settings.files_max {
                report(format!(
                    "textfile: more than files_max = {} files: {name:?} and others are left out",
                    count - 1
                ));
                break;
            }
            let known = self.files.get(stem).is_some_and(|file| file.name == name);
            if !known {
                let naming = SensorNaming {
                    prefix: self.settings.prefix.replace("{file}", stem),
                    ..self.settings.naming.clone()
                };
                let catalogue = SeriesCatalogue::new(naming, self.settings.sensors_max, FORGET_AFTER);
                self.files.insert(stem.to_owned(), KnownFile { name: name.to_owned(), dialect, catalogue });
            }
        }
    }
}

impl KnownFile {
    /// The group of the file; `None` while no series of it is known.
    fn plan(
        &mut self,
        stem: &str,
        settings: &Arc<FolderSettings>,
        taken: &mut HashMap<String, String>,
        report: &mut dyn FnMut(String),
    ) -> Option<GroupPlan> {
        let mut file = ExpositionFile::new(settings.clone(), &self.name);
        let is_plain = self.dialect == Dialect::Plain;
        let mut text: &[u8] = &[];
        match file.load() {
            Ok(bytes) => {
                let dialect = if is_plain { Dialect::Plain } else { Dialect::of_file(bytes) };
                if SeriesTable::is_whole(bytes, dialect) {
                    (self.dialect, text) = (dialect, bytes);
                } else if !self.catalogue.has_series() {
                    // Later its readers say so.
                    let end = if dialect == Dialect::OpenMetrics { "`# EOF`" } else { "end of line" };
                    report(format!("textfile: {} has no {end} at its end: it is read once it has one", self.name));
                }
            }
            Err(error) => report(format!("textfile: {error}")),
        }
        let keeps = |sensor: &SensorDef| options::keeps(&settings.options, &NO_OPTIONS, sensor);
        // The folder has one bound: many files of one user must not become millions of sensors.
        let room = settings.sensors_max.saturating_sub(taken.len());
        self.catalogue.set_series_max(room);
        let mut notes = Vec::new();
        let (table, sensors) = self.catalogue.learn(text, self.dialect, &keeps, &mut |note| notes.push(note));
        notes.into_iter().for_each(|note| report(format!("textfile: {}: {note}", self.name)));
        if sensors.len() > room || room == 0 {
            let (name, most) = (&self.name, settings.sensors_max);
            report(format!(
                "textfile: {name} is left out: with it, the folder has more than sensors_max = {most} sensors"
            ));
            return None;
        }
        if let Some((sensor, other)) = sensors.iter().find_map(|one| Some((one, taken.get(&one.name)?))) {
            let (name, sensor) = (&self.name, &sensor.name);
            report(format!(
                "textfile: {name} is left out: {other} has its sensor {sensor}; write prefix with {{file}}"
            ));
            return None;
        }
        taken.extend(sensors.iter().map(|sensor| (sensor.name.clone(), self.name.clone())));
        let name = format!("textfile/{stem}");
        let (timing, dialect) = (settings.options.timing(&NO_OPTIONS), self.dialect);
        (!sensors.is_empty()).then(|| GroupPlan {
            name,
            sensors,
            reader: Box::new(ExpositionFileReader { file, table, dialect }),
            timing,
            blocking: true,
        })
    }
}
