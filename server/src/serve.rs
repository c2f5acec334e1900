//! The server's life: open, listen, serve, go down in order.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use wholegrain_store::{OpenReport, Store};
use wholegrain_transport::tls::{self, ClientCerts, Identity};

use crate::access::Security;
use crate::broker::{Broker, Lifetime};
use crate::config::ServerConfig;
use crate::http::{self, Api};
use crate::interop::{self, Interop};
use crate::live::Live;
use crate::metrics::Metrics;
use crate::net;

/// How long connections may take to end once the server goes down; the store is closed after it in any case.
pub const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(4);

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

/// Runs until SIGTERM or SIGINT. `ready` is called once it listens.
pub fn run_until_signal(config: ServerConfig, ready: impl FnOnce(&Addresses)) -> anyhow::Result<()> {
    run(config, ready, async {
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
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("server")
        .build()
        .context("cannot start the runtime")?;
    let served = runtime.block_on(serve(&config, &store, ready, shutdown));
    // Queries that run on blocking threads notice that their clients are gone; longer than this they are not waited for.
    runtime.shutdown_timeout(BLOCKING_TIME_MAX);
    let closed = store.close().context("closing the store");
    served.and(closed)?;
    tracing::info!("stopped; everything acknowledged is on disk");
    Ok(())
}

fn tell(report: &OpenReport) {
    tracing::info!("store: {} batches replayed from {} journal segments", report.batches, report.segments);
    if report.torn_bytes > 0 || report.damaged_bytes > 0 {
        let (torn, damaged) = (report.torn_bytes, report.damaged_bytes);
        tracing::warn!(
            "store: {torn} bytes of a torn end and {damaged} damaged bytes were set aside under damaged/; nothing acknowledged was in the torn end"
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
    tls: Option<TlsAcceptor>,
}

async fn bind(listen: &Option<String>, setting: &str, tls: Option<TlsAcceptor>) -> anyhow::Result<Option<Bound>> {
    let Some(listen) = listen else { return Ok(None) };
    let (listeners, address) = net::listen(listen, setting).await?;
    Ok(Some(Bound { listeners, address, tls }))
}

fn acceptor(cert: &Path, key: &Path, client_ca: Option<(&Path, ClientCerts)>) -> anyhow::Result<TlsAcceptor> {
    Ok(TlsAcceptor::from(tls::server_config(Identity { cert, key }, client_ca)?))
}

async fn serve(
    config: &ServerConfig,
    store: &Store,
    ready: impl FnOnce(&Addresses),
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let (mqtt, http) = (&config.mqtt, &config.http);
    let certs = if mqtt.require_client_cert { ClientCerts::Required } else { ClientCerts::Optional };
    let client_ca = mqtt.client_ca.as_deref().map(|ca| (ca, certs));
    let mqtt_tls = mqtt.tls_listen.as_ref().map(|_| acceptor(&mqtt.cert, &mqtt.key, client_ca)).transpose()?;
    let http_tls = http.listen.as_ref().map(|_| acceptor(&http.cert, &http.key, None)).transpose()?;
    let plain = bind(&mqtt.listen, "mqtt.listen", None).await?;
    let secure = bind(&mqtt.tls_listen, "mqtt.tls_listen", mqtt_tls).await?;
    let web = bind(&http.listen, "http.listen", http_tls).await?;
    let address = |bound: &Option<Bound>| bound.as_ref().map(|bound| bound.address);
    let addresses = Addresses { mqtt: address(&plain), mqtt_tls: address(&secure), http: address(&web) };

    // Polled once before anybody can see that the server runs: from here on a signal is an orderly end, not a death.
    tokio::pin!(shutdown);
    tokio::select! {
        biased;
        () = &mut shutdown => return Ok(()),
        () = std::future::ready(()) => {}
    }
    let metrics = Arc::new(Metrics::default());
    let (down, down_receiver) = watch::channel(false);
    let (alive, mut all_gone) = mpsc::channel(1);
    let lifetime = Lifetime { shutdown: down_receiver.clone(), _alive: alive };
    let security = Security::open(config, store, metrics.clone())?;
    let interop = Arc::new(Interop::open(&config.interop, store.clone(), metrics.clone())?);
    let broker = Arc::new(Broker::new(mqtt, security.clone(), interop.clone(), store.clone(), metrics.clone()));
    interop::start(&broker, &lifetime)?;
    tokio::spawn(broker.clone().watch_security(lifetime.clone()));
    tokio::spawn(broker.clone().keep(lifetime.clone()));
    for bound in [plain, secure].into_iter().flatten() {
        for listener in bound.listeners {
            tokio::spawn(broker.clone().accept(listener, bound.tls.clone(), lifetime.clone()));
        }
    }
    if let Some(Bound { listeners, tls: Some(tls), .. }) = web {
        let live = Live::start(store).context("cannot start the thread for live batches")?;
        let api = Arc::new(Api::new(http, security, interop, store.clone(), metrics.clone(), live, down_receiver));
        let front = http::Front {
            router: http::router(api),
            tls,
            metrics: metrics.clone(),
            connections_max: http.connections_max,
        };
        for listener in listeners {
            tokio::spawn(http::accept(front.clone(), listener, lifetime.clone()));
        }
    }
    drop(lifetime);
    tell_addresses(&addresses);
    ready(&addresses);
    shutdown.await;

    tracing::info!("going down: {} agents connected", metrics.connections.get());
    down.send_replace(true);
    if tokio::time::timeout(SHUTDOWN_TIME_MAX, all_gone.recv()).await.is_err() {
        tracing::warn!("some connections did not end in {} s and are cut off", SHUTDOWN_TIME_MAX.as_secs());
    }
    Ok(())
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
