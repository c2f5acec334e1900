//! A proxy between clients and a Cassandra, which loses and delays answers, closes connections, or is away.
//!
//! - Input: a cluster; a seed; the faults to make from now on.
//! - Output: addresses for clients. A driver connects to every node at the port of its first node, so that all of its connections go through the proxy.
//! - Never: a byte changed, but for the release in answers, if a test sets that.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cassandra::CassandraCluster;
use crate::{Random, free_port};

/// Frames of the protocol of version 4: header of 9 bytes with the opcode and the length of the body.
const HEADER: usize = 9;
const SUPPORTED: u8 = 0x06;
const RESULT: u8 = 0x08;
const EXECUTE: u8 = 0x0a;
const BATCH: u8 = 0x0d;

/// Faults of requests with prepared statements, each in percent.
#[derive(Debug, Clone, Default)]
pub struct ProxyFaults {
    /// The request never arrives.
    pub lost_requests: u64,
    /// The request is done, and its answer never arrives.
    pub lost_answers: u64,
    /// The answer is late by [`ProxyFaults::delay`].
    pub late_answers: u64,
    /// The request arrives late by [`ProxyFaults::delay`], after the client has given up.
    pub late_requests: u64,
    /// The connection is closed after the request.
    pub closed: u64,
    pub delay: Duration,
    /// Answers have this in place of the first part of a release, as "5.0.": of the same length.
    pub release: Option<(&'static str, &'static str)>,
}

/// What all connections share.
struct ProxyState {
    faults: ProxyFaults,
    is_away: bool,
    random: Random,
    /// Both ends of each connection.
    open: Vec<TcpStream>,
    injected: u64,
}

type SharedProxyState = Arc<Mutex<ProxyState>>;

/// A running proxy. Its threads end with the process, its connections when it is dropped.
pub struct CassandraProxy {
    state: SharedProxyState,
    contact_points: Vec<String>,
}

impl CassandraProxy {
    /// A proxy before each node.
    pub fn start(cluster: &CassandraCluster, random: Random) -> Self {
        let faults = ProxyFaults::default();
        let state = ProxyState { faults, is_away: false, random, open: Vec::new(), injected: 0 };
        let (state, port) = (Arc::new(Mutex::new(state)), free_port());
        let mut contact_points = Vec::new();
        for target in cluster.contact_points() {
            let ip = target.split(':').next().expect("an address");
            let listener = TcpListener::bind((ip, port)).expect("a free port");
            contact_points.push(format!("{ip}:{port}"));
            let state = state.clone();
            std::thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    serve(&state, client, &target);
                }
            });
        }
        Self { state, contact_points }
    }

    /// `address:port` of each node as clients see it.
    pub fn contact_points(&self) -> Vec<String> {
        self.contact_points.clone()
    }

    /// Makes these faults from now on.
    pub fn set(&self, faults: ProxyFaults) {
        lock(&self.state).faults = faults;
    }

    /// Closes all connections, and every new one at once.
    pub fn leave(&self) {
        let mut state = lock(&self.state);
        state.is_away = true;
        state.close();
    }

    /// Lets clients connect again.
    pub fn come_back(&self) {
        lock(&self.state).is_away = false;
    }

    /// The number of faults until now.
    pub fn injected(&self) -> u64 {
        lock(&self.state).injected
    }
}

impl Drop for CassandraProxy {
    fn drop(&mut self) {
        self.leave();
    }
}

fn lock(state: &SharedProxyState) -> MutexGuard<'_, ProxyState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProxyState {
    fn close(&mut self) {
        self.open.drain(..).for_each(|end| drop(end.shutdown(Shutdown::Both)));
    }

    /// Whether a fault of this probability happens now.
    fn happens(&mut self, percent: u64) -> bool {
        let happens = percent > 0 && self.random.chance(percent);
        self.injected += u64::from(happens);
        happens
    }
}

