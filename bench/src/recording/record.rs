//! Records the messages of an agent: this program takes the place of its server.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use bytes::BytesMut;
use wholegrain_transport::mqtt::{self, Ack, ConnAck, Packet, Properties, ReasonCode, SubAck, Version};

use super::{create, put_message};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
const PACKET_BYTES_MAX: usize = 32 << 20;
/// How long the agent may send nothing.
const SILENCE_MAX: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub struct RecordOptions {
    /// The file of the recording.
    #[arg(long)]
    file: PathBuf,
}

/// Prints the port on which it waits for the agent, and records until the agent ends the connection.
pub fn run(options: &RecordOptions) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listening for the agent")?;
    println!("{}", listener.local_addr()?.port());
    let (stream, _) = listener.accept().context("waiting for the agent")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    capture(stream, &options.file)
}

/// Acknowledges everything until the other side closes the connection, and writes each publish to the file.
fn capture(mut stream: TcpStream, file: &Path) -> anyhow::Result<()> {
    let part = file.with_extension("part");
    let mut out = create(&part)?;
    let (mut input, mut output, mut version) = (BytesMut::new(), BytesMut::new(), None);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => input.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("reading from the agent"),
        }
        while let Some(packet) = mqtt::decode(&mut input, version, PACKET_BYTES_MAX)? {
            if let Packet::Connect(connect) = &packet {
                version = Some(connect.version);
            }
            if let Packet::Publish(publish) = &packet {
                put_message(publish.topic.as_str(), &publish.payload, &mut out)?;
            }
            if let Some(answer) = answer(packet) {
                mqtt::encode(&answer, version.unwrap_or(Version::V5), &mut output)?;
            }
        }
        // An agent that stops may close its side first.
        if stream.write_all(&output.split()).is_err() {
            break;
        }
    }
    out.flush()?;
    Ok(std::fs::rename(&part, file)?)
}

/// The answer of a server that accepts everything.
fn answer(packet: Packet) -> Option<Packet> {
    let properties = Properties::new();
    match packet {
        Packet::Connect(_) => {
            Some(Packet::ConnAck(ConnAck { session_present: false, reason: ReasonCode::SUCCESS, properties }))
        }
        Packet::Publish(publish) => publish.packet_id.map(|id| Packet::PubAck(Ack::success(id))),
        Packet::Subscribe(subscribe) => {
            let reasons = vec![ReasonCode::GRANTED_QOS_1; subscribe.filters.len()];
            Some(Packet::SubAck(SubAck { packet_id: subscribe.packet_id, reasons, properties }))
        }
        Packet::PingReq => Some(Packet::PingResp),
        _ => None,
    }
}
