//! The API over HTTPS, for callers that show a token.

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use wholegrain_model::Timestamp;
use wholegrain_transport::tls::{self, Identity};

use super::permits::ClientKey;
use super::timeouts::{TimedConnection, TimedStream};
use super::tokens::TokenFile;
use super::unauthenticated::{ClientAdmission, UNAUTHENTICATED_TIMEOUT};
use super::{ApiCaller, ApiService, http, same, serve, spawn};
use crate::config::HttpsConfig;
use crate::jobs::{CallerIdentity, Role};

/// The stack of the thread that listens: 64 KiB.
const STACK_BYTES: usize = 64 << 10;

/// The tokens that count.
pub(super) struct AcceptedTokens {
    token: Option<String>,
    tokens: Option<TokenFile>,
}

impl AcceptedTokens {
    /// Whose token was shown, or why it is refused.
    pub fn who(&self, token: Option<&str>, peer: &str, now: Timestamp) -> Result<CallerIdentity, String> {
        let wanted = "send a token: `Authorization: Bearer TOKEN`, with what the agent's token_file has or one of those \
                      in its tokens_file";
        let Some(token) = token else { return Err(wanted.to_owned()) };
        if self.token.as_ref().is_some_and(|admin| same(admin.as_bytes(), token.as_bytes())) {
            return Ok(CallerIdentity {
                name: format!("the token of token_file ({peer})"),
                role: Role::Admin,
                uid: None,
                user: None,
                pid: None,
            });
        }
        let Some(tokens) = &self.tokens else { return Err(wanted.to_owned()) };
        tokens.check(token, peer, now).map_err(|bad| format!("{}; {wanted}", bad.why()))
    }
}

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
    let accepted = Arc::new(AcceptedTokens { token: config.token.clone(), tokens });
    let listening = move || {
        for stream in listener.incoming() {
            if service.is_stopped() {
                return;
            }
            let Ok(stream) = stream else {
                std::thread::sleep(super::ACCEPT_PAUSE);
                continue;
            };
            let Ok(peer) = stream.peer_addr() else { continue };
            let welcome = service.strangers.welcome(ClientKey::address(peer.ip()), &stream);
            let refused = welcome.as_ref().map_or(1, |(_, closed)| *closed);
            (0..refused).for_each(|_| service.refused(&peer.ip()));
            let Some((guest, _)) = welcome else { continue };
            let (server, accepted) = (server.clone(), accepted.clone());
            spawn(&service, move |service| connection(stream, peer, server, accepted, guest, service));
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
        self.sock.put_off(time);
    }
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    server: Arc<ServerConfig>,
    tokens: Arc<AcceptedTokens>,
    guest: ClientAdmission,
    service: &ApiService,
) {
    let prepared =
        stream.set_read_timeout(Some(http::TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(http::TIMEOUT)));
    if prepared.is_err() {
        return;
    }
    let Ok(tls) = ServerConnection::new(server) else { return };
    let mut stream = StreamOwned::new(tls, TimedStream::new(stream, UNAUTHENTICATED_TIMEOUT));
    let guest = RefCell::new(guest);
    serve(&mut stream, service, &ApiCaller::Stranger { peer: peer.ip().to_string(), tokens, guest });
    stream.conn.send_close_notify();
    let _ = stream.conn.complete_io(&mut stream.sock);
}
