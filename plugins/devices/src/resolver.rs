//! Resolves names of hosts on threads of its own, as the system's resolver can take tens of seconds.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Builder;

use mio::Waker;

/// The threads that resolve names: a name that takes long delays one eighth of the others.
const THREADS: usize = 8;
/// The stack of a thread: 512 KiB, which the system's resolver and its modules do not fill.
const STACK_BYTES: usize = 512 << 10;

/// Takes the addresses of a name; `None` if it has none.
pub type NameAnswer = Box<dyn FnOnce(Option<Vec<SocketAddr>>) + Send>;

/// A name to resolve.
struct NameRequest {
    name: String,
    port: u16,
    answer: NameAnswer,
}

#[derive(Default)]
struct NameQueue {
    requests: VecDeque<NameRequest>,
    threads: usize,
    /// The threads that wait for a name.
    idle: usize,
    has_ended: bool,
}

type SharedQueue = (Mutex<NameQueue>, Condvar);

/// A few threads that resolve names one after the other. They start when they are needed.
#[derive(Default)]
pub struct NameThreads {
    queue: Arc<SharedQueue>,
}

impl NameThreads {
    /// The threads that all clients of this process share whose libraries block.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<NameThreads> = OnceLock::new();
        SHARED.get_or_init(Self::default)
    }

    /// Resolves a name and calls `answer` on one of the threads. The caller has a bounded number of requests at a time. An error means that there is no
    /// thread and none can be made, for example because the plug-in's memory is used up; `answer` is not called then.
    pub fn resolve(&self, name: &str, port: u16, answer: NameAnswer) -> io::Result<()> {
        let mut queue = lock(&self.queue);
        queue.requests.push_back(NameRequest { name: name.to_owned(), port, answer });
        if queue.idle < queue.requests.len() && queue.threads < THREADS {
            let theirs = self.queue.clone();
            let made = Builder::new().name("resolver".to_owned()).stack_size(STACK_BYTES).spawn(move || work(&theirs));
            match made {
                Ok(_) => queue.threads += 1,
                Err(error) if queue.threads == 0 => {
                    queue.requests.pop_back();
                    return Err(error);
                }
                // The threads that are there take it later.
                Err(_) => {}
            }
        }
        self.queue.1.notify_one();
        Ok(())
    }
}

impl Drop for NameThreads {
    /// The threads end after their present name; nobody waits for them.
    fn drop(&mut self) {
        lock(&self.queue).has_ended = true;
        self.queue.1.notify_all();
    }
}

fn lock(queue: &SharedQueue) -> MutexGuard<'_, NameQueue> {
    queue.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn work(queue: &SharedQueue) {
    while let Some(NameRequest { name, port, answer }) = next(queue) {
        let addresses = (name.as_str(), port).to_socket_addrs().map(Vec::from_iter);
        answer(addresses.ok().filter(|addresses| !addresses.is_empty()));
    }
}

fn next(queue: &SharedQueue) -> Option<NameRequest> {
    let mut state = lock(queue);
    loop {
        if state.has_ended {
            return None;
        }
        if let Some(request) = state.requests.pop_front() {
            return Some(request);
        }
        state.idle += 1;
        state = queue.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.idle -= 1;
    }
}

/// Names in, addresses out, for a poller. A device has at most one request at a time, so that the queue is bounded by their number.
pub struct Resolver {
    threads: NameThreads,
    answers: Receiver<(usize, Option<SocketAddr>)>,
    sender: Sender<(usize, Option<SocketAddr>)>,
    waker: Arc<Waker>,
}

impl Resolver {
    /// A resolver that wakes the poller when it has an answer.
    pub fn new(waker: Arc<Waker>) -> Self {
        let (sender, answers) = channel();
        Self { threads: NameThreads::default(), answers, sender, waker }
    }

    /// The address, if the name is one; else it is resolved, and [`Resolver::answer`] returns the result later.
    pub fn resolve(&mut self, device: usize, name: &str, port: u16) -> Option<SocketAddr> {
        if let Ok(address) = name.parse::<IpAddr>() {
            return Some(SocketAddr::new(address, port));
        }
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let answer = move |addresses: Option<Vec<SocketAddr>>| {
            // Without a poller nobody wants the answer.
            let _ = sender.send((device, addresses.and_then(|addresses| addresses.first().copied())));
            let _ = waker.wake();
        };
        if self.threads.resolve(name, port, Box::new(answer)).is_err() {
            // This poll fails; the next one tries again to make a thread.
            let _ = self.sender.send((device, None));
            let _ = self.waker.wake();
        }
        None
    }

    /// An answer, if one has come.
    pub fn answer(&self) -> Option<(usize, Option<SocketAddr>)> {
        self.answers.try_recv().ok()
    }
}
