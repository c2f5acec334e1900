//! The sender thread: from the queue to the server, over the spool on disk when the server is away.
//!
//! - In: batches from the [`Outbox`](crate::outbox::Outbox), records of jobs from the tracker's book.
//! - Out: QoS 1 messages; a batch is forgotten when the server acknowledged it, and not before.
//! - Never: anything that makes the sampler or the encoder wait. A connection is made on a thread of its own, so that the
//!   queue is kept below its bound meanwhile.

mod disk;
mod link;
mod records;
mod refusal;
mod send_buffer;
mod send_schedule;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wholegrain_transport::spool::Spool;

pub use self::disk::segment_bytes;
use self::link::ServerLink;
pub use self::records::{PendingRecords, RecordsSlot};
use self::send_buffer::SendBuffer;
use self::send_schedule::SendSchedule;
use crate::config::{MqttConfig, SpoolConfig};
use crate::engine::clock;
use crate::state::{AgentState, lock};

/// The thread's stack: TLS takes much of it. 256 KiB.
const STACK_BYTES: usize = 256 << 10;
/// How long is sent after the agent was asked to end: 3 s; the rest goes to the spool.
pub const FAREWELL: Duration = Duration::from_secs(3);
/// The longest wait: 5 s.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The shortest wait when something is due that could not be done: 10 ms.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// The other end of the sender thread.
#[derive(Debug)]
pub struct SenderThread {
    shared: Arc<SenderShared>,
    state: Arc<AgentState>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct SenderShared {
    stop: AtomicBool,
    config: Mutex<Option<Arc<MqttConfig>>>,
}

impl SenderThread {
    /// Starts it; the spool, if there is one, is open already.
    pub fn start(
        state: Arc<AgentState>,
        config: Arc<MqttConfig>,
        spool: Option<(Spool, SpoolConfig)>,
    ) -> io::Result<Self> {
        let shared = Arc::new(SenderShared::default());
        let (theirs, its_state) = (shared.clone(), state.clone());
        let thread = std::thread::Builder::new().name("sender".into()).stack_size(STACK_BYTES).spawn(move || {
            Sender::new(theirs, its_state, config, spool).run();
        })?;
        Ok(Self { shared, state, thread })
    }

    /// Applies other settings: reconnects.
    pub fn configure(&self, config: Arc<MqttConfig>) {
        *lock(&self.shared.config) = Some(config);
        self.state.outbox.waker().wake();
    }

    /// Whether the thread has ended, which before [`SenderThread::finish`] it never should.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Sends for at most [`FAREWELL`], puts the rest into the spool and ends.
    pub fn finish(self) {
        self.shared.stop.store(true, Ordering::Release);
        self.state.outbox.waker().wake();
        if self.thread.join().is_err() {
            tracing::error!("the sender thread panicked; what was unsent and not in the spool is lost");
        }
    }
}

/// What the thread works with.
struct Sender {
    shared: Arc<SenderShared>,
    state: Arc<AgentState>,
    config: Arc<MqttConfig>,
    buffer: SendBuffer,
    schedule: SendSchedule,
    link: ServerLink,
}

impl Sender {
    fn new(
        shared: Arc<SenderShared>,
        state: Arc<AgentState>,
        config: Arc<MqttConfig>,
        spool: Option<(Spool, SpoolConfig)>,
    ) -> Self {
        let schedule = SendSchedule::new(&config, &state.name, clock::real());
        let buffer = SendBuffer::new(state.clone(), spool);
        let link = ServerLink::new(state.clone(), config.clone());
        state.set_link(|status| status.url.clone_from(&config.url));
        Self { shared, state, config, buffer, schedule, link }
    }

    fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let config = lock(&self.shared.config).take();
            if let Some(config) = config {
                self.reconfigure(config);
            }
            self.turn();
            let wait = self.wait();
            self.link.wait(&mut self.buffer, wait);
        }
        self.farewell();
    }

    /// Everything that can be done now without waiting.
    fn turn(&mut self) {
        self.buffer.collect();
        if let Some(ago) = self.schedule.opens(clock::real()) {
            self.buffer.release(clock::mono() - ago);
        }
        self.link.turn(&mut self.buffer);
        self.buffer.keep_bounds(self.config.queue_bytes_max.0, self.schedule.period());
        self.buffer.flush_if_due();
    }

    /// How long nothing will be due.
    fn wait(&self) -> Duration {
        let mut wait = WAIT_MAX;
        // What the encoder has made since it last woke this thread may go too.
        if self.buffer.has_unreleased() || self.schedule.is_scheduled() {
            wait = wait.min(self.schedule.next_in(clock::real()));
        }
        for due in [self.link.due_in(&self.buffer), self.buffer.due_in(self.schedule.period())].into_iter().flatten() {
            wait = wait.min(due);
        }
        wait.max(WAIT_MIN)
    }

    fn reconfigure(&mut self, config: Arc<MqttConfig>) {
        self.schedule = SendSchedule::new(&config, &self.state.name, clock::real());
        self.link.reconfigure(config.clone(), &mut self.buffer);
        self.state.set_link(|status| status.url.clone_from(&config.url));
        self.config = config;
    }

    /// The end: what is there goes out as far as the time allows, the rest to the disk.
    fn farewell(&mut self) {
        let deadline = Instant::now() + FAREWELL;
        loop {
            self.buffer.collect();
            self.buffer.release_all();
            self.link.turn(&mut self.buffer);
            let nothing_left = self.buffer.is_empty() && self.link.in_flight() == 0 && !self.link.has_records();
            if nothing_left || Instant::now() >= deadline || self.link.is_waiting() {
                break;
            }
            self.link.wait(&mut self.buffer, WAIT_MIN);
        }
        self.link.close(&mut self.buffer);
        self.buffer.put_all_away();
    }
}
