//! Names of capabilities (capabilities(7)).

/// The names in the order of their numbers, without `CAP_`.
const NAMES: &str = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
    NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE \
    SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL \
    SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE";

/// The number of the last known capability.
pub(super) const LAST: u32 = 40;

/// The bit of a capability, by a name such as `CAP_NET_RAW`.
pub(super) fn bit(name: &str) -> Option<u64> {
    let name = name.strip_prefix("CAP_")?;
    NAMES.split_whitespace().position(|known| known == name).map(|number| 1 << number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_numbers_of_the_kernel() {
        let expected = [("CAP_CHOWN", 0), ("CAP_NET_RAW", 13), ("CAP_SYS_ADMIN", 21), ("CAP_PERFMON", 38)];
        for (name, number) in expected {
            assert_eq!(bit(name), Some(1 << number), "{name}");
        }
        assert_eq!((bit("CAP_CHECKPOINT_RESTORE"), bit("NET_RAW"), bit("CAP_X")), (Some(1 << LAST), None, None));
    }
}
