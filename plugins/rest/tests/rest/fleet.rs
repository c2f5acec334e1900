//! A thousand devices, of which half vanish.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use wholegrain_testkit::wait_until;

use wholegrain_source_testkit::{SampledSource, SensorValues};

use super::started;

const DEVICES: usize = 1000;

/// What answers for many devices, or for none.
struct Fleet {
    port: u16,
    is_there: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
}

impl Fleet {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fleet = Self {
            port: listener.local_addr().unwrap().port(),
            is_there: Arc::new(AtomicBool::new(true)),
            requests: Arc::default(),
        };
        let (is_there, requests) = (fleet.is_there.clone(), fleet.requests.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (is_there, requests) = (is_there.clone(), requests.clone());
                let own = move || {
                    let _ = answer(&stream, &is_there, &requests);
                };
                // A thread for each connection, with a small stack.
                let _ = std::thread::Builder::new().stack_size(64 << 10).spawn(own);
            }
        });
        fleet
    }
}

/// Answers one request and closes, as a process has few files; a device that is not there reads and is silent.
fn answer(mut stream: &TcpStream, is_there: &AtomicBool, requests: &AtomicUsize) -> Option<()> {
    let (mut request, mut chunk) = (Vec::new(), [0; 1024]);
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut chunk) {
            Ok(count) if count > 0 => request.extend_from_slice(&chunk[..count]),
            _ => return None,
        }
    }
    requests.fetch_add(1, Ordering::Relaxed);
    if is_there.load(Ordering::Relaxed) {
        stream.write_all(b"HTTP/1.1 200 X\r\nConnection: close\r\nContent-Length: 8\r\n\r\n{\"a\": 7}").ok()
    } else {
        // Until the client gives up.
        while stream.read(&mut chunk).is_ok_and(|count| count > 0) {}
        None
    }
}

#[test]
fn half_of_a_thousand_devices_vanish() {
    let (stay, vanish) = (Fleet::new(), Fleet::new());
    let half = DEVICES / 2;
    let list = |fleet: &Fleet, name: &str| {
        format!(
            "[[plugins.rest.device]]\nhosts = [\"{name}[1-{half}]\"]\ntemplate = \"t\"\nparameters = {{ port = \"{}\" }}\n",
            fleet.port
        )
    };
    let mut running = started(&format!(
        "[plugins.rest]\ninterval = \"3s\"\nstale_after = \"60s\"\ntimeout = \"500ms\"\nfirst_answers = \"60s\"\n[plugins.rest.template.t]\n\
         [[plugins.rest.template.t.url]]\nname = \"u\"\nurl = \"http://127.0.0.1:{{port}}/{{host}}\"\nvalue = [{{ name = \"a\", path = \"$.a\" }}]\n{}{}",
        list(&stay, "stay"),
        list(&vanish, "vanish")
    ));
    let status =
        |running: &mut SampledSource, sensor: &str| running.read("rest").1[&format!("rest/{sensor}")].unwrap_or(-1.0);
    assert_eq!(running.groups.len(), DEVICES + 1);
    wait_until("all devices answer", || status(&mut running, "answers") >= DEVICES as f64);
    vanish.is_there.store(false, Ordering::Relaxed);
    wait_until("half of them fail", || status(&mut running, "failing") >= half as f64);
    // The others keep their interval: each has two more polls while the vanished ones are asked again and again.
    let before = stay.requests.load(Ordering::Relaxed);
    wait_until("polls of those that stay", || stay.requests.load(Ordering::Relaxed) >= before + 2 * half);
    let has_value = |values: &SensorValues| values["stay500/a"] == Some(7.0);
    running.answer("stay500/u", has_value);
    assert_eq!(status(&mut running, "failing"), half as f64);
    running.discover();
    let named = running.count_notes("no answer in time");
    assert!((1..=40).contains(&named), "{named} notes: the others are counted");
    assert!(running.notes.iter().any(|note| note.contains("more devices do not answer")), "{:?}", running.notes);
    vanish.is_there.store(true, Ordering::Relaxed);
    wait_until("all are back", || status(&mut running, "failing") == 0.0);
}
