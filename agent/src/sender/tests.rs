//! The bounds of what the sender holds, with a disk that refuses and one that is too small.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use wholegrain_model::size::ByteSize;
use wholegrain_model::{Schema, SensorDef, SensorPath};
use wholegrain_transport::spool::{self, Spool};

use super::link::ServerLink;
use crate::agent::AgentHandles;
use crate::batch::EncodedBatch;
use crate::config::{Config, SpoolConfig};
use crate::engine::clock;
use crate::send_queue::SendQueue;

const QUEUE_BYTES_MAX: u64 = 64 << 10;

fn handles() -> AgentHandles {
    let text = "name = \"n1\"\n[mqtt]\nurl = \"mqtt://127.0.0.1:1\"\nqueue_bytes_max = \"64KiB\"\n";
    AgentHandles::new(&Config::parse(Path::new("a.toml"), text, Path::new(".")).unwrap()).unwrap()
}

fn spool(dir: &Path, bytes_max: u64, segment_bytes: u64) -> (Spool, SpoolConfig) {
    let (spool, _) =
        Spool::open(spool::SpoolConfig { dir: dir.to_owned(), bytes_max, segment_bytes, sync: false }).unwrap();
    let text = format!("[spool]\ndir = {dir:?}\nafter = \"1h\"\n");
    let config = Config::parse(Path::new("a.toml"), &text, Path::new(".")).unwrap();
    (spool, SpoolConfig { bytes_max: ByteSize(bytes_max), ..config.spool.unwrap() })
}

/// Puts `count` batches of 1000 bytes into the queue, as the encoder does, and lets the sender take them one by one.
fn feed(handles: &AgentHandles, queue: &mut SendQueue, seqs: std::ops::Range<u64>) {
    let sensors = vec![SensorDef::gauge("a", "1", "")];
    let schema = Schema::new(SensorPath::new("/n1").unwrap(), "g", sensors).unwrap();
    for seq in seqs {
        let mut payload = vec![0; 1000];
        payload[..8].copy_from_slice(&seq.to_le_bytes());
        handles.queue.push(
            &mut vec![Arc::new(EncodedBatch {
                payload: payload.into(),
                schema: schema.clone(),
                topic: "wholegrain/v1/batch/n1/g".into(),
                seq,
                first: 0,
                last: 0,
                samples: 1,
                made_mono: clock::mono(),
            })],
            true,
        );
        queue.collect();
        queue.keep_bounds(QUEUE_BYTES_MAX, Duration::ZERO);
        assert!(handles.counters.queue_bytes.load(Ordering::Relaxed) <= QUEUE_BYTES_MAX, "the memory keeps its bound");
    }
}

/// Numbers of the batches in the spool, the oldest first; the schema before them is left out.
fn spooled(queue: &mut SendQueue) -> Vec<u64> {
    let disk = queue.disk.as_mut().unwrap();
    let mut seqs = Vec::new();
    while let Some(record) = disk.next_record() {
        if record.topic.contains("/batch/") {
            seqs.push(u64::from_le_bytes(record.payload[..8].try_into().unwrap()));
        }
    }
    disk.rewind();
    seqs
}

#[test]
fn what_is_too_much_for_the_memory_goes_to_the_disk_in_order() {
    let (dir, handles) = (tempfile::tempdir().unwrap(), handles());
    let mut queue = SendQueue::new(handles.send_queue(), Some(spool(dir.path(), 8 << 20, 1 << 20)));
    feed(&handles, &mut queue, 1..201);
    let on_disk = spooled(&mut queue);
    assert_eq!(on_disk, (1..=on_disk.len() as u64).collect::<Vec<_>>());
    assert!(on_disk.len() >= 150, "{}", on_disk.len());
    assert_eq!(queue.front().map(|batch| batch.seq), None, "nothing is released yet");
    queue.release_all();
    assert_eq!(queue.front().unwrap().seq, on_disk.len() as u64 + 1, "memory goes on where the disk ends");
    assert_eq!(handles.counters.dropped.load(Ordering::Relaxed), 0);
}

