//! A file that stays open and is read at each sample into the same buffer.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::descriptors::{Descriptor, Quota};

/// File systems of the kernel, whose files cannot be replaced while they are open (linux/magic.h): proc, sysfs, cgroup 2, cgroup.
const KERNEL_FILE_SYSTEMS: [u64; 4] = [0x9fa0, 0x6265_6572, 0x6367_7270, 0x0027_e0eb];

/// The maximum length of a file. /proc/stat of 4096 CPUs with 10,000 interrupts has less than 1 MiB.
pub const FILE_BYTES_MAX: usize = 16 << 20;

/// A file that is opened by its first read and stays open. After an error the next read opens it again.
pub struct PolledFile {
    path: CString,
    open: Option<OpenFile>,
    /// Pays for the descriptor; `None` for files of the node, which only the system limits.
    quota: Option<Quota>,
}

struct OpenFile {
    file: File,
    _descriptor: Option<Descriptor>,
    /// The file is on another file system (a recorded tree), where it can be removed or replaced while it is open.
    replaceable: bool,
}

/// A number of the system's `errno`.
pub type Errno = i32;

impl PolledFile {
    /// Opens nothing yet. Reads of a path that contains a NUL give an error.
    pub fn new(path: &Path) -> Self {
        Self { path: CString::new(path.as_os_str().as_bytes()).unwrap_or_default(), open: None, quota: None }
    }

    /// The same for a file of a job, with a descriptor of the quota of jobs.
    pub fn of_job(path: &Path, quota: &Quota) -> Self {
        Self { quota: Some(quota.clone()), ..Self::new(path) }
    }

    /// Reads from the beginning with one `pread`, for files that fit into `buffer` and need one read.
    pub fn read_once(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let result = self.current().and_then(|file| read_at(file, buffer, 0));
        self.close_on_error(result)
    }

    /// Reads the whole content into `buffer`, which grows if it is too short. Gives the length.
    ///
    /// The kernel gives a file of several records in several reads, and an empty read shows the end. `is_complete` saves that read: it recognizes a
    /// complete content.
    pub fn read_whole(&mut self, buffer: &mut Vec<u8>, is_complete: impl Fn(&[u8]) -> bool) -> Result<usize, Errno> {
        let result = self.current().and_then(|file| fill(file, buffer, is_complete));
        self.close_on_error(result)
    }

    /// The same for a file that may be empty, such as a cgroup's `io.stat` before the first I/O.
    pub fn read_whole_or_empty(
        &mut self,
        buffer: &mut Vec<u8>,
        is_complete: impl Fn(&[u8]) -> bool,
    ) -> Result<usize, Errno> {
        match self.current().and_then(|file| fill(file, buffer, is_complete)) {
            Ok(length) => Ok(length),
            error => self.close_on_error(error),
        }
    }

    /// Opens the file before the first read. After an error the first read tries again and gives the error.
    pub fn open_now(&mut self) {
        let _ = self.current();
    }

    fn close_on_error(&mut self, result: Result<usize, Errno>) -> Result<usize, Errno> {
        match result {
            // The kernel has no empty files: this one is being removed or written.
            Ok(0) => {
                self.close();
                Err(libc::ENODATA)
            }
            Ok(length) => Ok(length),
            // The device still exists and has no value at the moment.
            // EINVAL: the speed of a network interface that is down.
            Err(errno @ (libc::EIO | libc::EAGAIN | libc::EBUSY | libc::ETIMEDOUT | libc::ENODATA | libc::EINVAL)) => {
                Err(errno)
            }
            Err(errno) => {
                self.close();
                Err(errno)
            }
        }
    }

    /// The open file. Opens it if it is closed, or if the path names another file now.
    #[inline]
    fn current(&mut self) -> Result<&File, Errno> {
        if self.open.as_ref().is_some_and(|open| open.replaceable && is_unlinked(&open.file)) {
            self.close();
        }
        if self.open.is_none() {
            self.open = Some(open_path(&self.path, self.quota.as_ref())?);
        }
        // Moving the file out and back took 55 instructions of each read.
        self.open.as_ref().map(|open| &open.file).ok_or(libc::EBADF)
    }

    #[cold]
    fn close(&mut self) {
        self.open = None;
    }
}

/// Reads a file once, for a discovery.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    let length = PolledFile::new(path).read_whole(&mut buffer, |_| false).map_err(io::Error::from_raw_os_error)?;
    buffer.truncate(length);
    Ok(buffer)
}

