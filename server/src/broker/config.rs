//! `[mqtt]` and `[mqtt.limits]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::size::ByteSize;
use wholegrain_model::{Interval, SensorPath};
use wholegrain_transport::tls::ClientCerts;

use crate::access::{AclLine, check_acl, passwords};
use crate::admission::ConnectionBounds;
use crate::admission::hourly_quotas::SCHEMA_BYTES_MIN;
use crate::certificates::TlsFiles;
use crate::interop::config::RawReadings;
use crate::interop::devices::config::RawDevice;
use crate::settings::{ConfigFileError, LIMIT_TIME, listen, read, settings};

/// Default address of MQTT over TLS: every address, IPv6 and IPv4.
pub const MQTT_TLS_LISTEN: &str = "[::]:8883";
/// The longest session expiry.
pub const SESSION_EXPIRY_MAX: Interval = Interval::from_s(365 * 86_400);

#[derive(Debug, Clone)]
pub struct MqttConfig {
    /// `host:port` for MQTT without TLS; passwords and readings are sent in clear text.
    pub listen: Option<String>,
    /// `host:port` for MQTT over TLS.
    pub tls_listen: Option<String>,
    /// Certificate chain of the server, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// The authority whose client certificates are trusted, PEM.
    pub client_ca: Option<PathBuf>,
    /// Refuse TLS clients without a certificate, even if they have a password.
    pub require_client_cert: bool,
    /// Accept clients with neither certificate nor password; the client identifier is then their identity.
    pub anonymous: bool,
    /// Users and their password hashes.
    pub users: BTreeMap<String, String>,
    /// A file of more users; it is read at the start and when it changes.
    pub password_file: Option<PathBuf>,
    /// For agents that may publish outside their own subtree: the subtrees.
    pub prefixes: BTreeMap<String, Vec<SensorPath>>,
    /// Grants beyond the defaults.
    pub acl: Vec<AclLine>,
    pub limits: MqttLimits,
}

impl MqttConfig {
    /// The files of the listener with TLS.
    pub(crate) fn tls_files(&self) -> TlsFiles {
        let certs = if self.require_client_cert { ClientCerts::Required } else { ClientCerts::Optional };
        TlsFiles {
            section: "mqtt",
            cert: self.cert.clone(),
            key: self.key.clone(),
            client_ca: self.client_ca.clone().map(|ca| (ca, certs)),
        }
    }
}

/// Limits of retained messages, schemas not counted. Bytes are those of topics, payloads and properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetainedBounds {
    pub messages_max: usize,
    pub bytes_max: usize,
    pub client_messages_max: usize,
    pub client_bytes_max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MqttLimits {
    /// The maximum packet size, in bytes.
    pub packet_bytes_max: usize,
    pub connections_max: usize,
    /// Connections of one identity.
    pub client_connections_max: usize,
    pub unauthenticated_max: usize,
    /// Unacknowledged publishes of one client, and unacknowledged messages to it.
    pub inflight_max: u16,
    /// Bytes of one client's unacknowledged publishes.
    pub inflight_bytes_max: usize,
    /// Bytes of unacknowledged publishes of all clients; above it only clients without any are read.
    pub inflight_total_bytes_max: usize,
    /// Subscriptions of one client.
    pub subscriptions_max: usize,
    /// Messages queued for one subscriber; more are dropped and counted.
    pub queue_messages_max: usize,
    pub queue_bytes_max: usize,
    /// Bytes queued for all subscribers, disconnected ones included; more are dropped.
    pub queue_total_bytes_max: usize,
    /// Bytes of new schemas that one agent may announce in an hour.
    pub schema_bytes_per_hour_max: u64,
    /// New sensors that one agent may add by schemas in an hour.
    pub schema_sensors_per_hour_max: u64,
    /// Bytes of job records that one agent may send in an hour.
    pub job_bytes_per_hour_max: u64,
    pub retained: RetainedBounds,
    /// How long a batch waits for its schema before the connection is closed.
    pub schema_wait_max: Duration,
    /// The time for the TLS handshake and CONNECT together.
    pub connect_time_max: Duration,
    /// The time from the first to the last byte of a packet.
    pub packet_time_max: Duration,
    /// How long a client may read nothing of what is written to it.
    pub write_time_max: Duration,
    /// The longest time that a session is kept after its connection.
    pub session_expiry_max: Duration,
    /// Sessions of disconnected clients.
    pub sessions_kept_max: usize,
    /// Topic aliases of one client in each direction.
    pub topic_aliases_max: u16,
    /// Publishes of one client in a second; above it the client is read more slowly. `None` for no limit.
    pub publishes_per_s_max: Option<u64>,
    /// The same in bytes of topics and payloads.
    pub publish_bytes_per_s_max: Option<u64>,
    /// Control packets of one identity in a second, beyond the few of each connection; above it the connections are read more slowly.
    pub control_packets_per_s_max: u64,
}

