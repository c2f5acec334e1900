//! The API over a Unix socket: the file's mode says who may connect, the kernel says who did.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};

use super::{Caller, Service, http, serve, spawn};

/// Who may connect: the owner and the group.
const MODE: u32 = 0o660;
/// The stack of the thread that listens: 64 KiB.
const STACK_BYTES: usize = 64 << 10;

pub(super) fn start(path: &Path, service: Arc<Service>) -> anyhow::Result<()> {
    let listener = listen(path)?;
    let listening = move || {
        for stream in listener.incoming() {
            if service.is_stopped() {
                return;
            }
            if let Ok(stream) = stream {
                spawn(&service, move |service| connection(stream, service));
            }
        }
    };
    std::thread::Builder::new()
        .name("api-unix".into())
        .stack_size(STACK_BYTES)
        .spawn(listening)
        .context("[api] socket")?;
    Ok(())
}

/// Listens; takes the place of a socket that a killed agent left behind, never that of a living one or of another file.
fn listen(path: &Path) -> anyhow::Result<UnixListener> {
    let shown = path.display();
    if let Ok(metadata) = fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            bail!("[api] socket: {shown} is there and is no socket; remove it or configure another path");
        }
        if UnixStream::connect(path).is_ok() {
            bail!("[api] socket: another agent listens on {shown}; stop it or configure another path");
        }
        fs::remove_file(path).with_context(|| format!("[api] socket: cannot remove the old {shown}"))?;
    }
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::create_dir_all(dir)
            .with_context(|| format!("[api] socket: cannot make the directory {}", dir.display()))?;
    }
    let listener = UnixListener::bind(path).with_context(|| format!("[api] socket: cannot listen on {shown}"))?;
    fs::set_permissions(path, fs::Permissions::from_mode(MODE))
        .with_context(|| format!("[api] socket: mode of {shown}"))?;
    Ok(listener)
}

fn connection(mut stream: UnixStream, service: &Service) {
    let prepared =
        stream.set_read_timeout(Some(http::PATIENCE)).and_then(|()| stream.set_write_timeout(Some(http::PATIENCE)));
    if prepared.is_err() {
        return;
    }
    let name = match peer(&stream) {
        Ok(credentials) => format!("uid {} gid {} pid {}", credentials.uid, credentials.gid, credentials.pid),
        Err(_) => "an unknown process".to_owned(),
    };
    serve(&mut stream, service, &Caller { name, token: None });
}

/// Who is at the other end.
fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the place for the result is as long as said; the descriptor is open.
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
