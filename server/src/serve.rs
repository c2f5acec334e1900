//! The server's life: open, listen, serve, go down in order.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use wholegrain_store::{OpenReport, Store};

use crate::access::Security;
use crate::admission::Gate;
use crate::broker::{Broker, Lifetime};
use crate::certificates::{Tls, TlsFiles};
use crate::config::ServerConfig;
use crate::http::{self, Api};
use crate::interop::{self, Interop};
use crate::live::Live;
use crate::memory;
use crate::metrics::Metrics;
use crate::net;
use crate::reload::{Parts, Reloader};
use crate::service;

/// One thread serves connections for each so many processors. The others are for the journal, for sealing and for queries; and threads that
/// share little work only wake each other.
const PROCESSORS_A_WORKER: usize = 2;

/// How long going down may take, from the signal to the end of the process.
pub const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(5);

/// How long connections may take to end once the server goes down; the store is closed after it in any case.
const CONNECTIONS_TIME_MAX: Duration = Duration::from_millis(3500);

/// How long work on blocking threads, such as queries, is waited for before the store is closed under it.
const BLOCKING_TIME_MAX: Duration = Duration::from_millis(500);

/// Where the server listens, with the ports that the system chose where 0 was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Addresses {
    /// MQTT without TLS.
    pub mqtt: Option<SocketAddr>,
    /// MQTT over TLS.
    pub mqtt_tls: Option<SocketAddr>,
    /// HTTPS.
    pub http: Option<SocketAddr>,
}

/// Runs until SIGTERM or SIGINT; SIGHUP reads the configuration again. `ready` is called once it listens.
pub fn run_until_signal(config: ServerConfig, ready: impl FnOnce(&Addresses)) -> anyhow::Result<()> {
    run_with(config, ready, true, async {
        use tokio::signal::unix::{SignalKind, signal};
        match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
            (Ok(mut terminate), Ok(mut interrupt)) => {
                tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            }
            // Without handlers a signal ends the process by itself.
            _ => std::future::pending().await,
        }
    })
}

/// Runs until `shutdown` is ready. `ready` is called once it listens. Blocks the calling thread.
pub fn run(
    config: ServerConfig,
    ready: impl FnOnce(&Addresses),
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    run_with(config, ready, false, shutdown)
}

fn run_with(
    config: ServerConfig,
    ready: impl FnOnce(&Addresses),
    hangups: bool,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    memory::bound_arenas();
    match net::raise_open_files() {
        Ok(limit) if limit < config.mqtt.limits.connections_max as u64 => {
            tracing::warn!(
                "only {limit} files may be open, so not all {} connections; raise the limit (ulimit -n)",
                config.mqtt.limits.connections_max
            );
        }
        Ok(_) => {}
        Err(error) => tracing::warn!("cannot raise the limit on open files: {error}"),
    }
    let (store, report) = Store::open(config.store.clone())?;
    tell(&report);
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
    let served = runtime.block_on(serve(&config, &store, ready, hangups, shutdown));
    let end = asked.get().copied().unwrap_or_else(Instant::now) + SHUTDOWN_TIME_MAX;
    // Queries that run on blocking threads notice that their clients are gone; longer than this they are not waited for.
    runtime.shutdown_timeout(BLOCKING_TIME_MAX);
    let closed = close(store, end);
    served?;
    if closed? {
        tracing::info!("stopped; everything acknowledged is on disk");
    } else {
        tracing::warn!(
            "stopped without waiting longer for the disk; everything acknowledged is on it, what waited for it was not acknowledged"
        );
    }
    Ok(())
}

