//! What the process of a plug-in gives up before the plug-in's code runs.

use std::io;

use wholegrain_sources::confinement;

use super::capability;
use super::wire::ConfigureMessage;

/// The most open files of a plug-in.
const OPEN_FILES_MAX: u64 = 4096;
/// `capset` with 64 bits (capabilities(7)).
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// Bit of a system call's number in the x32 interface.
const X32: u32 = 0x4000_0000;

fn checked(result: libc::c_int, what: &str) -> io::Result<()> {
    if result < 0 {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(error.kind(), format!("{what}: {error}")));
    }
    Ok(())
}

fn limit(resource: libc::__rlimit_resource_t, most: u64, what: &str) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a place for the limit.
    checked(unsafe { libc::getrlimit(resource, &mut limit) }, what)?;
    let most = most.min(limit.rlim_max);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a limit that outlives the call.
    checked(unsafe { libc::setrlimit(resource, &limit) }, what)
}

/// Applies the bounds to this process and to all that it starts.
pub(super) fn apply(message: &ConfigureMessage) -> io::Result<()> {
    limit(libc::RLIMIT_DATA, message.memory_bytes_max, "RLIMIT_DATA")?;
    limit(libc::RLIMIT_CORE, 0, "RLIMIT_CORE")?;
    confinement::be_ended_before_the_agent();
    limit(libc::RLIMIT_NOFILE, OPEN_FILES_MAX, "RLIMIT_NOFILE")?;
    // Before the privileges: a filter without this needs CAP_SYS_ADMIN.
    // SAFETY: prctl with numbers.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, "PR_SET_NO_NEW_PRIVS")?;
    drop_capabilities(message.capabilities)
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilitySet {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Keeps the granted capabilities only, also for programs that the plug-in starts.
fn drop_capabilities(granted: u64) -> io::Result<()> {
    for number in (0..=capability::LAST).filter(|number| granted >> number & 1 == 0) {
        // Fails without CAP_SETPCAP: then there is nothing that could come back.
        // SAFETY: prctl with numbers.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) };
    }
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let mut sets = [CapabilitySet::default(); 2];
    // SAFETY: header and two sets, as version 3 has.
    checked(unsafe { libc::syscall(libc::SYS_capget, &header, sets.as_mut_ptr()) } as libc::c_int, "capget")?;
    for (half, set) in sets.iter_mut().enumerate() {
        let kept = (granted >> (32 * half)) as u32 & set.permitted;
        *set = CapabilitySet { effective: kept, permitted: kept, inheritable: kept };
    }
    // SAFETY: as above.
    checked(unsafe { libc::syscall(libc::SYS_capset, &header, sets.as_ptr()) } as libc::c_int, "capset")?;
    // SAFETY: prctl with numbers.
    unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) };
    let kept = u64::from(sets[0].permitted) | u64::from(sets[1].permitted) << 32;
    for number in (0..=capability::LAST).filter(|number| kept >> number & 1 == 1) {
        let number = libc::c_ulong::from(number);
        // SAFETY: prctl with numbers.
        unsafe { libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, number, 0, 0) };
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
mod machine {
    pub const ARCH: u32 = 0xC000_003E;
    pub const CLONE: u32 = libc::SYS_clone as u32;
    pub const REFUSED: &[u32] = &[libc::SYS_fork as u32, libc::SYS_vfork as u32];
}

#[cfg(target_arch = "aarch64")]
mod machine {
    pub const ARCH: u32 = 0xC000_00B7;
    pub const CLONE: u32 = libc::SYS_clone as u32;
    pub const REFUSED: &[u32] = &[];
}

/// Refuses new processes, not new threads. On other machines the agent only counts processes.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn forbid_processes() -> io::Result<()> {
    Ok(())
}

/// Refuses new processes, not new threads.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn forbid_processes() -> io::Result<()> {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    // Offsets in `struct seccomp_data`: number 0, machine 4, the low half of the first argument 16.
    let step = |code: u16, k: u32, jt: u8, jf: u8| libc::sock_filter { code, jt, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = vec![
        step(LOAD, 4, 0, 0),
        step(EQUAL, machine::ARCH, 1, 0),
        step(RETURN, refuse, 0, 0),
        step(LOAD, 0, 0, 0),
        step(AT_LEAST, X32, 0, 1),
        step(RETURN, refuse, 0, 0),
        // Its flags are in memory: libraries then use clone.
        step(EQUAL, libc::SYS_clone3 as u32, 0, 1),
        step(RETURN, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, 0, 0),
    ];
    for number in machine::REFUSED {
        filter.extend([step(EQUAL, *number, 0, 1), step(RETURN, refuse, 0, 0)]);
    }
    filter.extend([
        step(EQUAL, machine::CLONE, 1, 0),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        step(LOAD, 16, 0, 0),
        step(ANY_BIT, libc::CLONE_THREAD as u32, 0, 1),
        step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0),
        step(RETURN, refuse, 0, 0),
    ]);
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a program that outlives the call.
    let result = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program, 0, 0) };
    checked(result, "PR_SET_SECCOMP")
}
