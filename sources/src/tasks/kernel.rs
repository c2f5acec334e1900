//! The sockets of taskstats: one to ask, one that is told of every thread that ends.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::account::Exits;
use super::netlink::{Answer, Ask, MESSAGE_BYTES_MAX, Stats, answers, request};
use super::usage::{COUNTERS, Usage};

/// The room for what was told and not read yet, in bytes: some 12,000 ended threads.
const EXITS_BYTES_MAX: libc::c_int = 16 << 20;
/// The longest wait for an answer, which the kernel gives at once.
const ANSWER_S_MAX: libc::time_t = 1;
/// Other messages that are passed over while one waits for an answer.
const STRAY_MESSAGES_MAX: usize = 16;

/// Asks for what threads and processes have used.
pub struct Kernel {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
    buffer: Box<[u8; MESSAGE_BYTES_MAX]>,
    listener: Option<OwnedFd>,
    /// Whether the structure has the delay of each counter.
    has: [bool; COUNTERS],
}

/// What a process's structures tell.
pub struct Told {
    pub usage: Usage,
    pub peak_rss_bytes: u64,
}

impl Kernel {
    /// Finds taskstats and tries it on this process. The error says what is in the way.
    pub fn open() -> Result<Self, String> {
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => "it needs CAP_NET_ADMIN".to_owned(),
            Some(libc::ENOENT) => {
                "the kernel has no taskstats (CONFIG_TASKSTATS), or this is another network namespace".to_owned()
            }
            _ => error.to_string(),
        };
        let socket = socket().map_err(failed)?;
        let wait = libc::timeval { tv_sec: ANSWER_S_MAX, tv_usec: 0 };
        option(&socket, libc::SO_RCVTIMEO, &wait).map_err(failed)?;
        let buffer = Box::new([0; MESSAGE_BYTES_MAX]);
        let has = [true; COUNTERS];
        let mut kernel = Self { socket, family: 0, sequence: 0, buffer, listener: None, has };
        kernel.family = kernel
            .ask(Ask::Family, |answer| match answer {
                Answer::Family(family) => Some(family),
                _ => None,
            })
            .map_err(failed)?;
        let has = |stats: Stats<'_>| (stats.version(), stats.is_understood(), std::array::from_fn(|n| stats.has(n)));
        let (version, is_understood, has) = kernel.process(std::process::id(), has).map_err(failed)?;
        kernel.has = has;
        if !is_understood {
            return Err(format!("version {version} of its structure is not understood"));
        }
        Ok(kernel)
    }

    /// Whether a counter is known on this kernel.
    pub fn has(&self, counter: usize) -> bool {
        self.has[counter]
    }

    /// What a process has used with its threads, ended ones too, without page faults and I/O.
    pub fn look(&mut self, pid: u32) -> io::Result<Told> {
        let usage = self.process(pid, |stats| stats.usage())?;
        let peak_rss_bytes = self.ask(Ask::Thread(pid), |answer| match answer {
            Answer::Thread(stats) => Some(stats.peak_rss_bytes()),
            _ => None,
        })?;
        Ok(Told { usage, peak_rss_bytes })
    }

    fn process<T>(&mut self, pid: u32, take: impl Fn(Stats<'_>) -> T) -> io::Result<T> {
        self.ask(Ask::Process(pid), |answer| match answer {
            Answer::Process(stats) => Some(take(stats)),
            _ => None,
        })
    }

    fn ask<T>(&mut self, ask: Ask<'_>, take: impl Fn(Answer<'_>) -> Option<T>) -> io::Result<T> {
        self.sequence = self.sequence.wrapping_add(1);
        converse(&self.socket, ask, self.family, self.sequence, &mut self.buffer[..], take)
    }

    /// Begins to be told of every thread that ends on these CPUs.
    pub fn listen(&mut self, cpus: &str) -> io::Result<()> {
        let socket = socket()?;
        // A smaller room is all that is lost where this is not allowed.
        let _ = option(&socket, libc::SO_RCVBUFFORCE, &EXITS_BYTES_MAX);
        let wait = libc::timeval { tv_sec: ANSWER_S_MAX, tv_usec: 0 };
        option(&socket, libc::SO_RCVTIMEO, &wait)?;
        converse(&socket, Ask::Exits(cpus), self.family, 1, &mut self.buffer[..], |answer| match answer {
            Answer::Error(0) => Some(()),
            _ => None,
        })?;
        self.listener = Some(socket);
        Ok(())
    }

    /// Whether it is told of threads that end.
    pub fn is_listening(&self) -> bool {
        self.listener.is_some()
    }

    /// Ends that.
    pub fn stop_listening(&mut self) {
        self.listener = None;
    }

    /// Takes what was told since; false when some of it was lost.
    pub fn take_exits(&mut self, exits: &mut Exits) -> bool {
        let Some(socket) = &self.listener else { return true };
        let mut whole = true;
        loop {
            match receive(socket, &mut self.buffer[..], libc::MSG_DONTWAIT) {
                Ok(length) => answers(&self.buffer[..length], |_, answer| {
                    if let Answer::Thread(stats) = answer {
                        // A thread that does not say of which process it is counts only if its number is a process's.
                        let (process, parent) = stats.process().map_or((stats.pid(), 0), |id| (id, stats.parent()));
                        exits.add(process, parent, &stats.usage());
                    }
                }),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => whole = false,
                Err(_) => return whole,
            }
        }
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_GENERIC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn option<T>(socket: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    let value: *const T = value;
    // SAFETY: `value` points to `size` bytes that live through the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value.cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn receive(socket: &OwnedFd, buffer: &mut [u8], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: the buffer is writable for its whole length.
    let length = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) };
    if length < 0 { Err(io::Error::last_os_error()) } else { Ok(length as usize) }
}

/// Sends a request and waits for its answer.
fn converse<T>(
    socket: &OwnedFd,
    ask: Ask<'_>,
    family: u16,
    sequence: u32,
    buffer: &mut [u8],
    take: impl Fn(Answer<'_>) -> Option<T>,
) -> io::Result<T> {
    let length = request(ask, family, sequence, buffer).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the buffer holds at least `length` bytes. A socket that was given no other address sends to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), buffer.as_ptr().cast(), length, 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    for _ in 0..STRAY_MESSAGES_MAX {
        let length = receive(socket, buffer, 0)?;
        let mut result = None;
        answers(&buffer[..length], |of, answer| {
            if of == sequence && result.is_none() {
                result = match answer {
                    Answer::Error(errno) if errno != 0 => Some(Err(io::Error::from_raw_os_error(errno))),
                    answer => take(answer).map(Ok),
                };
            }
        });
        if let Some(result) = result {
            return result;
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
