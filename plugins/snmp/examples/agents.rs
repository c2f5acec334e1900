//! The cost of polling 1,000 agents every 10 s, beside a bare loop of the same system calls.
//!
//! `cargo run --release -p wholegrain-plugin-snmp --example agents [seconds]`. Another process plays the agents, on addresses of 127.0.0.0/8.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use wholegrain_plugin_snmp::SOURCE;
use wholegrain_plugin_snmp::ber::{self, BerReader, Oid};
use wholegrain_plugin_snmp::message::RESPONSE;
use wholegrain_source_testkit::{PeerProcess, PollCost, SampledSource, configure_plugin, cpu_time};

const AGENTS: usize = 1000;
const INTERVAL_S: u64 = 10;
const OBJECTS: usize = 20;

fn main() {
    if PeerProcess::is_this() {
        return peers();
    }
    let seconds = std::env::args().nth(1).and_then(|seconds| seconds.parse().ok()).unwrap_or(60);
    measure(Duration::from_secs(seconds));
}

/// Plays all agents: one socket each, on the same port.
fn peers() {
    let first = UdpSocket::bind("127.0.1.1:0").expect("a socket");
    let port = first.local_addr().expect("an address").port();
    let others = (1..AGENTS).map(|agent| UdpSocket::bind((address(agent), port)).expect("a socket for each agent"));
    let sockets: Vec<UdpSocket> = std::iter::once(first).chain(others).collect();
    let mut polls: Vec<libc::pollfd> = sockets
        .iter()
        .map(|socket| libc::pollfd { fd: std::os::fd::AsRawFd::as_raw_fd(socket), events: libc::POLLIN, revents: 0 })
        .collect();
    println!("{port}");
    let mut buffer = [0; 4096];
    let start = Instant::now();
    loop {
        // SAFETY: the array of descriptors lives during the call, and its length is given.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, -1) };
        for (socket, _) in sockets.iter().zip(&polls).filter(|(_, poll)| poll.revents != 0) {
            if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let answer = answer(&buffer[..length], start.elapsed());
                let _ = socket.send_to(&answer, from);
            }
        }
    }
}

fn address(agent: usize) -> String {
    format!("127.0.{}.{}", 1 + agent / 250, 1 + agent % 250)
}

/// A Counter64 for each name.
fn answer(request: &[u8], since: Duration) -> Vec<u8> {
    let mut message = BerReader::new(request).inner(ber::SEQUENCE).expect("a request");
    let _version = message.integer();
    let _community = message.any();
    let (_, content) = message.any().expect("a PDU");
    let mut pdu = BerReader::new(content);
    let id = pdu.integer().expect("a number");
    let (_, _) = (pdu.integer(), pdu.integer());
    let (mut list, mut names): (_, Vec<Oid>) = (pdu.inner(ber::SEQUENCE).expect("names"), Vec::new());
    while !list.is_empty() {
        names.push(list.inner(ber::SEQUENCE).expect("a name").oid().expect("an identifier"));
    }
    let mut out = Vec::new();
    ber::put(&mut out, ber::SEQUENCE, |out| {
        ber::put_integer(out, ber::INTEGER, 1);
        ber::put(out, ber::OCTET_STRING, |out| out.extend_from_slice(b"public"));
        ber::put(out, RESPONSE, |out| {
            [id, 0, 0].iter().for_each(|number| ber::put_integer(out, ber::INTEGER, *number));
            ber::put(out, ber::SEQUENCE, |out| {
                for (at, name) in names.iter().enumerate() {
                    ber::put(out, ber::SEQUENCE, |out| {
                        ber::put_oid(out, name);
                        // The first name is sysUpTime.
                        let tag = if at == 0 { 0x43 } else { 0x46 };
                        ber::put_integer(out, tag, (since.as_millis() / 10) as i64);
                    });
                }
            });
        });
    });
    out
}

fn measure(length: Duration) {
    let peers = PeerProcess::start();
    let port: u16 = peers.line.parse().expect("the port");
    let objects: String =
        (1..=OBJECTS).map(|at| format!("{{ oid = \"1.3.6.1.4.1.99999.{at}.0\", name = \"o{at}\" }},")).collect();
    let text = format!(
        "[plugins.snmp]\ninterval = \"{INTERVAL_S}s\"\nport = {port}\nfirst_answers = \"30s\"\n\
         [[plugins.snmp.device]]\nhosts = [\"127.0.[1-4].[1-250]\"]\n\
         [[plugins.snmp.device.group]]\nname = \"all\"\nobject = [{objects}]\n"
    );
    let mut source = SampledSource::of(configure_plugin(&SOURCE, "".as_ref(), &text).expect("good settings"));
    assert_eq!(source.groups.len(), AGENTS + 1, "a group for each agent, and the status: {:?}", source.notes);
    let cost = PollCost::measure(&mut source, "snmp", length, Duration::from_secs(INTERVAL_S));
    println!("{AGENTS} agents every {INTERVAL_S} s, {OBJECTS} objects each: {cost}");
    let polls = cost.polls.max(1) as usize;
    let bare = bare(port, polls).as_secs_f64();
    println!(
        "the system calls alone:      {:.2} % of a core, {:.1} us a poll",
        100.0 * bare / cost.wall.as_secs_f64(),
        1e6 * bare / polls as f64
    );
}

/// The CPU time of `polls` exchanges with the calls of a poll: socket, bind, connect, epoll, send, receive, close.
fn bare(port: u16, polls: usize) -> Duration {
    let mut request = Vec::new();
    let names: Vec<Oid> = (0..=OBJECTS as u32).map(|at| Oid::new([1, 3, 6, 1, 4, 1, 99999, at, 0])).collect();
    let pdu = wholegrain_plugin_snmp::message::PduRequest { kind: 0xa0, id: 1, repetitions: 0, names: &names };
    wholegrain_plugin_snmp::message::put_community_message(&mut request, 1, b"public", &pdu);
    // SAFETY: the calls have valid descriptors, and buffers that live during them.
    unsafe {
        let epoll = libc::epoll_create1(0);
        let start = cpu_time();
        let mut buffer = [0; 4096];
        for poll in 0..polls {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            socket.connect((address(poll % AGENTS), port)).expect("an address");
            let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event);
            socket.send(&request).expect("sent");
            libc::epoll_wait(epoll, &mut event, 1, 1000);
            let _ = socket.recv(&mut buffer);
        }
        libc::close(epoll);
        cpu_time() - start
    }
}
