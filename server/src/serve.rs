//! Starts the server, listens, and shuts down in order.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use wholegrain_cassandra::CassandraStore;
use wholegrain_store::{OpenReport, Store};

use crate::access::Security;
use crate::admission::ConnectionAdmission;
use crate::broker::Broker;
use crate::certificates::ReloadableTls;
use crate::config::ServerConfig;
use crate::http::{self, Api};
use crate::interop::Interop;
use crate::lifetime::ServerLifetime;
use crate::live_feed::LiveFeed;
use crate::live_text;
use crate::memory;
use crate::metrics::Metrics;
use crate::net;
use crate::reload::{ReloadTargets, Reloader};
use crate::remote;
use crate::service_manager;

/// Processors for each thread that serves connections. The others are left for the journal, sealing and queries; more threads with little work would
/// only wake each other.
const PROCESSORS_A_WORKER: usize = 2;

/// The longest time from the signal to the end of the process.
pub const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long connections may take to close at shutdown; the store is closed after it in any case.
const CONNECTIONS_TIME_MAX: Duration = Duration::from_millis(3500);

/// How long blocking work, such as queries, is awaited before the store is closed.
const BLOCKING_TIME_MAX: Duration = Duration::from_millis(500);

/// Listening addresses; port 0 is replaced by the port that the system chose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BoundAddresses {
    pub mqtt: Option<SocketAddr>,
    pub mqtt_tls: Option<SocketAddr>,
    pub http: Option<SocketAddr>,
}

/// Runs until SIGTERM or SIGINT; SIGHUP reloads the configuration. Calls `ready` once it listens.
pub fn run_until_signal(config: ServerConfig, ready: impl FnOnce(&BoundAddresses)) -> anyhow::Result<()> {
    run_with(config, ready, true, async {
        use tokio::signal::unix::{SignalKind, signal};
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            }
            // Without handlers a signal ends the process.
            _ => std::future::pending().await,
        }
    })
}

/// Runs until `shutdown` is ready. Calls `ready` once it listens. Blocks the calling thread.
pub fn run(
    config: ServerConfig,
    ready: impl FnOnce(&BoundAddresses),
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    run_with(config, ready, false, shutdown)
}

