//! From the first byte of a connection to CONNACK.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite};
use wholegrain_transport::mqtt::{self, ConnAck, Connect, Packet, Properties, Property, ReasonCode, Text, Version};

use crate::admission::ConnectionPermit;

use super::super::Broker;
use super::super::connect::{AdmittedClient, CONNECT_BYTES_MAX};
use super::super::wire::{PacketStream, flush_and_close, read_some};
use super::Connection;
use crate::ingest::CloseReason;
use crate::lifetime::ServerLifetime;
use crate::log_limit::quoted;

/// The most bytes of a reason string.
const WORDS_BYTES_MAX: usize = 512;

/// Serves a client from CONNECT to the end.
pub(in super::super) async fn run<S>(
    broker: Arc<Broker>,
    mut wire: PacketStream<S>,
    (peer, place): (SocketAddr, Box<ConnectionPermit>),
    certificate: Option<String>,
    deadline: Instant,
    lifetime: ServerLifetime,
) where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    // On the heap and dropped after the handshake, so that ten thousand connections do not keep its memory.
    let greeting = Box::pin(async {
        tokio::select! {
            greeted = greet(&broker, &mut wire, (peer, &place), certificate.as_deref()) => greeted,
            () = place.over(deadline) => {
                Err(CloseReason::new(ReasonCode::UNSPECIFIED_ERROR, "no CONNECT in time, or it made room for others"))
            }
        }
    });
    let (connect, admitted) = match greeting.await {
        Ok(both) => both,
        Err(close) => return broker.refused(peer, format_args!("{}", close.why)),
    };
    broker.metrics.connections_accepted.inc();
    let (identity, client) = (&admitted.identity, &admitted.client_id);
    broker.connection_log.info(format_args!(
        "mqtt {peer}: {identity} connected (client \"{}\", {:?}, authenticated by {})",
        quoted(client),
        admitted.version,
        admitted.by
    ));
    // Also on the heap: a future reserves room for a value in each function that the value passes through.
    let connection = Box::new(Connection::new(broker, wire, peer, admitted, connect));
    connection.serve(lifetime.shutdown).await;
    drop(place);
}

/// Reads CONNECT, decides and answers.
async fn greet<S>(
    broker: &Arc<Broker>,
    wire: &mut PacketStream<S>,
    (peer, place): (SocketAddr, &ConnectionPermit),
    certificate: Option<&str>,
) -> Result<(Box<Connect>, AdmittedClient), CloseReason>
where
    S: AsyncRead + AsyncWrite,
{
    let bytes_max = CONNECT_BYTES_MAX.min(broker.limits().packet_bytes_max);
    let connect = loop {
        match mqtt::decode(&mut wire.input, None, bytes_max) {
            Ok(Some(Packet::Connect(connect))) => break connect,
            Ok(Some(_)) => return Err(CloseReason::new(ReasonCode::PROTOCOL_ERROR, "the first packet is not CONNECT")),
            Ok(None) => {}
            Err(error) => {
                if matches!(error, mqtt::CodecError::UnsupportedVersion { .. }) {
                    say_no(wire, Version::V311, error.reason_code(), "").await;
                }
                return Err(CloseReason::new(error.reason_code(), error.to_string()));
            }
        }
        match read_some(&mut wire.read, &mut wire.input).await {
            Ok(0) => return Err(CloseReason::new(ReasonCode::UNSPECIFIED_ERROR, "closed before CONNECT")),
            Ok(count) => broker.metrics.received_bytes.add(count as u64),
            Err(error) => {
                return Err(CloseReason::new(ReasonCode::UNSPECIFIED_ERROR, format!("before CONNECT: {error}")));
            }
        }
    };
    let number = broker.next_id.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let admitted = broker.admit(&connect, peer, certificate, number).await;
    let placed = admitted.and_then(|admitted| match place.prove(&admitted.identity, false) {
        Ok(()) => Ok(admitted),
        Err(full) => Err(CloseReason::new(ReasonCode::QUOTA_EXCEEDED, full.to_string())),
    });
    match placed {
        Ok(admitted) => Ok((connect, admitted)),
        Err(close) => {
            say_no(wire, connect.version, close.reason, &close.why).await;
            Err(CloseReason { why: format!("client \"{}\" {}", quoted(&connect.client_id), close.why), ..close })
        }
    }
}

async fn say_no<S: AsyncRead + AsyncWrite>(
    wire: &mut PacketStream<S>,
    version: Version,
    reason: ReasonCode,
    why: &str,
) {
    let properties = if version == Version::V5 { reason_string(why) } else { Properties::new() };
    let answer = ConnAck { session_present: false, reason, properties };
    if mqtt::encode(&Packet::ConnAck(answer), version, &mut wire.output).is_ok() {
        flush_and_close(wire).await;
    }
}

/// At most [`WORDS_BYTES_MAX`] of a reason as a reason string.
pub(super) fn reason_string(why: &str) -> Properties {
    if why.is_empty() {
        return Properties::new();
    }
    let end = (0..=why.len().min(WORDS_BYTES_MAX)).rev().find(|&at| why.is_char_boundary(at)).unwrap_or(0);
    Properties::new().with(Property::ReasonString(Text::from(&why[..end])))
}