#[test]
fn a_disk_too_small_costs_the_oldest_and_each_is_counted() {
    let (dir, handles) = (tempfile::tempdir().unwrap(), handles());
    let mut queue = SendQueue::new(handles.send_queue(), Some(spool(dir.path(), 100 << 10, 20 << 10)));
    feed(&handles, &mut queue, 1..401);
    let on_disk = spooled(&mut queue);
    queue.release_all();
    let in_memory = 400 - queue.front().unwrap().seq + 1;
    let dropped = handles.counters.dropped.load(Ordering::Relaxed);
    assert!(dropped > 0 && on_disk[0] > 1 && on_disk.is_sorted());
    // Schemas are dropped with their segments, and written again; they are no batches.
    assert_eq!(dropped, 400 - in_memory - on_disk.len() as u64, "each lost batch once");
    let disk = queue.disk.as_mut().unwrap();
    let mut topics = std::iter::from_fn(|| disk.next_record()).map(|record| record.topic);
    assert!(topics.any(|topic| topic.contains("/schema/")), "what is left has its schema");
}

#[test]
fn a_disk_that_refuses_costs_what_the_memory_cannot_hold_until_it_is_good_again() {
    let (dir, handles) = (tempfile::tempdir().unwrap(), handles());
    let place = dir.path().join("spool");
    // Small segments: each next one has to be made in a directory that is gone.
    let mut queue = SendQueue::new(handles.send_queue(), Some(spool(&place, 8 << 20, 4 << 10)));
    feed(&handles, &mut queue, 1..81);
    assert_eq!(handles.counters.dropped.load(Ordering::Relaxed), 0);
    let away = dir.path().join("away");
    fs::rename(&place, &away).unwrap();
    feed(&handles, &mut queue, 81..201);
    let dropped = handles.counters.dropped.load(Ordering::Relaxed);
    assert!(dropped > 0, "neither memory nor disk can take it");
    fs::rename(&away, &place).unwrap();
    let (deadline, mut seq) = (Instant::now() + Duration::from_secs(60), 201);
    let before = handles.counters.spooled.load(Ordering::Relaxed);
    while handles.counters.spooled.load(Ordering::Relaxed) == before {
        assert!(Instant::now() < deadline, "the disk is tried again");
        feed(&handles, &mut queue, seq..seq + 1);
        seq += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(spooled(&mut queue).len() > 20);
}

#[test]
fn everything_left_goes_to_the_disk_at_the_end() {
    let (dir, handles) = (tempfile::tempdir().unwrap(), handles());
    let mut queue = SendQueue::new(handles.send_queue(), Some(spool(dir.path(), 8 << 20, 1 << 20)));
    feed(&handles, &mut queue, 1..31);
    assert_eq!(spooled(&mut queue), Vec::<u64>::new());
    queue.spool_all();
    assert_eq!(spooled(&mut queue), (1..=30).collect::<Vec<_>>());
    assert_eq!(handles.counters.dropped.load(Ordering::Relaxed), 0);
}

/// A server that takes the connection and says nothing more; gives its port and how many connections there were.
fn silent_server() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, connections) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let count = connections.clone();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::Relaxed);
            // CONNACK of MQTT 5: success, no properties.
            stream.write_all(&[0x20, 3, 0, 0, 0]).unwrap();
            open.push(stream);
        }
    });
    (port, connections)
}

