//! A client's connection as its publishes need it: rights, acknowledgements, messages to subscribers.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use wholegrain_model::SchemaHash;
use wholegrain_transport::mqtt::{Ack, Packet, Properties, QoS, ReasonCode};
use wholegrain_transport::topics::Topic;

use super::super::message::Publication;
use super::super::rights::ClientRights;
use super::Connection;
use crate::access::audit::AuditEvent as Audited;
use crate::ingest::{ForwardedPublish, PermittedSchemas, PublishConnection, StoreEvent};

impl<S: AsyncRead + AsyncWrite> PublishConnection for Connection<S> {
    type Rights = ClientRights;

    fn rights(&self) -> Arc<ClientRights> {
        self.rights.clone()
    }

    fn events(&self) -> impl FnOnce(StoreEvent) + Send + 'static {
        let link = self.link.clone();
        move |event| link.send(event)
    }

    fn permitted_schemas(&mut self) -> &mut PermittedSchemas {
        &mut self.permitted_schemas
    }

    fn acknowledge(&mut self, packet_id: u16, qos: QoS, reason: ReasonCode, why: &str) {
        let why = if self.wants_words { why } else { "" };
        if qos != QoS::ExactlyOnce {
            return self.send_with_words(why, |properties| Packet::PubAck(Ack { packet_id, reason, properties }));
        }
        self.with_session(
            |session| {
                if reason.is_error() { session.refused(packet_id) } else { session.accepted(packet_id) }
            },
        );
        self.send_with_words(why, |properties| Packet::PubRec(Ack { packet_id, reason, properties }));
    }

    fn forward(&mut self, message: ForwardedPublish) {
        let ForwardedPublish { topic, payload, qos, packet_id, retain, properties, schema } = message;
        if let (QoS::ExactlyOnce, Some(packet_id)) = (qos, packet_id) {
            self.with_session(|session| session.accepted(packet_id));
        }
        let (payload, properties, at) = (&payload, &properties, Instant::now());
        let publication = Publication { topic: &topic, payload, qos, retain, properties, at };
        let matched = self.broker.forward(self.handle.number, Some(self.identity()), &publication, schema);
        self.turn.spend(matched);
    }

    fn schema_is_missing(&mut self, _: SchemaHash, _: &Bytes) {}

    /// Sends the request to the subscriber of the agent's name.
    fn request_schemas(&mut self, schemas: &[SchemaHash]) {
        let topic = Topic::Need { agent: self.identity() }.to_string();
        let payload: Bytes = schemas.iter().flat_map(|hash| hash.0).collect();
        self.broker.metrics.needs.inc();
        let (qos, properties, at) = (QoS::AtLeastOnce, &Properties::new(), Instant::now());
        // From no session: the agent must receive it whatever its subscription options are.
        let publication = Publication { topic: &topic, payload: &payload, qos, retain: false, properties, at };
        self.broker.subscriptions.publish_message(0, &publication);
    }

    fn report_refusal(&mut self, why: &str) {
        self.audit_refused(Audited::Publish, why);
        self.broker.log.warn(format_args!("mqtt {} {}: refused: {why}", self.peer, self.identity()));
    }
}
