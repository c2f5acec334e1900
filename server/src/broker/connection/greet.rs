//! From the first byte to CONNACK.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite};
use wholegrain_transport::mqtt::{self, ConnAck, Connect, Packet, Properties, Property, ReasonCode, Text, Version};

use crate::admission::Place;

use super::super::connect::{Admitted, CONNECT_BYTES_MAX};
use super::super::log_limit::quoted;
use super::super::pipeline::Close;
use super::super::wire::{Wire, farewell, read_some};
use super::super::{Broker, Lifetime};
use super::Connection;

/// The most bytes of a reason in words.
const WORDS_BYTES_MAX: usize = 512;

/// Serves a client from CONNECT to the end.
pub(in super::super) async fn run<S>(
    broker: Arc<Broker>,
    mut wire: Wire<S>,
    (peer, place): (SocketAddr, Box<Place>),
    certificate: Option<String>,
    deadline: Instant,
    lifetime: Lifetime,
) where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    // On the heap, and gone with the greeting: what it needs is not kept by ten thousand connections.
    let greeting = Box::pin(async {
        tokio::select! {
            greeted = greet(&broker, &mut wire, (peer, &place), certificate.as_deref()) => greeted,
            () = place.over(deadline) => {
                Err(Close::new(ReasonCode::UNSPECIFIED_ERROR, "no CONNECT in time, or others wanted its place"))
            }
        }
    });
    let (connect, admitted) = match greeting.await {
        Ok(both) => both,
        Err(close) => return broker.refused(peer, format_args!("{}", close.why)),
    };
    broker.metrics.connections_accepted.inc();
    let (identity, client) = (&admitted.identity, &admitted.client_id);
    broker.visits.info(format_args!(
        "mqtt {peer}: {identity} is here (client \"{}\", {:?}, proved by {})",
        quoted(client),
        admitted.version,
        admitted.by
    ));
    // On the heap too: a future that a value is handed on to has room for it in each of its hands.
    let connection = Box::new(Connection::new(broker, wire, peer, admitted, connect));
    connection.serve(lifetime.shutdown).await;
    drop(place);
}

/// Reads CONNECT, decides and answers.
async fn greet<S>(
    broker: &Arc<Broker>,
    wire: &mut Wire<S>,
    (peer, place): (SocketAddr, &Place),
    certificate: Option<&str>,
) -> Result<(Box<Connect>, Admitted), Close>
where
    S: AsyncRead + AsyncWrite,
{
    let bytes_max = CONNECT_BYTES_MAX.min(broker.limits.packet_bytes_max);
    let connect = loop {
        match mqtt::decode(&mut wire.input, None, bytes_max) {
            Ok(Some(Packet::Connect(connect))) => break connect,
            Ok(Some(_)) => return Err(Close::new(ReasonCode::PROTOCOL_ERROR, "the first packet is not CONNECT")),
            Ok(None) => {}
            Err(error) => {
                if matches!(error, mqtt::CodecError::UnsupportedVersion { .. }) {
                    say_no(wire, Version::V311, error.reason_code(), "").await;
                }
                return Err(Close::new(error.reason_code(), error.to_string()));
            }
        }
        match read_some(&mut wire.read, &mut wire.input).await {
            Ok(0) => return Err(Close::new(ReasonCode::UNSPECIFIED_ERROR, "went away before CONNECT")),
            Ok(count) => broker.metrics.received_bytes.add(count as u64),
            Err(error) => return Err(Close::new(ReasonCode::UNSPECIFIED_ERROR, format!("before CONNECT: {error}"))),
        }
    };
    let number = broker.next_id.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let admitted = broker.admit(&connect, peer, certificate, number).await;
    let placed = admitted.and_then(|admitted| match place.prove(&admitted.identity, false) {
        Ok(()) => Ok(admitted),
        Err(full) => Err(Close::new(ReasonCode::QUOTA_EXCEEDED, full.to_string())),
    });
    match placed {
        Ok(admitted) => Ok((connect, admitted)),
        Err(close) => {
            say_no(wire, connect.version, close.reason, &close.why).await;
            Err(Close { why: format!("client \"{}\" {}", quoted(&connect.client_id), close.why), ..close })
        }
    }
}

async fn say_no<S: AsyncRead + AsyncWrite>(wire: &mut Wire<S>, version: Version, reason: ReasonCode, why: &str) {
    let properties = if version == Version::V5 { reason_string(why) } else { Properties::new() };
    let answer = ConnAck { session_present: false, reason, properties };
    if mqtt::encode(&Packet::ConnAck(answer), version, &mut wire.output).is_ok() {
        farewell(wire).await;
    }
}

/// At most [`WORDS_BYTES_MAX`] of a reason in words.
pub(super) fn reason_string(why: &str) -> Properties {
    if why.is_empty() {
        return Properties::new();
    }
    let end = (0..=why.len().min(WORDS_BYTES_MAX)).rev().find(|&at| why.is_char_boundary(at)).unwrap_or(0);
    Properties::new().with(Property::ReasonString(Text::from(&why[..end])))
}