#[test]
fn a_silent_server_is_left_for_another_one_at_once() {
    let ((a, at_a), (b, at_b)) = (silent_server(), silent_server());
    let text = format!(
        "name = \"n1\"\n[mqtt]\nurls = [\"mqtt://127.0.0.1:{a}\", \"mqtt://127.0.0.1:{b}\"]\nanswer_timeout = \"1s\"\n\
         keep_alive = \"10min\"\n"
    );
    let config = Config::parse(Path::new("a.toml"), &text, Path::new(".")).unwrap();
    let handles = AgentHandles::new(&config).unwrap();
    let mut queue = SendQueue::new(handles.send_queue(), None);
    let mut link = ServerLink::new(handles.sender(), config.mqtt.unwrap());
    feed(&handles, &mut queue, 1..4);
    queue.release_all();
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut pauses, mut places) = (0, Vec::new());
    while places.len() < 2 {
        assert!(Instant::now() < deadline, "{places:?}");
        link.turn(&mut queue);
        let place = handles.counters.server_place.load(Ordering::Relaxed);
        if link.in_flight() == 4 && places.last() != Some(&place) {
            places.push(place);
            let status = handles.status.link();
            assert_eq!((status.state, status.candidates.len()), ("connected", 2));
            let reason = status.reason.unwrap();
            let expected = if place == 1 { "the preferred one of 2" } else { "did not answer a ping within" };
            assert!(reason.contains(expected), "{reason}");
        }
        pauses += u32::from(handles.status.link().state == "waiting");
        let wait = link.due_in(&queue).unwrap_or(Duration::from_millis(10));
        link.wait(&mut queue, wait.min(Duration::from_millis(100)));
    }
    assert_eq!((places, pauses), (vec![1, 2], 0), "the preferred one first, and no pause before the next");
    assert_eq!(handles.counters.server_changes.load(Ordering::Relaxed), 1);
    let connections = at_a.load(Ordering::Relaxed) + at_b.load(Ordering::Relaxed);
    assert_eq!(connections, 2, "nothing else was tried");
    assert_eq!((queue.front().map(|batch| batch.seq), handles.counters.dropped.load(Ordering::Relaxed)), (None, 0));
}

#[test]
fn servers_that_all_stay_silent_are_tried_in_rounds_with_pauses() {
    let servers: Vec<_> = (0..3).map(|_| silent_server()).collect();
    let urls: Vec<String> = servers.iter().map(|(port, _)| format!("\"mqtt://127.0.0.1:{port}\"")).collect();
    let text = format!("name = \"n1\"\n[mqtt]\nurls = [{}]\n", urls.join(", "));
    let config = Config::parse(Path::new("a.toml"), &text, Path::new(".")).unwrap();
    let handles = AgentHandles::new(&config).unwrap();
    let mut queue = SendQueue::new(handles.send_queue(), None);
    let mut link = ServerLink::new(handles.sender(), config.mqtt.unwrap());
    link.ack_timeout = Duration::from_millis(20);
    feed(&handles, &mut queue, 1..4);
    queue.release_all();
    let connections = || servers.iter().map(|(_, count)| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let deadline = Instant::now() + Duration::from_secs(60);
    for round in 1..=2 {
        while !(handles.status.link().state == "waiting" && link.is_waiting()) {
            assert!(Instant::now() < deadline, "{:?}", connections());
            link.turn(&mut queue);
            let wait = link.due_in(&queue).unwrap_or(Duration::from_millis(10));
            link.wait(&mut queue, wait.min(Duration::from_millis(10)));
        }
        assert_eq!(connections(), [round; 3], "each once, then a pause");
        while link.is_waiting() {
            link.wait(&mut queue, Duration::from_millis(10));
        }
    }
}

#[test]
fn a_message_without_an_answer_is_sent_again_over_another_connection() {
    let (port, connections) = silent_server();
    let text = format!("name = \"n1\"\n[mqtt]\nurl = \"mqtt://127.0.0.1:{port}\"\n");
    let config = Config::parse(Path::new("a.toml"), &text, Path::new(".")).unwrap();
    let handles = AgentHandles::new(&config).unwrap();
    let mut queue = SendQueue::new(handles.send_queue(), None);
    let mut link = ServerLink::new(handles.sender(), config.mqtt.unwrap());
    link.ack_timeout = Duration::from_millis(100);
    feed(&handles, &mut queue, 1..4);
    queue.release_all();
    let deadline = Instant::now() + Duration::from_secs(60);
    while connections.load(Ordering::Relaxed) < 2 || link.in_flight() < 4 {
        assert!(Instant::now() < deadline, "{} connections", connections.load(Ordering::Relaxed));
        link.turn(&mut queue);
        let wait = link.due_in(&queue).unwrap_or(Duration::from_millis(10));
        link.wait(&mut queue, wait.min(Duration::from_millis(100)));
    }
    assert_eq!((queue.front().map(|batch| batch.seq), handles.counters.dropped.load(Ordering::Relaxed)), (None, 0));
}
