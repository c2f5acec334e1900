//! What all writes over HTTP share: receiving the body within bounds, naming the sensors of its series, storing the readings.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use wholegrain_model::Value;
use wholegrain_store::{GAP, GAP_BITS, READINGS_MAX, Reading, StoreError};

use super::{Api, ApiError};
use crate::access::tokens::Bearer;
use crate::access::{Role, Security};
use crate::admission::QuotaPermit;
use crate::interop::Interop;
use crate::interop::names::{self, LineProtocol, SeriesNames};
use crate::interop::resolution::{SensorProperties, SensorRequest};
use crate::token_permits::TokenPermit;

/// How long a client may take to send a body.
const BODY_TIME_MAX: Duration = Duration::from_secs(60);
const PLACE_TIME_MAX: Duration = Duration::from_secs(5);
/// The most refused lines or series that a response lists.
const NAMED_MAX: usize = 100;
/// The most values of one request.
const VALUES_MAX: usize = 1 << 20;
/// The most memory for the names of one request's sensors: 32 MiB.
const NAME_BYTES_MAX: usize = 32 << 20;
/// The bytes that a sensor counts beside its texts.
const SENSOR_BYTES: usize = 256;
/// Waits between attempts while the store has no room, before the client gets an error.
const BUSY_WAITS: [Duration; 4] =
    [Duration::from_millis(10), Duration::from_millis(40), Duration::from_millis(160), Duration::from_millis(640)];

/// A write whose body has arrived. Its memory and its turn count for the token until it is dropped.
pub(super) struct ReceivedWrite {
    pub body: Bytes,
    pub sender: WriteSender,
    memory: QuotaPermit,
    _turn: TokenPermit,
}

impl ReceivedWrite {
    /// Takes the body without its compression or in another encoding, as `convert` gives it. Its memory counts for the token as the body's does: a
    /// body of few bytes can become a long one.
    pub fn converted(&mut self, convert: impl FnOnce(&[u8]) -> Result<Vec<u8>, ApiError>) -> Result<(), ApiError> {
        self.body = converted(&self.body, &mut self.memory, convert)?;
        Ok(())
    }
}

fn converted(
    body: &[u8],
    memory: &mut QuotaPermit,
    convert: impl FnOnce(&[u8]) -> Result<Vec<u8>, ApiError>,
) -> Result<Bytes, ApiError> {
    let bytes = convert(body)?;
    if memory.grow(bytes.len()) { Ok(bytes.into()) } else { Err(no_memory()) }
}

