//! CONNECT: authentication of the client, and the content of CONNACK.

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use wholegrain_model::name;
use wholegrain_transport::mqtt::{ConnAck, Connect, Properties, Property, ReasonCode, Text, Version};

use super::Broker;
use crate::access::{ANONYMOUS, BadLogin, seconds};
use crate::ingest::CloseReason;
use crate::log_limit::quoted;

/// The largest CONNECT, in bytes. Every client that reaches the port may send one, so this and the limit on connections bound the memory of
/// unauthenticated clients: 512 MiB with 8192 connections. An agent's CONNECT has less than a kilobyte.
pub const CONNECT_BYTES_MAX: usize = 64 << 10;
/// The keep-alive, in seconds, that the server sets for MQTT 5 clients that ask for none or a longer one.
pub const KEEP_ALIVE_MAX_S: u16 = 60;
/// The longest keep-alive, in seconds, that the server accepts from MQTT 5 clients that ignore the server's value. Such clients exist.
pub const KEEP_ALIVE_BORNE_S: u16 = 300;
/// How long an MQTT 3.1.1 client without keep-alive may be silent.
pub const SILENCE_MAX: Duration = Duration::from_secs(3600);
/// The kind of proof of an anonymous client, for the log.
const BY_NOTHING: &str = "nothing";

/// A client that may connect.
#[derive(Debug, Clone)]
pub(super) struct AdmittedClient {
    pub version: Version,
    pub identity: String,
    pub client_id: String,
    /// How it was authenticated, for the log.
    pub by: &'static str,
    /// Whether it is unauthenticated.
    pub anonymous: bool,
    /// How long it may be silent.
    pub silence_max: Duration,
    /// The client's maximum packet size.
    pub packet_bytes_max: usize,
    /// Whether it accepts reason strings.
    pub wants_words: bool,
    /// Whether it discards an old session.
    pub clean_start: bool,
    /// How long its session is kept after the connection.
    pub session_expiry: Duration,
    /// The client's receive maximum.
    pub window: u16,
    /// The highest topic alias that the client accepts, and that the server uses.
    pub topic_alias_max: u16,
    pub answer: ConnAck,
}

impl Broker {
    /// Decides on a CONNECT. `certificate` is the common name of a certificate that TLS has verified; `number` becomes part of the client identifier
    /// of a client without one.
    pub(super) async fn admit(
        &self,
        connect: &Connect,
        peer: SocketAddr,
        certificate: Option<&str>,
        number: u64,
    ) -> Result<AdmittedClient, CloseReason> {
        if connect.properties.authentication_method().is_some() {
            return Err(CloseReason::new(
                ReasonCode::BAD_AUTHENTICATION_METHOD,
                "asks for extended authentication, which this server does not support",
            ));
        }
        let v5 = connect.version == Version::V5;
        if connect.client_id.is_empty() && !v5 && !connect.clean_start {
            return Err(CloseReason::new(
                ReasonCode::CLIENT_ID_NOT_VALID,
                "has no client identifier but asks to keep its session",
            ));
        }
        let client_id = if connect.client_id.is_empty() {
            // Includes the start time of the process: a client may reconnect with the identifier after a restart.
            format!("auto-{:x}-{number}", self.started_ms)
        } else {
            connect.client_id.to_string()
        };
        let (identity, by) = self.identify(connect, peer, certificate, &client_id).await?;
        if identity.contains('/') || name::check_relative(&identity).is_err() {
            let why =
                format!("\"{}\" cannot be an agent's name: it must be one level of a sensor path", quoted(&identity));
            return Err(CloseReason::new(ReasonCode::NOT_AUTHORIZED, why));
        }
        let mut properties = Properties::new();
        if v5 {
            properties = self.announcements(connect);
            if connect.client_id.is_empty() {
                properties = properties.with(Property::AssignedClientIdentifier(Text::from(client_id.clone())));
            }
        }
        let keep_alive_s = match connect.keep_alive_s {
            0 | KEEP_ALIVE_BORNE_S.. if v5 => KEEP_ALIVE_BORNE_S,
            other => other,
        };
        let packet_bytes_max = connect.properties.maximum_packet_size().map_or(usize::MAX, |&bytes| bytes as usize);
        let receive_max = connect.properties.receive_maximum().copied().unwrap_or(u16::MAX);
        let topic_alias_max = connect.properties.topic_alias_maximum().copied().unwrap_or(0);
        Ok(AdmittedClient {
            version: connect.version,
            identity,
            client_id,
            by,
            anonymous: by == BY_NOTHING,
            // One and a half times the keep-alive (MQTT 3.1.1, 3.1.2.10).
            silence_max: if keep_alive_s == 0 {
                SILENCE_MAX
            } else {
                Duration::from_millis(u64::from(keep_alive_s) * 1500)
            },
            packet_bytes_max,
            wants_words: v5 && connect.properties.request_problem_information() != Some(&false),
            clean_start: connect.clean_start,
            session_expiry: self.session_expiry(connect),
            window: receive_max.min(self.limits().inflight_max),
            topic_alias_max: topic_alias_max.min(self.limits().topic_aliases_max),
            answer: ConnAck { session_present: false, reason: ReasonCode::SUCCESS, properties },
        })
    }

