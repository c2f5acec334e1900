//! Serial lines: a terminal device in raw mode, opened for this process alone.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// Bits of a character with start and stop, of which 3.5 in silence divide two frames (MODBUS over Serial Line, 2.5.1.1).
const CHARACTER_BITS: u64 = 11;
/// Above 19200 baud the silence is fixed at 1.75 ms.
const SILENCE_MIN: Duration = Duration::from_micros(1750);

/// The parity bit of each character. Modbus has even parity by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parity {
    None,
    Even,
    Odd,
}

/// A serial line and how characters are sent on it: 8 bits each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SerialSettings {
    pub path: PathBuf,
    pub baud: u32,
    pub parity: Parity,
    pub stop_bits: u8,
}

/// The constant of the system for a rate.
pub fn baud_rate(baud: u32) -> Option<libc::speed_t> {
    Some(match baud {
        1200 => libc::B1200,
        2400 => libc::B2400,
        4800 => libc::B4800,
        9600 => libc::B9600,
        19_200 => libc::B19200,
        38_400 => libc::B38400,
        57_600 => libc::B57600,
        115_200 => libc::B115200,
        230_400 => libc::B230400,
        _ => return None,
    })
}

impl SerialSettings {
    /// The silence between two frames.
    pub fn silence(&self) -> Duration {
        Duration::from_nanos(CHARACTER_BITS * 3_500_000_000 / u64::from(self.baud.max(1))).max(SILENCE_MIN)
    }

    /// Opens the line without waiting for a carrier, and discards what came before.
    pub fn open(&self) -> io::Result<File> {
        let flags = libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path)?;
        let fd = file.as_raw_fd();
        let mut modes = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: `modes` is as large as tcgetattr writes, and the descriptor is open.
        check(unsafe { libc::tcgetattr(fd, modes.as_mut_ptr()) })?;
        // SAFETY: tcgetattr succeeded, so it has written all of it.
        let mut modes = unsafe { modes.assume_init() };
        self.set(&mut modes)?;
        // SAFETY: the descriptor is open; TIOCEXCL has no argument.
        check(unsafe { libc::ioctl(fd, libc::TIOCEXCL) })?;
        apply(fd, &modes)?;
        Ok(file)
    }

    fn set(&self, modes: &mut libc::termios) -> io::Result<()> {
        let rate = baud_rate(self.baud).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: `modes` is a whole termios.
        unsafe { libc::cfmakeraw(modes) };
        // SAFETY: as above.
        check(unsafe { libc::cfsetspeed(modes, rate) })?;
        modes.c_cflag |= libc::CLOCAL | libc::CREAD;
        modes.c_cflag &= !(libc::PARENB | libc::PARODD | libc::CSTOPB | libc::CRTSCTS);
        modes.c_cflag |= match self.parity {
            Parity::None => 0,
            Parity::Even => libc::PARENB,
            Parity::Odd => libc::PARENB | libc::PARODD,
        };
        if self.stop_bits == 2 {
            modes.c_cflag |= libc::CSTOPB;
        }
        Ok(())
    }
}

fn apply(fd: RawFd, modes: &libc::termios) -> io::Result<()> {
    // SAFETY: `modes` is a whole termios and the descriptor is open.
    check(unsafe { libc::tcsetattr(fd, libc::TCSANOW, modes) })?;
    // SAFETY: the descriptor is open.
    check(unsafe { libc::tcflush(fd, libc::TCIOFLUSH) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_silence_is_that_of_three_and_a_half_characters() {
        let at = |baud| SerialSettings { path: PathBuf::new(), baud, parity: Parity::Even, stop_bits: 1 }.silence();
        assert_eq!(at(9600), Duration::from_nanos(4_010_416));
        assert_eq!(at(115_200), SILENCE_MIN);
    }

    #[test]
    fn what_is_no_terminal_is_refused() {
        let line = |path: &str| SerialSettings { path: path.into(), baud: 9600, parity: Parity::None, stop_bits: 2 };
        assert_eq!(line("/dev/null").open().unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        assert_eq!(line("/dev/no-such-line").open().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
