//! The events of this machine: PMUs in sysfs, tracepoints in tracefs, online CPUs.

use std::fs;
use std::path::{Path, PathBuf};

use wholegrain_model::SensorDef;
use wholegrain_model::config::unknown;

use super::event::{self, Event, EventLocation, Family};
use super::kernel::{Attr, TYPE_TRACEPOINT};
use crate::source::Roots;

/// The mount points of tracefs below the root of /sys: the usual one, and that of kernels before 4.1.
const TRACING: [&str; 2] = ["kernel/tracing", "kernel/debug/tracing"];
/// The directory of PMUs below the root of /sys.
const DEVICES: &str = "bus/event_source/devices";
/// The most names that a message lists.
const LISTED_MAX: usize = 12;
/// The largest number of CPUs that a list may have.
const CPUS_MAX: u32 = 65_536;
/// The finest step of a value, in its unit. RAPL counts 2^-32 J in 64 bits, which overflow a signed number after some weeks. The steps of the
/// hardware are larger than this one.
const STEP_MIN: f64 = 1e-7;

/// The file trees of the machine.
#[derive(Debug, Clone)]
pub struct Machine {
    sys: PathBuf,
    proc: PathBuf,
}

/// Events to count together, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedGroup {
    /// Unique within its scope, such as `software` or `hardware_2`.
    pub name: String,
    pub events: Vec<Event>,
}

/// Events to count together, as found on this machine.
#[derive(Debug)]
pub struct ResolvedGroup {
    pub name: String,
    /// Whether the events need no hardware counter.
    pub is_software: bool,
    pub events: Vec<ResolvedEvent>,
    /// The PMUs that count the events: at least one, and several for a numbered PMU.
    pub units: Vec<ResolvedPmu>,
}

/// An event with its sensor.
#[derive(Debug)]
pub struct ResolvedEvent {
    /// The text in the configuration.
    pub text: String,
    pub sensor: SensorDef,
    /// The number of the lowest bits of the kernel's count that the sensor's value leaves out.
    pub shift: u32,
}

/// A PMU that counts a group.
#[derive(Debug)]
pub struct ResolvedPmu {
    pub cpus: Cpus,
    /// The parameters to open each event with.
    pub attrs: Vec<Attr>,
}

/// The CPUs that a PMU counts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cpus {
    All,
    /// Only CPUs of one kind (`cpus` in sysfs).
    Some(Vec<u32>),
    /// One CPU for each device that CPUs share (`cpumask` in sysfs). Such counts cannot be attributed to processes.
    Shared(Vec<u32>),
}

impl Machine {
    /// A machine with the file trees of `roots`.
    pub fn new(roots: &Roots) -> Self {
        Self { sys: roots.sys.clone(), proc: roots.proc.clone() }
    }