impl MqttLimits {
    /// The limits on connections.
    pub(crate) fn connections(&self) -> ConnectionBounds {
        ConnectionBounds {
            unproven_max: self.unauthenticated_max,
            proven_max: self.connections_max,
            identity_max: self.client_connections_max,
            privileged_max: 0,
        }
    }
}

settings! {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, default)]
    pub(crate) struct RawMqttLimits {
        packet_bytes_max: ByteSize = reload,
        connections_max: usize = reload,
        client_connections_max: usize = reload,
        unauthenticated_max: usize = reload,
        inflight_max: u16 = reload,
        inflight_bytes_max: ByteSize = reload,
        inflight_total_bytes_max: ByteSize = reload,
        subscriptions_max: usize = reload,
        queue_messages_max: usize = restart,
        queue_bytes_max: ByteSize = restart,
        queue_total_bytes_max: ByteSize = restart,
        retained_messages_max: usize = reload,
        retained_bytes_max: ByteSize = reload,
        retained_client_messages_max: usize = reload,
        retained_client_bytes_max: ByteSize = reload,
        schema_bytes_per_hour_max: ByteSize = reload,
        schema_sensors_per_hour_max: u64 = reload,
        job_bytes_per_hour_max: ByteSize = reload,
        schema_wait_max: Interval = reload,
        connect_time_max: Interval = reload,
        packet_time_max: Interval = reload,
        write_time_max: Interval = reload,
        session_expiry_max: Interval = reload,
        sessions_kept_max: usize = restart,
        topic_aliases_max: u16 = reload,
        publishes_per_s_max: Option<u64> = reload,
        publish_bytes_per_s_max: Option<ByteSize> = reload,
        control_packets_per_s_max: u64 = reload,
    }
}

impl Default for RawMqttLimits {
    fn default() -> Self {
        Self {
            packet_bytes_max: ByteSize::mib(32),
            connections_max: 20_000,
            client_connections_max: 256,
            unauthenticated_max: 8192,
            inflight_max: 64,
            inflight_bytes_max: ByteSize::mib(64),
            inflight_total_bytes_max: ByteSize::mib(1024),
            subscriptions_max: 64,
            queue_messages_max: 1024,
            queue_bytes_max: ByteSize::mib(32),
            queue_total_bytes_max: ByteSize::mib(1024),
            retained_messages_max: 262_144,
            retained_bytes_max: ByteSize::mib(256),
            retained_client_messages_max: 8192,
            retained_client_bytes_max: ByteSize::mib(16),
            schema_bytes_per_hour_max: ByteSize::mib(64),
            schema_sensors_per_hour_max: 250_000,
            job_bytes_per_hour_max: ByteSize::mib(256),
            schema_wait_max: Interval::from_ms(60_000),
            connect_time_max: Interval::from_ms(10_000),
            packet_time_max: Interval::from_ms(120_000),
            write_time_max: Interval::from_ms(30_000),
            session_expiry_max: Interval::from_s(86_400),
            sessions_kept_max: 20_000,
            topic_aliases_max: 32,
            publishes_per_s_max: None,
            publish_bytes_per_s_max: None,
            control_packets_per_s_max: 1000,
        }
    }
}

