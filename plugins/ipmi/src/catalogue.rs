//! From the sensors of a repository to those of the groups: names, units, descriptions.

use std::collections::{HashMap, HashSet};

use wholegrain_model::SensorDef;
use wholegrain_model::name::sanitize_level;
use wholegrain_model::pattern::Filter;
use wholegrain_model::schema::DESCRIPTION_BYTES_MAX;

use crate::names::{self, THRESHOLDS};
use crate::record::SensorKey;
use crate::repository::{BMC_OWNER, CatalogueSensor, SensorCatalogue};

/// The most characters of a name before what distinguishes it.
const NAME_CHARACTERS_MAX: usize = 100;
/// The event/reading type of sensors with thresholds.
const THRESHOLD_TYPE: u8 = 1;

/// A sensor that is read, with its places among the values of its group.
#[derive(Debug, Clone)]
pub struct ReadSensor {
    pub key: SensorKey,
    /// Its place in the catalogue.
    pub at: usize,
    /// The place of its number, and that of its states.
    pub value: Option<usize>,
    pub states: Option<usize>,
}

/// The group of readings: what to read, and the sensors of the group.
#[derive(Debug, Default)]
pub struct ReadingLayout {
    pub reads: Vec<ReadSensor>,
    pub sensors: Vec<SensorDef>,
}

/// The group of events: whose events are counted, and the sensors of the group.
#[derive(Debug, Default)]
pub struct EventLayout {
    pub keys: Vec<SensorKey>,
    pub sensors: Vec<SensorDef>,
}

/// The sensors of the event group before those of the repository.
pub const EVENT_SENSORS: usize = 6;

/// A name for each sensor. Sensors of one name have their entity after it, and if that is the same as well, owner and number.
fn unique_names(sensors: &[CatalogueSensor]) -> Vec<String> {
    let short = |sensor: &CatalogueSensor| {
        sanitize_level(&sensor.record.name.chars().take(NAME_CHARACTERS_MAX).collect::<String>())
    };
    let first: Vec<String> = sensors.iter().map(short).collect();
    let second = distinguished(&first, |at| {
        let record = &sensors[at].record;
        format!("{}.{}", record.entity, record.instance & 0x7f)
    });
    distinguished(&second, |at| {
        let key = sensors[at].record.key;
        format!("{:02x}.{}.{}", key.owner, key.lun, key.number)
    })
}

/// The names, with `more` after each one that is not unique.
fn distinguished(names: &[String], more: impl Fn(usize) -> String) -> Vec<String> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    names.iter().for_each(|name| *counts.entry(name).or_default() += 1);
    let name = |(at, name): (usize, &String)| match counts[name.as_str()] {
        1 => name.clone(),
        _ => format!("{name}:{}", more(at)),
    };
    names.iter().enumerate().map(name).collect()
}

/// Each sensor once: a second record of the same sensor is left out.
fn distinct(catalogue: &SensorCatalogue) -> (Vec<usize>, Vec<String>) {
    let mut keys = HashSet::new();
    let places: Vec<usize> =
        (0..catalogue.sensors.len()).filter(|at| keys.insert(catalogue.sensors[*at].record.key)).collect();
    let sensors: Vec<CatalogueSensor> = places.iter().map(|at| catalogue.sensors[*at].clone()).collect();
    let mut names = unique_names(&sensors);
    // A text that ends as what distinguishes others is the last way to have one name twice.
    let mut taken = HashSet::new();
    for (at, name) in names.iter_mut().enumerate() {
        if !taken.insert(name.clone()) {
            *name = format!("{name}:{at}");
            taken.insert(name.clone());
        }
    }
    (places, names)
}

fn describe(sensor: &CatalogueSensor) -> String {
    let record = &sensor.record;
    let mut text =
        format!("{} of {}", names::sensor_type(record.sensor_type), names::entity(record.entity, record.instance));
    for (name, threshold) in THRESHOLDS.iter().zip(sensor.thresholds) {
        if let Some(threshold) = threshold {
            text += &format!("; {name} {threshold}");
        }
    }
    text.push('.');
    text.truncate(DESCRIPTION_BYTES_MAX);
    text
}