    /// The numbers of the online CPUs.
    pub fn online(&self) -> Vec<u32> {
        let listed = fs::read_to_string(self.sys.join("devices/system/cpu/online")).ok();
        listed.and_then(|text| cpu_list(&text)).filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| {
            // SAFETY: sysconf only returns a number.
            let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
            (0..u32::try_from(count).unwrap_or(1).max(1)).collect()
        })
    }

    /// The content of /proc/sys/kernel/perf_event_paranoid.
    pub fn paranoid(&self) -> Option<i32> {
        fs::read_to_string(self.proc.join("sys/kernel/perf_event_paranoid")).ok()?.trim().parse().ok()
    }

    /// Looks up the events of a group, and reports those that this machine lacks. `None` without any event.
    pub fn resolve(&self, requested: &RequestedGroup, report: &mut dyn FnMut(String)) -> Option<ResolvedGroup> {
        let family = requested.events.iter().map(Event::family).find(|family| *family != Family::Software);
        let pmus = match &family {
            Some(Family::Pmu(name)) => match self.pmus(name) {
                Ok(pmus) => pmus,
                Err(reason) => {
                    let texts: Vec<&str> = requested.events.iter().map(|event| event.text.as_str()).collect();
                    report(format!("perf: {} is left out: {reason}", texts.join(", ")));
                    return None;
                }
            },
            _ => vec![Pmu { cpus: Cpus::All, kind: 0, folder: self.sys.join(DEVICES).join("cpu") }],
        };
        let mut units: Vec<ResolvedPmu> =
            pmus.iter().map(|pmu| ResolvedPmu { cpus: pmu.cpus.clone(), attrs: Vec::new() }).collect();
        let mut events = Vec::new();
        for event in &requested.events {
            let configs: Result<Vec<EventConfig>, String> = pmus.iter().map(|pmu| self.config(event, pmu)).collect();
            match configs {
                Err(reason) => report(format!("perf: {} is left out: {reason}", event.text)),
                Ok(configs) => {
                    let Some(first) = configs.first() else { continue };
                    let (sensor, shift) = scaled(event.sensor(), first);
                    events.push(ResolvedEvent { text: event.text.clone(), sensor, shift });
                    for (unit, config) in units.iter_mut().zip(&configs) {
                        unit.attrs.push(Attr::new(config.kind, config.words, event.flags));
                    }
                }
            }
        }
        let is_software = family.is_none();
        (!events.is_empty()).then(|| ResolvedGroup { name: requested.name.clone(), is_software, events, units })
    }

    /// The PMU with this name, or all PMUs with this name and a number.
    fn pmus(&self, name: &str) -> Result<Vec<Pmu>, String> {
        let devices = self.sys.join(DEVICES);
        let mut names: Vec<String> = fs::read_dir(&devices)
            .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
            .unwrap_or_default();
        names.sort();
        let exact = names.iter().any(|other| other == name);
        let matches = |other: &&String| if exact { *other == name } else { is_numbered(name, other) };
        let pmus: Vec<Pmu> = names.iter().filter(matches).filter_map(|name| Pmu::read(&devices.join(name))).collect();
        if pmus.is_empty() {
            let known: Vec<&str> = names.iter().map(String::as_str).collect();
            return Err(format!("this machine has no such PMU: {}", near("PMU", name, &known, &devices)));
        }
        Ok(pmus)
    }

    fn config(&self, event: &Event, pmu: &Pmu) -> Result<EventConfig, String> {
        match &event.location {
            EventLocation::Numbered { kind, config } => Ok(EventConfig::of(*kind, *config)),
            EventLocation::Tracepoint { system, name } => {
                self.tracepoint(system, name).map(|id| EventConfig::of(TYPE_TRACEPOINT, id))
            }
            EventLocation::Dynamic { pmu: name, terms } if name == "cpu" && pmu.kind == 0 => {
                // Looked up here, as a group of events of the CPU may have no event of the PMU `cpu`.
                let pmus = self.pmus(name)?;
                pmus.first().ok_or_else(|| "this machine has no PMU cpu".to_owned())?.config(terms)
            }
            EventLocation::Dynamic { terms, .. } => pmu.config(terms),
        }
    }

    fn tracepoint(&self, system: &str, name: &str) -> Result<u64, String> {
        let Some(events) = TRACING.iter().map(|place| self.sys.join(place).join("events")).find(|path| path.is_dir())
        else {
            return Err(format!(
                "cannot see tracepoints in {}: mount it (`mount -t tracefs tracefs {}`), and run the agent as root or with \
                 CAP_DAC_READ_SEARCH",
                self.sys.join(TRACING[0]).display(),
                self.sys.join(TRACING[0]).display()
            ));
        };
        let path = events.join(system).join(name).join("id");
        match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map_err(|_| format!("{} holds no number", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let (what, wrong, folder) = match events.join(system).is_dir() {
                    true => ("tracepoint", name, events.join(system)),
                    false => ("subsystem", system, events),
                };
                let names = folder_names(&folder);
                let known: Vec<&str> = names.iter().map(String::as_str).collect();
                Err(format!("this machine has no such tracepoint: {}", near(what, wrong, &known, &folder)))
            }
            Err(error) => Err(format!("{}: {error}; the agent needs to be allowed to read it", path.display())),
        }
    }
}

