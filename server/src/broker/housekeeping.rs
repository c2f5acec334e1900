//! Timed work of the broker: wills, ends of sessions, expiry of retained messages, and the server's status below `$SYS/broker/`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use wholegrain_transport::mqtt::{Properties, QoS};
use wholegrain_transport::topics;

use crate::access::Identity;

use super::Broker;
use super::message::Publication;
use super::sessions::{SessionCleanup, SessionHandle, Will};
use crate::lifetime::{ServerLifetime, wait_for_shutdown};
use crate::log_limit::quoted;

/// The interval of status messages.
pub const SYS_INTERVAL: Duration = Duration::from_secs(10);

impl Broker {
    /// Runs until the server shuts down.
    pub(crate) async fn run_housekeeping(self: Arc<Self>, mut lifetime: ServerLifetime) {
        let mut next_sys = Instant::now();
        loop {
            let now = Instant::now();
            self.sessions.due(now).into_iter().for_each(|leftovers| self.finish_session(leftovers));
            if now >= next_sys {
                self.publish_status(now);
                self.subscriptions.purge(now);
                next_sys = now + SYS_INTERVAL;
            }
            let deadline = self.sessions.deadline().map_or(next_sys, |due| due.min(next_sys));
            tokio::select! {
                () = tokio::time::sleep_until(deadline.into()) => {}
                () = self.sessions_changed.notified() => {}
                () = wait_for_shutdown(&mut lifetime.shutdown) => return,
            }
        }
    }

    /// Finishes a session that ended or whose client has disconnected: subscriptions, shared messages, will.
    pub(super) fn finish_session(&self, leftovers: SessionCleanup) {
        let SessionCleanup { handle, filters, mut shared, groups, will } = leftovers;
        for filter in filters {
            self.subscriptions.unsubscribe(handle.number, &filter);
        }
        for group in groups {
            if self.subscriptions.has_other_member(&group, handle.number) {
                let mut held = handle.lock();
                // If the client has reconnected, it gets them itself.
                if !held.session.is_connected() {
                    shared.extend(SessionHandle::with(&mut held, &self.metrics, |session| {
                        session.take_shared(Some(&group))
                    }));
                }
            }
        }
        shared.into_iter().for_each(|delivery| self.subscriptions.pass_on(delivery, handle.number));
        if let Some(will) = will {
            self.publish_will(handle.number, &will);
        }
    }

    /// A will goes to subscribers only: nobody would receive the acknowledgement of a stored one.
    fn publish_will(&self, from: u64, will: &Will) {
        let topic = &will.topic;
        let refused = if topic.starts_with(topics::ROOT) || topic.starts_with('$') {
            Err("not a topic for wills".to_owned())
        } else {
            self.may_publish(Identity { name: &will.identity, anonymous: will.anonymous }, topic)
        };
        if let Err(why) = refused {
            let (identity, topic) = (&will.identity, quoted(topic));
            return self.log.warn(format_args!("mqtt {identity}: cannot publish the will on {topic}: {why}"));
        }
        self.metrics.wills.inc();
        let Will { payload, qos, retain, properties, .. } = will;
        let at = Instant::now();
        let publication = Publication { topic, payload, qos: *qos, retain: *retain, properties, at };
        self.forward(from, Some(&will.identity), &publication, None);
    }

    fn publish_status(&self, now: Instant) {
        let (here, away) = self.sessions.counts();
        let values = [
            ("version", concat!("wholegrain ", env!("CARGO_PKG_VERSION")).to_owned()),
            ("uptime", format!("{} seconds", now.saturating_duration_since(self.started).as_secs())),
            ("clients/connected", here.to_string()),
            ("clients/disconnected", away.to_string()),
            ("clients/total", (here + away).to_string()),
            ("subscriptions/count", self.metrics.subscriptions.get().to_string()),
            ("retained messages/count", self.subscriptions.retained_count().to_string()),
            ("messages/sent", self.metrics.messages_sent.get().to_string()),
            ("publish/messages/received", self.metrics.publishes.get().to_string()),
            ("publish/messages/dropped", self.metrics.messages_dropped.get().to_string()),
        ];
        for (name, value) in values {
            let (topic, payload, properties) = (format!("$SYS/broker/{name}"), Bytes::from(value), Properties::new());
            let (qos, at) = (QoS::AtMostOnce, now);
            let publication =
                Publication { topic: &topic, payload: &payload, qos, retain: true, properties: &properties, at };
            self.forward(0, None, &publication, None);
        }
    }
}
