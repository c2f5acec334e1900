//! The line protocol of the users' socket, for runtimes and applications; `runtime/PROTOCOL.md` has every byte of it.
//!
//! - In: connections whose first byte is a lower-case letter, and who is at their other ends.
//! - Out: newest readings straight from the groups' rings, marks to [`crate::jobs::marks`].
//! - Never: a thread for each connection; an application that waits because another one asks too much; a reading of, or a mark
//!   for, somebody else's job.
//!
//! One thread serves all connections in turns ([`serving`]). What a connection says and is answered is [`talk`], without I/O.

mod budget;
mod event_loop;
mod poll;
mod reading;
mod session;

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

pub use session::{LineSession, RequestProgress};

use super::ApiService;
use crate::jobs::CallerIdentity;
use crate::state::{AgentState, lock};
use crate::waker::Waker;

/// The longest request, in bytes with its new line.
pub const LINE_BYTES_MAX: usize = 4096;
pub const CONNECTIONS_MAX: usize = 1024;
/// The most connections of one user: a process on each core of a large node.
pub const CONNECTIONS_OF_USER_MAX: usize = 512;
/// The most prepared selections of one connection.
pub const HANDLES_MAX: usize = 16;
/// The most sensors of one answer or one prepared selection.
pub const SENSORS_MAX: usize = 1024;
/// The part of one processor that the requests of one user may take in the long run; beyond it they wait.
pub const USER_SHARE: f64 = 0.05;
/// What they may take at once: 100 ms.
pub const USER_BURST_NS: i64 = 100_000_000;

/// New connections that wait for the thread.
const NEW_MAX: usize = 64;
/// The thread's stack: 256 KiB.
const STACK_BYTES: usize = 256 << 10;

/// Adopts a connection whose first byte, still unread, is a lower-case letter; returns at once.
pub(super) fn serve(stream: UnixStream, service: &ApiService, who: CallerIdentity) {
    service.lines.take(stream, who, &service.state);
}

/// The thread that serves, started with the first connection.
#[derive(Debug, Default)]
pub struct LineService {
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
    /// Serves this connection too.
    pub fn take(&self, stream: UnixStream, who: CallerIdentity, state: &Arc<AgentState>) {
        let mut running = lock(&self.running);
        if running.as_ref().is_none_or(|running| running.thread.is_finished()) {
            match LineThread::start(state) {
                Ok(started) => *running = Some(started),
                Err(error) => {
                    tracing::warn!("API: cannot start the thread for runtimes and applications: {error}");
                    return;
                }
            }
        }
        let Some(running) = running.as_ref() else { return };
        if running.new.try_send((stream, who)).is_err() {
            state.counters.api_refused.fetch_add(1, Ordering::Relaxed);
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
    fn start(state: &Arc<AgentState>) -> std::io::Result<Self> {
        let (new, receiver) = sync_channel(NEW_MAX);
        let (waker, stop) = (Arc::new(Waker::new()?), Arc::new(AtomicBool::new(false)));
        let serving = event_loop::LineServer::new(state.clone(), receiver, waker.clone(), stop.clone())?;
        let builder = std::thread::Builder::new().name("lines".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn(move || serving.run())?;
        Ok(Self { new, waker, stop, thread })
    }
}
