//! Checks of the machine: clock, disk, ports, limits.

use std::ffi::CString;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use super::findings::Findings;

/// A clock that shows an earlier time is not set: 2026-01-01.
const TIME_MIN_S: u64 = 1_767_225_600;
/// Below the first number of free bytes the server is unhealthy; below the second the check warns.
const FREE_BYTES: (u64, u64) = (16 << 20, 2 << 30);
/// The check warns if less than one in this number of inodes is free.
const FREE_INODES_SHARE: u64 = 100;
/// The check warns of a longer sync, because every acknowledgement waits for one.
const SYNC_TIME_MAX: Duration = Duration::from_millis(200);
/// The size of the file that is written and synced, in bytes.
const SYNC_BYTES: usize = 4096;
/// The number of files that a server opens besides its connections.
pub const OTHER_FILES: u64 = 1024;

/// Checks whether the clock is set and synchronised.
pub fn clock(findings: &mut Findings) {
    const CHECK: &str = "clock";
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    if now < TIME_MIN_S {
        let text = format!("the clock shows {now} s after 1970, before this program was written");
        return findings.fail(CHECK, text, "set the clock: timestamps and certificates depend on it");
    }
    // SAFETY: an all-zero timex only asks (`modes` is 0) and is a valid value of the type.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` outlives the call, which writes it.
    let state = unsafe { libc::adjtimex(&mut timex) };
    synchronised(findings, state == libc::TIME_ERROR || timex.status & libc::STA_UNSYNC != 0, timex.maxerror);
}

fn synchronised(findings: &mut Findings, unsynchronised: bool, error_us: i64) {
    const CHECK: &str = "clock";
    if unsynchronised {
        let advice =
            "start chrony or systemd-timesyncd; in a container or virtual machine the host may synchronise the clock";
        findings.warn(CHECK, "the kernel reports that the clock is not synchronised", advice);
    } else {
        findings.ok(CHECK, format!("synchronised, at most {} ms off", error_us / 1000));
    }
}

/// Checks the difference to the server's clock in seconds; positive if ours is ahead.
pub fn skew(findings: &mut Findings, seconds: i64) {
    const CHECK: &str = "clock";
    match seconds.unsigned_abs() {
        // The server sends its time in whole seconds.
        0..=2 => findings.ok(CHECK, "at most two seconds from the server's"),
        3..=60 => findings.warn(CHECK, format!("{seconds} s from the server's"), "synchronise both clocks"),
        _ => findings.fail(CHECK, format!("{seconds} s from the server's"), "synchronise both clocks"),
    }
}

/// Checks whether a directory's disk has space and can be written.
pub fn disk(findings: &mut Findings, what: &str, dir: &Path) {
    const CHECK: &str = "disk";
    let shown = dir.display();
    let space = match space(dir) {
        Ok(space) => space,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let advice = "the first start makes it, if the service's user may; or make it yourself";
            return findings.warn(CHECK, format!("{what} {shown} does not exist yet"), advice);
        }
        Err(error) => return findings.fail(CHECK, format!("{what} {shown}: {error}"), "name another directory"),
    };
    let mib = space.free_bytes >> 20;
    if space.free_bytes < FREE_BYTES.0 {
        findings.fail(CHECK, format!("{what} {shown} has {mib} MiB free"), "free some space, or lower the retention");
    } else if space.free_bytes < FREE_BYTES.1 {
        findings.warn(CHECK, format!("{what} {shown} has {mib} MiB free"), "free some space, or lower the retention");
    } else {
        findings.ok(CHECK, format!("{what} {shown} has {} GiB free", mib >> 10));
    }
    if space.inodes > 0 && space.free_inodes < space.inodes / FREE_INODES_SHARE {
        let text = format!("{what} {shown} has {} of {} inodes free", space.free_inodes, space.inodes);
        findings.warn(CHECK, text, "remove small files, or make a file system with more inodes");
    }
    match synced(dir) {
        Ok(took) if took > SYNC_TIME_MAX => findings.warn(
            CHECK,
            format!("a sync in {shown} took {} ms; each acknowledgement waits for one", took.as_millis()),
            "use a faster disk, or one that others use less",
        ),
        Ok(took) => findings.ok(CHECK, format!("a sync in {shown} took {} us", took.as_micros())),
        Err(error) => findings.fail(
            CHECK,
            format!("cannot write and sync a file in {shown}: {error}"),
            "let the service's user write there (chown), and look at the disk (dmesg)",
        ),
    }
}