/// Whether an error shows that the file or its device does not exist. Other errors (no permission, descriptor or memory, a busy device) do not.
pub fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::ENXIO | libc::EOPNOTSUPP | libc::ENODATA)
    )
}

/// Opens a path in the form of a C string. The standard library would allocate for long paths.
#[cold]
fn open_path(path: &CString, quota: Option<&Quota>) -> Result<OpenFile, Errno> {
    let descriptor = quota.map(|quota| quota.take().ok_or(libc::EMFILE)).transpose()?;
    // SAFETY: `path` ends in a NUL and outlives the call.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(errno(&io::Error::last_os_error()));
    }
    // SAFETY: `fd` was just opened and has no other owner.
    let file = unsafe { File::from_raw_fd(fd) };
    // SAFETY: `statfs` is plain numbers, for which zero is a value.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open and `system` is writable.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &mut system) } == 0;
    let replaceable = !(known && KERNEL_FILE_SYSTEMS.contains(&(system.f_type as u64)));
    Ok(OpenFile { file, _descriptor: descriptor, replaceable })
}

fn is_unlinked(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

fn fill(file: &File, buffer: &mut Vec<u8>, is_complete: impl Fn(&[u8]) -> bool) -> Result<usize, Errno> {
    let mut length = 0;
    loop {
        if length == buffer.len() {
            if length >= FILE_BYTES_MAX {
                return Err(libc::EFBIG);
            }
            buffer.resize((length * 2).max(4096), 0);
        }
        let count = read_at(file, &mut buffer[length..], length as u64)?;
        length += count;
        if count == 0 || (length < buffer.len() && is_complete(&buffer[..length])) {
            return Ok(length);
        }
    }
}

#[inline]
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    loop {
        if let Ok(count) = usize::try_from(pread(file, buffer, offset)) {
            return Ok(count);
        }
        match errno(&io::Error::last_os_error()) {
            libc::EINTR => {}
            errno => return Err(errno),
        }
    }
}

/// As pread(2). The C library's function enables the cancellation of the thread before each call, and disables it afterwards, in a program with
/// several threads. Threads are not cancelled here, and each tick reads about forty files.
#[cfg(target_pointer_width = "64")]
#[inline]
fn pread(file: &File, buffer: &mut [u8], offset: u64) -> libc::c_long {
    // SAFETY: the descriptor is open, and the buffer is writable for the requested length. Length and offset
    // take one register each.
    unsafe { libc::syscall(libc::SYS_pread64, file.as_raw_fd(), buffer.as_mut_ptr(), buffer.len(), offset) }
}

/// As pread(2), by the C library.
#[cfg(not(target_pointer_width = "64"))]
fn pread(file: &File, buffer: &mut [u8], offset: u64) -> libc::ssize_t {
    let offset = libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
    // SAFETY: the descriptor is open, and the buffer is writable for the requested length.
    unsafe { libc::pread(file.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), offset) }
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(file: &mut PolledFile) -> Result<String, Errno> {
        let mut buffer = Vec::new();
        let length = file.read_whole(&mut buffer, |_| false)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    #[test]
    fn follows_a_file_that_is_removed_replaced_and_emptied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = PolledFile::new(&path);
        assert_eq!(text(&mut file), Err(libc::ENOENT));
        std::fs::write(&path, "one").unwrap();
        assert_eq!(text(&mut file).unwrap(), "one");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text(&mut file), Err(libc::ENOENT), "not the content from before");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(text(&mut file).unwrap(), "two");
        std::fs::write(folder.path().join("new"), "three").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(text(&mut file).unwrap(), "three");
        std::fs::write(&path, "").unwrap();
        assert_eq!(text(&mut file), Err(libc::ENODATA));
        std::fs::write(&path, "four").unwrap();
        assert_eq!(text(&mut file).unwrap(), "four");
    }

    #[test]
    fn errors_have_their_number() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(text(&mut PolledFile::new(folder.path())), Err(libc::EISDIR));
        assert_eq!(text(&mut PolledFile::new(Path::new("/nul\0here"))), Err(libc::ENOENT));
    }

    #[test]
    fn content_longer_than_the_buffer_comes_whole_and_the_buffer_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "x".repeat(100_000)).unwrap();
        let mut file = PolledFile::new(&path);
        let mut buffer = Vec::new();
        assert_eq!(file.read_whole(&mut buffer, |_| false), Ok(100_000));
        let grown = buffer.len();
        assert_eq!(file.read_whole(&mut buffer, |_| true), Ok(100_000));
        assert_eq!(buffer.len(), grown);
    }
}