fn run_with(
    config: ServerConfig,
    ready: impl FnOnce(&BoundAddresses),
    hangups: bool,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    memory::bound_arenas();
    match net::raise_open_files() {
        Ok(limit) if limit < config.mqtt.limits.connections_max as u64 => {
            tracing::warn!(
                "only {limit} files may be open, which is not enough for {} connections; raise the limit (ulimit -n)",
                config.mqtt.limits.connections_max
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!("cannot raise the limit on open files: {error}"),
    }
    let (store, report) = Store::open(config.store.clone())?;
    tell(&report);
    let cassandra = open_cassandra(&config, &store)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads((processors / PROCESSORS_A_WORKER).max(1))
        .enable_all()
        .thread_name("server")
        .build()
        .context("cannot start the runtime")?;
    let asked = OnceLock::new();
    let shutdown = async {
        shutdown.await;
        let _ = asked.set(Instant::now());
    };
    let served = runtime.block_on(serve(&config, (&store, cassandra.clone()), ready, hangups, shutdown));
    let end = asked.get().copied().unwrap_or_else(Instant::now) + SHUTDOWN_TIME_MAX;
    // Queries on blocking threads notice that their clients have disconnected; the runtime waits this long for them.
    runtime.shutdown_timeout(BLOCKING_TIME_MAX);
    if let Some(cassandra) = cassandra {
        cassandra.close();
    }
    let closed = close(store, end);
    served?;
    if closed? {
        tracing::info!("stopped; everything acknowledged is on disk");
    } else {
        tracing::warn!("stopped without waiting longer for the disk; everything acknowledged is on disk");
    }
    Ok(())
}

/// Opens the store in Cassandra that adopts what the local store seals, if there is one.
fn open_cassandra(config: &ServerConfig, store: &Store) -> anyhow::Result<Option<CassandraStore>> {
    let Some(settings) = &config.cassandra else { return Ok(None) };
    let opened = CassandraStore::open(settings.load()?, store.clone()).context("store.cassandra")?;
    let stats = opened.upload_stats();
    tracing::info!(
        "store: sealed readings go to the keyspace {} in Cassandra; {} blocks ({} bytes) wait",
        settings.keyspace,
        stats.waiting_blocks,
        stats.waiting_bytes
    );
    Ok(Some(opened))
}

/// Closes the store; false if the disk has not answered at `end`.
fn close(store: Store, end: Instant) -> anyhow::Result<bool> {
    let (done, is_done) = std::sync::mpsc::channel();
    let closing = std::thread::Builder::new().name("close".into()).spawn(move || {
        let closed = store.close();
        // The last handle: the lock on the directory is released before the result is sent.
        drop(store);
        // The receiver may have given up.
        let _ = done.send(closed);
    });
    closing.context("cannot start the thread that closes the store")?;
    match is_done.recv_timeout(end.saturating_duration_since(Instant::now()).max(BLOCKING_TIME_MAX)) {
        Ok(closed) => closed.map(|()| true).context("closing the store"),
        Err(_) => Ok(false),
    }
}

fn tell(report: &OpenReport) {
    tracing::info!("store: {} batches replayed from {} journal segments", report.batches, report.segments);
    if report.torn_bytes > 0 || report.damaged_bytes > 0 {
        let (torn, damaged) = (report.torn_bytes, report.damaged_bytes);
        tracing::warn!(
            "store: moved {torn} bytes of a torn end and {damaged} damaged bytes to damaged/; the torn end held nothing acknowledged"
        );
    }
    for lost in &report.lost {
        tracing::error!(
            id = lost.id,
            agents = lost.agents.join(" "),
            "store: {}; `wholegrain config lost` lists it",
            lost.sentence()
        );
    }
    for path in &report.damaged_blocks {
        tracing::error!("store: block {} is damaged or missing; queries leave it out", path.display());
    }
    for path in &report.foreign_files {
        tracing::warn!("store: {} was not written by this store and is ignored", path.display());
    }
}

/// The listeners of one address, with TLS if configured.
struct BoundListeners {
    listeners: Vec<TcpListener>,
    address: SocketAddr,
    tls: Option<ReloadableTls>,
}

async fn bind(
    listen: &Option<String>,
    setting: &str,
    tls: Option<ReloadableTls>,
) -> anyhow::Result<Option<BoundListeners>> {
    let Some(listen) = listen else { return Ok(None) };
    let (listeners, address) = net::listen(listen, setting).await?;
    Ok(Some(BoundListeners { listeners, address, tls }))
}

async fn serve(
    config: &ServerConfig,
    (store, cassandra): (&Store, Option<CassandraStore>),
    ready: impl FnOnce(&BoundAddresses),
    hangups: bool,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let (mqtt, http) = (&config.mqtt, &config.http);
    let mqtt_tls = mqtt.tls_listen.as_ref().map(|_| ReloadableTls::load(mqtt.tls_files())).transpose()?;
    let http_tls = http.listen.as_ref().map(|_| ReloadableTls::load(http.tls_files())).transpose()?;
    let plain = bind(&mqtt.listen, "mqtt.listen", None).await?;
    let secure = bind(&mqtt.tls_listen, "mqtt.tls_listen", mqtt_tls.clone()).await?;
    let web = bind(&http.listen, "http.listen", http_tls.clone()).await?;
    let address = |bound: &Option<BoundListeners>| bound.as_ref().map(|bound| bound.address);
    let addresses = BoundAddresses { mqtt: address(&plain), mqtt_tls: address(&secure), http: address(&web) };

    // Polled once before the server is ready: from here on a signal causes an orderly shutdown.
    tokio::pin!(shutdown);
    tokio::select! {
        biased;
        () = &mut shutdown => return Ok(()),
        () = std::future::ready(()) => {}
    }
    memory::keep_small().context("cannot start the thread that returns memory")?;
    let metrics = Arc::new(Metrics::default());
    let (down, down_receiver) = watch::channel(false);
    let (alive, mut all_gone) = mpsc::channel(1);
    let lifetime = ServerLifetime { shutdown: down_receiver.clone(), _alive: alive };
    let security = Security::open(&config.security_settings(), store, metrics.clone())?;
    let interop = Arc::new(Interop::open(&config.interop, store.clone(), metrics.clone())?);
    let broker = Arc::new(Broker::new(mqtt, security.clone(), interop.clone(), store.clone(), metrics.clone()));
    for remote in &config.interop.remotes {
        tokio::spawn(remote::keep(remote.clone(), broker.clone(), lifetime.clone()));
    }
    live_text::start(broker.clone(), lifetime.clone()).context("cannot start the thread for live readings as text")?;
    tokio::spawn(broker.clone().watch_security(lifetime.clone()));
    let http_admission = ConnectionAdmission::new("https", http.bounds());
    let parts = ReloadTargets { broker: broker.clone(), mqtt_tls, http_tls, http_admission: http_admission.clone() };
    let reloader = Arc::new(Reloader::new(config, parts));
    if hangups {
        tokio::spawn(reload_on_hangup(reloader.clone()).context("cannot listen for SIGHUP")?);
    }
    tokio::spawn(watch_certificates(reloader.clone()));
    tokio::spawn(service_manager::watchdog());
    tokio::spawn(broker.clone().run_housekeeping(lifetime.clone()));
    for bound in [plain, secure].into_iter().flatten() {
        for listener in bound.listeners {
            tokio::spawn(broker.clone().accept(listener, bound.tls.clone(), lifetime.clone()));
        }
    }
    if let Some(BoundListeners { listeners, tls: Some(tls), .. }) = web {
        let live = LiveFeed::start(store).context("cannot start the thread for live batches")?;
        let api = Api::new((broker.clone(), cassandra), live, reloader, config, down_receiver);
        let router = http::router(Arc::new(api));
        let time_max = http.unauthenticated_time_max;
        let front = http::HttpFrontend { router, tls, metrics: metrics.clone(), admission: http_admission, time_max };
        for listener in listeners {
            tokio::spawn(http::accept(front.clone(), listener, lifetime.clone()));
        }
    }
    drop(lifetime);
    tell_addresses(&addresses);
    ready(&addresses);
    service_manager::ready();
    shutdown.await;

    service_manager::stopping();
    tracing::info!("shutting down: {} connections", metrics.connections.get());
    down.send_replace(true);
    if tokio::time::timeout(CONNECTIONS_TIME_MAX, all_gone.recv()).await.is_err() {
        tracing::warn!("closing connections that did not end within {} s", CONNECTIONS_TIME_MAX.as_secs_f32());
    }
    Ok(())
}

/// Reloads the configuration at each SIGHUP. The handler is installed when this returns.
fn reload_on_hangup(reloader: Arc<Reloader>) -> std::io::Result<impl Future<Output = ()>> {
    let mut hangups = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    Ok(async move {
        while hangups.recv().await.is_some() {
            service_manager::reloading();
            let reloader = reloader.clone();
            // `reload` logs its result.
            let _ = tokio::task::spawn_blocking(move || reloader.reload()).await;
            service_manager::ready();
        }
    })
}

async fn watch_certificates(reloader: Arc<Reloader>) {
    loop {
        let every = reloader.certificates_every();
        let looker = reloader.clone();
        let _ = tokio::task::spawn_blocking(move || looker.look_at_certificates()).await;
        tokio::time::sleep(every).await;
    }
}

fn tell_addresses(addresses: &BoundAddresses) {
    for (what, address) in
        [("MQTT over TLS", addresses.mqtt_tls), ("MQTT without TLS", addresses.mqtt), ("HTTPS", addresses.http)]
    {
        if let Some(address) = address {
            tracing::info!("listening for {what} on {address}");
        }
    }
}
