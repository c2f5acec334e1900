//! The sockets of taskstats: one for requests, one that receives the exit of every thread.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::account::ProcessExits;
use super::netlink::{self, MESSAGE_BYTES_MAX, TaskstatsMessage, TaskstatsRequest, TaskstatsStruct};
use super::usage::{COUNTERS, Usage};

/// The receive buffer for exits, in bytes: about 12,000 threads.
const EXITS_BYTES_MAX: libc::c_int = 16 << 20;
/// The timeout of a request, in s. The kernel answers immediately.
const ANSWER_S_MAX: libc::time_t = 1;
/// The most other messages that are ignored before the answer.
const STRAY_MESSAGES_MAX: usize = 16;

/// Requests the counters of threads and processes.
pub struct Taskstats {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
    buffer: Box<[u8; MESSAGE_BYTES_MAX]>,
    listener: Option<OwnedFd>,
    /// Whether the kernel's structure has each counter.
    has: [bool; COUNTERS],
}

/// The counters of a process with all its threads.
pub struct ProcessTotals {
    pub usage: Usage,
    pub peak_rss_bytes: u64,
}

impl Taskstats {
    /// Finds taskstats and tries it on this process. The error is for the administrator.
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
        let mut taskstats = Self { socket, family: 0, sequence: 0, buffer, listener: None, has };
        taskstats.family = taskstats
            .request(TaskstatsRequest::Family, |answer| match answer {
                TaskstatsMessage::Family(family) => Some(family),
                _ => None,
            })
            .map_err(failed)?;
        let has =
            |stats: TaskstatsStruct<'_>| (stats.version(), stats.is_known(), std::array::from_fn(|n| stats.has(n)));
        let (version, is_known, has) = taskstats.process(std::process::id(), has).map_err(failed)?;
        taskstats.has = has;
        if !is_known {
            return Err(format!("version {version} of its structure is not understood"));
        }
        Ok(taskstats)
    }

    /// Whether this kernel has a counter.
    pub fn has(&self, counter: usize) -> bool {
        self.has[counter]
    }

    /// Requests the counters of a process with its threads, also those that have ended. Without page faults and I/O.
    pub fn totals(&mut self, pid: u32) -> io::Result<ProcessTotals> {
        let usage = self.process(pid, |stats| stats.usage())?;
        let peak_rss_bytes = self.request(TaskstatsRequest::Thread(pid), |answer| match answer {
            TaskstatsMessage::Thread(stats) => Some(stats.peak_rss_bytes()),
            _ => None,
        })?;
        Ok(ProcessTotals { usage, peak_rss_bytes })
    }

    fn process<T>(&mut self, pid: u32, take: impl Fn(TaskstatsStruct<'_>) -> T) -> io::Result<T> {
        self.request(TaskstatsRequest::Process(pid), |answer| match answer {
            TaskstatsMessage::Process(stats) => Some(take(stats)),
            _ => None,
        })
    }

    fn request<T>(
        &mut self,
        request: TaskstatsRequest<'_>,
        take: impl Fn(TaskstatsMessage<'_>) -> Option<T>,
    ) -> io::Result<T> {
        self.sequence = self.sequence.wrapping_add(1);
        exchange(&self.socket, request, self.family, self.sequence, &mut self.buffer[..], take)
    }

    /// Starts to receive the exit of every thread on these CPUs.
    pub fn listen(&mut self, cpus: &str) -> io::Result<()> {
        let socket = socket()?;
        // Without permission the buffer is only smaller.
        let _ = option(&socket, libc::SO_RCVBUFFORCE, &EXITS_BYTES_MAX);
        let wait = libc::timeval { tv_sec: ANSWER_S_MAX, tv_usec: 0 };
        option(&socket, libc::SO_RCVTIMEO, &wait)?;
        exchange(
            &socket,
            TaskstatsRequest::Exits(cpus),
            self.family,
            1,
            &mut self.buffer[..],
            |answer| match answer {
                TaskstatsMessage::Error(0) => Some(()),
                _ => None,
            },
        )?;
        self.listener = Some(socket);
        Ok(())
    }

    /// Whether exits of threads are received.
    pub fn is_listening(&self) -> bool {
        self.listener.is_some()
    }

    /// Stops receiving exits of threads.
    pub fn stop_listening(&mut self) {
        self.listener = None;
    }

    /// Takes the exits since the last call. Gives false when the kernel lost some.
    pub fn take_exits(&mut self, exits: &mut ProcessExits) -> bool {
        let Some(socket) = &self.listener else { return true };
        let mut is_complete = true;
        loop {
            match receive(socket, &mut self.buffer[..], libc::MSG_DONTWAIT) {
                Ok(length) => netlink::for_each_message(&self.buffer[..length], |_, answer| {
                    if let TaskstatsMessage::Thread(stats) = answer {
                        // Without the number of its process, the exit counts only if the thread's number is that of a process.
                        let (process, parent) = stats.process().map_or((stats.pid(), 0), |id| (id, stats.parent()));
                        exits.add(process, parent, &stats.usage());
                    }
                }),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => is_complete = false,
                Err(_) => return is_complete,
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

/// Sends a request and waits for the answer.
fn exchange<T>(
    socket: &OwnedFd,
    request: TaskstatsRequest<'_>,
    family: u16,
    sequence: u32,
    buffer: &mut [u8],
    take: impl Fn(TaskstatsMessage<'_>) -> Option<T>,
) -> io::Result<T> {
    let length = netlink::write_request(request, family, sequence, buffer).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: the buffer holds at least `length` bytes. A socket without another address sends to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), buffer.as_ptr().cast(), length, 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    for _ in 0..STRAY_MESSAGES_MAX {
        let length = receive(socket, buffer, 0)?;
        let mut result = None;
        netlink::for_each_message(&buffer[..length], |number, answer| {
            if number == sequence && result.is_none() {
                result = match answer {
                    TaskstatsMessage::Error(errno) if errno != 0 => Some(Err(io::Error::from_raw_os_error(errno))),
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
