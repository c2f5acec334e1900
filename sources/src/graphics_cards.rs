//! Graphics cards of the kernel's DRM subsystem, and groups that read files of one number and tables of bytes of them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use wholegrain_model::SensorDef;

use crate::file::{self, PolledFile};
use crate::glob;
use crate::options::{GroupOptions, NO_OPTIONS};
use crate::plan::{SensorPlan, Slot};
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::scan;
use crate::source::GroupPlan;

/// The longest file of one number, with its newline.
const NUMBER_BYTES_MAX: usize = 64;

/// A graphics card, and where its files and its sensors are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphicsCard {
    /// The folder of the card, `class/drm/card<n>`.
    pub folder: PathBuf,
    /// The first levels of its sensors, such as `gpu/renderD128`.
    pub path: String,
}

/// The cards of a vendor, by its PCI number such as `0x1002`. A card has the name of its device file for computing, which cgroups and the resource
/// manager name; the number in `card<n>` is that of displays.
pub fn cards(sys: &Path, vendor: &str) -> Vec<GraphicsCard> {
    let found = glob::find(sys, "class/drm/card*").into_iter();
    // `card0-DP-1` is a connector.
    let whole = found.filter(|found| found.captures[0].bytes().all(|byte| byte.is_ascii_digit()));
    let of_vendor = whole.filter(|found| {
        file::read_file(&found.path.join("device/vendor")).is_ok_and(|text| text.trim_ascii() == vendor.as_bytes())
    });
    of_vendor
        .map(|found| {
            let render =
                glob::names(&found.path.join("device/drm")).into_iter().find(|name| name.starts_with("renderD"));
            let name = render.unwrap_or_else(|| format!("card{}", found.captures[0]));
            GraphicsCard { path: format!("gpu/{name}"), folder: found.path }
        })
        .collect()
}

/// Fills a row from a table of bytes; false if the table has not the layout of the discovery.
pub type ReadTable = fn(&[u8], &[(usize, u32)], &mut Row<'_>) -> bool;

/// A file with a table of bytes: each sensor is known by a number that [`ReadTable`] understands.
struct TableFile {
    file: PolledFile,
    read: ReadTable,
    slots: Vec<(usize, u32)>,
}

/// Collects the group of all cards of a vendor.
pub struct CardGroup<'a> {
    name: &'static str,
    options: &'a GroupOptions,
    plan: SensorPlan<'a>,
    names: HashSet<String>,
    numbers: Vec<(PolledFile, u32)>,
    tables: Vec<TableFile>,
}

impl<'a> CardGroup<'a> {
    /// An empty group with the settings of the source.
    pub fn new(name: &'static str, options: &'a GroupOptions, report: &'a mut dyn FnMut(String)) -> Self {
        let plan = SensorPlan::new(options, &NO_OPTIONS, report);
        Self { name, options, plan, names: HashSet::new(), numbers: Vec::new(), tables: Vec::new() }
    }

    /// Adds a sensor unless the card has one of this name from a better file.
    pub fn sensor(&mut self, card: &GraphicsCard, sensor: SensorDef) -> Slot {
        let name = format!("{}/{}", card.path, sensor.name);
        self.names.insert(name.clone()).then(|| self.plan.add(SensorDef { name, ..sensor })).flatten()
    }

    /// Adds a file of one number if it exists and holds one, or cannot be read at the moment.
    pub fn number(&mut self, card: &GraphicsCard, path: &Path, sensor: SensorDef) {
        let usable = match file::read_file(path) {
            Ok(bytes) => scan::only_int(&bytes).is_some(),
            Err(error) => !file::is_absent(&error),
        };
        if usable && let Some(slot) = self.sensor(card, sensor) {
            self.numbers.push((PolledFile::new(path), slot));
        }
    }

    /// Adds a file with a table of bytes and the slots of its values.
    pub fn table(&mut self, path: &Path, read: ReadTable, slots: Vec<(usize, u32)>) {
        if !slots.is_empty() {
            self.tables.push(TableFile { file: PolledFile::new(path), read, slots });
        }
    }

    /// Reports a line to the administrator.
    pub fn report(&mut self, text: String) {
        self.plan.report(text);
    }

    /// The group; `None` without a sensor. Its reads wait for the firmware of cards.
    pub fn into_group(self) -> Option<GroupPlan> {
        let sensors = self.plan.into_sensors();
        (!sensors.is_empty()).then(|| GroupPlan {
            name: self.name.to_owned(),
            sensors,
            reader: Box::new(CardReader {
                what: self.name,
                numbers: self.numbers,
                tables: self.tables,
                buffer: vec![0; TABLE_BYTES_MAX],
            }),
            timing: self.options.timing(self.options),
            blocking: true,
        })
    }
}

/// The longest table of bytes: a page, as sysfs gives no more.
pub const TABLE_BYTES_MAX: usize = 4096;

struct CardReader {
    what: &'static str,
    numbers: Vec<(PolledFile, u32)>,
    tables: Vec<TableFile>,
    buffer: Vec<u8>,
}

/// A driver's error as a gap. A card that sleeps or is reset answers with an error and keeps its files.
fn gap(reading: &mut Reading, what: &'static str, errno: i32) {
    if errno == libc::ENODATA {
        return;
    }
    reading.layout_changed |= matches!(errno, libc::ENOENT | libc::ENODEV | libc::ENXIO);
    reading.problem.get_or_insert(ReadProblem::Os { what, errno });
}

impl Reader for CardReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let what = self.what;
        let mut reading = Reading::COMPLETE;
        for (file, slot) in &mut self.numbers {
            match file.read_once(&mut self.buffer[..NUMBER_BYTES_MAX]) {
                Ok(length) => match scan::only_int(&self.buffer[..length]) {
                    Some(value) => row.set_int(*slot as usize, value),
                    None => _ = reading.problem.get_or_insert(ReadProblem::Garbage { what, line: 1 }),
                },
                Err(errno) => gap(&mut reading, what, errno),
            }
        }
        for table in &mut self.tables {
            match table.file.read_once(&mut self.buffer) {
                Ok(length) => {
                    if !(table.read)(&self.buffer[..length], &table.slots, row) {
                        // Another layout than at the discovery: the driver was replaced.
                        reading.layout_changed = true;
                        reading.problem.get_or_insert(ReadProblem::Garbage { what, line: 1 });
                    }
                }
                Err(errno) => gap(&mut reading, what, errno),
            }
        }
        reading
    }
}

/// The folder of the card's chip among the hardware monitors.
pub fn hwmon(card: &GraphicsCard) -> Option<PathBuf> {
    glob::find(&card.folder, "device/hwmon/hwmon*").into_iter().next().map(|found| found.path)
}
