//! Agents that answer slowly, late, twice, with damage or never, beside a good one; all over real sockets.

mod support;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use support::{Sampled, source};
use wholegrain_plugin_snmp::ber::{self, BerReader, Oid};
use wholegrain_plugin_snmp::message::{GET, RESPONSE};
use wholegrain_testkit::wait_until;

/// The names of a request and its number; whether it is a GET.
fn request(bytes: &[u8]) -> (bool, i64, Vec<Oid>) {
    let mut message = BerReader::new(bytes).inner(ber::SEQUENCE).unwrap();
    message.integer().unwrap();
    message.tagged(ber::OCTET_STRING).unwrap();
    let (kind, content) = message.any().unwrap();
    let mut pdu = BerReader::new(content);
    let id = pdu.integer().unwrap();
    let (_, _) = (pdu.integer().unwrap(), pdu.integer().unwrap());
    let (mut list, mut names) = (pdu.inner(ber::SEQUENCE).unwrap(), Vec::new());
    while !list.is_empty() {
        names.push(list.inner(ber::SEQUENCE).unwrap().oid().unwrap());
    }
    (kind == GET, id, names)
}

/// An answer with one value of this type for each name; sysUpTime is one second.
fn answer(id: i64, names: &[Oid], tag: u8, content: &[u8]) -> Vec<u8> {
    let uptime = Oid::parse("1.3.6.1.2.1.1.3.0").unwrap();
    let mut out = Vec::new();
    ber::put(&mut out, ber::SEQUENCE, |out| {
        ber::put_integer(out, ber::INTEGER, 1);
        ber::put(out, ber::OCTET_STRING, |out| out.extend_from_slice(b"public"));
        ber::put(out, RESPONSE, |out| {
            [id, 0, 0].iter().for_each(|number| ber::put_integer(out, ber::INTEGER, *number));
            ber::put(out, ber::SEQUENCE, |out| {
                for name in names {
                    ber::put(out, ber::SEQUENCE, |out| {
                        ber::put_oid(out, name);
                        let (tag, content) = if *name == uptime { (0x43, &[100][..]) } else { (tag, content) };
                        ber::put(out, tag, |out| out.extend_from_slice(content));
                    });
                }
            });
        });
    });
    out
}

/// An agent on an address of its own.
fn agent(respond: impl Fn(&UdpSocket, &[u8], SocketAddr) + Send + 'static) -> String {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            respond(&socket, &buffer[..length], from);
        }
    });
    address
}

/// An agent that sends `change` of each right answer, which has the integer `value`.
fn changed(value: u8, change: impl Fn(Vec<u8>) -> Vec<Vec<u8>> + Send + 'static) -> String {
    agent(move |socket, bytes, from| {
        let (_, id, names) = request(bytes);
        for message in change(answer(id, &names, ber::INTEGER, &[value])) {
            let _ = socket.send_to(&message, from);
        }
    })
}

/// A source with devices `d0`, `d1`, … that have an object `value`, and more keys.
fn devices(hosts: &[String], keys: &str) -> Sampled {
    let mut text = "[plugins.snmp]\ninterval = \"100ms\"\ntimeout = \"400ms\"\nretries = 1\nfirst_answers = \"2s\"\n\
        [[plugins.snmp.template.t.group]]\nname = \"g\"\n\
        object = [{ oid = \"1.3.6.1.4.1.99999.1.0\", name = \"value\" }]\n"
        .to_owned();
    for (number, host) in hosts.iter().enumerate() {
        text +=
            &format!("[[plugins.snmp.device]]\nhosts = [\"{host}\"]\ntemplate = \"t\"\npath = \"d{number}\"\n{keys}");
    }
    source(&text, std::path::Path::new("/"))
}

