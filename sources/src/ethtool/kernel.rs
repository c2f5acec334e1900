//! The ioctl `SIOCETHTOOL` (linux/ethtool.h).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::file::Errno;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
/// The set of the names of statistics.
const ETH_SS_STATS: u32 = 1;
/// The length of a name.
const ETH_GSTRING_LEN: usize = 32;
/// The most words of 32 bits of a mask of link modes.
const LINK_MODE_WORDS_MAX: usize = 127;

/// Bytes of `struct ethtool_link_settings` after its second word.
const DUPLEX: usize = 0;
const AUTONEGOTIATION: usize = 3;
const MASK_WORDS: usize = 7;

/// The most statistics of a device. Drivers of 100 Gbit/s adapters have some thousands.
const STATISTICS_MAX: usize = 65_536;
/// Room for statistics that appear between the question for their number and that for their values: before Linux 6.14 the kernel writes as many
/// as there are, whatever the size of the buffer. A new queue has some tens.
const STATISTICS_SPARE: usize = 4096;

/// The sensors of a link: name, unit, scale, description.
pub const LINK_SENSORS: [(&str, &str, f64, &str); 4] = [
    ("up", "1", 1.0, "1 if the link is up, otherwise 0."),
    ("speed", "bit/s", 1e6, "Speed of the link."),
    ("duplex", "1", 1.0, "0 for half duplex, 1 for full duplex."),
    ("autonegotiation", "1", 1.0, "1 if the speed is negotiated with the other side, otherwise 0."),
];

/// A buffer for the statistics of a device.
pub struct StatBuffer {
    /// The header and the values, in words of 64 bits.
    words: Vec<u64>,
    count: usize,
}

impl StatBuffer {
    /// For `count` statistics, with room for more.
    pub fn new(count: usize) -> Self {
        Self { words: vec![0; 1 + count + STATISTICS_SPARE], count }
    }
}

/// A socket for the ioctl.
pub struct EthtoolSocket(OwnedFd);

