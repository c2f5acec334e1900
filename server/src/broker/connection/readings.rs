//! Readings that a client publishes on sensors' paths.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use wholegrain_store::Reading;

use super::super::link::Event;
use super::super::pipeline::Incoming;
use super::{Connection, End};
use crate::access::Who;
use crate::interop::intake::{Offer, find_names};
use crate::interop::run::Names;

/// How long the sensors of a client that has left are still asked for.
const NAMING_TIME_MAX: Duration = Duration::from_secs(3);

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    /// Before packets are taken: what is known of topics counts as long as names and permissions stay as they are.
    pub(super) fn refresh_intake(&mut self) {
        let broker = &self.broker;
        // Both only rise, so their sum changes with each.
        self.intake.refresh(broker.interop.generation() + broker.security.access.generation());
    }

    /// Takes a publish whose topic begins with `/`, or gives it back as one that is no reading.
    pub(super) fn take_reading(&mut self, incoming: Incoming, now: Instant) -> Option<Incoming> {
        let Self { broker, pipeline, intake, effects, anonymous, .. } = self;
        let name = pipeline.identity_shared();
        let may = |topic: &str| broker.may_publish(Who { name: &name, anonymous: *anonymous }, topic);
        match intake.offer(&broker.interop, pipeline, incoming, may, broker.subscriptions.wants_paths(), effects) {
            Offer::Taken => None,
            Offer::Ordinary(incoming) => Some(incoming.copied()),
            Offer::Refused(incoming, code, why) => {
                pipeline.deny(incoming.copied(), code, &why, now, effects);
                None
            }
        }
    }

    /// Nothing more was read that could join the readings gathered.
    pub(super) fn close_run(&mut self) -> ControlFlow<End> {
        if !self.pipeline.is_gathering() {
            return ControlFlow::Continue(());
        }
        self.pipeline.close_run(Instant::now(), &mut self.effects);
        self.apply()
    }

    /// A client may publish with QoS 0 and leave at once: what it sent of new sensors is stored all the same.
    pub(super) async fn finish_naming(&mut self) {
        // DISCONNECT may have come with the same read as the readings before it.
        if self.close_run().is_break() {
            return;
        }
        let deadline = tokio::time::Instant::now() + NAMING_TIME_MAX;
        while self.pipeline.is_naming() {
            if tokio::time::timeout_at(deadline, self.link.rung()).await.is_err() || self.rung().is_break() {
                return;
            }
        }
    }

    pub(super) fn append_readings(&self, ticket: u64, readings: Vec<Reading>) {
        let link = self.link.clone();
        // The connection may be gone when the answer comes.
        let done = Box::new(move |result| link.send(Event::Appended(ticket, result)));
        self.broker.store.append_readings(self.identity(), readings, done);
    }

    /// Finds out which sensors readings are of.
    pub(super) fn name(&self, ticket: u64, names: Names) {
        let (broker, link, name) = (self.broker.clone(), self.link.clone(), self.pipeline.identity_shared());
        let anonymous = self.anonymous;
        tokio::task::spawn_blocking(move || {
            let may = |topic: &str| broker.may_publish(Who { name: &name, anonymous }, topic);
            let result = find_names(&broker.interop, &name, &names, may);
            link.send(Event::Named(ticket, names, result));
        });
    }
}
