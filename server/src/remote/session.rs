//! One connection to a broker: reads, writes, deadlines, and a [`PublishPipeline`] as in the connections of this server's own clients.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use wholegrain_model::SchemaHash;
use wholegrain_transport::mqtt::{
    self, Ack, Connect, Packet, Properties, Property, Publish, QoS, ReasonCode, Subscribe, Subscription, Text, Version,
};
use wholegrain_transport::topics::{self, Topic};

use super::rights::RemoteRights;
use super::stream::{RemoteStream, connect};
use crate::broker::Broker;
use crate::broker::message::Publication;
use crate::ingest::{
    ClientTerms, ForwardedPublish, IncomingPublish, PermittedSchemas, PublishConnection, PublishDisposition,
    PublishEffect, PublishPipeline, ReadingPublishes, SenderRights, StoreEvent,
};
use crate::interop::config::RemoteConfig;
use crate::lifetime::wait_for_shutdown;
use crate::log_limit::quoted;

/// The time limit of TCP, TLS, CONNACK and SUBACK together.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(15);
/// Reading stops at this many bytes of unsent output.
const OUT_BYTES_MAX: usize = 1 << 20;
/// The most entries of [`RemoteSession::agents`], which is cleared when full.
const SCHEMAS_MAX: usize = 65_536;
/// How long the shutdown waits for the store's answers.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

struct RemoteSession {
    config: Arc<RemoteConfig>,
    broker: Arc<Broker>,
    read: ReadHalf<RemoteStream>,
    write: WriteHalf<RemoteStream>,
    input: BytesMut,
    output: BytesMut,
    pipeline: PublishPipeline,
    intake: ReadingPublishes,
    effects: Vec<PublishEffect>,
    events: (mpsc::UnboundedSender<StoreEvent>, mpsc::UnboundedReceiver<StoreEvent>),
    rights: Arc<RemoteRights>,
    permitted_schemas: PermittedSchemas,
    /// The reason to end the connection, found while effects were carried out.
    failed: Option<String>,
    /// The agent from which a missing schema is requested: it sent batches that need it.
    agents: HashMap<SchemaHash, String>,
    last_received: Instant,
    last_sent: Instant,
}

/// Counts the connection until dropped.
struct RemoteConnectionCount(Arc<Broker>);

impl Drop for RemoteConnectionCount {
    fn drop(&mut self) {
        self.0.metrics.remotes_connected.add(-1);
    }
}

/// Connects and runs until the server shuts down (`Ok`) or the connection fails.
pub(super) async fn run(
    config: &Arc<RemoteConfig>,
    broker: &Arc<Broker>,
    shutdown: &mut watch::Receiver<bool>,
) -> Result<(), String> {
    let opening = tokio::time::timeout(CONNECT_TIME_MAX, RemoteSession::open(config, broker));
    let mut session = tokio::select! {
        opened = opening => opened.map_err(|_| format!("no connection within {} s", CONNECT_TIME_MAX.as_secs()))??,
        () = wait_for_shutdown(shutdown) => return Ok(()),
    };
    broker.metrics.remote_connects.inc();
    broker.metrics.remotes_connected.add(1);
    let _connected = RemoteConnectionCount(broker.clone());
    tracing::info!("remote {}: connected", config.name);
    let mut schemas = broker.schemas();
    loop {
        session.take_packets()?;
        tokio::select! {
            stepped = session.step(&mut schemas) => stepped?,
            () = wait_for_shutdown(shutdown) => break,
        }
    }
    session.drain().await;
    Ok(())
}

impl RemoteSession {
    async fn open(config: &Arc<RemoteConfig>, broker: &Arc<Broker>) -> Result<Self, String> {
        let (read, write) = tokio::io::split(connect(config).await?);
        let limits = broker.limits();
        let terms = ClientTerms {
            identity: config.client_id.clone(),
            // Refused messages are counted and acknowledged; otherwise the broker would send them again.
            reasons: true,
            relay: true,
            inflight_max: config.inflight_max.into(),
            inflight_bytes_max: limits.inflight_bytes_max,
            inflight_total_bytes_max: limits.inflight_total_bytes_max,
            schema_wait_max: limits.schema_wait_max,
        };
        let now = Instant::now();
        let mut session = Self {
            config: config.clone(),
            broker: broker.clone(),
            read,
            write,
            input: BytesMut::new(),
            output: BytesMut::new(),
            pipeline: PublishPipeline::new(terms, broker.metrics.clone()),
            intake: ReadingPublishes::default(),
            effects: Vec::new(),
            events: mpsc::unbounded_channel(),
            rights: Arc::new(RemoteRights::new(config.clone(), broker.clone())),
            permitted_schemas: PermittedSchemas::default(),
            failed: None,
            agents: HashMap::new(),
            last_received: now,
            last_sent: now,
        };
        session.handshake().await?;
        Ok(session)
    }

