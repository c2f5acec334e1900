//! The line protocol of the users' socket, for runtimes and applications; `runtime/PROTOCOL.md` specifies it byte by byte.
//!
//! - In: connections whose first byte is a lower-case letter, with the identity of the peer.
//! - Out: newest readings from the groups' rings; marks to [`crate::jobs::marks`].
//! - Never: a thread for each connection; an application that waits because another one sends too much; a reading of, or a mark for, another user's
//!   job.
//!
//! One thread serves all connections in turns ([`event_loop`]). A connection's requests and responses are in [`session`], without I/O.

mod budget;
mod event_loop;
mod limits;
mod poll;
mod reading;
mod session;

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

pub use self::limits::{
    CONNECTIONS_MAX, CONNECTIONS_OF_USER_MAX, HANDLES_MAX, LINE_BYTES_MAX, SENSORS_MAX, USER_BURST_NS, USER_SHARE,
};
pub use self::session::{LineSession, RequestProgress};

use super::context::ApiContext;
use crate::jobs::CallerIdentity;
use crate::sync::lock;
use crate::waker::Waker;

/// New connections that wait for the thread.
const NEW_MAX: usize = 64;
/// The thread's stack: 256 KiB.
const STACK_BYTES: usize = 256 << 10;

/// The thread that serves, started with the first connection.
#[derive(Debug)]
pub struct LineService {
    context: Arc<ApiContext>,
    running: Mutex<Option<LineThread>>,
}

#[derive(Debug)]
struct LineThread {
    new: SyncSender<(UnixStream, CallerIdentity)>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl LineService {
    pub fn new(context: Arc<ApiContext>) -> Self {
        Self { context, running: Mutex::default() }
    }

    /// Serves a connection whose first byte, still unread, is a lower-case letter. Returns at once.
    pub fn take(&self, stream: UnixStream, who: CallerIdentity) {
        let mut running = lock(&self.running);
        if running.as_ref().is_none_or(|running| running.thread.is_finished()) {
            match LineThread::start(self.context.clone()) {
                Ok(started) => *running = Some(started),
                Err(error) => {
                    tracing::warn!("API: cannot start the thread for runtimes and applications: {error}");
                    return;
                }
            }
        }
        let Some(running) = running.as_ref() else { return };
        if running.new.try_send((stream, who)).is_err() {
            self.context.counters.api_refused.fetch_add(1, Ordering::Relaxed);
        }
        running.waker.wake();
    }

    /// Ends the thread; connections are closed.
    pub fn stop(&self) {
        if let Some(running) = lock(&self.running).take() {
            running.stop.store(true, Ordering::Release);
            running.waker.wake();
            if running.thread.join().is_err() {
                tracing::error!("API: the thread for runtimes and applications panicked; please report it");
            }
        }
    }
}

impl LineThread {
    fn start(context: Arc<ApiContext>) -> std::io::Result<Self> {
        let (new, receiver) = sync_channel(NEW_MAX);
        let (waker, stop) = (Arc::new(Waker::new()?), Arc::new(AtomicBool::new(false)));
        let serving = event_loop::LineServer::new(context, receiver, waker.clone(), stop.clone())?;
        let builder = std::thread::Builder::new().name("lines".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn(move || serving.run())?;
        Ok(Self { new, waker, stop, thread })
    }
}
