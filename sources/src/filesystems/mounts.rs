//! The lines of /proc/self/mountinfo (Documentation/filesystems/proc.rst, section 3.5).

use std::collections::BTreeMap;

use wholegrain_model::name::sanitize_level;

use crate::keyed::words;
use crate::scan;

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    /// The mount point as bytes of a path.
    pub point: Vec<u8>,
    /// The type, such as `ext4` or `fuse.sshfs`.
    pub kind: String,
    /// The numbers of the device, such as `8:1`, which change when another file system is mounted at the same place.
    pub device: Vec<u8>,
    /// Whether a user other than root runs it (FUSE).
    pub is_of_user: bool,
}

/// The mounts, each mount point once, in the order of their bytes. Where several are mounted on each other, the last one is visible.
pub fn parse_mounts(bytes: &[u8]) -> Vec<Mount> {
    let mounts = scan::lines(bytes).filter_map(parse_mount).map(|mount| (mount.point.clone(), mount));
    mounts.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut words = words(line);
    let device = words.nth(2)?.to_vec();
    let point = unescape(words.nth(1)?);
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let kind = String::from_utf8_lossy(words.next()?).into_owned();
    let options = words.nth(1).unwrap_or_default();
    let user = options.split(|byte| *byte == b',').find_map(|option| option.strip_prefix(b"user_id="));
    Some(Mount { point, kind, device, is_of_user: user.is_some_and(|user| user != b"0") })
}

/// Replaces `\040` and other octal numbers by the bytes for which they stand.
pub fn unescape(word: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(word.len()), word);
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().filter(|digits| first == b'\\' && digits.iter().all(is_octal));
        let byte = digits.and_then(|digits| {
            digits.iter().try_fold(0u8, |number, digit| number.checked_mul(8)?.checked_add(digit - b'0'))
        });
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    bytes
}

fn is_octal(byte: &u8) -> bool {
    (b'0'..=b'7').contains(byte)
}

/// The level of a mount point in sensor names: `home_data` for `/data/data`, and `_` for `/`.
pub fn mount_level(point: &[u8]) -> String {
    let text = String::from_utf8_lossy(point);
    sanitize_level(text.strip_prefix('/').unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let text = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
            36 27 0:40 / /data/a\\040b\\134c rw shared:7 master:2 - nfs4 server:/a rw,vers=4.2\n\
            37 27 0:41 / /data/u/ssh rw,nosuid - fuse.sshfs u@host: rw,user_id=1000,group_id=1000\n\
            38 27 0:42 / /opt/lfs rw - fuse.cvmfs cvmfs rw,user_id=0\n\
            bad line\n39 27 254:1 / / rw - xfs /dev/vdb rw\n40 27 0:1 / /cut rw - xf";
        let mounts = parse_mounts(text);
        let found: Vec<(&[u8], &str, bool)> =
            mounts.iter().map(|mount| (mount.point.as_slice(), mount.kind.as_str(), mount.is_of_user)).collect();
        let expected: [(&[u8], &str, bool); 4] = [
            (b"/", "xfs", false),
            (b"/data/a b\\c", "nfs4", false),
            (b"/data/u/ssh", "fuse.sshfs", true),
            (b"/opt/lfs", "fuse.cvmfs", false),
        ];
        assert_eq!(found, expected, "the last one at a place, and no line that is cut off");
    }

    #[test]
    fn escapes() {
        for (text, expected) in
            [("a\\040b", "a b"), ("\\", "\\"), ("\\04", "\\04"), ("\\777", "\\777"), ("x\\0401", "x 1")]
        {
            assert_eq!(unescape(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }

    #[test]
    fn levels() {
        for (point, expected) in [("/", "_"), ("/data", "data"), ("/data/a b", "data_a_b"), ("/a+b/#", "a_b__")] {
            assert_eq!(mount_level(point.as_bytes()), expected);
        }
    }
}
