//! Whether an open folder is the root of a file system that an ordinary user runs (FUSE). No question here reaches that file system: it need not answer.

use std::os::fd::{AsRawFd, OwnedFd};

/// The number of a mount whose file system has no device of its own, if the descriptor is the root of a mount.
fn mount_of(fd: &OwnedFd) -> Option<u64> {
    // SAFETY: `statx` is plain numbers, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the name is an empty C string, which stands for the descriptor, and `found` is writable.
    if unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), flags, libc::STATX_MNT_ID, &mut found) } != 0 {
        return None;
    }
    let is_root = found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0;
    // Before Linux 5.8 the kernel does not say.
    (is_root && found.stx_dev_major == 0 && found.stx_mask & libc::STATX_MNT_ID != 0).then_some(found.stx_mnt_id)
}

/// The user who runs the file system whose root the descriptor is.
pub(super) fn runner_of(fd: &OwnedFd) -> Option<u32> {
    let mount = mount_of(fd)?;
    runner_in(&std::fs::read(MOUNTS).unwrap_or_default(), mount)
}

/// The mounts of this process (Documentation/filesystems/proc.rst, section 3.5).
const MOUNTS: &str = "/proc/self/mountinfo";

fn runner_in(mountinfo: &[u8], mount: u64) -> Option<u32> {
    let number = mount.to_string();
    let lines = mountinfo.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    let line = lines.into_iter().find(|line| line.split(' ').next() == Some(&number))?;
    // Names have no spaces: they are written as octal numbers.
    let mut words = line.rsplit_once(" - ")?.1.split(' ');
    let (kind, options) = (words.next()?, words.nth(1)?);
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())?;
    (kind.starts_with("fuse") && user != 0).then_some(user)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs::File;
    use std::io;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::super::{TrustError, TrustedFolder, TrustedOwners};
    use super::*;

    #[test]
    fn lines_of_mountinfo() {
        let text = b"27 1 254:0 / / rw - ext4 /dev/vda rw\n\xff\n37 27 0:41 / /eve rw - fuse.sshfs eve@host: rw,user_id=1000,group_id=7\n\
            38 27 0:42 / /opt rw - fuse.cvmfs cvmfs rw,user_id=0\n39 27 0:43 / /nfs rw - nfs4 user_id=5 rw,user_id=5\n40 27";
        let runners = [27, 37, 38, 39, 40, 41].map(|mount| runner_in(text, mount));
        assert_eq!(runners, [None, Some(1000), None, None, None, None]);
    }

    /// Mounts a file system of user 4242 that never answers. It lives as long as the file.
    fn mount_silent(place: &Path, mode: &str) -> io::Result<File> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let text = |text: &[u8]| CString::new(text).unwrap();
        let options = format!("fd={},rootmode={mode},user_id=4242,group_id=4242,allow_other", device.as_raw_fd());
        let (target, options) = (text(place.as_os_str().as_bytes()), text(options.as_bytes()));
        // SAFETY: C strings that live during the call.
        let result = unsafe {
            libc::mount(
                c"silent".as_ptr(),
                target.as_ptr(),
                c"fuse.silent".as_ptr(),
                libc::MS_NODEV,
                options.as_ptr().cast(),
            )
        };
        if result == 0 { Ok(device) } else { Err(io::Error::last_os_error()) }
    }

    #[test]
    fn file_systems_of_users_are_refused_and_keep_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (mounted, file) = (folder.path().join("mounted"), folder.path().join("file"));
        std::fs::create_dir(&mounted).unwrap();
        std::fs::write(&file, "x 1\n").unwrap();
        let devices = mount_silent(&mounted, "40000").and_then(|first| Ok((first, mount_silent(&file, "100000")?)));
        let Ok(devices) = devices else {
            println!("skipped: this user may not mount");
            return;
        };
        let (send, answers) = channel();
        let (path, parent) = (mounted.clone(), folder.path().to_owned());
        std::thread::spawn(move || {
            let owners = TrustedOwners { more: Some(4242) };
            let below = TrustedFolder::open(&path.join("below"), owners).map(drop);
            let _ = send.send((TrustedFolder::open(&path, owners).map(drop), below));
            let file = TrustedFolder::open(&parent, owners).and_then(|folder| folder.file("file".as_ref(), 100));
            let _ = send.send((file.map(drop), Ok(())));
        });
        let answers: Vec<_> = [(); 2].iter().map(|()| answers.recv_timeout(Duration::from_secs(60))).collect();
        // A thread that hangs is freed, and the mounts do not outlive the test.
        drop(devices);
        for place in [&mounted, &file] {
            let place = CString::new(place.as_os_str().as_bytes()).unwrap();
            // SAFETY: a C string.
            unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
        }
        let [Ok((folder, below)), Ok((file, _))] = &answers[..] else { panic!("it waits: {answers:?}") };
        for answer in [folder, below] {
            assert!(matches!(answer, Err(TrustError::UserMount { uid: 4242, .. })), "{answer:?}");
        }
        assert_eq!(file.as_ref().map_err(TrustError::errno).map(drop), Err(libc::EXDEV), "{file:?}");
    }
}
