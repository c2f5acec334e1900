//! A real file system that never answers: FUSE without a program behind it, in a mount namespace of the test's thread.

mod tree;

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tree::{Tree, discover, read, source};
use wholegrain_testkit::wait_until;

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Mounts FUSE at `place`; `None`, with a message, without the rights.
fn mount_fuse(place: &Path) -> Option<File> {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let device = device.inspect_err(|error| println!("skipped: /dev/fuse: {error}")).ok()?;
    let options = CString::new(format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd())).unwrap();
    // SAFETY: it affects the namespace of this thread only.
    let is_own = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the texts end in a NUL; the flags need no data.
    let is_own = is_own
        && unsafe { libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()) } == 0;
    let place = c_path(place);
    // SAFETY: all texts end in a NUL and outlive the call.
    let is_mounted = is_own
        && unsafe { libc::mount(c"hang".as_ptr(), place.as_ptr(), c"fuse".as_ptr(), 0, options.as_ptr().cast()) } == 0;
    if !is_mounted {
        println!("skipped: cannot mount (needs root): {}", std::io::Error::last_os_error());
    }
    is_mounted.then_some(device)
}

#[test]
fn a_fuse_file_system_that_never_answers() {
    let tree = Tree::empty();
    let place = tree.path("hangs");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::create_dir_all(tree.path("proc")).unwrap();
    // The process's own list is that of another namespace.
    std::os::unix::fs::symlink("/proc/thread-self", tree.path("proc/self")).unwrap();
    let Some(device) = mount_fuse(&place) else { return };
    let config = "[sources.filesystems]\ntimeout = \"200ms\"\n";
    let mut filesystems = source("filesystems", config, &tree.roots()).unwrap();
    let mut group = discover(filesystems.as_mut()).0.remove("filesystems").unwrap();
    let name = |quantity: &str| {
        let level = place.to_str().unwrap().trim_start_matches('/').replace('/', "_");
        format!("filesystems/{level}/{quantity}")
    };
    let (values, reading) = read(&mut group);
    assert!(values["filesystems/_/size"].is_some_and(|size| size > 0), "{values:?}");
    assert_eq!((values[&name("answers")], values[&name("size")]), (Some(0), None));
    assert!(reading.layout_changed && reading.problem.is_some());
    let (_, reports) = discover(filesystems.as_mut());
    let named = reports.iter().filter(|report| report.contains("does not answer")).count();
    assert_eq!(named, 1, "{reports:?}");
    for _ in 0..20 {
        assert!(read(&mut group).0["filesystems/_/size"].is_some());
    }
    // Without its program the kernel ends the call with an error.
    drop(device);
    wait_until("the end of the call", || {
        let reading = read(&mut group).1;
        reading.problem.is_some_and(|problem| !problem.to_string().contains("timed out"))
    });
    drop((group, filesystems));
    let place = c_path(&place);
    // SAFETY: the path ends in a NUL.
    unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
}
