//! The shutdown of the server, as its tasks learn of it.

use tokio::sync::{mpsc, watch};

/// Signals of the server's shutdown.
#[derive(Debug, Clone)]
pub(crate) struct ServerLifetime {
    /// Becomes true at shutdown.
    pub shutdown: watch::Receiver<bool>,
    /// Held by each connection; when all are dropped, no connection is left.
    pub _alive: mpsc::Sender<()>,
}

/// Completes when the server shuts down.
pub(crate) async fn wait_for_shutdown(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, at shutdown.
    let _ = shutdown.wait_for(|down| *down).await;
}
