//! A scripted broker.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wholegrain_model::{JobRecord, Schema, SchemaHash};
use wholegrain_transport::mqtt::{self, Ack, ConnAck, Packet, Properties, Publish, QoS, ReasonCode, SubAck, Version};
use wholegrain_transport::payload::read_header;
use wholegrain_transport::topics::Topic;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    pub boot: u64,
    pub seq: u64,
    /// The number of earlier arrivals.
    pub before: u32,
}

type Answer = Box<dyn Fn(&Came) -> ReasonCode + Send + Sync>;
type JobAnswer = Box<dyn Fn(&JobRecord) -> Option<ReasonCode> + Send + Sync>;

/// The state of the scripted broker.
pub struct Script {
    answer: Answer,
    /// Whether batches and everything after them wait for their schema, as at a Wholegrain server.
    strict: bool,
    /// While set, nothing is acknowledged.
    pub silent: AtomicBool,
    pub came: Mutex<Vec<Came>>,
    /// Numbers that were acknowledged as stored.
    pub stored: Mutex<HashSet<(u64, u64)>>,
    known: Mutex<HashSet<SchemaHash>>,
    /// Job records in the order of arrival.
    pub jobs: Mutex<Vec<JobRecord>>,
    /// The acknowledgement of a record; `None` ends the connection.
    pub job_answer: Mutex<JobAnswer>,
}

impl Script {
    /// Starts a broker with this script and returns its port.
    pub fn start(strict: bool, answer: impl Fn(&Came) -> ReasonCode + Send + Sync + 'static) -> (u16, Arc<Self>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = Arc::new(Self {
            answer: Box::new(answer),
            strict,
            silent: AtomicBool::new(false),
            came: Mutex::default(),
            stored: Mutex::default(),
            known: Mutex::default(),
            jobs: Mutex::default(),
            job_answer: Mutex::new(Box::new(|_| Some(ReasonCode::SUCCESS))),
        });
        let theirs = script.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let script = theirs.clone();
                std::thread::spawn(move || Connection::new(stream).serve(&script));
            }
        });
        (port, script)
    }

    /// The number of arrivals of each batch.
    pub fn counts(&self) -> HashMap<(u64, u64), u32> {
        let mut counts = HashMap::new();
        for came in self.came.lock().unwrap().iter() {
            *counts.entry((came.boot, came.seq)).or_default() += 1;
        }
        counts
    }

    pub fn has(&self, boot: u64, seq: u64) -> bool {
        self.stored.lock().unwrap().contains(&(boot, seq))
    }
}

struct Connection {
    stream: TcpStream,
    inbox: BytesMut,
    waiting: VecDeque<Publish>,
    asked: HashSet<SchemaHash>,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        Self { stream, inbox: BytesMut::new(), waiting: VecDeque::new(), asked: HashSet::new() }
    }

    fn send(&mut self, packet: Packet) {
        let mut out = BytesMut::new();
        mqtt::encode(&packet, Version::V5, &mut out).unwrap();
        let _ = self.stream.write_all(&out);
    }

    fn serve(&mut self, script: &Script) {
        let mut version = None;
        let mut buffer = [0; 16384];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => self.inbox.extend_from_slice(&buffer[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
            while let Some(packet) = mqtt::decode(&mut self.inbox, version, 1 << 24).unwrap() {
                version = Some(Version::V5);
                self.take(packet, script);
            }
            self.answer(script);
        }
    }

    fn take(&mut self, packet: Packet, script: &Script) {
        let properties = Properties::new();
        match packet {
            Packet::Connect(_) => {
                self.send(Packet::ConnAck(ConnAck { session_present: false, reason: ReasonCode::SUCCESS, properties }));
            }
            Packet::Subscribe(subscribe) => {
                let (packet_id, reasons) = (subscribe.packet_id, vec![ReasonCode::GRANTED_QOS_1]);
                self.send(Packet::SubAck(SubAck { packet_id, reasons, properties }));
            }
            Packet::PingReq => self.send(Packet::PingResp),
            Packet::Publish(publish) => {
                if let Some(Topic::Job { agent }) = Topic::parse(publish.topic.as_str()) {
                    let record: JobRecord = serde_json::from_slice(&publish.payload).unwrap();
                    assert_eq!((agent, publish.qos, publish.retain), (&*record.node, QoS::AtLeastOnce, false));
                    script.jobs.lock().unwrap().push(record);
                } else if let Some(Topic::Schema { .. }) = Topic::parse(publish.topic.as_str()) {
                    script.known.lock().unwrap().insert(Schema::decode(&publish.payload).unwrap().hash());
                } else {
                    let (header, _) = read_header(&publish.payload).unwrap();
                    let mut came = script.came.lock().unwrap();
                    let before = came.iter().filter(|c| (c.boot, c.seq) == (header.boot, header.seq)).count() as u32;
                    came.push(Came { boot: header.boot, seq: header.seq, before });
                }
                self.waiting.push_back(publish);
            }
            _ => {}
        }
    }

    /// Acknowledges in order, as far as the script allows.
    fn answer(&mut self, script: &Script) {
        while !script.silent.load(Ordering::SeqCst)
            && let Some(publish) = self.waiting.front().cloned()
        {
            let reason = match Topic::parse(publish.topic.as_str()) {
                Some(Topic::Schema { .. }) => ReasonCode::SUCCESS,
                Some(Topic::Job { .. }) => {
                    let record = serde_json::from_slice(&publish.payload).unwrap();
                    let answer = (script.job_answer.lock().unwrap())(&record);
                    let Some(reason) = answer else {
                        let _ = self.stream.shutdown(std::net::Shutdown::Both);
                        return;
                    };
                    reason
                }
                _ => {
                    let (header, _) = read_header(&publish.payload).unwrap();
                    if script.strict && !script.known.lock().unwrap().contains(&header.schema) {
                        self.ask_for(header.schema);
                        // A later message may be the schema: it is handled first, as by the server.
                        let Some(at) = self.waiting.iter().position(|later| later.topic.as_str().contains("/schema/"))
                        else {
                            return;
                        };
                        let schema = self.waiting.remove(at).unwrap();
                        self.acknowledge(&schema, ReasonCode::SUCCESS);
                        continue;
                    }
                    let came = script.came.lock().unwrap().clone();
                    let is_it = |came: &&Came| (came.boot, came.seq) == (header.boot, header.seq);
                    let last = came.iter().rev().find(is_it).unwrap();
                    let reason = (script.answer)(last);
                    if !reason.is_error() {
                        script.stored.lock().unwrap().insert((header.boot, header.seq));
                    }
                    reason
                }
            };
            self.waiting.pop_front();
            self.acknowledge(&publish, reason);
        }
    }

    fn ask_for(&mut self, hash: SchemaHash) {
        if self.asked.insert(hash) {
            self.send(Packet::Publish(Publish {
                dup: false,
                qos: QoS::AtMostOnce,
                retain: false,
                topic: "wholegrain/v1/need/n1".into(),
                packet_id: None,
                payload: Bytes::copy_from_slice(&hash.0),
                properties: Properties::new(),
            }));
        }
    }

    fn acknowledge(&mut self, publish: &Publish, reason: ReasonCode) {
        let packet_id = publish.packet_id.unwrap();
        self.send(Packet::PubAck(Ack { packet_id, reason, properties: Properties::new() }));
    }
}
