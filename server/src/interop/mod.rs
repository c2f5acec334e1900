//! Data from and for programs other than Wholegrain agents.
//!
//! - Input: publishes on sensor paths (records of DCDB, numbers as text), names that DCDB pushers announce, publishes of devices, line protocols of InfluxDB and
//!   ClusterCockpit, remote write of Prometheus and metrics of OpenTelemetry over HTTP, messages of other brokers.
//! - Output: readings in the store, registered sensors, live readings as text for subscribers of `text/…`.
//! - Never: an acknowledgement before the store confirms; a received name that adds a level to a path; work for text without subscribers.
//!
//! [`dcdb`], [`text`], [`influx_lines`], [`remote_write`], [`otlp`], [`metric_metadata`] and [`names`] do no I/O. [`reading_run`] collects the readings of many messages, [`reading_publishes`]
//! resolves their sensors, `write.rs` answers HTTP, `remote/` is the client of other brokers, and `live_text.rs` publishes text.
//! `docs/interoperability.md` is the user's guide.

pub mod config;
pub mod dcdb;
pub mod devices;
pub mod influx_lines;
pub mod metric_metadata;
pub mod names;
pub mod otlp;
pub mod otlp_json;
pub mod remote_write;
pub mod resolution;
pub mod text;
mod topics;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use wholegrain_model::{SensorPath, ValueType};
use wholegrain_store::{SchemalessSensor, SensorInfo, Store, StoreError};
use wholegrain_transport::mqtt::{self, ReasonCode};

use crate::admission::IdentityQuotas;
use crate::admission::hourly_quotas::HourlyQuotas;
use crate::log_limit::SenderLog;
use crate::metrics::Metrics;
pub use config::InteropConfig;
use dcdb::SensorAnnouncement;
use metric_metadata::MetadataCache;
use resolution::{ReadingRefusal, ResolvedSensor, SensorProperties, SensorRequest, SensorResolution};
use topics::TopicNames;

/// The most memory for the metrics of Sparkplug's nodes of one identity: 16 MiB.
const DEVICE_BYTES_MAX: usize = 16 << 20;

/// The state that all inputs share.
pub(crate) struct Interop {
    pub config: InteropConfig,
    store: Store,
    pub metrics: Arc<Metrics>,
    names: TopicNames,
    /// How many schemaless sensors each sender registered or changed in the current hour.
    new_sensors: HourlyQuotas,
    /// What senders of remote write said about their metrics.
    pub metadata: MetadataCache,
    /// What devices of one identity take of the memory.
    pub device_memory: Arc<IdentityQuotas>,
    /// Warnings about series and data points that are refused, which not every sender shows.
    pub refusals: SenderLog,
}

/// A sensor before its registration.
enum RequestedSensor {
    Known(ResolvedSensor),
    New(SchemalessSensor),
    /// Known with other properties.
    Changed(ResolvedSensor, SchemalessSensor),
    /// Known with integers, and has a value that is none: from now on it has floats.
    Widened(ResolvedSensor, SchemalessSensor),
}

/// A sensor to register.
struct NewSensor {
    /// Its place among the requested ones.
    at: usize,
    sensor: SchemalessSensor,
    /// Whether it counts for the sender's quota.
    is_counted: bool,
}

pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

impl Interop {
    /// Opens the file of announced names.
    pub fn open(config: &InteropConfig, store: Store, metrics: Arc<Metrics>) -> anyhow::Result<Self> {
        let names = TopicNames::open(&config.names_file)?;
        if names.len() > 0 {
            tracing::info!("interop: {} topics have names that DCDB's pushers announced", names.len());
        }
        let new_sensors = HourlyQuotas::new(config.sensors_per_hour_max);
        let metadata = MetadataCache::default();
        let device_memory = IdentityQuotas::new(DEVICE_BYTES_MAX);
        Ok(Self {
            config: config.clone(),
            store,
            metrics,
            names,
            new_sensors,
            metadata,
            device_memory,
            refusals: SenderLog::default(),
        })
    }

    /// Increases when a topic may map to another sensor.
    pub fn generation(&self) -> u64 {
        self.names.generation()
    }

    /// Whether publishes on this topic are readings.
    pub fn takes(&self, topic: &str) -> bool {
        self.config.readings && self.config.topics.iter().any(|filter| mqtt::topic_matches(filter, topic))
    }

