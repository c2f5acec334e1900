//! Something for the machine to do while it is recorded: computing, memory, files, sockets and new processes, in turns of random length,
//! so that the values of /proc change as on a node in use.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wholegrain_testing::Random;

/// The shortest and the longest turn, ms.
const TURN_MS: (u64, u64) = (200, 4000);
/// Memory of a turn, bytes at most.
const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// A file of a turn, bytes.
const FILE_BYTES: usize = 4 << 20;
/// Bytes of one message over a socket.
const MESSAGE_BYTES: usize = 16 << 10;

/// Work that ends when it is dropped.
pub struct Work {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Work {
    /// Begins, with files in a folder.
    pub fn start(dir: &Path) -> anyhow::Result<Self> {
        let (stop, dir) = (Arc::new(AtomicBool::new(false)), dir.to_owned());
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut near = TcpStream::connect(listener.local_addr()?)?;
        let (mut far, _) = listener.accept()?;
        let (stopped, mut random) = (stop.clone(), Random::seeded());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let end = Instant::now() + Duration::from_millis(random.within(TURN_MS.0, TURN_MS.1));
                let goes_on = || Instant::now() < end && !stopped.load(Ordering::Relaxed);
                match random.within(0, 6) {
                    0 => compute(goes_on),
                    1 => remember(random.within(1 << 20, MEMORY_BYTES_MAX) as usize, goes_on),
                    2 => write(&dir.join("work"), goes_on),
                    3 => talk(&mut near, &mut far, goes_on),
                    4 => spawn(goes_on),
                    _ => rest(goes_on),
                }
            }
        });
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

fn rest(goes_on: impl Fn() -> bool) {
    while goes_on() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn compute(goes_on: impl Fn() -> bool) {
    let mut value = 1.0f64;
    while goes_on() {
        value = (0..100_000).fold(value, |value, step| (value + f64::from(step)).sqrt());
    }
    std::hint::black_box(value);
}

fn remember(bytes: usize, goes_on: impl Fn() -> bool) {
    let memory = std::hint::black_box(vec![1u8; bytes]);
    while goes_on() {
        std::hint::black_box(memory.iter().step_by(64).map(|byte| u64::from(*byte)).sum::<u64>());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn write(path: &PathBuf, goes_on: impl Fn() -> bool) {
    let block = vec![7; FILE_BYTES];
    while goes_on() {
        let written = std::fs::File::create(path).and_then(|mut file| {
            file.write_all(&block)?;
            file.sync_data()
        });
        if written.is_err() {
            return rest(goes_on);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn talk(near: &mut TcpStream, far: &mut TcpStream, goes_on: impl Fn() -> bool) {
    let (message, mut heard) = (vec![1; MESSAGE_BYTES], vec![0; MESSAGE_BYTES]);
    while goes_on() {
        if near.write_all(&message).is_err() || far.read_exact(&mut heard).is_err() {
            return rest(goes_on);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn spawn(goes_on: impl Fn() -> bool) {
    while goes_on() {
        let _ = std::process::Command::new("true").status();
        std::thread::sleep(Duration::from_millis(10));
    }
}
