//! Readings that a client publishes on sensor paths.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use wholegrain_store::Reading;

use super::super::pipeline::IncomingPublish;
use super::super::signals::StoreEvent;
use super::{Connection, ConnectionEnd};
use crate::access::Identity;
use crate::interop::reading_publishes::{PublishDisposition, find_names};
use crate::interop::reading_run::NameRequest;

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
        let Self { broker, pipeline, intake, effects, anonymous, .. } = self;
        let name = pipeline.identity_shared();
        let may = |topic: &str| broker.may_publish(Identity { name: &name, anonymous: *anonymous }, topic);
        match intake.offer(&broker.interop, pipeline, incoming, may, broker.subscriptions.wants_paths(), effects) {
            PublishDisposition::Accepted => None,
            PublishDisposition::Ordinary(incoming) => Some(incoming.copied()),
            PublishDisposition::Refused(incoming, code, why) => {
                pipeline.deny(incoming.copied(), code, &why, now, effects);
                None
            }
        }
    }

    /// Ends the run of gathered readings: the read gave no more.
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

    pub(super) fn append_readings(&self, ticket: u64, readings: Vec<Reading>) {
        let link = self.link.clone();
        // The connection may be over when the answer arrives.
        let done = Box::new(move |result| link.send(StoreEvent::Appended(ticket, result)));
        self.broker.store.append_readings(self.identity(), readings, done);
    }

    /// Resolves the sensors of readings.
    pub(super) fn name(&self, ticket: u64, names: NameRequest) {
        let (broker, link, name) = (self.broker.clone(), self.link.clone(), self.pipeline.identity_shared());
        let anonymous = self.anonymous;
        tokio::task::spawn_blocking(move || {
            let may = |topic: &str| broker.may_publish(Identity { name: &name, anonymous }, topic);
            let result = find_names(&broker.interop, &name, &names, may);
            link.send(StoreEvent::Named(ticket, names, result));
        });
    }
}
