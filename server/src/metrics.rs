//! What the server counts about itself, and its rendering in the Prometheus text format (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// What every name begins with.
const PREFIX: &str = "wholegrain_server_";

/// A number that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that rises and falls.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Up by so many; negative is down.
    pub fn add(&self, change: i64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }

    /// To this number.
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of [`Histogram`]'s buckets, in seconds.
const BUCKETS_S: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0];

/// How long something took, in buckets.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS_S.len()],
    count: AtomicU64,
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Counts so many that took as long.
    pub fn observe_many(&self, duration: Duration, times: u64) {
        let seconds = duration.as_secs_f64();
        if let Some(bucket) = BUCKETS_S.iter().position(|&bound| seconds <= bound) {
            self.buckets[bucket].fetch_add(times, Ordering::Relaxed);
        }
        self.count.fetch_add(times, Ordering::Relaxed);
        let sum_ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).saturating_mul(times);
        self.sum_ns.fetch_add(sum_ns, Ordering::Relaxed);
    }
}

/// Declares [`Metrics`]: each field with its help text, which is its doc too.
macro_rules! metrics {
    (counters { $($counter:ident: $counter_help:literal,)* } gauges { $($gauge:ident: $gauge_help:literal,)* }) => {
        /// Everything that is counted while the server runs.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $counter_help] pub $counter: Counter,)*
            $(#[doc = $gauge_help] pub $gauge: Gauge,)*
            /// From a publish's arrival to its acknowledgement.
            pub ack_seconds: Histogram,
            http: Mutex<BTreeMap<(&'static str, u16), u64>>,
            store_trouble: Mutex<Option<String>>,
        }

        impl Metrics {
            fn render_own(&self, text: &mut Text) {
                $(text.counter(concat!(stringify!($counter), "_total"), $counter_help, self.$counter.get());)*
                $(text.gauge(stringify!($gauge), $gauge_help, self.$gauge.get());)*
            }
        }
    };
}

metrics! {
    counters {
        connections_accepted: "MQTT connections that were accepted.",
        connections_refused: "MQTT connections refused: too many, failed handshakes, wrong credentials, malformed CONNECT.",
        takeovers: "MQTT sessions taken over by a newer connection with the same client identifier.",
        protocol_errors: "MQTT connections closed for malformed packets or broken rules.",
        timeouts: "MQTT connections closed because their client was silent or did not read.",
        received_bytes: "Bytes received over MQTT, without TLS.",
        sent_bytes: "Bytes sent over MQTT, without TLS.",
        publishes: "PUBLISH packets received.",
        acks: "PUBACK and PUBREC packets sent with success.",
        batches: "Batches that were stored.",
        batch_bytes: "Bytes of payload of the batches that were stored.",
        loose_readings: "Readings stored that came on sensors' paths or from brokers, without a schema.",
        odd_readings: "Publishes on sensors' paths that are no readings and went to subscribers only.",
        sensors_over_allowance: "New sensors refused because their sender brought too many within an hour.",
        dcdb_names: "Names of topics that DCDB's pushers announced.",
        line_readings: "Readings stored that came by line protocols over HTTP.",
        lines_refused: "Lines of line protocols that were refused.",
        line_texts: "Fields of line protocols that are text and were left out.",
        remote_messages: "Messages from brokers that this server is a client of.",
        remote_ignored: "Those of them that are neither native nor on a sensor's path.",
        remote_refused: "Those of them that were refused: not below a trusted path, a payload that is none, a schema that did not come.",
        remote_connects: "Connections made to such brokers.",
        text_messages: "Readings handed out as text to subscribers of text/….",
        readings: "Readings in the batches that were stored, gaps included.",
        duplicates: "Batches that were recognised as redelivered, acknowledged and not stored again.",
        job_records: "Records of jobs that were stored.",
        job_records_repeated: "Records of jobs that brought nothing new, acknowledged and not stored again.",
        job_records_refused: "Records of jobs that were refused: malformed, of another node, of a place where the client may not publish, or too many.",
        job_totals_impossible: "Totals left out of records of jobs because no node can come to so much in the job's time.",
        job_records_over_allowance: "Records of jobs refused because their agent sent too many bytes of them within an hour.",
        schemas: "Schemas that were registered or known already.",
        schemas_over_allowance: "Schemas refused because their agent announced too many bytes of new ones, or new sensors, within an hour.",
        schema_sensors_over_allowance: "New sensors in schemas that were refused because their agent brought too many within an hour.",
        refused: "Publishes refused: not the client's own topic, or a payload that is none.",
        subscriptions_refused: "Subscriptions refused: to what the client may not hear.",
        logins_failed: "MQTT logins with a wrong password or user.",
        logins_delayed: "MQTT logins refused without a look because too many had failed before.",
        certificates_refused: "MQTT connections refused because their certificate is revoked.",
        clients_ended: "MQTT connections ended because their user or certificate counts no longer.",
        http_logins_failed: "HTTP requests with a token that is unknown, over or revoked.",
        http_logins_delayed: "The same, answered 429 because too many had failed before.",
        http_forbidden: "HTTP requests that the token's role does not allow.",
        audit_lines: "Lines written to the audit log.",
        audit_dropped: "Lines left out of the audit log: too many at once, or it could not be written.",
        security_reloads: "Times that changed users, tokens, revoked certificates or rules were taken over.",
        parked: "Batches that waited for their schema.",
        needs: "Requests for schemas that were sent to agents.",
        store_retries: "Appends tried again because the store was full or failed.",
        messages_sent: "Messages delivered to MQTT subscribers.",
        messages_dropped: "Messages dropped because an MQTT subscriber did not keep up, or none was left to take them.",
        messages_too_large: "Messages dropped because they are larger than their MQTT subscriber takes.",
        messages_expired: "Messages dropped because their expiry interval was over before they could be sent.",
        messages_redelivered: "Messages sent again on a new connection because the old one did not acknowledge them.",
        wills: "Wills published for MQTT clients that vanished.",
        throttles: "Times that an MQTT client was not read for a while because it published over its rate.",
        control_delays: "Times that an MQTT client was not read for a while because its identity sent control packets over their rate.",
        turns: "Times that an MQTT connection had done as much as it may at once and waited for the others.",
        sessions_expired: "MQTT sessions that ended because their client stayed away.",
        sessions_dropped: "MQTT sessions that ended early because too many were kept.",
        retained_dropped: "Retained messages not kept because there was no room, the refused ones not among them.",
        retained_refused: "Retained messages refused because there was no room for them.",
        retained_schemas_forgotten: "Announcements of schemas forgotten because their agent made newer ones; the schemas themselves are kept.",
        retained_work: "Topics of retained messages looked at for subscribers.",
        http_rejected: "HTTPS connections refused: too many or failed handshakes.",
        query_rows: "Rows sent in answers to queries.",
        query_bytes: "Bytes sent in answers to queries.",
        queries_abandoned: "Queries stopped because their client went away or did not read.",
        requests_abandoned: "Requests whose work was ended before their answer began because their client had gone.",
        watch_readings: "Readings sent to watchers.",
        watch_lost_batches: "Batches that watchers lost because they did not keep up.",
    }
    gauges {
        connections: "MQTT connections now.",
        remotes_connected: "Connections to brokers that this server is a client of, now.",
        sessions: "MQTT sessions now, those of clients that are away included.",
        sessions_kept: "MQTT sessions now of clients that are away.",
        subscriptions: "MQTT subscriptions now.",
        queued_bytes: "Bytes of messages that wait for MQTT subscribers or are not acknowledged by them now.",
        in_flight: "Publishes not yet acknowledged now.",
        in_flight_bytes: "Bytes of payload in them.",
        waiting_for_schema: "Batches that wait for their schema now.",
        http_connections: "HTTPS connections now.",
        queries_running: "Queries that run now.",
        watchers: "Live streams over HTTP now.",
    }
}

impl Metrics {
    /// Counts one HTTP request by route and status.
    pub fn http_request(&self, route: &'static str, status: u16) {
        *self.http.lock().unwrap_or_else(std::sync::PoisonError::into_inner).entry((route, status)).or_default() += 1;
    }

    /// Notes that the store failed to write, and why; `None` when it has written again.
    pub fn set_store_trouble(&self, trouble: Option<String>) {
        let mut known = self.store_trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if known.is_some() || trouble.is_some() {
            *known = trouble;
        }
    }

    /// Why the store's last write failed, if it did.
    pub fn store_trouble(&self) -> Option<String> {
        self.store_trouble.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// All of it as text, after what `others` writes.
    pub fn render(&self, others: impl FnOnce(&mut Text)) -> String {
        let mut text = Text::default();
        self.render_own(&mut text);
        text.histogram(
            "ack_seconds",
            "From a publish's arrival to its acknowledgement, which is after fsync.",
            &self.ack_seconds,
        );
        text.head("http_requests_total", "HTTP requests by route and status.", "counter");
        for ((route, status), count) in self.http.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter() {
            text.line("http_requests_total", &format!("{{route=\"{route}\",status=\"{status}\"}}"), count);
        }
        others(&mut text);
        process(&mut text);
        text.0
    }
}

/// The text format's lines.
#[derive(Debug, Default)]
pub struct Text(String);

impl Text {
    /// A counter without labels; `name` without the common prefix and with `_total`.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "counter");
        self.line(name, "", value);
    }

    /// A gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "gauge");
        self.line(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, help, "histogram");
        let mut below = 0;
        for (bound, bucket) in BUCKETS_S.iter().zip(&histogram.buckets) {
            below += bucket.load(Ordering::Relaxed);
            self.line(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), below);
        }
        let count = histogram.count.load(Ordering::Relaxed);
        self.line(&format!("{name}_bucket"), "{le=\"+Inf\"}", count.max(below));
        self.line(&format!("{name}_sum"), "", histogram.sum_ns.load(Ordering::Relaxed) as f64 / 1e9);
        self.line(&format!("{name}_count"), "", count.max(below));
    }

    /// The two lines before a metric's values: `kind` is counter, gauge or histogram.
    pub fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = write!(self.0, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n");
    }

    /// One value; `labels` with its braces, or empty.
    pub fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{PREFIX}{name}{labels} {value}");
    }
}

/// The process itself, as /proc/self tells it; what cannot be read is left out.
fn process(text: &mut Text) {
    // SAFETY: sysconf takes a number and gives a number back.
    let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
    if let Ok(stat) = std::fs::read_to_string("/proc/self/stat") {
        // Fields 14 and 15 (utime, stime); counted after the last `)`, for the name in field 2 may hold spaces.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or(stat.as_str(), |(_, rest)| rest).split_whitespace().collect();
        let ticks_used = |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok());
        if let (Some(user), Some(system)) = (ticks_used(11), ticks_used(12)) {
            text.counter(
                "process_cpu_seconds_total",
                "CPU time of the process.",
                (user + system) / ticks.max(1) as f64,
            );
        }
    }
    if let Ok(statm) = std::fs::read_to_string("/proc/self/statm")
        && let Some(pages) = statm.split_whitespace().nth(1).and_then(|field| field.parse::<i64>().ok())
    {
        text.gauge("process_resident_memory_bytes", "Resident memory of the process.", pages * page);
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        text.gauge("process_open_fds", "Open file descriptors of the process.", entries.count());
    }
}