struct Space {
    free_bytes: u64,
    inodes: u64,
    free_inodes: u64,
}

fn space(dir: &Path) -> io::Result<Space> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: an all-zero statvfs is a valid value of the type.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in 0 and both outlive the call.
    if unsafe { libc::statvfs(path.as_ptr(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Space {
        free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        inodes: stat.f_files,
        free_inodes: stat.f_favail,
    })
}

fn synced(dir: &Path) -> io::Result<Duration> {
    let path = dir.join(format!(".doctor-{}", std::process::id()));
    let start = Instant::now();
    let written = fs::File::options().write(true).create_new(true).open(&path).and_then(|mut file| {
        file.write_all(&[0; SYNC_BYTES])?;
        file.sync_all()
    });
    let took = start.elapsed();
    let _ = fs::remove_file(&path);
    written.map(|()| took)
}

/// Checks whether an address is free, or is used by the server itself.
pub fn port(findings: &mut Findings, setting: &str, address: &str, ours: bool) {
    const CHECK: &str = "port";
    let bound = address.to_socket_addrs().and_then(|addresses| {
        let addresses: Vec<_> = addresses.collect();
        TcpListener::bind(addresses.as_slice())
    });
    match bound {
        Ok(_) if ours => findings.warn(
            CHECK,
            format!("{setting} {address} is free, though the server runs"),
            "the setting changed since the start, or another server uses the data; restart the server",
        ),
        Ok(_) => findings.ok(CHECK, format!("{setting} {address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse && ours => {
            findings.ok(CHECK, format!("{setting} {address} is used by the running server"));
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let advice = "`ss -ltnp` shows the program; stop it, or choose another port";
            findings.fail(CHECK, format!("{setting} {address} is taken by another program"), advice);
        }
        Err(error) => findings.fail(
            CHECK,
            format!("{setting} {address} cannot be listened on: {error}"),
            "write an address of this host, or \"[::]\" for all; only root can listen on ports below 1024",
        ),
    }
}

/// Checks the limit of open files of the running server, else of programs that this user starts.
pub fn open_files(findings: &mut Findings, connections_max: usize, pid: Option<u32>) {
    const CHECK: &str = "limits";
    let process = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    // The server raises the soft limit to the hard one.
    let Some(hard) = line.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok()) else { return };
    let needed = connections_max as u64 + OTHER_FILES;
    if hard < needed {
        findings.warn(
            CHECK,
            format!("{hard} files may be open; {connections_max} connections and the store need {needed}"),
            "raise LimitNOFILE of the unit (ulimit -Hn), or lower connections_max",
        );
    } else {
        findings.ok(CHECK, format!("{hard} files may be open, at most {needed} are needed"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::Level;
    use super::*;

    fn levels(check: impl FnOnce(&mut Findings)) -> Vec<Level> {
        let mut findings = Findings::default();
        check(&mut findings);
        findings.levels().collect()
    }

    #[test]
    fn clocks() {
        assert_eq!(levels(|f| synchronised(f, true, 0)), [Level::Warn]);
        assert_eq!(levels(|f| synchronised(f, false, 5000)), [Level::Ok]);
        for (seconds, level) in [(0, Level::Ok), (-2, Level::Ok), (3, Level::Warn), (-61, Level::Fail)] {
            assert_eq!(levels(|f| skew(f, seconds)), [level], "{seconds}");
        }
    }

    #[test]
    fn limits() {
        assert_eq!(levels(|f| open_files(f, usize::MAX / 2, None)), [Level::Warn]);
        assert_eq!(levels(|f| open_files(f, 0, Some(std::process::id()))).len(), 1);
    }
}
