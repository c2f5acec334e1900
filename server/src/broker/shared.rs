//! The state that all connections share, and operations on it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::available_parallelism;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use tokio::sync::{Notify, watch};
use wholegrain_model::{JobRecord, Schema, SchemaHash};
use wholegrain_store::Store;
use wholegrain_transport::mqtt::RetainHandling;

use super::config::{MqttConfig, MqttLimits};
use super::fairness::Fairness;
use super::message::{Publication, SubscriptionOptions};
use super::rate::TotalLookupRate;
use super::retained::SchemaPayloads;
use super::session::QueueBounds;
use super::sessions::{SessionBounds, SessionHandle, Sessions};
use super::signals::ConnectionSignals;
use super::subscriptions::Subscriptions;
use crate::access::{Identity, LOOK_EVERY, Security};
use crate::admission::ConnectionAdmission;
use crate::admission::hourly_quotas::HourlyQuotas;
use crate::control::AgentControl;
use crate::ingest::Ingest;
use crate::interop::{self, Interop};
use crate::lifetime::{ServerLifetime, wait_for_shutdown};
use crate::log_limit::{self, LogLimit};
use crate::metrics::Metrics;

/// The state that all connections share.
pub struct Broker {
    pub(crate) store: Store,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) subscriptions: Subscriptions,
    pub(super) limits: ArcSwap<MqttLimits>,
    pub(super) anonymous: AtomicBool,
    pub(crate) security: Arc<Security>,
    pub(crate) interop: Arc<Interop>,
    /// Rate limit of lookups of retained messages that find little.
    pub(super) lookup_rate: TotalLookupRate,
    /// Each identity's use of the broker's time.
    pub(super) fairness: Fairness,
    pub(super) new_schemas: HourlyQuotas,
    /// New sensors in schemas.
    pub(super) new_sensors: HourlyQuotas,
    /// Bytes of job records.
    pub(super) job_bytes: HourlyQuotas,
    pub(crate) control: Arc<AgentControl>,
    pub(crate) ingest: Ingest,
    pub(super) sessions: Sessions,
    pub(super) admission: Arc<ConnectionAdmission>,
    /// A client disconnected: the next deadline may be earlier.
    pub(super) sessions_changed: Notify,
    /// Incremented when a schema becomes known, for batches of other connections that wait for it.
    pub(super) schemas: watch::Sender<u64>,
    pub(super) next_id: AtomicU64,
    /// Start of this process, milliseconds since the Unix epoch.
    pub(super) started_ms: u128,
    pub(super) started: Instant,
    pub(super) log: LogLimit,
    /// Lines about clients that connect and disconnect.
    pub(super) connection_log: LogLimit,
}

