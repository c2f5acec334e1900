//! The controller of this machine, through the kernel's device (`/dev/ipmi0`, Documentation/driver-api/ipmi.rst).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use wholegrain_devices::{AnswerSlot, BlockingProtocol, DeviceProblem, system_time};

use crate::bmc::{BmcPolls, BmcStep};
use crate::message::{IpmiCommand, IpmiReply, completion};

/// The largest message of the kernel (IPMI_MAX_MSG_LENGTH).
const MESSAGE_BYTES_MAX: usize = 272;
/// The type and channel of addresses of the system interface.
const SYSTEM_INTERFACE: i32 = 0x0c;
const BMC_CHANNEL: i16 = 0x0f;
/// The type of received messages that are replies.
const RESPONSE: i32 = 1;
/// The most messages that are not the awaited reply, while one is awaited.
const STRAYS_MAX: u32 = 64;

/// The kernel's `struct ipmi_system_interface_addr`, an address.
#[repr(C)]
#[derive(Debug, Default)]
struct SystemAddress {
    addr_type: i32,
    channel: i16,
    lun: u8,
}

/// The kernel's `struct ipmi_msg`: a message.
#[repr(C)]
struct KernelMessage {
    net_fn: u8,
    cmd: u8,
    data_len: u16,
    data: *mut u8,
}

/// The kernel's `struct ipmi_req`: a command to send.
#[repr(C)]
struct KernelRequest {
    addr: *mut SystemAddress,
    addr_len: u32,
    msgid: libc::c_long,
    msg: KernelMessage,
}

/// The kernel's `struct ipmi_recv`: a received message.
#[repr(C)]
struct KernelReceived {
    recv_type: i32,
    addr: *mut SystemAddress,
    addr_len: u32,
    msgid: libc::c_long,
    msg: KernelMessage,
}

/// The number of an ioctl that reads (and writes) a structure, of the type `i`.
const fn ioctl(direction: u64, number: u64, size: usize) -> libc::Ioctl {
    (direction << 30 | (size as u64) << 16 | (b'i' as u64) << 8 | number) as libc::Ioctl
}

/// The kernel's `IPMICTL_SEND_COMMAND` and `IPMICTL_RECEIVE_MSG_TRUNC`.
const SEND_COMMAND: libc::Ioctl = ioctl(2, 13, size_of::<KernelRequest>());
const RECEIVE_MSG_TRUNC: libc::Ioctl = ioctl(3, 11, size_of::<KernelReceived>());

/// The protocol of the machine's own controller.
pub struct InbandBmc {
    device: PathBuf,
    file: Option<File>,
    bmc: BmcPolls,
    number: libc::c_long,
}

impl InbandBmc {
    /// The controller behind this device file, which is opened at the first poll.
    pub fn new(device: &Path, bmc: BmcPolls) -> Self {
        Self { device: device.to_owned(), file: None, bmc, number: 0 }
    }