fn serve(state: &SharedProxyState, client: TcpStream, target: &str) {
    let Ok(server) = TcpStream::connect(target) else { return };
    let copy = |stream: &TcpStream| stream.try_clone().expect("a second handle");
    {
        let mut state = lock(state);
        if state.is_away {
            return;
        }
        state.open.extend([copy(&client), copy(&server)]);
    }
    let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
    // The streams of requests with prepared statements that were not answered yet.
    let waiting = Arc::new(Mutex::new(std::collections::HashSet::<[u8; 2]>::new()));
    let (requests, answers) = ((copy(&client), FrameWriter::new(copy(&server))), (server, FrameWriter::new(client)));
    let (with, of) = (state.clone(), waiting.clone());
    std::thread::spawn(move || {
        let (mut from, to) = requests;
        while let Some(frame) = read_frame(&mut from) {
            let is_ours = matches!(frame[4], EXECUTE | BATCH);
            let fault = {
                let mut state = lock(&with);
                let faults = state.faults.clone();
                if is_ours && state.happens(faults.lost_requests) {
                    continue;
                }
                let (late, closed) =
                    (is_ours && state.happens(faults.late_requests), is_ours && state.happens(faults.closed));
                (late.then_some(faults.delay), closed)
            };
            if is_ours {
                of.lock().unwrap_or_else(PoisonError::into_inner).insert([frame[2], frame[3]]);
            }
            if !to.send(frame, fault.0) || fault.1 {
                break;
            }
        }
        to.close();
        let _ = from.shutdown(Shutdown::Both);
    });
    let with = state.clone();
    std::thread::spawn(move || {
        let (mut from, to) = answers;
        while let Some(mut frame) = read_frame(&mut from) {
            let is_ours = waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&[frame[2], frame[3]]);
            let late = {
                let mut state = lock(&with);
                let faults = state.faults.clone();
                if let Some((found, replacement)) = faults.release {
                    match frame[4] {
                        // Without compression, the release is found in the answers.
                        SUPPORTED => replace(&mut frame, "lz4", "xx4"),
                        RESULT => replace(&mut frame, found, replacement),
                        _ => {}
                    }
                }
                if is_ours && state.happens(faults.lost_answers) {
                    continue;
                }
                (is_ours && state.happens(faults.late_answers)).then_some(faults.delay)
            };
            if !to.send(frame, late) {
                break;
            }
        }
        to.close();
        let _ = from.shutdown(Shutdown::Both);
    });
}

/// Writes whole frames, from several threads.
struct FrameWriter {
    to: Arc<Mutex<TcpStream>>,
    /// Closes the connection also while a frame is being written.
    end: TcpStream,
}

impl FrameWriter {
    fn new(to: TcpStream) -> Self {
        Self { end: to.try_clone().expect("a second handle"), to: Arc::new(Mutex::new(to)) }
    }

    /// Sends a frame, now or later. `false` if the connection is closed.
    fn send(&self, frame: Vec<u8>, delay: Option<Duration>) -> bool {
        let to = self.to.clone();
        let write = move || to.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame).is_ok();
        let Some(delay) = delay else { return write() };
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            write()
        });
        true
    }

    fn close(&self) {
        let _ = self.end.shutdown(Shutdown::Both);
    }
}

fn read_frame(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; HEADER];
    from.read_exact(&mut frame).ok()?;
    let length = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]) as usize;
    frame.resize(HEADER + length, 0);
    from.read_exact(&mut frame[HEADER..]).ok()?;
    Some(frame)
}

fn replace(frame: &mut [u8], found: &str, replacement: &str) {
    assert_eq!(found.len(), replacement.len(), "the length of a frame does not change");
    let places: Vec<usize> = frame
        .windows(found.len())
        .enumerate()
        .filter(|(_, part)| *part == found.as_bytes())
        .map(|(at, _)| at)
        .collect();
    for at in places {
        frame[at..at + found.len()].copy_from_slice(replacement.as_bytes());
    }
}
