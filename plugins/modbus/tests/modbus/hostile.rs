use std::net::TcpListener;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::stub::{Behaviour, Stub, answer, send};
use super::*;

/// Devices with one register each, on these ports.
fn configuration(interval: &str, timeout: &str, ports: &[u16]) -> String {
    let mut text = format!("[plugins.modbus]\ninterval = \"{interval}\"\ntimeout = \"{timeout}\"\n");
    for (number, port) in ports.iter().enumerate() {
        text.push_str(&format!(
            "[[plugins.modbus.device]]\nhosts = [\"127.0.0.1:{port}\"]\npath = \"d{number}\"\nregister = [{{ name = \"r\", address = 1 }}]\n"
        ));
    }
    text
}

fn good(value: u16) -> Behaviour {
    Arc::new(move |stream, request, _| send(stream, &answer(request, value)))
}

/// A device that misbehaves beside one that does not: the first has gaps with this errno, the second has all of its values.
#[track_caller]
fn check_fault(behaviour: Behaviour, errno: i32) {
    let (bad, other) = (Stub::start(behaviour), Stub::start(good(7)));
    let mut running = Running::new(&configuration("100ms", "200ms", &[bad.port, other.port]));
    running.wait_for_gaps("d0", has_errno(errno));
    (0..3).for_each(|_| assert_eq!(running.answer("d1").1, [SampleValue::Int(7)]));
    let notes = running.notes();
    assert_eq!(notes.iter().filter(|note| note.contains("d0")).count(), 1, "named once: {notes:?}");
    assert_eq!(running.notes(), [""; 0], "and not again");
}

#[test]
fn a_device_that_never_answers() {
    check_fault(Arc::new(|_, _, _| {}), libc::ETIMEDOUT);
}

#[test]
fn a_device_that_closes_the_connection() {
    check_fault(Arc::new(|stream, _, _| drop(stream.shutdown(std::net::Shutdown::Both))), libc::ECONNRESET);
}

#[test]
fn a_device_that_sends_garbage() {
    check_fault(Arc::new(|stream, _, _| send(stream, &[0x5a; 64 << 10])), libc::EBADMSG);
}

#[test]
fn a_device_that_sends_answers_without_end() {
    let flood: Behaviour = Arc::new(|stream, request, _| {
        let stray = answer(&[0xff, 0xff, 0, 0, 0, 6, 1, 3, 0, 1, 0, 1], 9);
        let many = stray.repeat(1000);
        assert_ne!(request[..2], stray[..2]);
        (0..1000).for_each(|_| send(stream, &many));
    });
    check_fault(flood, libc::EBADMSG);
}

#[test]
fn a_device_that_refuses_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut running = Running::new(&configuration("100ms", "200ms", &[port]));
    running.wait_for_gaps("d0", has_errno(libc::ECONNREFUSED));
    assert_eq!(running.notes().len(), 1);
}

#[test]
fn an_answer_of_a_wrong_length_is_a_gap() {
    let bad: Behaviour = Arc::new(|stream, request, _| {
        let mut bytes = request[..4].to_vec();
        bytes.extend_from_slice(&[0, 7, request[6], request[7], 4, 0, 1, 0, 2]);
        send(stream, &bytes);
    });
    let stub = Stub::start(bad);
    let mut running = Running::new(&configuration("100ms", "200ms", &[stub.port]));
    running.wait_for_gaps("d0", has_errno(libc::EBADMSG));
    let notes = running.notes();
    assert!(notes.iter().any(|note| note.contains("4 bytes of data in place of 2")), "{notes:?}");
}