    /// Maps a topic to its sensor's path.
    pub fn path(&self, topic: &str) -> Result<SensorPath, wholegrain_model::NameError> {
        self.names.get(topic).map_or_else(|| SensorPath::new(topic), |announced| Ok(announced.name))
    }

    /// Finds a sensor that the store knows.
    pub fn find(&self, path: &str) -> Option<ResolvedSensor> {
        let id = self.store.sensor_id(path)?;
        let float = self.store.sensor(id).is_some_and(|info| info.value_type == ValueType::Float);
        Some(ResolvedSensor { id, float })
    }

    /// The same, if registering it with these properties would change nothing.
    pub fn find_declared(
        &self,
        path: &SensorPath,
        float: bool,
        properties: &SensorProperties,
    ) -> Option<ResolvedSensor> {
        let wanted = SensorRequest { topic: path.as_str().to_owned(), float, properties: properties.clone() };
        match self.resolve_known(&wanted, &|_| Ok(())) {
            Ok(RequestedSensor::Known(known)) => Some(known),
            _ => None,
        }
    }

    /// Resolves sensors, in their order, and registers new ones within the sender's quota. `may` checks whether the sender may publish on a path.
    /// Blocks on the disk if a sensor is new.
    pub fn resolve(
        &self,
        source: &str,
        wanted: &[SensorRequest],
        may: impl Fn(&str) -> Result<(), String>,
    ) -> Result<Vec<SensorResolution>, StoreError> {
        let mut named: Vec<SensorResolution> = Vec::with_capacity(wanted.len());
        let mut new: Vec<NewSensor> = Vec::new();
        // A sensor that appears again gets the result of its first appearance.
        let (mut first, mut repeated) = (HashMap::new(), Vec::new());
        for (at, one) in wanted.iter().enumerate() {
            let (resolution, sensor, is_counted) = match self.resolve_known(one, &may) {
                Ok(RequestedSensor::Known(known)) => (Ok(known), None, false),
                // Beyond the quota its readings are stored all the same, with the properties that it has.
                Ok(RequestedSensor::Changed(known, sensor)) => (Ok(known), Some(sensor), true),
                // This happens once for each sensor.
                Ok(RequestedSensor::Widened(known, sensor)) => (Ok(known), Some(sensor), false),
                Ok(RequestedSensor::New(sensor)) => {
                    (Err((ReasonCode::UNSPECIFIED_ERROR, String::new())), Some(sensor), true)
                }
                Err(refusal) => (Err(refusal), None, false),
            };
            if let Some(sensor) = sensor {
                match first.get(sensor.path.as_str()) {
                    Some(place) => {
                        let before: &mut NewSensor = &mut new[*place];
                        if sensor.value_type == ValueType::Float {
                            before.sensor.value_type = ValueType::Float;
                        }
                        repeated.push((at, before.at));
                    }
                    None => {
                        first.insert(sensor.path.as_str().to_owned(), new.len());
                        new.push(NewSensor { at, sensor, is_counted });
                    }
                }
            }
            named.push(resolution);
        }
        if new.is_empty() {
            return Ok(named);
        }
        let now = Instant::now();
        let mut taken = 0;
        new.retain(|NewSensor { at, sensor, is_counted }| {
            let fits = !is_counted || self.new_sensors.take(source, 1, now);
            taken += u64::from(fits && *is_counted);
            if !fits {
                self.metrics.sensors_over_allowance.inc();
                if named[*at].is_err() {
                    named[*at] = Err(self.over_allowance(source, &sensor.path));
                }
            }
            fits
        });
        let sensors: Vec<SchemalessSensor> = new.iter().map(|new| new.sensor.clone()).collect();
        let ids =
            self.store.register_sensors(source, &sensors).inspect_err(|_| self.new_sensors.give_back(source, taken))?;
        for (NewSensor { at, sensor, .. }, id) in new.iter().zip(ids) {
            named[*at] = Ok(ResolvedSensor { id, float: sensor.value_type == ValueType::Float });
        }
        for (at, before) in repeated {
            named[at] = named[before].clone();
        }
        Ok(named)
    }

