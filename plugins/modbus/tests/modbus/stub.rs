//! Devices that are made of one function: the answer to a request.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What a stub does with the bytes of a request of 12 bytes, and the number of the request.
pub type Behaviour = Arc<dyn Fn(&mut TcpStream, &[u8], usize) + Send + Sync>;

/// A server on a port of its own. Its connections end when this is dropped.
pub struct Stub {
    pub port: u16,
    pub connections: Arc<AtomicUsize>,
    pub requests: Arc<AtomicUsize>,
    is_gone: Arc<AtomicBool>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Stub {
    pub fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let stub = Self {
            port,
            connections: Arc::default(),
            requests: Arc::default(),
            is_gone: Arc::default(),
            open: Arc::default(),
        };
        let (connections, requests) = (stub.connections.clone(), stub.requests.clone());
        let (is_gone, open) = (stub.is_gone.clone(), stub.open.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_gone.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                connections.fetch_add(1, Ordering::Relaxed);
                open.lock().expect("no panic").push(stream.try_clone().expect("a copy"));
                let (behaviour, requests) = (behaviour.clone(), requests.clone());
                std::thread::spawn(move || serve(stream, &*behaviour, &requests));
            }
        });
        stub
    }

    /// Ends all connections; new ones are refused.
    pub fn vanish(&self) {
        self.is_gone.store(true, Ordering::Release);
        // Wakes the thread that accepts, which then closes the port.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.open.lock().expect("no panic").drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.vanish();
    }
}

fn serve(
    mut stream: TcpStream,
    behaviour: &(dyn Fn(&mut TcpStream, &[u8], usize) + Send + Sync),
    requests: &AtomicUsize,
) {
    let mut request = [0; 12];
    loop {
        match stream.read_exact(&mut request) {
            Ok(()) => behaviour(&mut stream, &request, requests.fetch_add(1, Ordering::Relaxed)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// The right answer to a request for one register, with this value.
pub fn answer(request: &[u8], value: u16) -> Vec<u8> {
    let mut answer = request[..4].to_vec();
    answer.extend_from_slice(&[0, 5, request[6], request[7], 2]);
    answer.extend_from_slice(&value.to_be_bytes());
    answer
}

/// Sends bytes; the other side may be gone.
pub fn send(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}