    fn file(&mut self) -> io::Result<&File> {
        if self.file.is_none() {
            let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOFOLLOW;
            let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.device)?;
            self.file = Some(file);
        }
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Sends a command, and waits for its reply: completion code and data.
    fn exchange(&mut self, command: &IpmiCommand, deadline: Instant) -> io::Result<Vec<u8>> {
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        let file = self.file()?;
        send(file, command, number)?;
        for _ in 0..STRAYS_MAX {
            wait(file, deadline)?;
            match receive(file) {
                Ok(Some((of, data))) if of == number => return Ok(data),
                // A reply to a command that was given up, or an event.
                Ok(_) => {}
                Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

fn send(file: &File, command: &IpmiCommand, number: libc::c_long) -> io::Result<()> {
    let mut address = SystemAddress { addr_type: SYSTEM_INTERFACE, channel: BMC_CHANNEL, lun: command.lun };
    let mut data = command.data.clone();
    let mut request = KernelRequest {
        addr: &raw mut address,
        addr_len: size_of::<SystemAddress>() as u32,
        msgid: number,
        msg: KernelMessage {
            net_fn: command.code.net_fn,
            cmd: command.code.number,
            data_len: data.len() as u16,
            data: data.as_mut_ptr(),
        },
    };
    // SAFETY: the structure is that of the ioctl, and what it points to lives as long as the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), SEND_COMMAND, &raw mut request) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The number and the data of a reply. `None` for messages of other kinds.
fn receive(file: &File) -> io::Result<Option<(libc::c_long, Vec<u8>)>> {
    let (mut address, mut data) = (SystemAddress::default(), vec![0; MESSAGE_BYTES_MAX]);
    let mut received = KernelReceived {
        recv_type: 0,
        addr: &raw mut address,
        addr_len: size_of::<SystemAddress>() as u32,
        msgid: 0,
        msg: KernelMessage { net_fn: 0, cmd: 0, data_len: data.len() as u16, data: data.as_mut_ptr() },
    };
    // SAFETY: the structure is that of the ioctl; it points to buffers of the given lengths that live as long as the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), RECEIVE_MSG_TRUNC, &raw mut received) } == -1 {
        let error = io::Error::last_os_error();
        // The reply is longer than the buffer, and was cut to it.
        if error.raw_os_error() != Some(libc::EMSGSIZE) {
            return Err(error);
        }
    }
    data.truncate(usize::from(received.msg.data_len));
    Ok((received.recv_type == RESPONSE).then_some((received.msgid, data)))
}

/// Waits until the device has a message.
fn wait(file: &File, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let left = i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX);
    // SAFETY: one structure of the given number, which lives as long as the call.
    match unsafe { libc::poll(&raw mut poll, 1, left) } {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ if poll.revents & libc::POLLIN != 0 => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

impl BlockingProtocol for InbandBmc {
    fn poll(&mut self, group: usize, slot: &AnswerSlot, deadline: Instant) -> Result<(), DeviceProblem> {
        let mut step = self.bmc.begin(group, slot, system_time());
        loop {
            let command = match step {
                BmcStep::Command(command) => command,
                BmcStep::Finished => return Ok(()),
                BmcStep::Failed(problem) => return Err(problem),
            };
            let reply = match self.exchange(&command, deadline) {
                Ok(reply) => reply,
                Err(error) => {
                    self.file = None;
                    self.bmc.interrupted(false);
                    return Err(match error.kind() {
                        io::ErrorKind::TimedOut => DeviceProblem::Silent,
                        _ => DeviceProblem::Network(error.raw_os_error().unwrap_or(libc::EIO)),
                    });
                }
            };
            let (completion, data) =
                reply.split_first().map_or((completion::TIMEOUT, &[][..]), |(code, data)| (*code, data));
            step = self.bmc.take(IpmiReply { completion, data }, slot, system_time());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A C program that prints what the kernel's header says, compared with the structures above.
    #[test]
    fn structures_and_numbers_are_those_of_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("sizes.c"), folder.path().join("sizes"));
        let text = r#"
#include <linux/ipmi.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/ioctl.h>
#define SIZE(x) printf("%zu ", (size_t)(x))
int main(void) {
    SIZE(IPMICTL_SEND_COMMAND); SIZE(IPMICTL_RECEIVE_MSG_TRUNC);
    SIZE(sizeof(struct ipmi_system_interface_addr)); SIZE(offsetof(struct ipmi_system_interface_addr, lun));
    SIZE(offsetof(struct ipmi_req, msgid)); SIZE(offsetof(struct ipmi_req, msg)); SIZE(offsetof(struct ipmi_msg, data));
    SIZE(offsetof(struct ipmi_recv, msgid)); SIZE(offsetof(struct ipmi_recv, msg)); SIZE(IPMI_MAX_MSG_LENGTH);
    SIZE(IPMI_SYSTEM_INTERFACE_ADDR_TYPE); SIZE(IPMI_BMC_CHANNEL); SIZE(IPMI_RESPONSE_RECV_TYPE);
    return 0;
}
"#;
        std::fs::write(&source, text).unwrap();
        let status = std::process::Command::new("cc").arg("-o").args([&program, &source]).status().unwrap();
        assert!(status.success(), "cc compiles a program with linux/ipmi.h");
        let output = std::process::Command::new(&program).output().unwrap();
        let numbers = String::from_utf8(output.stdout).unwrap();
        let numbers: Vec<u64> = numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let own = [
            SEND_COMMAND as usize,
            RECEIVE_MSG_TRUNC as usize,
            size_of::<SystemAddress>(),
            std::mem::offset_of!(SystemAddress, lun),
            std::mem::offset_of!(KernelRequest, msgid),
            std::mem::offset_of!(KernelRequest, msg),
            std::mem::offset_of!(KernelMessage, data),
            std::mem::offset_of!(KernelReceived, msgid),
            std::mem::offset_of!(KernelReceived, msg),
            MESSAGE_BYTES_MAX,
            SYSTEM_INTERFACE as usize,
            BMC_CHANNEL as usize,
            RESPONSE as usize,
        ];
        assert_eq!(numbers, own.map(|number| number as u64));
    }

    #[test]
    fn a_machine_without_the_device_says_so() {
        let polls = BmcPolls::new("bmc", &[crate::bmc::BmcGroup::Sensors], Default::default());
        let mut bmc = InbandBmc::new(Path::new("/nonexistent/ipmi0"), polls);
        let deadline = Instant::now() + std::time::Duration::from_secs(1);
        let problem = bmc.poll(0, &AnswerSlot::default(), deadline).unwrap_err();
        assert_eq!(problem, DeviceProblem::Network(libc::ENOENT));
        // A file that is no IPMI device has no such ioctl.
        let polls = BmcPolls::new("bmc", &[crate::bmc::BmcGroup::Sensors], Default::default());
        let mut bmc = InbandBmc::new(Path::new("/dev/null"), polls);
        assert_eq!(bmc.poll(0, &AnswerSlot::default(), deadline).unwrap_err(), DeviceProblem::Network(libc::ENOTTY));
    }
}