impl RawMqttLimits {
    pub(crate) fn check(self, section: &Section) -> Result<MqttLimits, ConfigError> {
        let within = |key: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                Err(section.error(key, format!("is {value}; write {least} to {most}")))
            }
        };
        within("packet_bytes_max", self.packet_bytes_max.0, 4096, 256 << 20)?;
        within("connections_max", self.connections_max as u64, 1, 1_000_000)?;
        within("client_connections_max", self.client_connections_max as u64, 1, 1_000_000)?;
        within("unauthenticated_max", self.unauthenticated_max as u64, 1, 1_000_000)?;
        within("inflight_max", self.inflight_max.into(), 1, u16::MAX.into())?;
        within("inflight_bytes_max", self.inflight_bytes_max.0, self.packet_bytes_max.0, 4 << 30)?;
        within("inflight_total_bytes_max", self.inflight_total_bytes_max.0, 1, 1 << 40)?;
        within("subscriptions_max", self.subscriptions_max as u64, 1, 100_000)?;
        within("queue_messages_max", self.queue_messages_max as u64, 1, 1_000_000)?;
        within("queue_bytes_max", self.queue_bytes_max.0, self.packet_bytes_max.0, 4 << 30)?;
        within("queue_total_bytes_max", self.queue_total_bytes_max.0, self.queue_bytes_max.0, 1 << 40)?;
        within("retained_messages_max", self.retained_messages_max as u64, 1, 10_000_000)?;
        within("retained_bytes_max", self.retained_bytes_max.0, 1024, 1 << 40)?;
        let of_all = self.retained_messages_max as u64;
        within("retained_client_messages_max", self.retained_client_messages_max as u64, 1, of_all)?;
        within("retained_client_bytes_max", self.retained_client_bytes_max.0, 1024, self.retained_bytes_max.0)?;
        within("schema_bytes_per_hour_max", self.schema_bytes_per_hour_max.0, SCHEMA_BYTES_MIN, 1 << 40)?;
        within("schema_sensors_per_hour_max", self.schema_sensors_per_hour_max, 1, 1_000_000_000)?;
        within("job_bytes_per_hour_max", self.job_bytes_per_hour_max.0, 1024, 1 << 40)?;
        within("sessions_kept_max", self.sessions_kept_max as u64, 1, 1_000_000)?;
        within("publishes_per_s_max", self.publishes_per_s_max.unwrap_or(1), 1, 1_000_000_000)?;
        within("control_packets_per_s_max", self.control_packets_per_s_max, 1, 1_000_000_000)?;
        let bytes_per_s = self.publish_bytes_per_s_max.map(|bytes| bytes.0);
        within("publish_bytes_per_s_max", bytes_per_s.unwrap_or(1024), 1024, 1 << 40)?;
        for (key, value, (least, most)) in [
            ("schema_wait_max", self.schema_wait_max, LIMIT_TIME),
            ("connect_time_max", self.connect_time_max, LIMIT_TIME),
            ("packet_time_max", self.packet_time_max, LIMIT_TIME),
            ("write_time_max", self.write_time_max, LIMIT_TIME),
            ("session_expiry_max", self.session_expiry_max, (Interval::from_s(1), SESSION_EXPIRY_MAX)),
        ] {
            if !(least..=most).contains(&value) {
                return Err(section.error(key, format!("is {value}; write {least} to {most}")));
            }
        }
        Ok(MqttLimits {
            packet_bytes_max: self.packet_bytes_max.0 as usize,
            connections_max: self.connections_max,
            client_connections_max: self.client_connections_max,
            unauthenticated_max: self.unauthenticated_max,
            inflight_max: self.inflight_max,
            inflight_bytes_max: self.inflight_bytes_max.0 as usize,
            inflight_total_bytes_max: self.inflight_total_bytes_max.0 as usize,
            subscriptions_max: self.subscriptions_max,
            queue_messages_max: self.queue_messages_max,
            queue_bytes_max: self.queue_bytes_max.0 as usize,
            queue_total_bytes_max: self.queue_total_bytes_max.0 as usize,
            retained: RetainedBounds {
                messages_max: self.retained_messages_max,
                bytes_max: self.retained_bytes_max.0 as usize,
                client_messages_max: self.retained_client_messages_max,
                client_bytes_max: self.retained_client_bytes_max.0 as usize,
            },
            schema_bytes_per_hour_max: self.schema_bytes_per_hour_max.0,
            schema_sensors_per_hour_max: self.schema_sensors_per_hour_max,
            job_bytes_per_hour_max: self.job_bytes_per_hour_max.0,
            schema_wait_max: self.schema_wait_max.duration(),
            connect_time_max: self.connect_time_max.duration(),
            packet_time_max: self.packet_time_max.duration(),
            write_time_max: self.write_time_max.duration(),
            session_expiry_max: self.session_expiry_max.duration(),
            sessions_kept_max: self.sessions_kept_max,
            topic_aliases_max: self.topic_aliases_max,
            publishes_per_s_max: self.publishes_per_s_max,
            publish_bytes_per_s_max: bytes_per_s,
            control_packets_per_s_max: self.control_packets_per_s_max,
        })
    }
}

