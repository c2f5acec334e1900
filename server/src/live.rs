//! Durable batches and readings on their way to watchers: from the store's one subscription to any number of tasks.

use tokio::sync::broadcast;
use wholegrain_store::{LiveItem, Store};

/// The journal's commits that may wait for the thread below before the store drops what is in some and counts it.
const STORE_BOUND: usize = 1024;
/// Batches that may wait for one watcher before it loses the oldest.
const WATCHER_BOUND: usize = 1024;

/// Where watchers subscribe.
#[derive(Debug, Clone)]
pub(crate) struct Live(broadcast::WeakSender<LiveItem>);

impl Live {
    /// Starts the thread that passes batches on. It ends when the store is closed.
    pub fn start(store: &Store) -> std::io::Result<Self> {
        let receiver = store.subscribe(STORE_BOUND);
        let sender = broadcast::Sender::new(WATCHER_BOUND);
        let live = Self(sender.downgrade());
        std::thread::Builder::new().name("live".into()).spawn(move || {
            for items in receiver {
                for item in items.iter() {
                    // An error only says that nobody watches now.
                    if sender.send(item.clone()).is_err() {
                        break;
                    }
                }
            }
        })?;
        Ok(live)
    }

    /// Everything from now on; `None` when the store has been closed.
    pub fn watch(&self) -> Option<broadcast::Receiver<LiveItem>> {
        self.0.upgrade().map(|sender| sender.subscribe())
    }
}