impl Broker {
    pub(crate) fn new(
        config: &MqttConfig,
        security: Arc<Security>,
        interop: Arc<Interop>,
        store: Store,
        metrics: Arc<Metrics>,
    ) -> Self {
        let limits = config.limits;
        let queue = QueueBounds { messages_max: limits.queue_messages_max, bytes_max: limits.queue_bytes_max };
        let bounds = SessionBounds { kept_max: limits.sessions_kept_max, queue };
        let known = store.clone();
        let control = Arc::<AgentControl>::default();
        let schemas = SchemaPayloads(Box::new(move |hash| known.schema(hash).map(|schema| schema.encode().into())));
        Self {
            ingest: Ingest::new(store.clone(), interop.clone(), control.clone(), metrics.clone()),
            store,
            subscriptions: Subscriptions::new(limits.queue_total_bytes_max, limits.retained, schemas, metrics.clone()),
            sessions: Sessions::new(bounds, metrics.clone()),
            admission: ConnectionAdmission::new("mqtt", limits.connections()),
            sessions_changed: Notify::new(),
            control,
            metrics,
            limits: ArcSwap::from_pointee(limits),
            anonymous: AtomicBool::new(config.anonymous),
            security,
            interop,
            lookup_rate: TotalLookupRate::new(available_parallelism().unwrap_or(NonZeroUsize::MIN), Instant::now()),
            fairness: Fairness::default(),
            new_schemas: HourlyQuotas::new(config.limits.schema_bytes_per_hour_max),
            new_sensors: HourlyQuotas::new(config.limits.schema_sensors_per_hour_max),
            job_bytes: HourlyQuotas::new(config.limits.job_bytes_per_hour_max),
            schemas: watch::Sender::new(0),
            next_id: AtomicU64::new(1),
            started_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis()),
            started: Instant::now(),
            log: LogLimit::default(),
            connection_log: LogLimit::new(log_limit::CONNECTIONS_MAX),
        }
    }

    /// Applies a changed configuration: whether anonymous clients are accepted, and the limits of new connections. [`Security`] handles users and
    /// rules, the listeners addresses and certificates.
    pub(crate) fn reload(&self, config: &MqttConfig) {
        self.limits.store(Arc::new(config.limits));
        self.subscriptions.set_room(config.limits.retained);
        self.admission.set_bounds(config.limits.connections());
        self.anonymous.store(config.anonymous, Relaxed);
        self.new_schemas.set_per_hour(config.limits.schema_bytes_per_hour_max);
        self.new_sensors.set_per_hour(config.limits.schema_sensors_per_hour_max);
        self.job_bytes.set_per_hour(config.limits.job_bytes_per_hour_max);
    }

    /// The admission, for its metrics.
    pub(crate) fn admission(&self) -> &ConnectionAdmission {
        &self.admission
    }

    /// Reloads changed users, tokens and revoked certificates until the server shuts down, and ends the connections of identities that are no longer
    /// valid.
    pub(crate) async fn watch_security(self: Arc<Self>, mut lifetime: ServerLifetime) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = wait_for_shutdown(&mut lifetime.shutdown) => return,
            }
            let security = self.security.clone();
            let gone = tokio::task::spawn_blocking(move || security.look()).await.unwrap_or_default();
            self.end_connections(&gone);
        }
    }

    /// Ends the sessions of these identities; those still valid reconnect.
    pub(crate) fn end_connections(&self, identities: &[String]) {
        if identities.is_empty() {
            return;
        }
        let ended = self.sessions.end_of(identities);
        self.metrics.clients_ended.add(ended.len() as u64);
        ended.into_iter().for_each(|leftovers| self.finish_session(leftovers));
    }

    /// Whether a client may publish on a topic; for native topics the schema is checked too.
    pub(crate) fn may_publish<'a>(&self, who: impl Into<Identity<'a>>, topic: &str) -> Result<(), String> {
        self.security.access.may_publish(who, topic)
    }

    /// Whether a client may subscribe to a filter, shared or not.
    pub(crate) fn may_subscribe<'a>(&self, who: impl Into<Identity<'a>>, filter: &str) -> Result<(), String> {
        self.security.access.may_subscribe(who, filter)
    }

    /// Sends a message of session `from` to subscribers, and retains it if requested: by reference to `schema` if the payload is one. `owner` is the
    /// client whose quota it counts for, `None` for the server. Returns the number of matching subscriptions.
    pub(crate) fn forward(
        &self,
        from: u64,
        owner: Option<&str>,
        publication: &Publication<'_>,
        schema: Option<SchemaHash>,
    ) -> usize {
        if !publication.retain {
            return self.subscriptions.publish_message(from, publication);
        }
        // Drawn before the distribution: a subscription with a greater number receives the message there, and not again as a retained one.
        let number = self.subscriptions.next_number();
        let matched = self.subscriptions.publish_message(from, publication);
        self.subscriptions.retain(owner, publication, schema, number);
        matched
    }

    /// Subscribes for a connection's session; false if it has the maximum number of subscriptions.
    pub(super) fn subscribe(
        &self,
        handle: &Arc<SessionHandle>,
        link: &Arc<ConnectionSignals>,
        filter: &str,
        options: SubscriptionOptions,
        retained: RetainHandling,
    ) -> bool {
        let Some(mut held) = handle.lock_for(link) else { return true };
        let fits = held.add_filter(filter, self.limits.load().subscriptions_max);
        // Lock order: subscriptions before sessions.
        drop(held);
        if !fits {
            return false;
        }
        let replay = self.subscriptions.subscribe(filter, handle, options, retained);
        let mut held = handle.lock();
        if held.ended {
            drop(held);
            // The session ended in between: nobody else would remove this subscription.
            self.subscriptions.unsubscribe(handle.number, filter);
        } else if let Some(replay) = replay {
            held.start_replay(replay);
        }
        true
    }

    /// Removes a subscription; returns whether there was one.
    pub(super) fn unsubscribe(&self, handle: &SessionHandle, link: &Arc<ConnectionSignals>, filter: &str) -> bool {
        let was = handle.lock_for(link).is_some_and(|mut held| held.remove_filter(filter));
        if was {
            self.subscriptions.unsubscribe(handle.number, filter);
            if wholegrain_transport::mqtt::shared(filter).is_some() {
                let shared =
                    SessionHandle::with(&mut handle.lock(), &self.metrics, |session| session.take_shared(Some(filter)));
                shared.into_iter().for_each(|delivery| self.subscriptions.pass_on(delivery, handle.number));
            }
        }
        was
    }

    /// Stores a schema from a trusted remote broker; blocks on the disk.
    pub(crate) fn register_trusted(&self, schema: &Schema) -> Result<(), wholegrain_store::StoreError> {
        self.store.register_schema(schema)?;
        self.schemas.send_modify(|generation| *generation += 1);
        Ok(())
    }

    /// Changes when a schema becomes known.
    pub(crate) fn schemas(&self) -> watch::Receiver<u64> {
        self.schemas.subscribe()
    }

    pub(crate) fn limits(&self) -> Arc<MqttLimits> {
        self.limits.load_full()
    }

    pub(crate) fn log(&self) -> &LogLimit {
        &self.log
    }

    /// Removes implausible totals from a job record, counts and logs them.
    pub(crate) fn check_totals(&self, identity: &str, record: &mut JobRecord) {
        let taken = record.remove_implausible_totals(interop::now_ns());
        if let Some(first) = taken.first() {
            self.metrics.job_totals_impossible.add(taken.len() as u64);
            let first = log_limit::quoted(first);
            self.log.warn(format_args!(
                "mqtt {identity}: {} totals of job {:?} are left out, such as {first}: no node can reach them in the job's time",
                taken.len(),
                log_limit::quoted(&record.job)
            ));
        }
    }
}