fn describe_states(sensor: &CatalogueSensor) -> String {
    let record = &sensor.record;
    let name = names::sensor_type(record.sensor_type);
    if record.event_type == THRESHOLD_TYPE {
        let thresholds = THRESHOLDS.join(", ");
        return format!("Thresholds of the sensor that are reached, from bit 0: {thresholds}.");
    }
    let table = if record.event_type == 0x6f { "42-3" } else { "42-2" };
    let entity = names::entity(record.entity, record.instance);
    let kind = (record.sensor_type, record.event_type);
    format!(
        "States of {name} of {entity}, by bits: IPMI 2.0, table {table}, sensor type {:#04x}, event type {:#04x}.",
        kind.0, kind.1
    )
}

/// The group of readings of the controller's own sensors that the filter keeps.
pub fn reading_layout(path: &str, catalogue: &SensorCatalogue, filter: &Filter) -> ReadingLayout {
    let (places, names) = distinct(catalogue);
    let mut layout = ReadingLayout::default();
    for (at, name) in places.into_iter().zip(names) {
        let sensor = &catalogue.sensors[at];
        let record = &sensor.record;
        if !record.is_readable || record.key.owner != BMC_OWNER || !filter.keeps(&name) {
            continue;
        }
        let mut add = |sensor: SensorDef| {
            layout.sensors.push(sensor);
            layout.sensors.len() - 1
        };
        let value = record
            .factors
            .map(|_| add(SensorDef::gauge(format!("{path}/{name}"), &record.unit, &describe(sensor)).float()));
        let states = Some(add(SensorDef::gauge(format!("{path}/state/{name}"), "1", &describe_states(sensor))));
        layout.reads.push(ReadSensor { key: record.key, at, value, states });
    }
    layout
}

/// The group of events: counts of the log, and one counter for each sensor, also of other controllers.
pub fn event_layout(path: &str, catalogue: &SensorCatalogue, filter: &Filter) -> EventLayout {
    let name = |last: &str| format!("{path}/sel/{last}");
    let mut sensors = vec![
        SensorDef::gauge(name("entries"), "{entry}", "Entries in the event log."),
        SensorDef::gauge(name("free"), "By", "Free space in the event log."),
        SensorDef::gauge(name("overflowed"), "1", "1 if the event log was full and lost entries."),
        SensorDef::counter(name("events"), "{event}", "New entries since the plug-in follows the event log."),
        SensorDef::counter(name("erasures"), "1", "How often known entries had vanished: erased or overwritten."),
        SensorDef::counter(name("other"), "{event}", "Asserted events of sensors that the repository does not have."),
    ];
    debug_assert_eq!(sensors.len(), EVENT_SENSORS);
    let (places, names) = distinct(catalogue);
    let mut keys = Vec::new();
    for (at, sensor) in places.into_iter().zip(names) {
        if filter.keeps(&sensor) {
            let record = &catalogue.sensors[at].record;
            let kind = names::sensor_type(record.sensor_type);
            let description =
                format!("Asserted events of {kind} of {}.", names::entity(record.entity, record.instance));
            sensors.push(SensorDef::counter(name(&format!("asserted/{sensor}")), "{event}", &description));
            keys.push(record.key);
        }
    }
    EventLayout { keys, sensors }
}

/// The sensors of the power group (DCMI 1.5, 6.6.1).
pub fn power_sensors(path: &str) -> Vec<SensorDef> {
    let power = |last: &str, text: &str| SensorDef::gauge(format!("{path}/dcmi/{last}"), "W", text);
    vec![
        power("power", "Power of the system now."),
        power("power_min", "Lowest power in the controller's period."),
        power("power_max", "Highest power in the controller's period."),
        power("power_average", "Mean power over the controller's period."),
        SensorDef::gauge(format!("{path}/dcmi/power_period"), "s", "Period of lowest, highest and mean power.")
            .scaled(0.001),
    ]
}