/// Closes the store; false when the disk has not answered at `end`.
fn close(store: Store, end: Instant) -> anyhow::Result<bool> {
    let (done, is_done) = std::sync::mpsc::channel();
    let closing = std::thread::Builder::new().name("close".into()).spawn(move || {
        let closed = store.close();
        // The last handle: its lock on the directory is gone when we say so.
        drop(store);
        // Of no interest to anybody once it is too late.
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
            "store: {torn} bytes of a torn end and {damaged} damaged bytes were set aside under damaged/; nothing acknowledged was in the torn end"
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
        tracing::error!("store: block {} is damaged or missing and left out of answers", path.display());
    }
    for path in &report.foreign_files {
        tracing::warn!("store: {} was not written by this store and is left alone", path.display());
    }
}

/// The listeners of one address, where it is, and the TLS to speak.
struct Bound {
    listeners: Vec<TcpListener>,
    address: SocketAddr,
    tls: Option<Tls>,
}

async fn bind(listen: &Option<String>, setting: &str, tls: Option<Tls>) -> anyhow::Result<Option<Bound>> {
    let Some(listen) = listen else { return Ok(None) };
    let (listeners, address) = net::listen(listen, setting).await?;
    Ok(Some(Bound { listeners, address, tls }))
}

async fn serve(
    config: &ServerConfig,
    store: &Store,
    ready: impl FnOnce(&Addresses),
    hangups: bool,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let (mqtt, http) = (&config.mqtt, &config.http);
    let mqtt_tls = mqtt.tls_listen.as_ref().map(|_| Tls::load(TlsFiles::of_mqtt(mqtt))).transpose()?;
    let http_tls = http.listen.as_ref().map(|_| Tls::load(TlsFiles::of_http(http))).transpose()?;
    let plain = bind(&mqtt.listen, "mqtt.listen", None).await?;
    let secure = bind(&mqtt.tls_listen, "mqtt.tls_listen", mqtt_tls.clone()).await?;
    let web = bind(&http.listen, "http.listen", http_tls.clone()).await?;
    let address = |bound: &Option<Bound>| bound.as_ref().map(|bound| bound.address);
    let addresses = Addresses { mqtt: address(&plain), mqtt_tls: address(&secure), http: address(&web) };

    // Polled once before anybody can see that the server runs: from here on a signal is an orderly end, not a death.
    tokio::pin!(shutdown);
    tokio::select! {
        biased;
        () = &mut shutdown => return Ok(()),
        () = std::future::ready(()) => {}
    }
    memory::keep_small().context("cannot start the thread that gives memory back")?;
    let metrics = Arc::new(Metrics::default());
    let (down, down_receiver) = watch::channel(false);
    let (alive, mut all_gone) = mpsc::channel(1);
    let lifetime = Lifetime { shutdown: down_receiver.clone(), _alive: alive };
    let security = Security::open(config, store, metrics.clone())?;
    let interop = Arc::new(Interop::open(&config.interop, store.clone(), metrics.clone())?);
    let broker = Arc::new(Broker::new(mqtt, security.clone(), interop.clone(), store.clone(), metrics.clone()));
    interop::start(&broker, &lifetime)?;
    tokio::spawn(broker.clone().watch_security(lifetime.clone()));
    let http_gate = Gate::new("https", http.bounds());
    let parts = Parts { broker: broker.clone(), mqtt_tls, http_tls, http_gate: http_gate.clone() };
    let reloader = Arc::new(Reloader::new(config, parts));
    if hangups {
        tokio::spawn(reload_on_hangup(reloader.clone()).context("cannot listen for SIGHUP")?);
    }
    tokio::spawn(watch_certificates(reloader.clone()));
    tokio::spawn(service::watchdog());
    tokio::spawn(broker.clone().keep(lifetime.clone()));
    for bound in [plain, secure].into_iter().flatten() {
        for listener in bound.listeners {
            tokio::spawn(broker.clone().accept(listener, bound.tls.clone(), lifetime.clone()));
        }
    }
    if let Some(Bound { listeners, tls: Some(tls), .. }) = web {
        let live = Live::start(store).context("cannot start the thread for live batches")?;
        let api = Api::new(broker.clone(), live, reloader, config, down_receiver);
        let router = http::router(Arc::new(api));
        let time_max = http.unauthenticated_time_max;
        let front = http::Front { router, tls, metrics: metrics.clone(), gate: http_gate, time_max };
        for listener in listeners {
            tokio::spawn(http::accept(front.clone(), listener, lifetime.clone()));
        }
    }
    drop(lifetime);
    tell_addresses(&addresses);
    ready(&addresses);
    service::ready();
    shutdown.await;

    service::stopping();
    tracing::info!("going down: {} agents connected", metrics.connections.get());
    down.send_replace(true);
    if tokio::time::timeout(CONNECTIONS_TIME_MAX, all_gone.recv()).await.is_err() {
        tracing::warn!("some connections did not end in {} s and are cut off", CONNECTIONS_TIME_MAX.as_secs_f32());
    }
    Ok(())
}

/// Reads the configuration again whenever SIGHUP comes. The handler is in place when this has returned.
fn reload_on_hangup(reloader: Arc<Reloader>) -> std::io::Result<impl Future<Output = ()>> {
    let mut hangups = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    Ok(async move {
        while hangups.recv().await.is_some() {
            service::reloading();
            let reloader = reloader.clone();
            // It says itself in the log how it went.
            let _ = tokio::task::spawn_blocking(move || reloader.reload()).await;
            service::ready();
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

fn tell_addresses(addresses: &Addresses) {
    for (what, address) in
        [("MQTT over TLS", addresses.mqtt_tls), ("MQTT without TLS", addresses.mqtt), ("HTTPS", addresses.http)]
    {
        if let Some(address) = address {
            tracing::info!("listening for {what} on {address}");
        }
    }
}