    async fn handshake(&mut self) -> Result<(), String> {
        let config = self.config.clone();
        let keep_alive = config.keep_alive.as_secs().clamp(1, u16::MAX.into()) as u16;
        let mut connect = Connect::new(config.version, config.client_id.as_str(), keep_alive);
        connect.clean_start = false;
        connect.user = config.user.as_deref().map(Into::into);
        if let Some(path) = &config.password_file {
            let text = tokio::fs::read_to_string(path).await;
            let text = text.map_err(|error| format!("cannot read its password_file {}: {error}", path.display()))?;
            connect.password = Some(Bytes::from(text.lines().next().unwrap_or_default().to_owned()));
        }
        if config.version == Version::V5 {
            let packet_bytes_max = u32::try_from(self.broker.limits().packet_bytes_max).unwrap_or(u32::MAX);
            connect.properties = Properties::new()
                .with(Property::SessionExpiryInterval(config.session_expiry.as_secs().min(u32::MAX.into()) as u32))
                .with(Property::ReceiveMaximum(config.inflight_max))
                .with(Property::MaximumPacketSize(packet_bytes_max));
        }
        self.put(&Packet::Connect(Box::new(connect)))?;
        match self.packet().await? {
            Packet::ConnAck(answer) if answer.reason == ReasonCode::SUCCESS => {}
            Packet::ConnAck(answer) => {
                let words = answer.properties.reason_string().map(|text| text.to_string()).unwrap_or_default();
                return Err(format!("refused the connection: {} {words}", answer.reason));
            }
            other => return Err(format!("answered {} instead of CONNACK", other.packet_type().name())),
        }
        // Subscribes even if the session is present: filters may have changed, and retained schemas must be sent again.
        self.subscribe(&config.subscribe, 1).await
    }

    /// Subscribes. Filters that the broker refuses as shared subscriptions are requested without sharing.
    async fn subscribe(&mut self, filters: &[String], packet_id: u16) -> Result<(), String> {
        let wanted = filters.iter().map(|filter| Subscription::new(filter.as_str(), QoS::AtLeastOnce)).collect();
        self.put(&Packet::Subscribe(Subscribe { packet_id, filters: wanted, properties: Properties::new() }))?;
        let answer = loop {
            match self.packet().await? {
                Packet::SubAck(answer) if answer.packet_id == packet_id => break answer,
                // Messages of the old session arrive first.
                Packet::Publish(publish) => self.take_publish(publish),
                _ => {}
            }
        };
        let mut alone = Vec::new();
        for (filter, reason) in filters.iter().zip(&answer.reasons).filter(|(_, reason)| reason.is_error()) {
            match mqtt::shared(filter) {
                Some(shared) if packet_id == 1 => {
                    tracing::warn!(
                        "remote {}: {filter} is refused ({reason}); subscribing without sharing",
                        self.config.name
                    );
                    alone.push(shared.filter.to_owned());
                }
                _ => return Err(format!("refuses the subscription to {filter}: {reason}")),
            }
        }
        if alone.is_empty() { Ok(()) } else { Box::pin(self.subscribe(&alone, 2)).await }
    }

    /// Sends the output and returns the next packet; used before the session runs.
    async fn packet(&mut self) -> Result<Packet, String> {
        loop {
            while !self.output.is_empty() {
                self.write.write_buf(&mut self.output).await.map_err(|error| error.to_string())?;
            }
            self.write.flush().await.map_err(|error| error.to_string())?;
            if let Some(packet) = self.decode()? {
                return Ok(packet);
            }
            let count = self.read.read_buf(&mut self.input).await.map_err(|error| error.to_string())?;
            if count == 0 {
                return Err("closed the connection".to_owned());
            }
        }
    }

