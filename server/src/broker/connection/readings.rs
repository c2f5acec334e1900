//! Readings that a client publishes on sensor paths.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};

use wholegrain_store::READINGS_MAX;

use super::{Connection, ConnectionEnd};
use crate::ingest::IncomingPublish;
use crate::ingest::{PublishDisposition, SenderRights};

/// How long sensor ids are still resolved after a client has disconnected.
const NAMING_TIME_MAX: Duration = Duration::from_secs(3);

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    /// Called before packets are processed: cached topics are valid as long as names and permissions do not change.
    pub(super) fn refresh_intake(&mut self) {
        let broker = &self.broker;
        // Both only rise, so their sum changes with each.
        self.intake.refresh(broker.interop.generation() + broker.security.access.generation());
    }

    /// Processes a publish on a topic with a leading `/`, or returns it if it is not a reading.
    pub(super) fn take_reading(&mut self, incoming: IncomingPublish, now: Instant) -> Option<IncomingPublish> {
        let Self { broker, pipeline, intake, effects, rights, .. } = self;
        let may = |topic: &str| rights.may_publish(topic);
        match intake.offer(&broker.interop, pipeline, incoming, may, broker.subscriptions.wants_paths(), effects) {
            PublishDisposition::Accepted => None,
            PublishDisposition::Ordinary(incoming) => Some(incoming.copied()),
            PublishDisposition::Refused(incoming, code, why) => {
                pipeline.deny(incoming.copied(), code, &why, now, effects);
                None
            }
        }
    }

    /// Processes a publish on another topic, or returns it if it is not a device's.
    pub(super) fn take_device(&mut self, incoming: IncomingPublish, now: Instant) -> Option<IncomingPublish> {
        let Self { broker, pipeline, intake, effects, rights, .. } = self;
        let may = |topic: &str| rights.may_publish(topic);
        match intake.offer_device(&broker.interop, pipeline, incoming, may, effects) {
            PublishDisposition::Accepted => None,
            PublishDisposition::Ordinary(incoming) => Some(incoming),
            PublishDisposition::Refused(incoming, code, why) => {
                pipeline.deny(incoming, code, &why, now, effects);
                None
            }
        }
    }

    /// Ends the devices of this connection: their sensors get gaps. Nobody waits for the store.
    pub(super) fn end_devices(&mut self) {
        let rights = self.rights.clone();
        let gaps = self.intake.end_devices(&self.broker.interop, |path| rights.may_publish(path));
        for gaps in gaps.chunks(READINGS_MAX) {
            self.broker.store.append_readings(rights.sender(), gaps.to_vec(), Box::new(|_| ()));
        }
    }

    /// Ends the run of gathered readings: the socket has no more bytes now.
    pub(super) fn close_run(&mut self) -> ControlFlow<ConnectionEnd> {
        if !self.pipeline.is_gathering() {
            return ControlFlow::Continue(());
        }
        self.pipeline.close_run(Instant::now(), &mut self.effects);
        self.apply()
    }

    /// A client may publish with QoS 0 and disconnect at once: its readings of new sensors are stored too.
    pub(super) async fn finish_naming(&mut self) {
        // DISCONNECT may have arrived with the same read as the readings before it.
        if self.close_run().is_break() {
            return;
        }
        let deadline = tokio::time::Instant::now() + NAMING_TIME_MAX;
        while self.pipeline.is_naming() {
            if tokio::time::timeout_at(deadline, self.link.wait()).await.is_err() || self.handle_signals().is_break() {
                return;
            }
        }
    }
}
