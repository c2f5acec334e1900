//! Distributes committed batches and readings from one subscription of the store to any number of watchers.

use tokio::sync::broadcast;
use wholegrain_store::{LiveItem, Store};

/// Commits that may wait for the thread below before the store drops some and counts them.
const STORE_BOUND: usize = 1024;
/// Batches that may wait for one watcher before it loses the oldest.
const WATCHER_BOUND: usize = 1024;

#[derive(Debug, Clone)]
pub(crate) struct LiveFeed(broadcast::WeakSender<LiveItem>);

impl LiveFeed {
    /// Starts the thread that distributes batches. It ends when the store is closed.
    pub fn start(store: &Store) -> std::io::Result<Self> {
        let receiver = store.subscribe(STORE_BOUND);
        let sender = broadcast::Sender::new(WATCHER_BOUND);
        let live = Self(sender.downgrade());
        std::thread::Builder::new().name("live".into()).spawn(move || {
            for items in receiver {
                for item in items.iter() {
                    // An error means that there is no watcher.
                    if sender.send(item.clone()).is_err() {
                        break;
                    }
                }
            }
        })?;
        Ok(live)
    }

    /// Subscribes to everything from now on; `None` if the store has been closed.
    pub fn watch(&self) -> Option<broadcast::Receiver<LiveItem>> {
        self.0.upgrade().map(|sender| sender.subscribe())
    }
}