#[test]
fn a_bad_agent_gives_nothing_and_delays_nobody() {
    let late = agent(|socket, bytes, from| {
        // After the timeout of the request and of its repetition.
        let (socket, bytes) = (socket.try_clone().unwrap(), bytes.to_vec());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(900));
            let (_, id, names) = request(&bytes);
            let _ = socket.send_to(&answer(id, &names, ber::INTEGER, &[9]), from);
        });
    });
    let stranger = agent(|_, bytes, from| {
        let other = UdpSocket::bind("127.0.0.2:0").unwrap();
        let (_, id, names) = request(bytes);
        let _ = other.send_to(&answer(id, &names, ber::INTEGER, &[9]), from);
    });
    let other_number = agent(|socket, bytes, from| {
        let (_, id, names) = request(bytes);
        let _ = socket.send_to(&answer(id ^ 1, &names, ber::INTEGER, &[9]), from);
    });
    let other_names = agent(|socket, bytes, from| {
        let (_, id, mut names) = request(bytes);
        names.reverse();
        let _ = socket.send_to(&answer(id, &names, ber::INTEGER, &[9]), from);
    });
    let bad = [
        agent(|_, _, _| {}),
        late,
        stranger,
        other_number,
        other_names,
        changed(9, |answer| vec![answer[..answer.len() - 1].to_vec()]),
        changed(9, |_| vec![vec![0x30; 65_000], b"<html>".to_vec(), Vec::new()]),
    ];
    let slow = agent(|socket, bytes, from| {
        std::thread::sleep(Duration::from_millis(150));
        let (_, id, names) = request(bytes);
        let _ = socket.send_to(&answer(id, &names, ber::INTEGER, &[5]), from);
    });
    let twice = changed(6, |answer| vec![b"noise".to_vec(), answer.clone(), answer]);
    let good = changed(7, |answer| vec![answer]);
    let mut hosts = vec![good, slow, twice];
    hosts.extend(bad);
    let mut sampled = devices(&hosts, "");
    for (number, value) in [(0, 7.0), (1, 5.0), (2, 6.0)] {
        for _ in 0..5 {
            assert_eq!(sampled.wait(&format!("d{number}/g"))[&format!("d{number}/value")], value);
        }
    }
    wait_until("the others are known to fail", || sampled.status("failing") == 7);
    sampled.discover();
    assert!((3..10).all(|number| !sampled.has_group(&format!("d{number}/g"))), "they have no sensors");
    for number in 3..10 {
        let name = format!("device d{number} ");
        assert_eq!(sampled.notes.iter().filter(|note| note.starts_with(&name)).count(), 1, "{:?}", sampled.notes);
    }
}

#[test]
fn another_type_is_a_gap_and_the_next_right_one_a_value() {
    let count = Arc::new(AtomicU32::new(0));
    let host = agent(move |socket, bytes, from| {
        let (_, id, names) = request(bytes);
        let (tag, content) = match count.fetch_add(1, Ordering::Relaxed) % 4 {
            0 => (ber::INTEGER, &[3][..]),
            1 => (ber::OCTET_STRING, &b"three"[..]),
            2 => (0x06, &[0x2b, 6][..]),
            _ => (0x80, &[][..]),
        };
        let _ = socket.send_to(&answer(id, &names, tag, content), from);
    });
    let mut sampled = devices(&[host], "");
    let (mut values, mut gaps) = (0, 0);
    wait_until("values and gaps", || {
        let (reading, read) = sampled.read("d0/g");
        if reading.taken_at.is_some() {
            match read.get("d0/value") {
                Some(value) => {
                    assert_eq!(*value, 3.0);
                    values += 1;
                }
                None => gaps += 1,
            }
        }
        values >= 2 && gaps >= 4
    });
}

#[test]
fn a_counter_that_wraps_between_two_polls() {
    let count = Arc::new(AtomicU32::new(0));
    let start = std::time::Instant::now();
    let host = agent(move |socket, bytes, from| {
        let (_, id, names) = request(bytes);
        // A step of 2^31 at each poll: it wraps at each second one.
        let value = count.fetch_add(1, Ordering::Relaxed).wrapping_mul(1 << 31).wrapping_add(5);
        let mut message = answer(id, &names, 0x41, &[&[0][..], &value.to_be_bytes()].concat());
        // sysUpTime that runs, in the place of one second.
        let uptime = (start.elapsed().as_millis() / 10).min(100) as u8;
        if let Some(at) = message.windows(3).position(|window| window == [0x43, 1, 100]) {
            message[at + 2] = uptime;
        }
        let _ = socket.send_to(&message, from);
    });
    let mut sampled = devices(&[host], "");
    let mut last: Option<f64> = None;
    for _ in 0..7 {
        // The first answer is a gap: whether it wrapped before is not known.
        let Some(value) = sampled.wait("d0/g").get("d0/value").copied() else {
            assert_eq!(last, None);
            continue;
        };
        if let Some(last) = last {
            let steps = (value - last) / f64::from(1u32 << 31);
            assert!(steps >= 1.0 && steps.fract() == 0.0, "{value} after {last}");
        }
        last = Some(value);
    }
}

#[test]
fn a_walk_that_loops_is_named_and_ends() {
    let host = agent(|socket, bytes, from| {
        let (is_get, id, names) = request(bytes);
        // For a walk always the first row.
        let rows: Vec<Oid> =
            names.iter().map(|name| Oid::new(&name.numbers()[..11.min(name.numbers().len())]).child(1)).collect();
        let names = if is_get { names } else { rows };
        let _ = socket.send_to(&answer(id, &names, ber::INTEGER, &[1]), from);
    });
    let mut sampled = devices(&[host], "presets = [\"ports\"]\n");
    wait_until("the loop is named", || {
        sampled.discover();
        sampled.notes.iter().any(|note| note.contains("a walk whose names do not increase"))
    });
}
