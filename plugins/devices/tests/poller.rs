//! The poller and the pool with devices that answer, hang, vanish and send garbage.
//!
//! The protocol of these tests: a request of 8 bytes is a number, the answer has the number and a value, each of 8 bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wholegrain_devices::{
    AnswerSlot, BlockingProtocol, DeviceGroup, DeviceGroups, DeviceProblem, DeviceProtocol, DeviceTransport,
    GroupTicks, PollTiming, PollTurn, PolledDevice, PolledGroup, Poller, PooledDevice, WorkerPool, hosts, system_time,
};
use wholegrain_model::{Interval, SensorDef};
use wholegrain_sources::{Reader, Row};
use wholegrain_testkit::{wait_for, wait_until};

struct Numbered {
    number: u64,
}

impl DeviceProtocol for Numbered {
    fn begin(&mut self, _group: usize, turn: &mut PollTurn<'_>) {
        self.number += 1;
        turn.send(|out| out.extend_from_slice(&self.number.to_le_bytes()));
    }

    fn receive(&mut self, bytes: &[u8], turn: &mut PollTurn<'_>) -> usize {
        if bytes.len() < 16 || bytes[..8] != self.number.to_le_bytes() {
            return 0;
        }
        let value = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        turn.slot().publish(turn.now_ns(), &[Some(value)]);
        turn.finish();
        16
    }
}

const FAST: GroupTicks = GroupTicks { interval_ns: 50_000_000, offset_ns: 0 };

fn slot() -> Arc<AnswerSlot> {
    Arc::new(AnswerSlot::with_sensors(vec![SensorDef::gauge("value", "1", "")]))
}

fn device(host: &str, transport: DeviceTransport, slot: &Arc<AnswerSlot>) -> PolledDevice {
    PolledDevice {
        path: host.to_owned(),
        host: hosts::expand(host, 1).unwrap().remove(0),
        port: 161,
        transport,
        timeout_ns: 200_000_000,
        retries: 1,
        groups: vec![PolledGroup { ticks: FAST, slot: slot.clone() }],
        protocol: Box::new(Numbered { number: 0 }),
    }
}

/// The value of the newest answer.
fn value(slot: &Arc<AnswerSlot>) -> Option<i64> {
    let (_, mut reader) = slot.reader(u64::MAX, system_time).unwrap();
    let (mut values, mut gaps) = ([0], [0]);
    let mut row = Row::new(&mut values, &mut gaps);
    reader.read(&mut row);
    row.int(0)
}

/// A peer of datagrams: `answer` gets each request with its sender. It ends with the returned flag.
fn peer(answer: impl Fn(&UdpSocket, &[u8], SocketAddr) + Send + 'static) -> (String, Arc<AtomicBool>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let (address, ended) = (socket.local_addr().unwrap().to_string(), Arc::new(AtomicBool::new(false)));
    let theirs = ended.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while !theirs.load(Ordering::Relaxed) {
            if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                answer(&socket, &buffer[..length], from);
            }
        }
    });
    (address, ended)
}

fn good(value: u64) -> impl Fn(&UdpSocket, &[u8], SocketAddr) + Send + 'static {
    move |socket, request, from| {
        let _ = socket.send_to(&[request, &value.to_le_bytes()].concat(), from);
    }
}