impl EthtoolSocket {
    /// Opens a socket that is neither bound nor connected.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Calls the kernel with a command, which begins with its number.
    ///
    /// # Safety
    /// `data` must be as long as the kernel reads and writes for the command.
    unsafe fn call(&self, device: &str, data: *mut libc::c_void) -> Result<(), Errno> {
        // SAFETY: `ifreq` is plain data, for which zero is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if device.len() >= request.ifr_name.len() {
            return Err(libc::ENODEV);
        }
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = data.cast();
        // SAFETY: the request is valid, and the caller guarantees the length of the data.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCETHTOOL as _, &mut request) };
        if result < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) } else { Ok(()) }
    }

    /// The number of the statistics of a device.
    fn count(&self, device: &str) -> Result<usize, Errno> {
        // struct ethtool_sset_info with one number: cmd, reserved, mask (64 bits), data.
        let mut info = [0u32; 5];
        info[0] = ETHTOOL_GSSET_INFO;
        info[2..4].copy_from_slice(&mask_words(1 << ETH_SS_STATS));
        // SAFETY: one bit of the mask is set, so that the kernel writes one number.
        unsafe { self.call(device, info.as_mut_ptr().cast()) }?;
        if info[2..4] == [0, 0] {
            return Ok(0);
        }
        let count = info[4] as usize;
        if count > STATISTICS_MAX { Err(libc::E2BIG) } else { Ok(count) }
    }

    /// The names of the statistics of a device.
    pub fn names(&self, device: &str) -> Result<Vec<String>, Errno> {
        let count = self.count(device)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        // struct ethtool_gstrings: cmd, string_set, len, data.
        let words = ETH_GSTRING_LEN / 4;
        let mut data = vec![0u32; 3 + (count + STATISTICS_SPARE) * words];
        data[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_STATS, count as u32]);
        // SAFETY: there is room for more names than the device had a moment ago.
        unsafe { self.call(device, data.as_mut_ptr().cast()) }?;
        if data[2] as usize != count {
            return Err(libc::EAGAIN);
        }
        let names = data[3..3 + count * words].chunks_exact(words);
        Ok(names.map(|name| text(&name.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>())).collect())
    }

    /// The values of the statistics of a device; `None` if it has another number of them than the buffer is for.
    pub fn statistics<'b>(&self, device: &str, buffer: &'b mut StatBuffer) -> Result<Option<&'b [u64]>, Errno> {
        let count = buffer.count;
        if self.count(device)? != count {
            return Ok(None);
        }
        // struct ethtool_stats: cmd, n_stats, data.
        buffer.words[0] = header([ETHTOOL_GSTATS, count as u32]);
        // SAFETY: there is room for more values than the device had a moment ago.
        unsafe { self.call(device, buffer.words.as_mut_ptr().cast()) }?;
        let is_same = buffer.words[0] == header([ETHTOOL_GSTATS, count as u32]);
        Ok(is_same.then(|| &buffer.words[1..1 + count]))
    }

    /// The values of [`LINK_SENSORS`].
    pub fn link(&self, device: &str) -> [Option<i64>; LINK_SENSORS.len()] {
        let mut value = [ETHTOOL_GLINK, 0];
        // SAFETY: struct ethtool_value has two words.
        let up = unsafe { self.call(device, value.as_mut_ptr().cast()) }.ok().map(|()| i64::from(value[1] != 0));
        let [speed, duplex, autonegotiation] = self.link_settings(device).unwrap_or_default();
        [up, speed, duplex, autonegotiation]
    }

    /// Speed in Mbit/s, duplex and autonegotiation. Each can be unknown.
    fn link_settings(&self, device: &str) -> Option<[Option<i64>; 3]> {
        // struct ethtool_link_settings has 12 words, then three masks of link modes. The first call gives the negative number of words of a mask.
        let mut data = [0u32; 12 + 3 * LINK_MODE_WORDS_MAX];
        data[0] = ETHTOOL_GLINKSETTINGS;
        // SAFETY: without a number of words the kernel writes the twelve words.
        unsafe { self.call(device, data.as_mut_ptr().cast()) }.ok()?;
        let words = (settings_byte(&data, MASK_WORDS) as i8).checked_neg().filter(|words| *words > 0)?;
        data = [0; 12 + 3 * LINK_MODE_WORDS_MAX];
        data[0] = ETHTOOL_GLINKSETTINGS;
        set_settings_byte(&mut data, MASK_WORDS, words as u8);
        // SAFETY: there is room for three masks of at most 127 words.
        unsafe { self.call(device, data.as_mut_ptr().cast()) }.ok()?;
        let speed = Some(data[1]).filter(|speed| *speed != u32::MAX && *speed != 0).map(i64::from);
        let flag = |byte| Some(settings_byte(&data, byte)).filter(|value| *value <= 1).map(i64::from);
        Some([speed, flag(DUPLEX), flag(AUTONEGOTIATION)])
    }
}

/// A byte of `struct ethtool_link_settings` after its second word.
fn settings_byte(data: &[u32], index: usize) -> u8 {
    data[2 + index / 4].to_ne_bytes()[index % 4]
}

fn set_settings_byte(data: &mut [u32], index: usize, value: u8) {
    let mut bytes = data[2 + index / 4].to_ne_bytes();
    bytes[index % 4] = value;
    data[2 + index / 4] = u32::from_ne_bytes(bytes);
}

/// A number of 64 bits as two words in the machine's order.
fn mask_words(mask: u64) -> [u32; 2] {
    let bytes = mask.to_ne_bytes();
    [0, 4].map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

/// Two words as one of 64 bits in the machine's order.
fn header(words: [u32; 2]) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    u64::from_ne_bytes(bytes)
}

/// A name that ends in a NUL or fills its field. Some drivers write `: ` or spaces around it.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim_matches(|c: char| c.is_whitespace() || c == ':').to_owned()
}
