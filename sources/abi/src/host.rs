//! The side of the agent: calls a descriptor, copies what it gives, and checks it.

use std::ffi::c_void;
use std::mem::offset_of;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wholegrain_model::{Interval, Kind, SensorDef, ValueType};
use wholegrain_sources::{ConfigureContext, Timing};

use crate::abi::{
    ABI_VERSION, CONCURRENT, DiscoverFunction, FreeFunction, LAYOUT_CHANGED, NOW, PluginDescriptor, PluginDiscovery,
    PluginGroup, PluginSample, PluginSensor, PluginSettings, PluginText, ReadFunction, UNCHANGED, sized,
};
use crate::checks::{NOTE_BYTES_MAX, NOTES_MAX, SensorChecks};

/// The longest name that is copied, in bytes.
const NAME_BYTES_MAX: usize = 1024;
/// The longest text of a problem of a read, in bytes.
const PROBLEM_BYTES_MAX: usize = 200;
/// The most sensors that a group may offer, refused ones included.
const OFFERED_MAX: usize = 1 << 17;

/// Why a plug-in cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostError {
    /// It is built for another interface, or its descriptor is damaged.
    Interface(String),
    /// It refuses its settings: line of the table from 1 (0 if unknown), key (may be empty) and message.
    Settings { line: usize, key: String, message: String },
    /// A function returned a failure.
    Failed(String),
}

impl std::fmt::Display for HostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Interface(text) | Self::Failed(text) => f.write_str(text),
            Self::Settings { key, message, .. } if key.is_empty() => f.write_str(message),
            Self::Settings { key, message, .. } => write!(f, "{key}: {message}"),
        }
    }
}

impl std::error::Error for HostError {}

/// What a plug-in is configured with.
#[derive(Debug, Clone, Default)]
pub struct HostSettings {
    /// The keys of the plug-in, as TOML.
    pub table: String,
    /// The name of the configuration file.
    pub file: String,
    pub context: ConfigureContext,
}