fn no_memory() -> ApiError {
    let message =
        "other writes of this token use all memory that it may use; send smaller requests, or one after the other";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

/// The sender of a write, and its permissions.
#[derive(Clone)]
pub(super) struct WriteSender {
    /// The name of its token; quotas count for it.
    pub name: String,
    role: Role,
    security: Arc<Security>,
}

impl WriteSender {
    /// An administrator may write to all paths; others where an MQTT client with the token's name may publish.
    pub fn may(&self, path: &str) -> Result<(), String> {
        match self.role {
            Role::Admin => Ok(()),
            _ => self.security.access.may_publish(&self.name, path),
        }
    }
}

/// Receives the body of a write. A slow client takes no turn, only memory for the received part.
pub(super) async fn receive(api: &Api, request: Request) -> Result<ReceivedWrite, ApiError> {
    let bearer = request.extensions().get::<Bearer>().cloned();
    let bearer = bearer.ok_or_else(|| ApiError::internal("the request has no token"))?;
    let (body, memory) = body(api, request, &bearer).await?;
    let turn = api.writes.take(&bearer, PLACE_TIME_MAX).await?;
    let sender = WriteSender { name: bearer.name.to_string(), role: bearer.role, security: api.security.clone() };
    Ok(ReceivedWrite { body, sender, memory, _turn: turn })
}

pub(super) fn too_large(bytes_max: usize) -> ApiError {
    let message =
        format!("the body has over {bytes_max} bytes; send less in one request, or raise interop.body_bytes_max");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

/// Reads the body; the permit counts its memory for the token.
async fn body(api: &Api, request: Request, bearer: &Bearer) -> Result<(Bytes, QuotaPermit), ApiError> {
    let bytes_max = api.interop.config.body_bytes_max;
    let mut held = api.bodies.take(&bearer.id).ok_or_else(no_memory)?;
    let read = async {
        let (mut chunks, mut body) = (request.into_body().into_data_stream(), BytesMut::new());
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| ApiError::bad_request(format!("the body is incomplete: {error}")))?;
            if body.len() + chunk.len() > bytes_max {
                return Err(too_large(bytes_max));
            }
            if !held.grow(chunk.len()) {
                return Err(no_memory());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    };
    match tokio::time::timeout(BODY_TIME_MAX, read).await {
        Ok(body) => body.map(|body| (body, held)),
        Err(_) => {
            let message = format!("the body did not arrive within {} s", BODY_TIME_MAX.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
        }
    }
}

/// A body without its compression by gzip.
pub(super) fn gunzip(body: &[u8], bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    use std::io::Read;
    let mut unpacked = Vec::new();
    let read = flate2::read::MultiGzDecoder::new(body).take(bytes_max as u64 + 1).read_to_end(&mut unpacked);
    read.map_err(|error| ApiError::bad_request(format!("the body is not gzip: {error}")))?;
    if unpacked.len() > bytes_max { Err(too_large(bytes_max)) } else { Ok(unpacked) }
}

/// Lines or series that are refused, by their number in the request.
#[derive(Debug, Default)]
pub(super) struct RefusedItems {
    /// The first of them, with the reason.
    pub named: Vec<(usize, String)>,
    pub count: usize,
}

impl RefusedItems {
    pub fn add(&mut self, number: usize, why: impl Into<String>) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push((number, why.into()));
        }
    }
}

/// A value whose sensor is not resolved yet.
struct PendingValue {
    item: usize,
    sensor: usize,
    time: i64,
    value: Value,
}

/// The values of a request, until their sensors are resolved.
pub(super) struct PendingValues<'a> {
    interop: &'a Interop,
    protocol: LineProtocol,
    /// Sensors by path, each with the identity of the series that has it.
    sensors: HashMap<String, (usize, Option<u64>)>,
    wanted: Vec<SensorRequest>,
    /// What the sensors' names take.
    name_bytes: usize,
    values: Vec<PendingValue>,
}

impl<'a> PendingValues<'a> {
    pub fn new(interop: &'a Interop, protocol: LineProtocol) -> Self {
        Self { interop, protocol, sensors: HashMap::new(), wanted: Vec::new(), name_bytes: 0, values: Vec::new() }
    }

    /// The sensor of a series by its index. It has floats if `is_float` of any of its values. `properties` is called if the request has not named it before. Two series with different identities
    /// must not have one path: their values would alternate in one sensor. Without an identity a template may merge series.
    pub fn sensor(
        &mut self,
        names: &SeriesNames<'_>,
        identity: Option<u64>,
        is_float: bool,
        properties: impl FnOnce() -> SensorProperties,
    ) -> Result<usize, String> {
        let path =
            names::path(&self.interop.config.templates, self.protocol, names).map_err(|error| error.to_string())?;
        if let Some((known, of)) = self.sensors.get(path.as_str()) {
            if *of != identity {
                return Err(format!(
                    "another series of the request is {path} already; add a template in [[interop.template]] with a tag in which they differ"
                ));
            }
            self.wanted[*known].float |= is_float;
            return Ok(*known);
        }
        let properties = properties();
        self.name_bytes +=
            2 * path.as_str().len() + properties.unit.len() + properties.description.len() + SENSOR_BYTES;
        if self.name_bytes > NAME_BYTES_MAX {
            return Err(format!(
                "the names of the request's sensors take more than {NAME_BYTES_MAX} bytes; send less in one request"
            ));
        }
        let topic = path.as_str().to_owned();
        self.sensors.insert(topic.clone(), (self.wanted.len(), identity));
        self.wanted.push(SensorRequest { topic, float: is_float, properties });
        Ok(self.wanted.len() - 1)
    }

