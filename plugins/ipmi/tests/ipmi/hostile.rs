//! Controllers that answer slowly, late, twice, with damage or nonsense, beside good ones; repositories that change, loop or break.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wholegrain_testkit::{Random, wait_until};

use crate::sampled::{device, devices};
use crate::stand_in::{Model, StandIn, full_record};

fn send(socket: &UdpSocket, to: SocketAddr, bytes: &[u8]) {
    let _ = socket.send_to(bytes, to);
}

/// A controller with two sensors that sends what `change` makes of each answer in a session.
fn changed(mut change: impl FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send + 'static) -> StandIn {
    let sender = move |socket: &UdpSocket, to: SocketAddr, bytes: Vec<u8>, is_session: bool| {
        let all = if is_session { change(bytes) } else { vec![bytes] };
        all.iter().for_each(|bytes| send(socket, to, bytes));
    };
    StandIn::with(Model::with_sensors(2), |_, _| None, sender)
}

/// A controller with two sensors and a handler of its own.
fn handled(
    model: Model,
    handler: impl FnMut(&mut Model, (u8, u8, &[u8])) -> Option<(u8, Vec<u8>)> + Send + 'static,
) -> StandIn {
    StandIn::with(model, handler, |socket, to, bytes, _| send(socket, to, &bytes))
}

#[test]
fn a_bad_controller_gives_nothing_and_delays_nobody() {
    let late = StandIn::with(
        Model::with_sensors(2),
        |_, _| None,
        |socket, to, bytes, is_session| {
            let socket = socket.try_clone().unwrap();
            std::thread::spawn(move || {
                // After the timeouts of the request and of its repetitions.
                std::thread::sleep(Duration::from_millis(if is_session { 1500 } else { 0 }));
                send(&socket, to, &bytes);
            });
        },
    );
    let other_session = changed(|mut bytes| {
        bytes[6] ^= 2;
        vec![bytes]
    });
    let other_sequence = changed(|mut bytes| {
        bytes[10] ^= 64;
        vec![bytes]
    });
    let damaged = changed(|mut bytes| {
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        vec![bytes]
    });
    let unsigned = changed(|mut bytes| {
        // Without authentication and encryption, in the clear.
        bytes[5] = 0;
        vec![bytes]
    });
    let cut = changed(|bytes| vec![bytes[..bytes.len() - 1].to_vec()]);
    let garbage = changed(|_| vec![vec![6; 65_000], b"<html>".to_vec(), Vec::new(), vec![6, 0, 0xff, 7]]);
    let old = Mutex::new(None);
    // After the first answer only this one, again and again.
    let replayed = changed(move |bytes| vec![old.lock().unwrap().get_or_insert(bytes).clone()]);
    let bad = [late, other_session, other_sequence, damaged, unsigned, cut, garbage, replayed];
    let slow = changed(|bytes| {
        std::thread::sleep(Duration::from_millis(100));
        vec![bytes]
    });
    let twice = changed(|bytes| vec![b"noise".to_vec(), bytes.clone(), bytes]);
    let good = StandIn::start(Model::with_sensors(2));
    let ports: Vec<u16> = [&good, &slow, &twice].into_iter().chain(&bad).map(|bmc| bmc.port).collect();
    let mut sampled = devices(&ports, "groups = [\"sensors\"]");
    for number in 0..3 {
        for _ in 0..3 {
            assert_eq!(sampled.wait(&format!("d{number}/sensors"))[&format!("d{number}/T2")], 2.0);
        }
    }
    let all = i64::try_from(bad.len()).unwrap();
    wait_until("the others are known to fail", || sampled.status("failing") == all);
    sampled.discover();
    assert!((3..ports.len()).all(|number| !sampled.has_group(&format!("d{number}/sensors"))), "they have no sensors");
    for number in 3..ports.len() {
        let name = format!("device d{number} ");
        assert_eq!(sampled.notes.iter().filter(|note| note.starts_with(&name)).count(), 1, "{:?}", sampled.notes);
    }
}

#[test]
fn a_sensor_without_an_answer_or_with_an_error_is_a_gap() {
    // 1 is good, 2 is never answered, the others have errors and odd data.
    let mut model = Model::with_sensors(8);
    model.readings.insert(4, vec![4, 0x80, 0]);
    model.readings.insert(5, vec![5, 0xe0, 0]);
    model.readings.insert(6, vec![6]);
    model.readings.insert(7, vec![7, 0xc0]);
    let silent = Arc::new(AtomicU32::new(0));
    let asked = silent.clone();
    let is_silent = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let silence = is_silent.clone();
    let bmc = StandIn::with(
        model,
        move |_, (net_fn, command, data)| {
            let is_second = (net_fn, command, data) == (4, 0x2d, &[2][..]);
            silence.store(is_second, Ordering::Relaxed);
            asked.fetch_add(u32::from(is_second), Ordering::Relaxed);
            ((net_fn, command, data) == (4, 0x2d, &[3][..])).then(|| (0xd5, vec![3, 0xc0, 0]))
        },
        move |socket, to, bytes, _| {
            if !is_silent.load(Ordering::Relaxed) {
                send(socket, to, &bytes);
            }
        },
    );
    let mut sampled = device(&bmc, "groups = [\"sensors\"]");
    for _ in 0..3 {
        let values = sampled.wait("d0/sensors");
        let names: Vec<&str> = values.keys().map(String::as_str).collect();
        // The seventh has a number and no states.
        assert_eq!(names, ["d0/T1", "d0/T7", "d0/T8", "d0/state/T1", "d0/state/T8"]);
    }
    assert!(silent.load(Ordering::Relaxed) <= 2, "it is left out for some time: {silent:?}");
    assert_eq!(sampled.status("failing"), 0);
}

