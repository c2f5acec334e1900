//! The server's metrics, in the Prometheus text format (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// The prefix of every metric name.
const PREFIX: &str = "wholegrain_server_";

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Adds `change`, which may be negative.
    pub fn add(&self, change: i64) {
        self.0.fetch_add(change, Ordering::Relaxed);
    }

    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of the buckets of [`Histogram`], in seconds.
const BUCKETS_S: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0];

/// A distribution of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS_S.len()],
    count: AtomicU64,
    sum_ns: AtomicU64,
}

impl Histogram {
    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Counts `times` operations of the same duration.
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

/// Declares [`Metrics`]: each field with its help text.
macro_rules! metrics {
    (counters { $($counter:ident: $counter_help:literal,)* } gauges { $($gauge:ident: $gauge_help:literal,)* }) => {
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $counter_help] pub $counter: Counter,)*
            $(#[doc = $gauge_help] pub $gauge: Gauge,)*
            /// Time from the arrival of a publish to its acknowledgement.
            pub ack_seconds: Histogram,
            http: Mutex<BTreeMap<(&'static str, u16), u64>>,
            store_trouble: Mutex<Option<String>>,
        }

        impl Metrics {
            fn render_own(&self, text: &mut MetricsText) {
                $(text.counter(concat!(stringify!($counter), "_total"), $counter_help, self.$counter.get());)*
                $(text.gauge(stringify!($gauge), $gauge_help, self.$gauge.get());)*
            }
        }
    };
}

