//! Resolves names of hosts on threads of its own, as the system's resolver can take tens of seconds.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use mio::Waker;

/// The threads that resolve names: a name that takes long delays a quarter of the others.
const THREADS: usize = 4;

/// A name to resolve, for a device.
struct NameRequest {
    device: usize,
    name: String,
    port: u16,
}

#[derive(Default)]
struct NameQueue {
    requests: VecDeque<NameRequest>,
    has_ended: bool,
}

/// Names in, addresses out. A device has at most one request at a time, so that the queue is bounded by their number.
pub struct Resolver {
    queue: Arc<(Mutex<NameQueue>, Condvar)>,
    answers: Receiver<(usize, Option<SocketAddr>)>,
    sender: Sender<(usize, Option<SocketAddr>)>,
    waker: Arc<Waker>,
    threads: usize,
}

impl Resolver {
    /// A resolver that wakes the poller when it has an answer.
    pub fn new(waker: Arc<Waker>) -> Self {
        let (sender, answers) = channel();
        Self { queue: Arc::default(), answers, sender, waker, threads: 0 }
    }

    /// The address, if the name is one; else it is resolved, and [`Resolver::answer`] returns the result later.
    pub fn resolve(&mut self, device: usize, name: &str, port: u16) -> Option<SocketAddr> {
        if let Ok(address) = name.parse::<IpAddr>() {
            return Some(SocketAddr::new(address, port));
        }
        let (queue, ready) = &*self.queue;
        let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.requests.push_back(NameRequest { device, name: name.to_owned(), port });
        ready.notify_one();
        let waiting = queue.requests.len();
        drop(queue);
        if self.threads < THREADS.min(self.threads + waiting) {
            self.start();
        }
        None
    }

    /// An answer, if one has come.
    pub fn answer(&self) -> Option<(usize, Option<SocketAddr>)> {
        self.answers.try_recv().ok()
    }

    fn start(&mut self) {
        let (queue, sender, waker) = (self.queue.clone(), self.sender.clone(), self.waker.clone());
        let run = move || {
            while let Some(request) = next(&queue) {
                let addresses = (request.name.as_str(), request.port).to_socket_addrs();
                let address = addresses.ok().and_then(|mut addresses| addresses.next());
                if sender.send((request.device, address)).is_err() || waker.wake().is_err() {
                    return;
                }
            }
        };
        if std::thread::Builder::new().name("resolver".to_owned()).spawn(run).is_ok() {
            self.threads += 1;
        }
    }
}

fn next(queue: &(Mutex<NameQueue>, Condvar)) -> Option<NameRequest> {
    let (queue, ready) = queue;
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if queue.has_ended {
            return None;
        }
        if let Some(request) = queue.requests.pop_front() {
            return Some(request);
        }
        queue = ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

impl Drop for Resolver {
    /// The threads end after their present name; nobody waits for them.
    fn drop(&mut self) {
        let (queue, ready) = &*self.queue;
        queue.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        ready.notify_all();
    }
}