#[test]
fn a_bad_device_delays_no_other() {
    let count = Arc::new(AtomicU64::new(0));
    let (well, _) = peer(good(42));
    let (silent, _) = peer(|_, _, _| {});
    let (garbage, _) = peer(|socket, _, from| {
        let _ = socket.send_to(&[0xff; 60_000], from);
        for _ in 0..100 {
            let _ = socket.send_to(&[0xff; 16], from);
        }
    });
    let (stranger, _) = peer(|_, request, from| {
        let other = UdpSocket::bind("127.0.0.2:0").unwrap();
        let _ = other.send_to(&[request, &7u64.to_le_bytes()].concat(), from);
    });
    let (wrong_number, _) = peer(|socket, request, from| {
        let mut answer = [request, &8u64.to_le_bytes()].concat();
        answer[0] ^= 1;
        let _ = socket.send_to(&answer, from);
    });
    let theirs = count.clone();
    let (second_try, _) = peer(move |socket, request, from| {
        if theirs.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            good(9)(socket, request, from);
            good(9)(socket, request, from);
        }
    });
    let hosts = [well, silent, garbage, stranger, wrong_number, second_try];
    let slots: Vec<Arc<AnswerSlot>> = hosts.iter().map(|_| slot()).collect();
    let devices = hosts.iter().zip(&slots).map(|(host, slot)| device(host, DeviceTransport::Udp, slot)).collect();
    let poller = Poller::start("poll", devices, 16).unwrap();
    wait_until("all devices were polled", || slots.iter().all(|slot| slot.was_polled()));
    assert_eq!(value(&slots[5]), Some(9));
    assert_eq!(slots[1].problem(), Some(DeviceProblem::Silent));
    assert_eq!(slots[2].problem(), Some(DeviceProblem::Garbage("many messages that were not asked for")));
    assert_eq!(slots[3].problem(), Some(DeviceProblem::Silent), "an answer from another address is none");
    assert_eq!(slots[4].problem(), Some(DeviceProblem::Silent), "an answer with another number is none");
    assert!((1..5).all(|bad| value(&slots[bad]).is_none()));
    let answers = || poller.counts().answers.load(Ordering::Relaxed);
    let before = answers();
    wait_until("the good device is polled on", || answers() > before + 10);
    assert_eq!(value(&slots[0]), Some(42));
    let mut notes = Vec::new();
    poller.counts().report(&mut |text| notes.push(text));
    notes.sort();
    assert_eq!(notes.len(), 4, "each fault once: {notes:?}");
    assert!(notes.iter().all(|note| note.starts_with("device 127.0.0.1:")), "{notes:?}");
}