metrics! {
    counters {
        connections_accepted: "MQTT connections accepted.",
        connections_refused: "MQTT connections refused: too many, failed handshakes, wrong credentials, malformed CONNECT.",
        takeovers: "MQTT sessions resumed by a newer connection while the old one was still open.",
        protocol_errors: "MQTT connections closed because of malformed packets or protocol errors.",
        timeouts: "MQTT connections closed because their client sent or read nothing in time.",
        received_bytes: "Bytes received over MQTT, without TLS.",
        sent_bytes: "Bytes sent over MQTT, without TLS.",
        publishes: "PUBLISH packets received.",
        acks: "PUBACK and PUBREC packets sent with success.",
        batches: "Batches stored.",
        batch_bytes: "Payload bytes of stored batches.",
        schemaless_readings: "Readings of schemaless sensors stored from MQTT topics and remote brokers.",
        odd_readings: "Publishes on sensor paths that are not readings and went to subscribers only.",
        sensors_over_allowance: "New sensors refused because of the sender's hourly quota.",
        dcdb_names: "Topic names announced by DCDB pushers.",
        line_readings: "Readings stored from line protocols over HTTP.",
        lines_refused: "Lines of line protocols refused.",
        line_texts: "Text fields of line protocols left out.",
        remote_write_samples: "Samples of Prometheus remote write stored, stale markers included.",
        remote_write_stale: "Stale markers of Prometheus remote write, stored as gaps.",
        remote_write_series_refused: "Series of Prometheus remote write refused.",
        remote_write_histograms: "Native histograms of Prometheus remote write refused.",
        otlp_points: "Data points of OpenTelemetry stored.",
        otlp_points_refused: "Data points of OpenTelemetry refused.",
        device_values_left_out: "Values in messages of devices that were not stored: no permission, no valid path, not in a birth, an unreadable message.",
        sparkplug_losses: "Times that messages of a Sparkplug node were missing before one that arrived.",
        remote_messages: "Messages received from remote brokers.",
        remote_ignored: "Messages from remote brokers that are neither native nor on a sensor path.",
        remote_refused: "Messages from remote brokers refused: not below a trusted path, an invalid payload, or a missing schema.",
        remote_connects: "Connections made to remote brokers.",
        text_messages: "Readings sent as text to subscribers of text/….",
        readings: "Readings in stored batches, gaps included.",
        duplicates: "Redelivered batches acknowledged without being stored again.",
        job_records: "Job records stored.",
        job_records_repeated: "Unchanged job records acknowledged without being stored again.",
        job_records_refused: "Job records refused: malformed, of another node, below a prefix where the client may not publish, or too many.",
        job_totals_impossible: "Implausible totals left out of job records.",
        job_records_over_allowance: "Job records refused because of the agent's hourly quota.",
        schemas: "Schemas registered or already known.",
        schemas_over_allowance: "Schemas refused because of the agent's hourly quotas of schema bytes or new sensors.",
        schema_sensors_over_allowance: "New sensors in schemas refused because of the agent's hourly quota.",
        refused: "Publishes refused: a topic that is not the client's, or an invalid payload.",
        subscriptions_refused: "Subscriptions refused because the client may not read the topics.",
        logins_failed: "MQTT logins with a wrong password or user.",
        logins_delayed: "MQTT logins refused unchecked because too many had failed before.",
        certificates_refused: "MQTT connections refused because their certificate is revoked.",
        clients_ended: "MQTT connections ended because their user or certificate is no longer valid.",
        http_logins_failed: "HTTP requests with an unknown, expired or revoked token.",
        http_logins_delayed: "HTTP requests answered with 429 because too many logins had failed before.",
        http_forbidden: "HTTP requests that the token's role does not allow.",
        audit_lines: "Lines written to the audit log.",
        audit_dropped: "Lines missing from the audit log: too many at a time, or the file could not be written.",
        security_reloads: "Reloads of changed users, tokens, revoked certificates or rules.",
        parked: "Batches that waited for their schema.",
        needs: "Requests for schemas sent to agents.",
        store_retries: "Appends retried because the store was full or failed.",
        messages_sent: "Messages delivered to MQTT subscribers.",
        messages_dropped: "Messages dropped because an MQTT subscriber did not keep up or no subscriber was left.",
        messages_too_large: "Messages dropped because they exceed the MQTT subscriber's maximum packet size.",
        messages_expired: "Messages dropped because their expiry interval was over before they could be sent.",
        messages_redelivered: "Messages sent again on a new connection because the old one did not acknowledge them.",
        wills: "Wills published for MQTT clients that disconnected abnormally.",
        throttles: "Pauses in reading an MQTT client that exceeded its publish rate.",
        control_delays: "Pauses in reading an MQTT client whose identity exceeded its rate of control packets.",
        turns: "Times that an MQTT connection used up its turn and yielded to others.",
        sessions_expired: "MQTT sessions that ended because their client stayed away.",
        sessions_dropped: "MQTT sessions that ended early because too many were kept.",
        retained_dropped: "Retained messages dropped because there was no room, refused ones not included.",
        retained_refused: "Retained messages refused because there was no room for them.",
        retained_schemas_dropped: "Retained schema messages replaced by newer ones of the same agent; the schemas stay in the store.",
        retained_work: "Topics of retained messages scanned for subscribers.",
        http_rejected: "HTTPS connections refused: too many or failed handshakes.",
        query_rows: "Rows sent in query responses.",
        query_bytes: "Bytes sent in query responses.",
        queries_abandoned: "Queries stopped because the client disconnected or did not read.",
        requests_abandoned: "Requests cancelled before their response began because the client had disconnected.",
        watch_readings: "Readings sent to watchers.",
        watch_lost_batches: "Batches that watchers lost because they did not keep up.",
    }
    gauges {
        connections: "Current MQTT connections.",
        remotes_connected: "Current connections to remote brokers.",
        sessions: "Current MQTT sessions, those of disconnected clients included.",
        sessions_kept: "Current MQTT sessions of disconnected clients.",
        subscriptions: "Current MQTT subscriptions.",
        queued_bytes: "Bytes of messages queued for MQTT subscribers or not acknowledged by them.",
        in_flight: "Publishes not yet acknowledged.",
        in_flight_bytes: "Payload bytes of publishes not yet acknowledged.",
        waiting_for_schema: "Batches waiting for their schema.",
        http_connections: "Current HTTPS connections.",
        queries_running: "Running queries.",
        watchers: "Current live streams over HTTP.",
    }
}

impl Metrics {
    pub fn http_request(&self, route: &'static str, status: u16) {
        *self.http.lock().unwrap_or_else(std::sync::PoisonError::into_inner).entry((route, status)).or_default() += 1;
    }

    /// Records why the store cannot write; `None` when it can write again.
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

    /// All metrics as text, after those that `others` writes.
    pub fn render(&self, others: impl FnOnce(&mut MetricsText)) -> String {
        let mut text = MetricsText::default();
        self.render_own(&mut text);
        text.histogram(
            "ack_seconds",
            "Time from the arrival of a publish to its acknowledgement, which follows fsync.",
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

/// Lines of the text format.
#[derive(Debug, Default)]
pub struct MetricsText(String);

impl MetricsText {
    /// A counter without labels; `name` is without the common prefix and with `_total`.
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

    /// The HELP and TYPE lines of a metric: `kind` is counter, gauge or histogram.
    pub fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = write!(self.0, "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n");
    }

    /// One value; `labels` includes the braces, or is empty.
    pub fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{PREFIX}{name}{labels} {value}");
    }
}

/// Metrics of the process from /proc/self; unreadable ones are left out.
fn process(text: &mut MetricsText) {
    // SAFETY: sysconf takes and returns a number.
    let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
    if let Ok(stat) = std::fs::read_to_string("/proc/self/stat") {
        // Fields 14 and 15 (utime, stime), counted from the last `)` because the name in field 2 may contain spaces.
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