/// A text of a plug-in, cut at `bytes_max`. `None` if it is not UTF-8 or longer than `NAME_BYTES_MAX` and `bytes_max`.
///
/// # Safety
/// The text must be valid for the call.
unsafe fn copied(text: PluginText, bytes_max: usize) -> Option<String> {
    // SAFETY: the caller's.
    let bytes = unsafe { text.bytes(bytes_max)? };
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

/// A line for people: invalid bytes are replaced, control characters too, and a long one is cut.
///
/// # Safety
/// The text must be valid for the call.
unsafe fn line_of(text: PluginText, bytes_max: usize) -> String {
    let cut = PluginText { length: text.length.min(bytes_max as u64), ..text };
    // SAFETY: the caller's; a part of the text.
    let bytes = unsafe { cut.bytes(bytes_max) }.unwrap_or_default();
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The functions and the source of a plug-in. Freed with the last reader.
struct HostedEntry {
    source: *mut c_void,
    discover: DiscoverFunction,
    read: ReadFunction,
    free_reader: Option<FreeFunction>,
    free_source: Option<FreeFunction>,
    /// Taken for each call, unless the plug-in can be read while it discovers.
    one_at_a_time: Option<Mutex<()>>,
}

// SAFETY: the interface says which calls can come from different threads; `one_at_a_time` and `&mut` of source and readers keep to it.
unsafe impl Send for HostedEntry {}
// SAFETY: as above.
unsafe impl Sync for HostedEntry {}

impl HostedEntry {
    fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.one_at_a_time.as_ref().map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for HostedEntry {
    fn drop(&mut self) {
        if let Some(free) = self.free_source {
            // SAFETY: `configure` gave this source, no reader is left, and it is freed once.
            unsafe { free(self.source) };
        }
    }
}

/// A configured plug-in in this process.
pub struct HostedSource {
    entry: Arc<HostedEntry>,
    name: String,
    summary: String,
    version: String,
}

/// What a discovery found, checked.
#[derive(Default)]
pub struct HostedDiscovery {
    pub groups: Vec<HostedGroup>,
    /// Lines for the administrator.
    pub notes: Vec<String>,
    /// Groups that stay though they could not be seen.
    pub keeps: Vec<String>,
}

/// A group with its reader.
pub struct HostedGroup {
    pub name: String,
    pub sensors: Vec<SensorDef>,
    pub timing: Timing,
    pub blocking: bool,
    pub reader: HostedReader,
}

/// Reads one group of a plug-in.
pub struct HostedReader {
    entry: Arc<HostedEntry>,
    reader: *mut c_void,
    /// The places of the accepted sensors in the plug-in's row.
    places: Vec<u32>,
    /// The plug-in's row, with the refused sensors.
    values: Vec<u64>,
    gaps: Vec<u64>,
    problem: String,
}

// SAFETY: the interface says that reads can come from different threads, one after the other, which `&mut` ensures.
unsafe impl Send for HostedReader {}

/// The result of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostedReading<'a> {
    pub taken_at: Option<i64>,
    pub unchanged: bool,
    pub layout_changed: bool,
    /// What the plug-in says about its gaps.
    pub problem: Option<&'a str>,
}

unsafe extern "C" fn fail(settings: *const PluginSettings, line: u64, key: PluginText, message: PluginText) {
    // SAFETY: `configure` gave `host`, and only this call uses it; the texts are valid for the call.
    unsafe {
        let error = &mut *(*settings).host.cast::<Option<HostError>>();
        *error = Some(HostError::Settings {
            line: line.min(u64::from(u32::MAX)) as usize,
            key: line_of(key, NAME_BYTES_MAX),
            message: line_of(message, NOTE_BYTES_MAX),
        });
    }
}

impl HostedSource {
    /// Checks a descriptor and configures the source.
    ///
    /// # Safety
    /// `descriptor` must be what `wholegrain_source_v1` of a loaded object returned: null, or as many bytes as it says, valid for ever.
    pub unsafe fn configure(descriptor: *const PluginDescriptor, settings: &HostSettings) -> Result<Self, HostError> {
        let size_min = offset_of!(PluginDescriptor, free_reader);
        // SAFETY: the caller's; zero is an empty descriptor.
        let Some(given) = (unsafe { sized(descriptor, size_min) }) else {
            return Err(HostError::Interface(format!("its descriptor is missing or shorter than {size_min} bytes")));
        };
        if given.abi != ABI_VERSION {
            return Err(HostError::Interface(format!(
                "it is built for version {} of the interface, and this agent has version {ABI_VERSION}: build it \
                 against the wholegrain_source.h of this agent",
                given.abi
            )));
        }
        let (Some(configure), Some(discover), Some(read)) = (given.configure, given.discover, given.read) else {
            return Err(HostError::Interface("its descriptor lacks configure, discover or read".to_owned()));
        };
        // SAFETY: the texts of a descriptor are valid for ever.
        let [name, summary, version] =
            unsafe { [given.name, given.summary, given.version].map(|text| line_of(text, NAME_BYTES_MAX)) };
        // SAFETY: `configure` is the descriptor's.
        let source = unsafe { Self::call_configure(configure, settings)? };
        let one_at_a_time = (given.flags & CONCURRENT == 0).then(|| Mutex::new(()));
        let (free_reader, free_source) = (given.free_reader, given.free_source);
        let entry = HostedEntry { source, discover, read, free_reader, free_source, one_at_a_time };
        Ok(Self { entry: Arc::new(entry), name, summary, version })
    }

    /// # Safety
    /// `configure` must be of a loaded object.
    unsafe fn call_configure(
        configure: crate::abi::ConfigureFunction,
        settings: &HostSettings,
    ) -> Result<*mut c_void, HostError> {
        let path = |path: &Path| path.to_string_lossy().into_owned();
        let (roots, context) = (&settings.context.roots, &settings.context);
        let (config_dir, proc, sys, cgroup) =
            (path(&context.config_dir), path(&roots.proc), path(&roots.sys), path(&roots.cgroup));
        let mut error: Option<HostError> = None;
        let given = PluginSettings {
            size: size_of::<PluginSettings>() as u64,
            host: (&raw mut error).cast(),
            table: PluginText::new(&settings.table),
            file: PluginText::new(&settings.file),
            config_dir: PluginText::new(&config_dir),
            proc: PluginText::new(&proc),
            sys: PluginText::new(&sys),
            cgroup: PluginText::new(&cgroup),
            fail: Some(fail),
        };
        let mut source = std::ptr::null_mut();
        // SAFETY: settings and place are valid for the call.
        let result = unsafe { configure(&given, &mut source) };
        // Read through the settings' pointer, which the plug-in may have used.
        // SAFETY: `error` lives until here.
        let error = unsafe { (*given.host.cast::<Option<HostError>>()).take() };
        match (result, error) {
            (0, None) => Ok(source),
            (_, Some(error)) => Err(error),
            (code, None) => Err(HostError::Failed(format!("it refused its settings without a reason (code {code})"))),
        }
    }

    /// The name that the plug-in has for its source.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// One line for lists of sources.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// The version that the plug-in gives itself.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether reads can run while it discovers.
    pub fn is_concurrent(&self) -> bool {
        self.entry.one_at_a_time.is_none()
    }

    /// Discovers the groups, and checks them.
    pub fn discover(&mut self) -> Result<HostedDiscovery, HostError> {
        let mut collecting = Collecting {
            entry: self.entry.clone(),
            checks: SensorChecks::default(),
            found: HostedDiscovery::default(),
            refused: Vec::new(),
            is_open: false,
        };
        let mut discovery = PluginDiscovery {
            size: size_of::<PluginDiscovery>() as u64,
            host: (&raw mut collecting).cast(),
            add_group: Some(add_group),
            add_sensor: Some(add_sensor),
            report: Some(report),
            keep: Some(keep),
        };
        let lock = self.entry.lock();
        // SAFETY: source and function are the plug-in's, the discovery is valid for the call.
        let result = unsafe { (self.entry.discover)(self.entry.source, &mut discovery) };
        drop(lock);
        // SAFETY: `collecting` lives until the end of this function.
        let mut found = unsafe { std::mem::take(&mut (*discovery.host.cast::<Collecting>()).found) };
        if result != 0 {
            let reason = found.notes.pop().unwrap_or_else(|| "it gave no reason".to_owned());
            return Err(HostError::Failed(format!("its discovery failed: {reason} (code {result})")));
        }
        found.groups.retain_mut(|group| {
            let row = group.reader.values.len();
            group.reader.gaps = vec![0; row.div_ceil(64)];
            !group.sensors.is_empty() && row <= OFFERED_MAX
        });
        Ok(found)
    }
}

/// What the functions of [`PluginDiscovery`] collect.
struct Collecting {
    entry: Arc<HostedEntry>,
    checks: SensorChecks,
    found: HostedDiscovery,
    /// Readers of refused groups: freed after the discovery, as one call is made at a time.
    refused: Vec<HostedReader>,
    /// Whether the last group was accepted.
    is_open: bool,
}

impl Collecting {
    fn note(&mut self, text: String) {
        if self.found.notes.len() < NOTES_MAX {
            self.found.notes.push(text);
        }
    }

    fn add_group(&mut self, group: &PluginGroup) -> Result<(), String> {
        self.is_open = false;
        let (entry, reader) = (self.entry.clone(), group.reader);
        // From here on the reader is freed, also if the group is refused.
        let (places, values, gaps, problem) = Default::default();
        let reader = HostedReader { entry, reader, places, values, gaps, problem };
        // SAFETY: a text of the plug-in, valid for the call.
        let name = unsafe { copied(group.name, NAME_BYTES_MAX) };
        let name = name.ok_or_else(|| "a group is left out: its name is not UTF-8 or too long".to_owned());
        let checked = name.and_then(|name| {
            self.checks.group(&name, group.interval_ns, group.offset_ns).map_err(|error| error.0)?;
            Ok(name)
        });
        let name = match checked {
            Ok(name) => name,
            Err(reason) => {
                self.refused.push(reader);
                return Err(reason);
            }
        };
        let timing = Timing {
            interval: (group.interval_ns > 0).then(|| Interval::from_ns(group.interval_ns)),
            offset: Interval::from_ns(group.offset_ns),
            synchronous: group.free_running == 0,
        };
        self.found.groups.push(HostedGroup {
            name,
            sensors: Vec::new(),
            timing,
            blocking: group.blocking != 0,
            reader,
        });
        self.is_open = true;
        Ok(())
    }

    fn add_sensor(&mut self, sensor: &PluginSensor) -> Result<(), String> {
        let Some(group) = self.found.groups.last_mut().filter(|_| self.is_open) else {
            return Err("a sensor is left out: it is in no group".to_owned());
        };
        let place = group.reader.values.len();
        if place > OFFERED_MAX {
            return Err(format!("group {} is left out: it offers more than {OFFERED_MAX} sensors", group.name));
        }
        group.reader.values.push(0);
        // SAFETY: texts of the plug-in, valid for the call.
        let texts = unsafe {
            (
                copied(sensor.name, NAME_BYTES_MAX),
                copied(sensor.unit, NAME_BYTES_MAX),
                copied(sensor.description, NAME_BYTES_MAX),
            )
        };
        let (Some(name), Some(unit), Some(description)) = texts else {
            return Err(format!("group {}: sensor {place} is left out: a text is not UTF-8 or too long", group.name));
        };
        let known = |value: u32, what: &str| match value {
            0 | 1 => Ok(value == 1),
            _ => Err(format!("group {}: sensor {name} is left out: it has an unknown {what}, {value}", group.name)),
        };
        let (is_counter, is_float) = (known(sensor.kind, "kind")?, known(sensor.value_type, "type of values")?);
        let def = SensorDef {
            kind: if is_counter { Kind::Counter } else { Kind::Gauge },
            value_type: if is_float { ValueType::Float } else { ValueType::Int },
            scale: if sensor.scale == 0.0 { 1.0 } else { sensor.scale },
            wraps_at: (sensor.wraps_at > 0).then_some(sensor.wraps_at),
            name,
            unit: if unit.is_empty() { "1".to_owned() } else { unit },
            description,
        };
        self.checks.sensor(&group.name, &def).map_err(|error| error.0)?;
        group.sensors.push(def);
        group.reader.places.push(place as u32);
        Ok(())
    }
}

/// # Safety
/// `discovery` must be that of [`HostedSource::discover`], which is running.
unsafe fn collecting<'a>(discovery: *mut PluginDiscovery) -> &'a mut Collecting {
    // SAFETY: the caller's.
    unsafe { &mut *(*discovery).host.cast::<Collecting>() }
}

unsafe extern "C" fn add_group(discovery: *mut PluginDiscovery, group: *const PluginGroup) -> i32 {
    // SAFETY: the interface: the discovery that the plug-in was given, and a group with its size.
    let (collecting, group) = unsafe { (collecting(discovery), sized(group, size_of::<PluginGroup>())) };
    let result = match group {
        Some(group) => collecting.add_group(&group),
        None => {
            collecting.is_open = false;
            Err("a group is left out: it is missing or too short".to_owned())
        }
    };
    result.map_or_else(|text| refused(collecting, text), |()| 0)
}

unsafe extern "C" fn add_sensor(discovery: *mut PluginDiscovery, sensor: *const PluginSensor) -> i32 {
    let size_min = offset_of!(PluginSensor, wraps_at);
    // SAFETY: the interface: the discovery that the plug-in was given, and a sensor with its size.
    let (collecting, sensor) = unsafe { (collecting(discovery), sized(sensor, size_min)) };
    let result = match sensor {
        Some(sensor) => collecting.add_sensor(&sensor),
        None => {
            if let Some(group) = collecting.found.groups.last_mut().filter(|_| collecting.is_open) {
                group.reader.values.push(0);
            }
            Err("a sensor is left out: it is missing or too short".to_owned())
        }
    };
    result.map_or_else(|text| refused(collecting, text), |()| 0)
}

fn refused(collecting: &mut Collecting, text: String) -> i32 {
    collecting.note(text);
    1
}

unsafe extern "C" fn report(discovery: *mut PluginDiscovery, line: PluginText) {
    // SAFETY: the interface: the discovery that the plug-in was given, and a text that is valid for the call.
    unsafe { collecting(discovery).note(line_of(line, NOTE_BYTES_MAX)) };
}

unsafe extern "C" fn keep(discovery: *mut PluginDiscovery, group: PluginText) {
    // SAFETY: as above.
    let (collecting, name) = unsafe { (collecting(discovery), copied(group, NAME_BYTES_MAX)) };
    if let Some(name) = name.filter(|_| collecting.found.keeps.len() < crate::checks::GROUPS_MAX) {
        collecting.found.keeps.push(name);
    }
}

unsafe extern "C" fn problem(sample: *mut PluginSample, text: PluginText) {
    // SAFETY: the sample of `HostedReader::read`, which is running, and a text that is valid for the call.
    unsafe {
        let problem = &mut *(*sample).host.cast::<String>();
        problem.clear();
        problem.push_str(&line_of(text, PROBLEM_BYTES_MAX));
    }
}

impl HostedReader {
    /// Reads once into a row of the accepted sensors: a word each, and a bit for each gap.
    pub fn read(&mut self, values: &mut [u64], gaps: &mut [u64]) -> HostedReading<'_> {
        let offered = self.values.len();
        self.values.fill(0);
        self.gaps.fill(u64::MAX);
        self.problem.clear();
        let mut sample = PluginSample {
            size: size_of::<PluginSample>() as u64,
            host: (&raw mut self.problem).cast(),
            values: self.values.as_mut_ptr(),
            gaps: self.gaps.as_mut_ptr(),
            sensors: offered as u64,
            taken_at: NOW,
            flags: 0,
            problem: Some(problem),
        };
        let lock = self.entry.lock();
        // SAFETY: the reader is the plug-in's, the sample is valid for the call, and its rows have the length that it names.
        let result = unsafe { (self.entry.read)(self.reader, &mut sample) };
        drop(lock);
        gaps.fill(0);
        for (index, place) in self.places.iter().take(values.len()).enumerate() {
            let place = *place as usize;
            let is_gap = result != 0 || self.gaps[place / 64] >> (place % 64) & 1 == 1;
            values[index] = if is_gap { 0 } else { self.values[place] };
            gaps[index / 64] |= u64::from(is_gap) << (index % 64);
        }
        if result != 0 && self.problem.is_empty() {
            self.problem.push_str("the plug-in could not read it and gave no reason");
        }
        HostedReading {
            taken_at: (sample.taken_at != NOW).then_some(sample.taken_at),
            unchanged: result == 0 && sample.flags & UNCHANGED != 0,
            layout_changed: sample.flags & LAYOUT_CHANGED != 0,
            problem: (!self.problem.is_empty()).then_some(self.problem.as_str()),
        }
    }
}

impl Drop for HostedReader {
    fn drop(&mut self) {
        if let Some(free) = self.entry.free_reader {
            let _lock = self.entry.lock();
            // SAFETY: `discover` gave this reader, and it is freed once.
            unsafe { free(self.reader) };
        }
    }
}
