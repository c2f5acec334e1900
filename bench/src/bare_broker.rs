//! The yardstick of `server-ingest`: a program that takes publishes off its sockets and acknowledges them, and does nothing else: one thread,
//! `epoll`, one read and one write a message. Its cost is the kernel's, and on a loopback no MQTT server costs less.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::BytesMut;
use wholegrain_transport::mqtt::{self, Ack, ConnAck, Packet, Properties, ReasonCode, Version};

use crate::load::poll::Poller;

/// The largest packet taken.
const PACKET_BYTES_MAX: usize = 16 << 20;
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// The listener's token; connections count up from the next.
const LISTENER: usize = 0;
const WAIT_MAX: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct BareBrokerOptions {
    /// The port to listen on.
    #[arg(long)]
    port: u16,
}

/// Runs until it is killed.
pub fn run(options: &BareBrokerOptions) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("0.0.0.0", options.port)).context("listening")?;
    listener.set_nonblocking(true)?;
    let mut poller = Poller::new()?;
    poller.add(&listener, LISTENER)?;
    let mut clients: HashMap<usize, PublishingClient> = HashMap::new();
    let (mut ready, mut next, mut buffer) = (Vec::new(), LISTENER + 1, vec![0; READ_BYTES]);
    loop {
        poller.wait(WAIT_MAX, &mut ready)?;
        for token in &ready {
            if let Some(client) = clients.get_mut(token) {
                // Clients that left, or send other packets, are ignored.
                if client.serve(&mut buffer).is_err() {
                    clients.remove(token);
                }
                continue;
            }
            while let Ok((tcp, _)) = listener.accept() {
                tcp.set_nonblocking(true)?;
                tcp.set_nodelay(true)?;
                poller.add(&tcp, next)?;
                clients.insert(
                    next,
                    PublishingClient { tcp, version: None, input: BytesMut::new(), output: BytesMut::new() },
                );
                next += 1;
            }
        }
    }
}

struct PublishingClient {
    tcp: TcpStream,
    version: Option<Version>,
    input: BytesMut,
    output: BytesMut,
}

impl PublishingClient {
    /// Reads and acknowledges. Acknowledgements that a full socket does not accept are dropped: the client has a window.
    fn serve(&mut self, buffer: &mut [u8]) -> anyhow::Result<()> {
        match self.tcp.read(buffer) {
            Ok(0) => bail!("closed"),
            Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        while let Some(packet) = mqtt::decode(&mut self.input, self.version, PACKET_BYTES_MAX)? {
            let answer = match packet {
                Packet::Connect(connect) => {
                    self.version = Some(connect.version);
                    let (reason, properties) = (ReasonCode::SUCCESS, Properties::new());
                    Packet::ConnAck(ConnAck { session_present: false, reason, properties })
                }
                Packet::Publish(publish) => match publish.packet_id {
                    Some(packet_id) => Packet::PubAck(Ack::success(packet_id)),
                    None => continue,
                },
                other => bail!("nothing to say to {}", other.packet_type().name()),
            };
            mqtt::encode(&answer, self.version.unwrap_or(Version::V5), &mut self.output)?;
        }
        if !self.output.is_empty() {
            self.tcp.write_all(&self.output)?;
            self.output.clear();
        }
        Ok(())
    }
}