#[test]
fn records_in_parts_after_cancelled_reservations() {
    let count = Arc::new(AtomicU32::new(0));
    let bmc = handled(Model::with_sensors(5), move |model, asked| {
        if (asked.0, asked.1) != (0x0a, 0x23) {
            return None;
        }
        if asked.2[5] > 16 {
            return Some((0xca, Vec::new()));
        }
        // Somebody else reserves the repository now and then.
        if count.fetch_add(1, Ordering::Relaxed) % 7 == 3 {
            model.reservation += 1;
        }
        None
    });
    let mut sampled = device(&bmc, "groups = [\"sensors\"]");
    let values = sampled.wait("d0/sensors");
    assert_eq!((values["d0/T1"], values["d0/T5"], values.len()), (1.0, 5.0, 10));
}

#[test]
fn a_repository_that_changes_during_the_walk_is_read_again() {
    let count = Arc::new(AtomicU32::new(0));
    let bmc = handled(Model::with_sensors(3), move |model, (net_fn, command, _)| {
        if (net_fn, command) == (0x0a, 0x23) && count.fetch_add(1, Ordering::Relaxed) == 1 {
            model.records.push(full_record(9, 1, "New"));
            model.records.remove(0);
            model.records.push(full_record(10, 2, "T2 again"));
        }
        None
    });
    let mut sampled = device(&bmc, "groups = [\"sensors\"]");
    let values = sampled.wait("d0/sensors");
    assert_eq!((values["d0/New"], values["d0/T2"], values["d0/T3"]), (1.0, 2.0, 3.0));
    assert!(!values.contains_key("d0/T1"), "{values:?}");
    // One that changes all the time is named, and asked at its interval.
    let count = AtomicU32::new(0);
    let bmc = handled(Model::with_sensors(3), move |model, asked| {
        ((asked.0, asked.1) == (0x0a, 0x20)).then(|| {
            let (code, mut data) = model.execute(asked);
            data[5] = count.fetch_add(1, Ordering::Relaxed) as u8;
            (code, data)
        })
    });
    let mut sampled = device(&bmc, "groups = [\"sensors\"]");
    wait_until("it is named", || sampled.noted("its sensor repository changes all the time") == 1);
    assert!(!sampled.has_group("d0/sensors"));
}

#[test]
fn a_walk_that_loops_ends_with_what_it_read() {
    let bmc = handled(Model::with_sensors(4), |model, asked| {
        if (asked.0, asked.1) != (0x0a, 0x23) || asked.2[2] != 4 {
            return None;
        }
        let (code, mut data) = model.execute(asked);
        // After the last record comes the second one.
        data[..2].copy_from_slice(&2u16.to_le_bytes());
        Some((code, data))
    });
    let mut sampled = device(&bmc, "groups = [\"sensors\"]");
    let values = sampled.wait("d0/sensors");
    assert_eq!((values["d0/T1"], values["d0/T4"], values.len()), (1.0, 4.0, 8));
    wait_until("the loop is named", || sampled.noted("a sensor repository whose records repeat") == 1);
    assert!(bmc.model().count(0x0a, 0x23) <= 8, "the walk is not repeated at each poll");
}

#[test]
fn random_replies_never_end_the_thread() {
    let random = Mutex::new(Random::seeded());
    let bmc = handled(Model::with_sensors(6), move |model, asked| {
        let mut random = random.lock().unwrap();
        match random.below(6) {
            0 => {
                let length = random.below(60) as usize;
                Some((0, random.bytes(length)))
            }
            1 => Some((random.draw() as u8, Vec::new())),
            2 => {
                let (code, mut data) = model.execute(asked);
                if !data.is_empty() {
                    let at = random.below(data.len() as u64) as usize;
                    data[at] = random.draw() as u8;
                }
                Some((code, data))
            }
            _ => None,
        }
    });
    let good = StandIn::start(Model::with_sensors(1));
    let mut sampled = devices(&[bmc.port, good.port], "");
    wait_until("many commands", || bmc.model().counts.values().sum::<usize>() > 400);
    assert_eq!(sampled.wait("d1/sensors")["d1/T1"], 1.0);
}