settings! {
    #[derive(Deserialize, Default)]
    #[serde(deny_unknown_fields, default)]
    pub(crate) struct RawMqtt {
        listen: Option<String> = restart,
        tls_listen: Option<String> = restart,
        cert: Option<PathBuf> = reload,
        key: Option<PathBuf> = reload,
        client_ca: Option<PathBuf> = reload,
        require_client_cert: Option<bool> = reload,
        anonymous: bool = reload,
        users: Vec<RawUser> = reload,
        pub password_file: Option<PathBuf> = reload,
        prefixes: BTreeMap<String, Vec<SensorPath>> = reload,
        acl: Vec<AclLine> = reload,
        pub readings: RawReadings = restart,
        pub device: Vec<RawDevice> = restart,
        limits: RawMqttLimits = section,
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawUser {
    name: String,
    password_hash: String,
}

impl RawMqtt {
    /// Checks `[mqtt]`; relative paths are relative to `base`.
    pub(crate) fn check(self, section: &Section, base: &Path) -> Result<MqttConfig, ConfigFileError> {
        let listen_plain = listen(section, "listen", self.listen, None)?;
        let tls_listen = listen(section, "tls_listen", self.tls_listen, Some(MQTT_TLS_LISTEN))?;
        let mut users = BTreeMap::new();
        for user in self.users {
            passwords::check_hash(&user.password_hash)
                .map_err(|e| section.error("users", format!("user {:?}: {e}", user.name)))?;
            if users.insert(user.name.clone(), user.password_hash).is_some() {
                return Err(section.error("users", format!("user {:?} is listed twice; keep one", user.name)).into());
            }
        }
        let password_file = self.password_file.map(|file| base.join(file));
        if let Some(path) = &password_file {
            let text =
                read(path, "mqtt.password_file", "create it with `wholegrain auth user add`, or remove the key")?;
            passwords::parse_password_file(&text)
                .map_err(|e| section.error("password_file", format!("{}: {e}", path.display())))?;
        }
        let has_users = !users.is_empty() || password_file.is_some();
        let client_ca = self.client_ca.map(|path| base.join(path));
        let require_client_cert = self.require_client_cert.unwrap_or(false);
        if require_client_cert && client_ca.is_none() {
            return Err(section
                .error("require_client_cert", "needs client_ca, the authority that signs the clients' certificates")
                .into());
        }
        if tls_listen.is_some() && client_ca.is_none() && !has_users && !self.anonymous {
            let message = "no client could connect; set client_ca (certificates), users or password_file (passwords), or anonymous = true";
            return Err(section.error("tls_listen", message).into());
        }
        if listen_plain.is_some() && !has_users && !self.anonymous {
            return Err(section
                .error("listen", "no client could connect without TLS; set users or password_file, or anonymous = true")
                .into());
        }
        check_acl(&self.acl, self.anonymous, section)?;
        Ok(MqttConfig {
            listen: listen_plain,
            tls_listen,
            cert: base.join(self.cert.unwrap_or_else(|| "server.pem".into())),
            key: base.join(self.key.unwrap_or_else(|| "server.key".into())),
            client_ca,
            require_client_cert,
            anonymous: self.anonymous,
            users,
            password_file,
            prefixes: self.prefixes,
            acl: self.acl,
            limits: self.limits.check(&section.child("limits"))?,
        })
    }
}
