use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;

/// What a stub sends after a request: datagrams, in their order.
type Behaviour = Arc<dyn Fn(&[u8], usize) -> Vec<Vec<u8>> + Send + Sync>;

/// A device on a port of its own. Requests after [`DatagramStub::vanish`] stay without answers.
struct DatagramStub {
    port: u16,
    requests: Arc<AtomicUsize>,
    is_gone: Arc<AtomicBool>,
}

impl DatagramStub {
    fn start(behaviour: Behaviour) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let port = socket.local_addr().expect("an address").port();
        let (requests, is_gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let stub = Self { port, requests: requests.clone(), is_gone: is_gone.clone() };
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let ends = Arc::downgrade(&requests);
        drop(requests);
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Some(requests) = ends.upgrade() {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else { continue };
                let number = requests.fetch_add(1, Ordering::Relaxed);
                if !is_gone.load(Ordering::Acquire) {
                    for datagram in behaviour(&buffer[..length], number) {
                        let _ = socket.send_to(&datagram, from);
                    }
                }
            }
        });
        stub
    }

    fn vanish(&self) {
        self.is_gone.store(true, Ordering::Release);
    }
}

fn datagram(apdu: &[u8]) -> Vec<u8> {
    let mut out = vec![0x81, 0x0a, 0, apdu.len() as u8 + 6, 1, 0];
    out.extend_from_slice(apdu);
    out
}

/// The right answer of a device with analog input 1: its identity, or this value.
fn right(request: &[u8], value: f32) -> Vec<u8> {
    if request[6] == 0x10 {
        return datagram(&[0x10, 0, 0xc4, 2, 0, 0, 3, 0x22, 4, 0, 0x91, 3, 0x21, 99]);
    }
    let mut apdu = vec![0x30, request[8], 14, 0x0c, 0, 0, 0, 1, 0x1e, 0x29, 85, 0x4e, 0x44];
    apdu.extend_from_slice(&value.to_be_bytes());
    apdu.extend_from_slice(&[0x4f, 0x29, 111, 0x4e, 0x82, 4, 0, 0x4f, 0x1f]);
    datagram(&apdu)
}

fn good(value: f32) -> Behaviour {
    Arc::new(move |request, _| vec![right(request, value)])
}

fn configuration(interval: &str, timeout: &str, ports: &[u16]) -> String {
    let mut text = format!("[plugins.bacnet]\ninterval = \"{interval}\"\ntimeout = \"{timeout}\"\nretries = 0\n");
    for (number, port) in ports.iter().enumerate() {
        text.push_str(&format!(
            "[[plugins.bacnet.device]]\nhosts = [\"127.0.0.1:{port}\"]\npath = \"d{number}\"\n\
             object = [{{ type = \"analog-input\", instance = 1, name = \"a\", unit = \"K\", description = \"x\" }}]\n"
        ));
    }
    text
}

/// A device that is well until `from` requests, and then does something else: it gets gaps, and its neighbour keeps its values.
#[track_caller]
fn check_fault(from: usize, bad: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + Sync + 'static) {
    let behaviour: Behaviour =
        Arc::new(move |request, number| if number < from { vec![right(request, 1.0)] } else { bad(request) });
    let (bad, other) = (DatagramStub::start(behaviour), DatagramStub::start(good(7.0)));
    let mut running = BacnetRun::new(&configuration("100ms", "200ms", &[bad.port, other.port]));
    running.wait_for_group("d0");
    running.wait_for_group("d1");
    running.wait_for_gaps("d0", |_| true);
    (0..3).for_each(|_| assert_eq!(running.answer("d1").1, [RowValue::Float(7.0)]));
    let notes = running.notes();
    assert_eq!(notes.iter().filter(|note| note.contains("device d0")).count(), 1, "named once: {notes:?}");
}

#[test]
fn a_device_that_falls_silent() {
    check_fault(5, |_| Vec::new());
}

#[test]
fn a_device_that_sends_garbage() {
    check_fault(5, |_| vec![vec![0x5a; 60_000]]);
}

#[test]
fn a_device_that_sends_many_answers_to_no_request() {
    check_fault(5, |request| {
        let mut request = request.to_vec();
        request[8] = request[8].wrapping_add(100);
        vec![right(&request, 9.0); 500]
    });
}

#[test]
fn a_device_whose_answers_have_wrong_lengths() {
    check_fault(5, |request| {
        let mut answer = right(request, 9.0);
        answer.truncate(20);
        answer[3] = 20;
        vec![answer]
    });
}

#[test]
fn late_and_second_answers_are_no_values() {
    // Each request gets the answer to the one before with a wrong value, and its own twice.
    let before = std::sync::Mutex::new(Vec::new());
    let behaviour: Behaviour = Arc::new(move |request, number| {
        let own = right(request, number as f32);
        let late = std::mem::replace(&mut *before.lock().expect("no panic"), right(request, -1.0));
        vec![late, own.clone(), own]
    });
    let stub = DatagramStub::start(behaviour);
    let mut running = BacnetRun::new(&configuration("50ms", "500ms", &[stub.port]));
    running.wait_for_group("d0");
    let mut newest = -0.5;
    for _ in 0..10 {
        let (taken_at, values) = running.answer("d0");
        check_time(taken_at);
        let [RowValue::Float(value)] = values[..] else { panic!("{values:?}") };
        assert!(value > newest, "{value} after {newest}");
        newest = value;
    }
}

#[test]
fn half_of_200_devices_vanish() {
    let stubs: Vec<DatagramStub> = (0..200u16).map(|number| DatagramStub::start(good(number.into()))).collect();
    let ports: Vec<u16> = stubs.iter().map(|stub| stub.port).collect();
    let mut running = BacnetRun::new(&configuration("200ms", "500ms", &ports));
    wait_until("all groups", || {
        running.discover();
        running.groups.len() == 200 + 1
    });
    stubs.iter().step_by(2).for_each(DatagramStub::vanish);
    for number in (0..200).step_by(2) {
        running.wait_for_gaps(&format!("d{number}"), |_| true);
    }
    for number in (1..200u16).step_by(2) {
        let name = format!("d{number}");
        let (first, _) = running.answer(&name);
        let (second, values) = running.answer(&name);
        assert!(second > first && values == [RowValue::Float(number.into())]);
    }
    assert!(stubs.iter().all(|stub| stub.requests.load(Ordering::Relaxed) > 0));
}