/// Whether `other` is `name` with `_` and a number, or a number alone, after it.
fn is_numbered(name: &str, other: &str) -> bool {
    other.strip_prefix(name).is_some_and(|rest| {
        let digits = rest.strip_prefix('_').unwrap_or(rest);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn folder_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).map(|entries| entries.flatten().collect()).unwrap_or_else(|_| Vec::new());
    let folders = entries.iter().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A message with the nearest known name, or with the directory of the names if there are many.
fn near(what: &str, wrong: &str, known: &[&str], folder: &Path) -> String {
    let message = unknown(what, wrong, known);
    match message.split_once("; expected one of ") {
        Some((head, _)) if known.is_empty() || known.len() > LISTED_MAX => {
            format!("{head}; {} lists them", folder.display())
        }
        _ => message,
    }
}

/// The sensor with unit and scale from sysfs, and the number of the lowest bits to leave out.
fn scaled(mut sensor: SensorDef, config: &EventConfig) -> (SensorDef, u32) {
    let Some(scale) = config.scale else { return (SensorDef { unit: unit(config, &sensor.unit), ..sensor }, 0) };
    let mut shift = 0;
    while scale * f64::from(1u32 << shift) < STEP_MIN && shift < 24 {
        shift += 1;
    }
    sensor.scale = scale * f64::from(1u32 << shift);
    (SensorDef { unit: unit(config, &sensor.unit), ..sensor }, shift)
}

/// The unit in UCUM of the kernel's word for it.
fn unit(config: &EventConfig, default: &str) -> String {
    match config.unit.as_deref() {
        None | Some("") => default.to_owned(),
        Some("Joules") => "J".to_owned(),
        Some("MiB") => "MiBy".to_owned(),
        Some("KiB" | "kiB") => "KiBy".to_owned(),
        Some("Bytes" | "bytes" | "B") => "By".to_owned(),
        Some("ns") => "ns".to_owned(),
        Some(other) => {
            other.chars().filter(|c| !c.is_control()).take(wholegrain_model::schema::UNIT_BYTES_MAX / 4).collect()
        }
    }
}

/// The parameters to open an event with, and unit and scale from sysfs.
#[derive(Debug, Clone, Default, PartialEq)]
struct EventConfig {
    kind: u32,
    words: [u64; 3],
    scale: Option<f64>,
    unit: Option<String>,
}

impl EventConfig {
    fn of(kind: u32, config: u64) -> Self {
        Self { kind, words: [config, 0, 0], ..Self::default() }
    }
}

/// The folder of a PMU in sysfs.
struct Pmu {
    folder: PathBuf,
    kind: u32,
    cpus: Cpus,
}

impl Pmu {
    fn read(folder: &Path) -> Option<Self> {
        let kind = fs::read_to_string(folder.join("type")).ok()?.trim().parse().ok()?;
        let list = |name: &str| fs::read_to_string(folder.join(name)).ok().and_then(|text| cpu_list(&text));
        let cpus = match (list("cpumask"), list("cpus")) {
            (Some(mask), _) => Cpus::Shared(mask),
            (None, Some(cpus)) => Cpus::Some(cpus),
            (None, None) => Cpus::All,
        };
        Some(Self { folder: folder.to_owned(), kind, cpus })
    }

    /// Evaluates the terms between the slashes.
    fn config(&self, terms: &[event::Term]) -> Result<EventConfig, String> {
        let mut config = EventConfig { kind: self.kind, ..EventConfig::default() };
        for (key, value) in terms {
            match (key.as_str(), value) {
                ("config", Some(value)) => config.words[0] |= value,
                ("config1", Some(value)) => config.words[1] |= value,
                ("config2", Some(value)) => config.words[2] |= value,
                (_, None) if self.folder.join("events").join(key).is_file() => self.event(key, &mut config)?,
                _ => self.field(key, value.unwrap_or(1), &mut config.words)?,
            }
        }
        Ok(config)
    }

    /// Evaluates the file of an event, whose terms are fields only.
    fn event(&self, name: &str, config: &mut EventConfig) -> Result<(), String> {
        let path = self.folder.join("events").join(name);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let (terms, _) = event::terms(text.trim()).map_err(|reason| format!("{}: {reason}", path.display()))?;
        for (key, value) in &terms {
            self.field(key, value.unwrap_or(1), &mut config.words)?;
        }
        let read = |suffix: &str| fs::read_to_string(self.folder.join(format!("events/{name}.{suffix}"))).ok();
        config.scale = read("scale")
            .and_then(|text| text.trim().parse().ok())
            .filter(|scale: &f64| scale.is_finite() && *scale > 0.0)
            .or(config.scale);
        config.unit = read("unit").map(|text| text.trim().to_owned()).or(config.unit.take());
        Ok(())
    }

    /// Sets the bits of a field to a value.
    fn field(&self, name: &str, value: u64, words: &mut [u64; 3]) -> Result<(), String> {
        let path = self.folder.join("format").join(name);
        let Ok(text) = fs::read_to_string(&path) else {
            let mut names = file_names(&self.folder.join("events"));
            names.extend(file_names(&self.folder.join("format")));
            let known: Vec<&str> = names.iter().map(String::as_str).filter(|name| !name.contains('.')).collect();
            return Err(format!(
                "this machine has no such event: {}",
                near("event or field", name, &known, &self.folder)
            ));
        };
        let (word, ranges) = format(text.trim()).ok_or_else(|| {
            format!("{}: cannot parse `{}`; expected config, config1 or config2 with bits", path.display(), text.trim())
        })?;
        let width: u32 = ranges.iter().map(|(low, high)| high - low + 1).sum();
        if width < 64 && value >> width != 0 {
            return Err(format!("{name}=0x{value:x} does not fit into its {width} bits"));
        }
        let mut rest = value;
        for (low, high) in ranges {
            let mask = u64::MAX >> (63 - (high - low));
            words[word] |= (rest & mask) << low;
            rest = rest.checked_shr(high - low + 1).unwrap_or(0);
        }
        Ok(())
    }
}

fn file_names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).map(|entries| entries.flatten().collect()).unwrap_or_else(|_| Vec::new());
    let mut names: Vec<String> = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Parses a format such as `config1:0-7,32-35`: the word, and the bits from the lowest bit of the value on.
fn format(text: &str) -> Option<(usize, Vec<(u32, u32)>)> {
    let (word, bits) = text.split_once(':')?;
    let word = ["config", "config1", "config2"].iter().position(|name| *name == word)?;
    let ranges: Option<Vec<(u32, u32)>> =
        bits.split(',').map(|range| range_of(range).filter(|(_, high)| *high < 64)).collect();
    ranges.map(|ranges| (word, ranges))
}

fn range_of(text: &str) -> Option<(u32, u32)> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
    (low <= high).then_some((low, high))
}

/// Parses a list of CPUs such as `0-3,8`, or an empty one.
pub fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (low, high) = range_of(range).filter(|(_, high)| *high < CPUS_MAX)?;
        cpus.extend(low..=high);
    }
    Some(cpus)
}
