//! The API over Unix sockets: the file mode controls who may connect, and the kernel identifies the peer.
//!
//! Everybody who can open the administrator's socket is an administrator. The users' socket is open to everybody on the node, and the peer's uid
//! decides which jobs it may see.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};

use super::caller::ApiCaller;
use super::connection::serve;
use super::http;
use super::limits::{ACCEPT_PAUSE, REQUEST_TIMEOUT};
use super::permits::ClientKey;
use super::service::{ApiService, spawn};
use super::timeouts::TimedStream;
use crate::jobs::tracker::UserLookup;
use crate::jobs::{CallerIdentity, Role};

/// Owner and group may connect.
const MODE: u32 = 0o660;
const USERS_MODE: u32 = 0o666;
/// The stack of the thread that listens: 64 KiB.
const STACK_BYTES: usize = 64 << 10;
/// The uid of a peer whose uid does not exist here (user_namespaces(7)); it owns no job.
const OVERFLOW_UID: u32 = 65_534;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketKind {
    Admin,
    Users,
}

impl SocketKind {
    fn setting(self) -> &'static str {
        match self {
            SocketKind::Admin => "[api] socket",
            SocketKind::Users => "[jobs] socket",
        }
    }
}

pub(super) fn start(path: &Path, kind: SocketKind, service: Arc<ApiService>) -> anyhow::Result<()> {
    let listener = listen(path, kind)?;
    let listening = move || {
        for stream in listener.incoming() {
            if service.is_stopped() {
                return;
            }
            match stream {
                Ok(stream) => accept(stream, kind, &service),
                // Usually too many open files: not to be retried at once.
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    };
    let name = if kind == SocketKind::Admin { "api-unix" } else { "api-users" };
    std::thread::Builder::new()
        .name(name.into())
        .stack_size(STACK_BYTES)
        .spawn(listening)
        .with_context(|| kind.setting())?;
    Ok(())
}

fn accept(stream: UnixStream, kind: SocketKind, service: &Arc<ApiService>) {
    let peer = peer(&stream);
    let (permits, key) = match (kind, &peer) {
        (SocketKind::Admin, _) => (&service.admins, ClientKey::All),
        (SocketKind::Users, Ok(credentials)) => (&service.users, ClientKey::Uid(credentials.uid)),
        // The owner is unknown.
        (SocketKind::Users, Err(_)) => return,
    };
    let Some(permit) = permits.take(key) else {
        return match &peer {
            Ok(credentials) => service.refused(&format_args!("uid {}", credentials.uid)),
            Err(_) => service.refused(&"an unknown process"),
        };
    };
    spawn(service, move |service| {
        let _permit = permit;
        connection(stream, kind, peer, service);
    });
}

/// Listens. Replaces the socket of a killed agent, but not that of a running one, and no other file.
fn listen(path: &Path, kind: SocketKind) -> anyhow::Result<UnixListener> {
    let (setting, shown) = (kind.setting(), path.display());
    if let Ok(metadata) = fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            bail!("{setting}: {shown} exists and is not a socket; remove it or configure another path");
        }
        if UnixStream::connect(path).is_ok() {
            bail!("{setting}: another agent listens on {shown}; stop it or configure another path");
        }
        fs::remove_file(path).with_context(|| format!("{setting}: cannot remove the old {shown}"))?;
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::create_dir_all(dir).with_context(|| format!("{setting}: cannot make the directory {}", dir.display()))?;
    }
    let mode = if kind == SocketKind::Admin { MODE } else { USERS_MODE };
    let listener = UnixListener::bind(path).with_context(|| format!("{setting}: cannot listen on {shown}"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("{setting}: mode of {shown}"))?;
    Ok(listener)
}

fn connection(stream: UnixStream, kind: SocketKind, peer: io::Result<libc::ucred>, service: &ApiService) {
    let prepared =
        stream.set_read_timeout(Some(http::TIMEOUT)).and_then(|()| stream.set_write_timeout(Some(http::TIMEOUT)));
    if prepared.is_err() {
        return;
    }
    let who = who(kind, peer.ok());
    if kind == SocketKind::Users {
        match first_byte(&stream) {
            Some(byte) if byte.is_ascii_lowercase() => return service.lines.take(stream, who),
            Some(_) => {}
            None => return,
        }
    }
    serve(&mut TimedStream::new(stream, REQUEST_TIMEOUT), service, &ApiCaller::Known(who));
}

/// The identity of a peer.
fn who(kind: SocketKind, peer: Option<libc::ucred>) -> CallerIdentity {
    let Some(libc::ucred { pid, uid, gid }) = peer else {
        return CallerIdentity::admin("an unknown process");
    };
    // May wait for a directory service: this runs on the thread of the connection.
    let lookup = (uid != OVERFLOW_UID).then_some(UserLookup::Uid(uid));
    let user = lookup.and_then(|lookup| lookup.run()).map(|(_, name)| name);
    let named = user.as_deref().map_or(String::new(), |user| format!(" ({user})"));
    let name = format!("uid {uid}{named} gid {gid} pid {pid}");
    let role = if kind == SocketKind::Admin || uid == 0 { Role::Admin } else { Role::User };
    CallerIdentity { name, role, uid: Some(uid).filter(|uid| *uid != OVERFLOW_UID), user, pid: Some(pid) }
}

/// The first byte that the peer sends, which stays unread; `None` if none comes in time.
fn first_byte(stream: &UnixStream) -> Option<u8> {
    let mut byte = 0u8;
    // SAFETY: the buffer has one byte, as given; the descriptor is open.
    let count = unsafe { libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
    (count == 1).then_some(byte)
}

/// The kernel's identification of the peer.
fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer has the given size; the descriptor is open.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut length,
        )
    };
    if result == 0 { Ok(credentials) } else { Err(io::Error::last_os_error()) }
}