    /// Adds a value of the line or series `item`.
    pub fn push(&mut self, item: usize, sensor: usize, time: i64, value: Value) -> Result<(), ApiError> {
        if self.values.len() == VALUES_MAX {
            let message = format!("the body has over {VALUES_MAX} values; send less in one request");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        self.values.push(PendingValue { item, sensor, time, value });
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Removes the values after the first `length`: their line is refused.
    pub fn truncate(&mut self, length: usize) {
        self.values.truncate(length);
    }

    /// Resolves the sensors, and refuses items whose sensors the sender may not write. Blocks on the disk if a sensor is new.
    pub fn readings(self, sender: &WriteSender, refused: &mut RefusedItems) -> Result<Vec<Reading>, ApiError> {
        let retry = |error: StoreError| {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("cannot register sensors: {error}; send it again"))
        };
        let named = self.interop.resolve(&sender.name, &self.wanted, |path| sender.may(path)).map_err(retry)?;
        let mut readings = Vec::with_capacity(self.values.len());
        let mut refused_item = None;
        for PendingValue { item, sensor, time, value } in self.values {
            match &named[sensor] {
                Ok(known) => readings.push(Reading { sensor: known.id, time, value: known.fit(value) }),
                Err((_, why)) if refused_item != Some(item) => {
                    refused_item = Some(item);
                    refused.add(item, why.as_str());
                }
                Err(_) => {}
            }
        }
        Ok(readings)
    }
}

/// The value of a sample: NaN is a gap, because nothing was measured.
pub(super) fn measured(value: f64) -> Value {
    if value.is_nan() { GAP } else { Value::Float(value) }
}

/// Whether a value is the stale marker of Prometheus.
pub(super) fn is_stale(value: f64) -> bool {
    value.to_bits() == GAP_BITS
}

/// Stores readings; they are durable when it returns. Retries for a short time if the store has no room.
pub(super) async fn store(api: &Api, source: &str, readings: &[Reading]) -> Result<(), ApiError> {
    for chunk in readings.chunks(READINGS_MAX) {
        store_chunk(api, source, chunk).await?;
    }
    Ok(())
}

async fn store_chunk(api: &Api, source: &str, readings: &[Reading]) -> Result<(), ApiError> {
    let mut waits = BUSY_WAITS.iter();
    loop {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // The request may be cancelled before the answer arrives.
        let done = Box::new(move |result| drop(sender.send(result)));
        api.store.append_readings(source, readings.to_vec(), done);
        let error = match receiver.await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => StoreError::Closed,
        };
        match (error, waits.next()) {
            (StoreError::Busy, Some(wait)) => tokio::time::sleep(*wait).await,
            (error @ (StoreError::Payload(_) | StoreError::Sensor(_)), _) => {
                return Err(ApiError::internal(error.to_string()));
            }
            (error, _) => {
                let message = format!("the readings are not stored: {error}; send them again");
                return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_converted_body_counts_for_its_token() {
        let quotas = crate::admission::IdentityQuotas::new(100);
        let mut memory = quotas.take("one").unwrap();
        assert!(memory.grow(39));
        let long = |length: usize| move |_: &[u8]| Ok(vec![7; length]);
        assert_eq!(converted(b"x", &mut memory, long(50)).unwrap().len(), 50);
        let error = converted(b"x", &mut memory, long(20)).unwrap_err();
        assert_eq!(error.status, StatusCode::SERVICE_UNAVAILABLE);
        drop(memory);
        assert!(converted(b"x", &mut quotas.take("one").unwrap(), long(99)).is_ok());
    }

    #[test]
    fn a_packed_body_is_bounded_by_what_it_unpacks_to() {
        use std::io::Write;
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&vec![b'x'; 1 << 20]).unwrap();
        let packed = packed.finish().unwrap();
        assert!(packed.len() < 2000);
        assert_eq!(gunzip(&packed, 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(gunzip(&packed, (1 << 20) - 1).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(gunzip(&packed[..100], 1 << 20).unwrap_err().status, StatusCode::BAD_REQUEST);
    }
}
