//! The API over HTTPS, for callers that show the token.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::Context;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use wholegrain_transport::tls::{self, Identity};

use super::{Caller, Service, http, serve, spawn};
use crate::config::HttpsConfig;

/// The stack of the thread that listens: 64 KiB.
const STACK_BYTES: usize = 64 << 10;

pub(super) fn start(config: &HttpsConfig, service: Arc<Service>) -> anyhow::Result<SocketAddr> {
    let server = tls::server_config(Identity { cert: &config.cert, key: &config.key }, None).context("[api] cert")?;
    let listener = TcpListener::bind(config.listen)
        .with_context(|| format!("[api] listen: cannot listen on {}; is another agent running?", config.listen))?;
    let address = listener.local_addr().context("[api] listen")?;
    let token: Arc<str> = config.token.as_str().into();
    let listening = move || {
        for stream in listener.incoming() {
            if service.is_stopped() {
                return;
            }
            if let Ok(stream) = stream {
                let (server, token) = (server.clone(), token.clone());
                spawn(&service, move |service| connection(stream, server, token, service));
            }
        }
    };
    std::thread::Builder::new()
        .name("api-https".into())
        .stack_size(STACK_BYTES)
        .spawn(listening)
        .context("[api] listen")?;
    Ok(address)
}

fn connection(stream: TcpStream, server: Arc<ServerConfig>, token: Arc<str>, service: &Service) {
    let prepared =
        stream.set_read_timeout(Some(http::PATIENCE)).and_then(|()| stream.set_write_timeout(Some(http::PATIENCE)));
    let Ok(name) = stream.peer_addr().map(|address| address.to_string()) else { return };
    if prepared.is_err() {
        return;
    }
    let Ok(tls) = ServerConnection::new(server) else { return };
    let mut stream = StreamOwned::new(tls, stream);
    serve(&mut stream, service, &Caller { name, token: Some(token) });
    stream.conn.send_close_notify();
    let _ = stream.conn.complete_io(&mut stream.sock);
}