#[test]
fn late_and_second_answers_are_no_values() {
    // Each request is answered with the answer to the one before, twice, and then with its own.
    let before: Mutex<Vec<u8>> = Mutex::default();
    let behaviour: Behaviour = Arc::new(move |stream, request, number| {
        let mut before = before.lock().expect("no panic");
        let bytes = answer(request, number as u16);
        send(stream, &before.repeat(2));
        if number % 3 != 2 {
            send(stream, &bytes);
        }
        // The answer to the request before, with another value: it must not appear.
        *before = answer(request, 9999);
    });
    let stub = Stub::start(behaviour);
    let mut running = Running::new(&configuration("50ms", "100ms", &[stub.port]));
    let mut newest = -1;
    for _ in 0..10 {
        let (taken_at, values) = running.answer("d0");
        check_time(taken_at);
        let [SampleValue::Int(value)] = values[..] else { panic!("{values:?}") };
        assert!(value > newest && value < 9999 && value % 3 != 2, "{value} after {newest}");
        newest = value;
    }
    let [groups, _, polls, answers, timeouts, strays] = running.read("modbus").1[..] else { panic!("six counts") };
    assert_eq!(groups, SampleValue::Int(1));
    assert!(
        [polls, answers, timeouts, strays].iter().all(|count| matches!(count, SampleValue::Int(count) if *count > 0))
    );
}

#[test]
fn a_slow_device_has_the_time_of_its_answer_and_delays_nobody() {
    let sent_at: Arc<Mutex<Vec<i64>>> = Arc::default();
    let theirs = sent_at.clone();
    let slow = Stub::start(Arc::new(move |stream, request, _| {
        std::thread::sleep(Duration::from_millis(300));
        theirs.lock().expect("no panic").push(system_time());
        send(stream, &answer(request, 1));
    }));
    let fast = Stub::start(good(2));
    let mut running = Running::new(&configuration("100ms", "10s", &[slow.port, fast.port]));
    let (taken_at, values) = running.answer("d0");
    assert_eq!(values, [SampleValue::Int(1)]);
    let first = sent_at.lock().unwrap()[0];
    assert!(taken_at >= first, "the answer was taken before it was sent");
    wait_until("many polls of the fast device during few of the slow one", || {
        let [slow, fast] = [&slow, &fast].map(|stub| stub.requests.load(Ordering::Relaxed));
        fast >= 10 && fast >= 2 * slow
    });
}

#[test]
fn half_of_200_devices_vanish_and_come_back() {
    let stubs: Vec<Stub> = (0..200).map(|number| Stub::start(good(number))).collect();
    let ports: Vec<u16> = stubs.iter().map(|stub| stub.port).collect();
    let mut running = Running::new(&configuration("200ms", "500ms", &ports));
    for number in 0..200 {
        assert_eq!(running.answer(&format!("d{number}")).1, [SampleValue::Int(number)]);
    }
    stubs.iter().step_by(2).for_each(Stub::vanish);
    for number in (0..200).step_by(2) {
        running.wait_for_gaps(&format!("d{number}"), |_| true);
    }
    // The others have new answers, one after the other.
    for number in (1..200).step_by(2) {
        let name = format!("d{number}");
        let (first, _) = running.answer(&name);
        let (second, values) = running.answer(&name);
        assert!(second > first && values == [SampleValue::Int(number)]);
    }
    let notes = running.notes();
    assert!(notes.len() <= 21, "{} notes", notes.len());
    assert!(notes.iter().any(|note| note.contains("more devices")), "{notes:?}");
}

#[test]
fn a_device_that_comes_back_has_values_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut running = Running::new(&configuration("100ms", "200ms", &[port]));
    // Connections are accepted by the kernel, and nobody answers.
    running.wait_for_gaps("d0", has_errno(libc::ETIMEDOUT));
    let behave = std::thread::spawn(move || {
        use std::io::Read;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 12];
            // Connections that the source has given up end here.
            while stream.read_exact(&mut request).is_ok() {
                send(&mut stream, &answer(&request, 5));
                if request[1] > 200 {
                    return;
                }
            }
        }
    });
    assert_eq!(running.answer("d0").1, [SampleValue::Int(5)]);
    drop(running);
    drop(behave);
}
