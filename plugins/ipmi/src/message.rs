//! Commands and their replies: numbers of IPMI 2.0 and DCMI 1.5, and the frame of a message on a LAN (13.8).

/// The longest data of a command that this plug-in sends, in bytes.
pub const COMMAND_BYTES_MAX: usize = 16;
/// The bit of a network function that makes it a reply.
const REPLY: u8 = 1;
/// The address of the management controller, and that of a remote console.
const BMC_ADDRESS: u8 = 0x20;
const CONSOLE_ADDRESS: u8 = 0x81;

/// Network function and number of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandCode {
    pub net_fn: u8,
    pub number: u8,
}

const fn code(net_fn: u8, number: u8) -> CommandCode {
    CommandCode { net_fn, number }
}

pub const GET_DEVICE_ID: CommandCode = code(0x06, 0x01);
pub const SET_PRIVILEGE_LEVEL: CommandCode = code(0x06, 0x3b);
pub const CLOSE_SESSION: CommandCode = code(0x06, 0x3c);
pub const GET_DEVICE_SDR_INFO: CommandCode = code(0x04, 0x20);
pub const GET_DEVICE_SDR: CommandCode = code(0x04, 0x21);
pub const RESERVE_DEVICE_SDR: CommandCode = code(0x04, 0x22);
pub const GET_SENSOR_THRESHOLDS: CommandCode = code(0x04, 0x27);
pub const GET_SENSOR_READING: CommandCode = code(0x04, 0x2d);
pub const GET_SDR_INFO: CommandCode = code(0x0a, 0x20);
pub const RESERVE_SDR: CommandCode = code(0x0a, 0x22);
pub const GET_SDR: CommandCode = code(0x0a, 0x23);
pub const GET_SEL_INFO: CommandCode = code(0x0a, 0x40);
pub const GET_SEL_ENTRY: CommandCode = code(0x0a, 0x43);
/// Get Power Reading of DCMI, in the group extension.
pub const GET_POWER_READING: CommandCode = code(0x2c, 0x02);
/// The first byte of data of all commands of DCMI, and of their replies.
pub const DCMI: u8 = 0xdc;

/// Completion codes by their meaning (5.2).
pub mod completion {
    pub const OK: u8 = 0x00;
    pub const BUSY: u8 = 0xc0;
    pub const INVALID_COMMAND: u8 = 0xc1;
    pub const INVALID_FOR_LUN: u8 = 0xc2;
    pub const TIMEOUT: u8 = 0xc3;
    pub const RESERVATION_CANCELLED: u8 = 0xc5;
    pub const NOT_PRESENT: u8 = 0xcb;
    pub const INITIALISATION: u8 = 0xd2;
    pub const PRIVILEGE: u8 = 0xd4;
}

/// A command to the management controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpmiCommand {
    pub code: CommandCode,
    pub lun: u8,
    pub data: Vec<u8>,
}

impl IpmiCommand {
    /// A command to the logical unit 0.
    pub fn new(code: CommandCode, data: impl Into<Vec<u8>>) -> Self {
        Self { code, lun: 0, data: data.into() }
    }
}

/// What the controller answered: a completion code, and data that can be of any length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpmiReply<'a> {
    pub completion: u8,
    pub data: &'a [u8],
}

impl<'a> IpmiReply<'a> {
    /// The data of a reply without an error.
    pub fn good(&self) -> Option<&'a [u8]> {
        (self.completion == completion::OK).then_some(self.data)
    }
}

/// The number with which the sum of all bytes is 0.
fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte))
}

/// Appends the frame of a command with this number (6 bits).
pub fn put_command(out: &mut Vec<u8>, command: &IpmiCommand, number: u8) {
    let begin = out.len();
    out.extend_from_slice(&[BMC_ADDRESS, command.code.net_fn << 2 | (command.lun & 3)]);
    out.push(checksum(&out[begin..]));
    out.extend_from_slice(&[CONSOLE_ADDRESS, number << 2, command.code.number]);
    out.extend_from_slice(&command.data);
    out.push(checksum(&out[begin + 3..]));
}

/// The reply to the command of this number. `None` for everything else, also for a wrong checksum.
pub fn read_reply<'a>(frame: &'a [u8], command: &IpmiCommand, number: u8) -> Option<IpmiReply<'a>> {
    // Address, function, checksum, address, number, command, completion code, checksum.
    if frame.len() < 8 || checksum(&frame[..3]) != 0 || checksum(&frame[3..]) != 0 {
        return None;
    }
    let is_reply = frame[1] >> 2 == command.code.net_fn | REPLY
        && frame[4] >> 2 == number & 0x3f
        && frame[5] == command.code.number;
    is_reply.then(|| IpmiReply { completion: frame[6], data: &frame[7..frame.len() - 1] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_the_specification() {
        let command = IpmiCommand::new(GET_DEVICE_ID, []);
        let mut out = Vec::new();
        put_command(&mut out, &command, 1);
        assert_eq!(out, [0x20, 0x18, 0xc8, 0x81, 0x04, 0x01, 0x7a]);
        let reply = [0x81, 0x1c, 0x63, 0x20, 0x04, 0x01, 0x00, 0x23, 0xb8];
        assert_eq!(read_reply(&reply, &command, 1), Some(IpmiReply { completion: 0, data: &[0x23] }));
        assert_eq!(read_reply(&reply, &command, 2), None, "another number");
        let other = IpmiCommand::new(GET_SDR_INFO, []);
        assert_eq!(read_reply(&reply, &other, 1), None, "another command");
        for at in 0..reply.len() {
            let mut damaged = reply;
            damaged[at] ^= 0x10;
            assert_eq!(read_reply(&damaged, &command, 1), None, "byte {at} damaged");
            assert_eq!(read_reply(&reply[..at], &command, 1), None, "{at} bytes of it");
        }
    }
}