#[test]
fn half_of_a_thousand_devices_vanish_and_come_back() {
    // One socket plays the thousand devices: each has its own address of 127.0.0.0/8, and the odd ones vanish.
    let port = wholegrain_testkit::free_port();
    let vanished = Arc::new(AtomicBool::new(false));
    let theirs = vanished.clone();
    let sockets: Vec<UdpSocket> = (1..=250)
        .flat_map(|host| (1..=4).map(move |net| UdpSocket::bind((format!("127.0.{net}.{host}"), port)).unwrap()))
        .collect();
    std::thread::spawn(move || {
        sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let mut buffer = [0; 64];
        loop {
            for (index, socket) in sockets.iter().enumerate() {
                while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    if index % 2 == 0 || !theirs.load(Ordering::Relaxed) {
                        good(index as u64)(socket, &buffer[..length], from);
                    }
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let slots: Vec<Arc<AnswerSlot>> = (0..1000).map(|_| slot()).collect();
    let hosts = (1..=250).flat_map(|host| (1..=4).map(move |net| format!("127.0.{net}.{host}:{port}")));
    let second = GroupTicks { interval_ns: 1_000_000_000, offset_ns: 0 };
    let devices = hosts.zip(&slots).map(|(host, slot)| {
        let mut device = device(&host, DeviceTransport::Udp, slot);
        device.groups[0].ticks = second;
        device
    });
    let poller = Poller::start("poll", devices.collect(), 256).unwrap();
    wait_until("all were polled", || slots.iter().all(|slot| slot.was_polled()));
    let failing = || poller.counts().failing.load(Ordering::Relaxed);
    wait_until("none fails", || failing() == 0);
    vanished.store(true, Ordering::Relaxed);
    wait_until("half fail", || failing() == 500);
    let answer = |index: usize| value(&slots[index]) == Some(index as i64);
    let _answers_so_far = (0..1000).filter(|index| answer(*index)).count();
    let mut fresh = std::collections::HashSet::new();
    wait_until("the other half answers on", || {
        fresh.extend((0..1000).filter(|index| answer(*index)));
        fresh.len() == 500
    });
    assert_eq!(failing(), 500);
    vanished.store(false, Ordering::Relaxed);
    wait_until("all are back", || failing() == 0);
}

#[test]
fn connections_stay_open_and_answers_come_in_pieces() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accepted = Arc::new(AtomicU64::new(0));
    let theirs = accepted.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut served) = (stream.unwrap(), 0u64);
            theirs.fetch_add(1, Ordering::Relaxed);
            let mut request = [0; 8];
            while stream.read_exact(&mut request).is_ok() && served < 5 {
                served += 1;
                let answer = [&request[..], &served.to_le_bytes()].concat();
                for piece in answer.chunks(5) {
                    stream.write_all(piece).unwrap();
                    stream.flush().unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        }
    });
    let slot = slot();
    let poller = Poller::start("poll", vec![device(&address, DeviceTransport::Tcp, &slot)], 4).unwrap();
    wait_until("five answers on one connection", || value(&slot) == Some(5));
    assert_eq!(accepted.load(Ordering::Relaxed), 1);
    wait_until("a closed connection is opened again", || value(&slot) == Some(2));
    assert_eq!(accepted.load(Ordering::Relaxed), 2);
    drop(poller);
}

#[test]
fn nobody_listens() {
    let slots = [slot(), slot(), slot()];
    let port = wholegrain_testkit::free_port();
    let devices = vec![
        device(&format!("127.0.0.1:{port}"), DeviceTransport::Udp, &slots[0]),
        device(&format!("127.0.0.1:{port}"), DeviceTransport::Tcp, &slots[1]),
        device("device.invalid", DeviceTransport::Udp, &slots[2]),
    ];
    let _poller = Poller::start("poll", devices, 4).unwrap();
    let problem = |index: usize| wait_for("a problem", || slots[index].problem());
    assert_eq!(problem(0), DeviceProblem::Network(111));
    assert_eq!(problem(1), DeviceProblem::Network(111));
    assert_eq!(problem(2), DeviceProblem::Unresolved);
}

#[test]
fn names_are_resolved() {
    let (address, _) = peer(good(5));
    let slot = slot();
    let port = address.rsplit(':').next().unwrap();
    // An entry of the hosts file, which gives the address of IPv4 or IPv6: the peer has the former.
    let _poller =
        Poller::start("poll", vec![device(&format!("localhost:{port}"), DeviceTransport::Udp, &slot)], 4).unwrap();
    let ended = wait_for("an answer or a refusal", || value(&slot).map(Ok).or(slot.problem().map(Err)));
    assert!(matches!(ended, Ok(5) | Err(DeviceProblem::Network(_))), "{ended:?}");
}

#[test]
fn a_device_that_vanished_has_gaps_and_no_repeated_value() {
    let (address, ended) = peer(good(3));
    let slot = slot();
    let _poller = Poller::start("poll", vec![device(&address, DeviceTransport::Udp, &slot)], 4).unwrap();
    let timing = PollTiming { interval: Interval::from_ms(50), ..PollTiming::default() };
    let group = DeviceGroup { name: "pdu/all".to_owned(), timing, slot };
    let mut groups = DeviceGroups::new(vec![group], Interval::from_s(3));
    let mut plans = groups.discover(&mut |note| panic!("{note}"));
    let (mut plan, mut values, mut gaps) = (plans.remove(0), [0], [0]);
    assert!(plan.blocking && plan.name == "pdu/all");
    let mut last = 0;
    let mut read = |last: &mut i64| {
        let mut row = Row::new(&mut values, &mut gaps);
        let reading = plan.reader.read(&mut row);
        if let Some(at) = reading.taken_at {
            assert!(at > *last, "an answer is read once");
            *last = at;
        }
        (reading, row.int(0))
    };
    wait_until("a value", || read(&mut last).1 == Some(3));
    ended.store(true, Ordering::Relaxed);
    wait_until("a gap with its reason", || {
        let (reading, value) = read(&mut last);
        assert!(value.is_none() || reading.taken_at.is_some());
        value.is_none() && !reading.unchanged && reading.problem.is_some()
    });
}

struct Blocking {
    hangs: bool,
    polls: Arc<AtomicU64>,
}

impl BlockingProtocol for Blocking {
    fn poll(&mut self, _group: usize, slot: &AnswerSlot, deadline: Instant) -> Result<(), DeviceProblem> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if self.hangs {
            std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
            return Err(DeviceProblem::Silent);
        }
        slot.publish(system_time(), &[Some(1)]);
        Ok(())
    }
}

#[test]
fn a_hanging_device_holds_one_worker() {
    let counts: Vec<Arc<AtomicU64>> = (0..6).map(|_| Arc::default()).collect();
    let slots: Vec<Arc<AnswerSlot>> = (0..6).map(|_| slot()).collect();
    let device = |index: usize| PooledDevice {
        path: format!("bmc{index}"),
        host: format!("bmc{index}"),
        timeout: Duration::from_millis(300),
        groups: vec![PolledGroup { ticks: FAST, slot: slots[index].clone() }],
        protocol: Box::new(Blocking { hangs: index == 0, polls: counts[index].clone() }),
    };
    let pool = WorkerPool::start("bmc", (0..6).map(device).collect(), 2).unwrap();
    wait_until("the others are polled", || counts[1..].iter().all(|count| count.load(Ordering::Relaxed) > 10));
    wait_until("the hanging one is noted", || slots[0].problem() == Some(DeviceProblem::Silent));
    assert_eq!(pool.counts().failing.load(Ordering::Relaxed), 1);
    assert!(slots[1..].iter().all(|slot| slot.problem().is_none()));
}