    /// How long the session is kept: as requested, up to a limit. MQTT 3.1.1 knows only forever and not at all.
    fn session_expiry(&self, connect: &Connect) -> Duration {
        let max = self.limits().session_expiry_max;
        match connect.version {
            Version::V5 => {
                let seconds = connect.properties.session_expiry_interval().copied().unwrap_or(0);
                Duration::from_secs(seconds.into()).min(max)
            }
            Version::V311 if connect.clean_start => Duration::ZERO,
            Version::V311 => max,
        }
    }

    /// The identity: the certificate's name if there is one, else the user whose password is right.
    async fn identify(
        &self,
        connect: &Connect,
        peer: SocketAddr,
        certificate: Option<&str>,
        client_id: &str,
    ) -> Result<(String, &'static str), CloseReason> {
        if let Some(name) = certificate {
            self.security.certificate_shown(peer, name);
            return Ok((name.to_owned(), "certificate"));
        }
        match (&connect.user, &connect.password) {
            (Some(user), Some(password)) => match self.security.check_password(peer, user, password).await {
                Ok(()) => Ok((user.to_string(), "password")),
                Err(BadLogin::Wrong) => Err(CloseReason::new(
                    ReasonCode::BAD_USER_OR_PASSWORD,
                    format!("wrong password, or no user \"{}\"", quoted(user)),
                )),
                Err(BadLogin::Wait(wait)) => Err(CloseReason::new(
                    ReasonCode::CONNECTION_RATE_EXCEEDED,
                    format!("too many failed logins; the next try counts in {} s", seconds(wait)),
                )),
            },
            _ if self.anonymous.load(Relaxed) => {
                let is_name = !client_id.contains('/') && name::check_relative(client_id).is_ok();
                Ok((if is_name { client_id } else { ANONYMOUS }.to_owned(), BY_NOTHING))
            }
            _ => Err(CloseReason::new(ReasonCode::NOT_AUTHORIZED, "has neither certificate nor user and password")),
        }
    }

    /// The properties of CONNACK for an MQTT 5 client.
    fn announcements(&self, connect: &Connect) -> Properties {
        let mut properties = Properties::new()
            .with(Property::ReceiveMaximum(self.limits().inflight_max))
            .with(Property::MaximumPacketSize(u32::try_from(self.limits().packet_bytes_max).unwrap_or(u32::MAX)));
        if self.limits().topic_aliases_max > 0 {
            properties = properties.with(Property::TopicAliasMaximum(self.limits().topic_aliases_max));
        }
        let wanted = connect.properties.session_expiry_interval().copied().unwrap_or(0);
        let kept_s = self.session_expiry(connect).as_secs() as u32;
        if kept_s != wanted {
            properties = properties.with(Property::SessionExpiryInterval(kept_s));
        }
        if connect.keep_alive_s == 0 || connect.keep_alive_s > KEEP_ALIVE_MAX_S {
            properties = properties.with(Property::ServerKeepAlive(KEEP_ALIVE_MAX_S));
        }
        properties
    }
}