    fn decode(&mut self) -> Result<Option<Packet>, String> {
        let bytes_max = self.broker.limits().packet_bytes_max;
        mqtt::decode(&mut self.input, Some(self.config.version), bytes_max).map_err(|error| error.to_string())
    }

    fn put(&mut self, packet: &Packet) -> Result<(), String> {
        self.last_sent = Instant::now();
        mqtt::encode(packet, self.config.version, &mut self.output).map_err(|error| error.to_string())
    }

    fn put_or_fail(&mut self, packet: &Packet) {
        if let Err(why) = self.put(packet) {
            self.failed = Some(why);
        }
    }

    fn may_read(&self) -> bool {
        self.pipeline.can_read() && self.output.len() < OUT_BYTES_MAX
    }

    /// Decodes received packets while the pipeline has room.
    fn take_packets(&mut self) -> Result<(), String> {
        let broker = self.broker.clone();
        self.intake.refresh(broker.interop.generation());
        while self.may_read() {
            match self.decode()? {
                Some(Packet::Publish(publish)) => self.take_publish(publish),
                Some(Packet::Disconnect(disconnect)) => {
                    return Err(format!("ended the connection: {}", disconnect.reason));
                }
                Some(_) => {}
                None => break,
            }
            self.apply()?;
        }
        self.pipeline.close_run(Instant::now(), &mut self.effects);
        self.apply()
    }

    fn take_publish(&mut self, publish: Publish) {
        self.broker.metrics.remote_messages.inc();
        let now = Instant::now();
        let Publish { topic, payload, qos, packet_id, .. } = publish;
        // A message retained at the broker is not retained here.
        let incoming = IncomingPublish { topic, payload, qos, packet_id, retain: false, properties: Properties::new() };
        if incoming.topic.starts_with('/') {
            let Self { broker, pipeline, intake, effects, rights, .. } = self;
            let may = |topic: &str| rights.may_publish(topic);
            match intake.offer(&broker.interop, pipeline, incoming, may, true, effects) {
                PublishDisposition::Accepted => {}
                PublishDisposition::Ordinary(incoming) => pipeline.publish(incoming.copied(), now, effects),
                PublishDisposition::Refused(incoming, code, why) => {
                    pipeline.deny(incoming.copied(), code, &why, now, effects);
                }
            }
            return;
        }
        self.pipeline.publish(incoming.copied(), now, &mut self.effects);
    }

    /// Waits for one event and handles it.
    async fn step(&mut self, schemas: &mut watch::Receiver<u64>) -> Result<(), String> {
        let (may_read, now) = (self.may_read(), Instant::now());
        let silence_max = self.config.keep_alive * 3 / 2;
        let ping_at = self.last_sent + self.config.keep_alive / 2;
        let mut deadline = ping_at.max(now).min(self.last_received + silence_max);
        if let Some(at) = self.pipeline.deadline() {
            deadline = deadline.min(at);
        }
        tokio::select! {
            Some(event) = self.events.1.recv() => self.take_event(event),
            count = self.read.read_buf(&mut self.input), if may_read => match count {
                Ok(0) => return Err("closed the connection".to_owned()),
                Ok(_) => self.last_received = Instant::now(),
                Err(error) => return Err(error.to_string()),
            },
            written = self.write.write_buf(&mut self.output), if !self.output.is_empty() => {
                written.map_err(|error| error.to_string())?;
                if self.output.is_empty() {
                    self.write.flush().await.map_err(|error| error.to_string())?;
                }
            }
            Ok(()) = schemas.changed(), if self.pipeline.has_parked() => {
                let store = self.broker.store.clone();
                self.pipeline.schemas_changed(|hash| store.schema(hash).is_some(), Instant::now(), &mut self.effects);
            }
            () = tokio::time::sleep_until(deadline.into()) => self.time_passed(may_read)?,
        }
        self.apply()
    }

    fn time_passed(&mut self, may_read: bool) -> Result<(), String> {
        let now = Instant::now();
        if !may_read {
            // This server did not read, so the remote broker was not silent.
            self.last_received = now;
        }
        if now >= self.last_received + self.config.keep_alive * 3 / 2 {
            return Err(format!("silent for {} s", (now - self.last_received).as_secs()));
        }
        if now >= self.last_sent + self.config.keep_alive / 2 {
            self.put(&Packet::PingReq)?;
        }
        self.pipeline.tick(now, &mut self.effects);
        Ok(())
    }

