//! The API over HTTPS, for callers that show a token.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use wholegrain_transport::tls::{self, Identity};

use super::caller::ApiCaller;
use super::connection::serve;
use super::permits::ClientKey;
use super::service::{ApiService, spawn};
use super::timeouts::{TimedConnection, TimedStream};
use super::tokens::{AcceptedTokens, TokenFile};
use super::unauthenticated::{ClientAdmission, UNAUTHENTICATED_TIMEOUT};
use super::{http, limits};
use crate::config::HttpsConfig;

/// The stack of the thread that listens: 64 KiB.
const STACK_BYTES: usize = 64 << 10;

pub(super) fn start(config: &HttpsConfig, service: Arc<ApiService>) -> anyhow::Result<SocketAddr> {
    let server = tls::server_config(Identity { cert: &config.cert, key: &config.key }, None).context("[api] cert")?;
    let listener = TcpListener::bind(config.listen)
        .with_context(|| format!("[api] listen: cannot listen on {}; is another agent running?", config.listen))?;
    let address = listener.local_addr().context("[api] listen")?;
    let tokens = match &config.tokens_file {
        Some(path) => {
            Some(TokenFile::open(path).map_err(|why| anyhow!("[api] tokens_file: {}: {why}", path.display()))?)
        }
        None => None,
    };
    let accepted = Arc::new(AcceptedTokens::new(config.token.clone(), tokens));
    let listening = move || {
        for stream in listener.incoming() {
            if service.is_stopped() {
                return;
            }
            let Ok(stream) = stream else {
                std::thread::sleep(limits::ACCEPT_PAUSE);
                continue;
            };
            let Ok(peer) = stream.peer_addr() else { continue };
            let welcome = service.unauthenticated.admit(ClientKey::address(peer.ip()), &stream);
            let refused = welcome.as_ref().map_or(1, |(_, closed)| *closed);
            (0..refused).for_each(|_| service.refused(&peer.ip()));
            let Some((admission, _)) = welcome else { continue };
            let (server, accepted) = (server.clone(), accepted.clone());
            spawn(&service, move |service| connection(stream, peer, server, accepted, admission, service));
        }
    };
    std::thread::Builder::new()
        .name("api-https".into())
        .stack_size(STACK_BYTES)
        .spawn(listening)
        .context("[api] listen")?;
    Ok(address)
}

impl TimedConnection for StreamOwned<ServerConnection, TimedStream<TcpStream>> {
    fn within(&mut self, time: std::time::Duration) {
        self.sock.within(time);
    }
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    server: Arc<ServerConfig>,
    tokens: Arc<AcceptedTokens>,
    admission: ClientAdmission,
    service: &ApiService,
) {
    let prepared =
        stream.set_read_timeout(Some(http::TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(http::TIMEOUT)));
    if prepared.is_err() {
        return;
    }
    let Ok(tls) = ServerConnection::new(server) else { return };
    let mut stream = StreamOwned::new(tls, TimedStream::new(stream, UNAUTHENTICATED_TIMEOUT));
    let admission = RefCell::new(admission);
    serve(&mut stream, service, &ApiCaller::ByToken { peer: peer.ip().to_string(), tokens, admission });
    stream.conn.send_close_notify();
    let _ = stream.conn.complete_io(&mut stream.sock);
}
