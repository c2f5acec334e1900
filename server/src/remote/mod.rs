//! This server as a client of another broker.
//!
//! - Input: `[[remote]]`; messages of a broker: batches of agents, and readings on sensor paths.
//! - Output: readings in the store, PUBACK to the broker after fsync, requests for missing schemas.
//! - Never: a reading outside the trusted paths; an acknowledgement before the store confirms; more messages in flight than `inflight_max`.
//!
//! The broker keeps the session and stores messages while this server is disconnected. It sends unacknowledged messages again; they are recognized
//! by (agent, boot, sequence), or by sensor and time. `session.rs` is one connection.

mod rights;
mod session;
mod stream;

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broker::Broker;
use crate::interop::config::RemoteConfig;
use crate::lifetime::{ServerLifetime, wait_for_shutdown};

/// The first wait before reconnecting; each failure doubles it.
const BACKOFF: Duration = Duration::from_millis(500);
/// The longest wait before reconnecting.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// A connection that lasted this long resets the wait.
const GOOD_AFTER: Duration = Duration::from_secs(10);

/// Keeps a connection to a broker until the server shuts down.
pub(crate) async fn keep(config: RemoteConfig, broker: Arc<Broker>, mut lifetime: ServerLifetime) {
    let (config, mut backoff) = (Arc::new(config), BACKOFF);
    loop {
        let began = Instant::now();
        let ended = session::run(&config, &broker, &mut lifetime.shutdown).await;
        let Err(why) = ended else { return };
        if began.elapsed() >= GOOD_AFTER {
            backoff = BACKOFF;
        }
        let wait = jittered(backoff);
        broker.log().warn(format_args!("remote {}: {why}; trying again in {:.1} s", config.name, wait.as_secs_f32()));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = wait_for_shutdown(&mut lifetime.shutdown) => return,
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Returns between half of it and all of it, so that servers that lost a broker together do not reconnect together.
fn jittered(wait: Duration) -> Duration {
    // The standard library's hasher is a source of randomness without another dependency.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    wait / 2 + (wait / 2).mul_f64((random % 1024) as f64 / 1024.0)
}
