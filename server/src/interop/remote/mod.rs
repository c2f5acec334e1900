//! This server as a client of another broker.
//!
//! - In: `[[remote]]`; messages of a broker, native ones of many agents and readings on sensors' paths.
//! - Out: readings in the store, PUBACK to the broker after fsync, requests for schemas that are missing.
//! - Never: a reading outside the trusted paths; an acknowledgement before the store's word; more in flight than the broker was told.
//!
//! The broker keeps the session, so what comes while this server is away waits there; what was not acknowledged comes again and is
//! recognised by (agent, boot, sequence), or by sensor and time. `session.rs` is one connection.

mod session;
mod stream;

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::RemoteConfig;
use crate::broker::{Broker, ServerLifetime, went_down};

/// The first wait before connecting again; it doubles with each failure.
const BACKOFF: Duration = Duration::from_millis(500);
/// The longest.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// A connection that lasted so long was a good one: the next wait is the first again.
const GOOD_AFTER: Duration = Duration::from_secs(10);

/// Keeps a connection to a broker until the server goes down.
pub(super) async fn keep(config: RemoteConfig, broker: Arc<Broker>, mut lifetime: ServerLifetime) {
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
            () = went_down(&mut lifetime.shutdown) => return,
        }
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// Between half and the whole of it, so that servers that lost a broker together do not come back together.
fn jittered(wait: Duration) -> Duration {
    // The standard library's hasher is the one source of randomness that is there without a dependency.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    wait / 2 + (wait / 2).mul_f64((random % 1024) as f64 / 1024.0)
}
