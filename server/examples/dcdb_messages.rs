//! CPU time of the server for each message with one reading of DCDB's, from the socket to fsync, without the publisher's own.
//!
//! `cargo run --release -p wholegrain-server --example dcdb_messages [MESSAGES] [SENSORS]`

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use wholegrain_server::{ServerConfig, run};
use wholegrain_transport::mqtt::{self, Connect, Packet, Properties, PublishParts, QoS, Version};

/// Messages in flight at QoS 1: the server's default limit.
const WINDOW: usize = 64;
/// How many are sent at once at QoS 0.
const BURST: usize = 256;

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (messages, sensors) = (next(500_000)?, next(1000)?);
    let dir = std::env::temp_dir().join(format!("wholegrain-dcdb-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let text = "[mqtt]\nlisten = \"127.0.0.1:0\"\ntls_listen = \"off\"\nanonymous = true\n[http]\nlisten = \"off\"\n";
    let config = ServerConfig::from_text("dcdb_messages", text, &dir)?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (ready, is_ready) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        run(config, |addresses| ready.send(*addresses).unwrap_or_default(), async { drop(stopped.await) })
    });
    let address = is_ready.recv()?.mqtt.ok_or_else(|| anyhow::anyhow!("the server does not listen"))?;
    let topics: Vec<String> =
        (0..sensors).map(|i| format!("/n1/rack{:02}/board{}/sensor{i:05}", i % 40, i % 8)).collect();
    for qos in [QoS::AtLeastOnce, QoS::AtMostOnce] {
        let mut client = Client::connect(address)?;
        // Sensors are registered before the clock runs.
        client.send(&topics, topics.len(), QoS::AtLeastOnce, 0)?;
        let (began, all, own) = (Instant::now(), cpu(libc::RUSAGE_SELF), cpu(libc::RUSAGE_THREAD));
        client.send(&topics, messages, qos, 1)?;
        let spent = (cpu(libc::RUSAGE_SELF) - all).saturating_sub(cpu(libc::RUSAGE_THREAD) - own);
        println!(
            "QoS {}: {:.2} us CPU of the server a message, {:.0} messages/s through one connection",
            qos as u8,
            spent.as_nanos() as f64 / 1e3 / messages as f64,
            messages as f64 / began.elapsed().as_secs_f64()
        );
    }
    drop(stop);
    server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

struct Client {
    stream: TcpStream,
    input: BytesMut,
    last_id: u16,
}

impl Client {
    fn connect(address: std::net::SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut client = Self { stream, input: BytesMut::new(), last_id: 0 };
        let mut out = BytesMut::new();
        mqtt::encode(&Packet::Connect(Box::new(Connect::new(Version::V311, "n1", 0))), Version::V311, &mut out)?;
        client.stream.write_all(&out)?;
        client.packet()?;
        Ok(client)
    }

    fn packet(&mut self) -> anyhow::Result<Packet> {
        loop {
            if let Some(packet) = mqtt::decode(&mut self.input, Some(Version::V311), 1 << 20)? {
                return Ok(packet);
            }
            let mut chunk = [0; 16 << 10];
            let count = self.stream.read(&mut chunk)?;
            anyhow::ensure!(count > 0, "the server closed the connection");
            self.input.extend_from_slice(&chunk[..count]);
        }
    }

    fn send(&mut self, topics: &[String], messages: usize, qos: QoS, round: i64) -> anyhow::Result<()> {
        let start = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as i64;
        let (mut out, mut in_flight) = (BytesMut::new(), 0);
        for at in 0..messages {
            // The acknowledgement of the last message means that all before it are durable.
            let qos = if at + 1 == messages { QoS::AtLeastOnce } else { qos };
            let mut payload = [0; 16];
            payload[..8].copy_from_slice(&(at as i64 * 7).to_le_bytes());
            payload[8..].copy_from_slice(&(start + round + at as i64).to_le_bytes());
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let packet_id = (qos == QoS::AtLeastOnce).then_some(self.last_id);
            let properties = &Properties::new();
            let topic = &topics[at % topics.len()];
            let parts =
                PublishParts { dup: false, qos, retain: false, topic, packet_id, payload: &payload, properties };
            mqtt::encode_publish(&parts, Version::V311, &mut out)?;
            in_flight += usize::from(qos == QoS::AtLeastOnce);
            let full = if qos == QoS::AtLeastOnce { in_flight >= WINDOW } else { at % BURST == 0 };
            if full || at + 1 == messages {
                self.stream.write_all(&out)?;
                out.clear();
                for _ in 0..std::mem::take(&mut in_flight) {
                    let packet = self.packet()?;
                    anyhow::ensure!(matches!(packet, Packet::PubAck(_)), "no acknowledgement but {packet:?}");
                }
            }
        }
        Ok(())
    }
}

/// CPU time of this process or thread.
fn cpu(who: libc::c_int) -> Duration {
    // SAFETY: all zeros is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call, which only writes it.
    unsafe { libc::getrusage(who, &mut usage) };
    let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