    /// Returns the sensor if it is known, and how to register it if it is new or its properties change.
    fn resolve_known(
        &self,
        wanted: &SensorRequest,
        may: &impl Fn(&str) -> Result<(), String>,
    ) -> Result<RequestedSensor, ReadingRefusal> {
        let denied = |why| (ReasonCode::NOT_AUTHORIZED, why);
        may(&wanted.topic).map_err(denied)?;
        let announced = self.names.get(&wanted.topic);
        let path = match &announced {
            Some(announced) => announced.name.clone(),
            None => SensorPath::new(wanted.topic.as_str())
                .map_err(|error| (ReasonCode::TOPIC_NAME_INVALID, error.to_string()))?,
        };
        if path.as_str() != wanted.topic {
            may(path.as_str()).map_err(denied)?;
        }
        let properties = &wanted.properties;
        let id = self.store.sensor_id(path.as_str());
        if let Some(info) = id.and_then(|id| self.store.sensor(id)) {
            let known = ResolvedSensor { id: info.id, float: info.value_type == ValueType::Float };
            let SensorInfo { unit, kind, value_type, scale, description, .. } = info;
            let is_same = (&unit, kind, &description) == (&properties.unit, properties.kind, &properties.description);
            let is_widened = wanted.float && value_type == ValueType::Int;
            let value_type = if is_widened { ValueType::Float } else { value_type };
            let is_kept = !properties.is_declared || announced.is_some() || is_same;
            if is_kept && !is_widened {
                return Ok(RequestedSensor::Known(known));
            }
            let sensor = if is_kept {
                SchemalessSensor { path, unit, kind, value_type, scale, description }
            } else {
                let SensorProperties { unit, kind, description, .. } = properties.clone();
                SchemalessSensor { path, unit, kind, value_type, scale, description }
            };
            return Ok(match self.store.is_registered(&sensor) {
                true => RequestedSensor::Known(known),
                false if is_kept => RequestedSensor::Widened(known, sensor),
                false => RequestedSensor::Changed(known, sensor),
            });
        }
        let value_type = if wanted.float { ValueType::Float } else { ValueType::Int };
        let (unit, scale, kind) = match announced {
            Some(announced) => (announced.unit, announced.scale, announced.kind),
            None => (properties.unit.clone(), 1.0, properties.kind),
        };
        let description = properties.description.clone();
        Ok(RequestedSensor::New(SchemalessSensor { path, unit, kind, value_type, scale, description }))
    }

    fn over_allowance(&self, source: &str, path: &SensorPath) -> ReadingRefusal {
        let why = format!(
            "{source:?} may register {} new sensors in an hour (mqtt.readings.sensors_per_hour_max); {path} exceeds it",
            self.config.sensors_per_hour_max
        );
        (ReasonCode::QUOTA_EXCEEDED, why)
    }

    /// Stores the name that a pusher announced, and registers its sensor; both are durable when it returns.
    pub fn announce(
        &self,
        source: &str,
        announced: &SensorAnnouncement,
        may: impl Fn(&str) -> Result<(), String>,
    ) -> Result<SensorResolution, StoreError> {
        for path in [announced.topic.as_str(), announced.name.as_str()] {
            if let Err(why) = may(path) {
                return Ok(Err((ReasonCode::NOT_AUTHORIZED, why)));
            }
        }
        let known = self.find(announced.name.as_str());
        let is_new = known.is_none();
        if is_new && !self.new_sensors.take(source, 1, Instant::now()) {
            self.metrics.sensors_over_allowance.inc();
            return Ok(Err(self.over_allowance(source, &announced.name)));
        }
        let value_type = if known.is_some_and(|known| known.float) { ValueType::Float } else { ValueType::Int };
        let sensor = SchemalessSensor {
            path: announced.name.clone(),
            unit: announced.unit.clone(),
            kind: announced.kind,
            value_type,
            scale: announced.scale,
            description: String::new(),
        };
        let give_back = || {
            if is_new {
                self.new_sensors.give_back(source, 1)
            }
        };
        let ids = self.store.register_sensors(source, &[sensor]).inspect_err(|_| give_back())?;
        self.names.put(announced).map_err(|error| {
            tracing::warn!("interop: cannot store the name of {}: {error}; retrying", announced.topic);
            // Any error is the disk's: the sender keeps the announcement and is answered when the disk has room again.
            StoreError::Busy
        })?;
        self.metrics.dcdb_names.inc();
        let Some(&id) = ids.first() else { return Err(StoreError::Closed) };
        Ok(Ok(ResolvedSensor { id, float: value_type == ValueType::Float }))
    }
}
