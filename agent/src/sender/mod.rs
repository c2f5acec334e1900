//! The sender thread: from the send queue to the server.
//!
//! - In: batches of the [`SendQueue`], job records of the tracker.
//! - Out: QoS 1 messages; a batch leaves the queue when the server has acknowledged it, and not before.
//! - Never: a sampler or an encoder that waits for it. Another thread makes the connection, so that the queue is kept below its bound meanwhile.

mod attempt;
mod candidates;
mod connection;
mod context;
mod holds;
mod link;
mod records;
mod returning;
mod send_schedule;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wholegrain_transport::spool::Spool;

pub use self::context::SenderContext;
use self::link::ServerLink;
use self::send_schedule::SendSchedule;
use crate::config::{MqttConfig, SpoolConfig};
use crate::engine::clock;
use crate::send_queue::{SendQueue, SendQueueContext};
use crate::sync::lock;
use crate::waker::Waker;

/// The thread's stack, for TLS: 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// How long the sender goes on when the agent ends: 3 s; then it spools the rest.
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// The longest wait for events: 5 s.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The shortest wait when an action is due that was not possible: 10 ms.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// Controls the sender thread.
#[derive(Debug)]
pub struct SenderThread {
    shared: Arc<SenderShared>,
    waker: Arc<Waker>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct SenderShared {
    stop: AtomicBool,
    config: Mutex<Option<Arc<MqttConfig>>>,
}

impl SenderThread {
    /// Starts the thread; the spool, if there is one, is open already.
    pub fn start(
        context: SenderContext,
        queue: SendQueueContext,
        config: Arc<MqttConfig>,
        spool: Option<(Spool, SpoolConfig)>,
    ) -> io::Result<Self> {
        let shared = Arc::new(SenderShared::default());
        let (theirs, waker) = (shared.clone(), context.waker.clone());
        let thread = std::thread::Builder::new().name("sender".into()).stack_size(STACK_BYTES).spawn(move || {
            Sender::new(theirs, context, config, SendQueue::new(queue, spool)).run();
        })?;
        Ok(Self { shared, waker, thread })
    }

    /// Applies other settings, and reconnects.
    pub fn configure(&self, config: Arc<MqttConfig>) {
        *lock(&self.shared.config) = Some(config);
        self.waker.wake();
    }

    /// Whether the thread has ended; before [`SenderThread::finish`] that is an error.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Sends for at most [`SHUTDOWN_TIMEOUT`], spools the rest and ends.
    pub fn finish(self) {
        self.shared.stop.store(true, Ordering::Release);
        self.waker.wake();
        if self.thread.join().is_err() {
            tracing::error!("the sender thread panicked; what was unsent and not in the spool is lost");
        }
    }
}

struct Sender {
    shared: Arc<SenderShared>,
    context: SenderContext,
    config: Arc<MqttConfig>,
    queue: SendQueue,
    schedule: SendSchedule,
    link: ServerLink,
}

impl Sender {
    fn new(shared: Arc<SenderShared>, context: SenderContext, config: Arc<MqttConfig>, queue: SendQueue) -> Self {
        let schedule = SendSchedule::new(&config, &context.identity.name, clock::real());
        let link = ServerLink::new(context.clone(), config.clone());
        Self { shared, context, config, queue, schedule, link }
    }

    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let config = lock(&self.shared.config).take();
            if let Some(config) = config {
                self.reconfigure(config);
            }
            self.turn();
            let wait = self.wait();
            self.link.wait(&mut self.queue, wait);
        }
        self.send_rest();
    }

    /// Does everything that is possible without waiting.
    fn turn(&mut self) {
        self.queue.collect();
        if let Some(ago) = self.schedule.opens(clock::real()) {
            self.queue.release(clock::mono() - ago);
        }
        self.link.turn(&mut self.queue);
        self.queue.keep_bounds(self.config.queue_bytes_max.0, self.schedule.period());
        self.queue.flush_if_due();
    }

    /// The time until the next action is due.
    fn wait(&self) -> Duration {
        let mut wait = WAIT_MAX;
        // Batches that the encoder has made since it last woke this thread may be sent too.
        if self.queue.has_unreleased() || self.schedule.is_scheduled() {
            wait = wait.min(self.schedule.next_in(clock::real()));
        }
        for due in [self.link.due_in(&self.queue), self.queue.due_in(self.schedule.period())].into_iter().flatten() {
            wait = wait.min(due);
        }
        wait.max(WAIT_MIN)
    }

    fn reconfigure(&mut self, config: Arc<MqttConfig>) {
        self.schedule = SendSchedule::new(&config, &self.context.identity.name, clock::real());
        self.link.reconfigure(config.clone(), &mut self.queue);
        self.config = config;
    }

    /// Sends batches for as long as [`SHUTDOWN_TIMEOUT`] allows, and spools the rest.
    fn send_rest(&mut self) {
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        loop {
            self.queue.collect();
            self.queue.release_all();
            self.link.turn(&mut self.queue);
            let nothing_left = self.queue.is_empty() && self.link.in_flight() == 0 && !self.link.has_records();
            if nothing_left || Instant::now() >= deadline || self.link.is_waiting() {
                break;
            }
            self.link.wait(&mut self.queue, WAIT_MIN);
        }
        self.link.close(&mut self.queue);
        self.queue.spool_all();
    }
}