    fn take_event(&mut self, event: StoreEvent) {
        let Self { broker, pipeline, intake, effects, .. } = self;
        broker.ingest.take_event(event, pipeline, intake, effects);
    }

    fn apply(&mut self) -> Result<(), String> {
        let broker = self.broker.clone();
        for effect in std::mem::take(&mut self.effects) {
            broker.ingest.carry_out(effect, self).map_err(|close| close.why)?;
        }
        match self.failed.take() {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }

    /// Acknowledges messages that the store still confirms, and disconnects; the broker keeps the session.
    async fn drain(&mut self) {
        self.pipeline.stop();
        let deadline = tokio::time::Instant::now() + DRAIN_TIME_MAX;
        while self.pipeline.awaits_store() {
            let Ok(Some(event)) = tokio::time::timeout_at(deadline, self.events.1.recv()).await else { break };
            self.take_event(event);
            if self.apply().is_err() {
                return;
            }
        }
        let expiry = Property::SessionExpiryInterval(self.config.session_expiry.as_secs().min(u32::MAX.into()) as u32);
        let properties =
            if self.config.version == Version::V5 { Properties::new().with(expiry) } else { Properties::new() };
        let goodbye = mqtt::Disconnect { reason: ReasonCode::SUCCESS, properties };
        if self.put(&Packet::Disconnect(goodbye)).is_ok() {
            let last = async {
                while !self.output.is_empty() {
                    self.write.write_buf(&mut self.output).await?;
                }
                self.write.shutdown().await
            };
            // The connection ends in any case.
            let _ = tokio::time::timeout_at(deadline, last).await;
        }
    }
}

impl PublishConnection for RemoteSession {
    type Rights = RemoteRights;

    fn rights(&self) -> Arc<RemoteRights> {
        self.rights.clone()
    }

    fn events(&self) -> impl FnOnce(StoreEvent) + Send + 'static {
        let events = self.events.0.clone();
        move |event| drop(events.send(event))
    }

    fn permitted_schemas(&mut self) -> &mut PermittedSchemas {
        &mut self.permitted_schemas
    }

    fn acknowledge(&mut self, packet_id: u16, _: QoS, _: ReasonCode, _: &str) {
        // A refusal is acknowledged as a success: the broker would only send the same message again.
        self.put_or_fail(&Packet::PubAck(Ack::success(packet_id)));
    }

    fn forward(&mut self, message: ForwardedPublish) {
        let ForwardedPublish { topic, payload, qos, properties, .. } = message;
        if !topic.starts_with(topics::ROOT) && !topic.starts_with('/') {
            return self.broker.metrics.remote_ignored.inc();
        }
        let at = Instant::now();
        let publication =
            Publication { topic: &topic, payload: &payload, qos, retain: false, properties: &properties, at };
        self.broker.forward(0, None, &publication, None);
    }

    fn schema_is_missing(&mut self, schema: SchemaHash, batch: &Bytes) {
        if self.agents.len() >= SCHEMAS_MAX {
            self.agents.clear();
        }
        if let Ok((header, _)) = wholegrain_transport::payload::read_header(batch) {
            self.agents.insert(schema, header.agent);
        }
    }

    /// Sends a request to each agent, by way of the remote broker.
    fn request_schemas(&mut self, schemas: &[SchemaHash]) {
        for schema in schemas {
            let Some(agent) = self.agents.get(schema) else { continue };
            let topic = Text::from(Topic::Need { agent }.to_string());
            self.broker.metrics.needs.inc();
            self.put_or_fail(&Packet::Publish(Publish {
                dup: false,
                qos: QoS::AtMostOnce,
                retain: false,
                topic,
                packet_id: None,
                payload: Bytes::copy_from_slice(&schema.0),
                properties: Properties::new(),
            }));
        }
    }

    fn report_refusal(&mut self, why: &str) {
        self.broker.metrics.remote_refused.inc();
        self.broker.log().warn(format_args!("remote {}: dropped: {}", self.config.name, quoted(why)));
    }
}
