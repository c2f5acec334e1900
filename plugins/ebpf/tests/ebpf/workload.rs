//! A process whose switches and requests are known.

use std::ffi::CString;
use std::path::Path;

use wholegrain_testkit::wait_for;

use crate::machine::Cgroup;

/// What the process does between two stops.
pub enum Work {
    /// So many sleeps of so many ns.
    Sleeps(u32, i64),
    /// So many reads of 4 KiB, one after the other, past the page cache.
    Reads(CString, u32),
    /// Connects to a port of this machine once, without waiting for the answer, and keeps the socket.
    Connect(u16),
}

/// A process that stops itself before and after its work. It is killed when this is dropped.
pub struct Worker {
    pub pid: i32,
}

/// The waits of a process, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedStat {
    pub run_delay_ns: i64,
    pub count: i64,
}

impl Worker {
    /// A stopped process that will do the work each time it is continued.
    pub fn start(work: &Work) -> Self {
        // SAFETY: the child calls only functions that are safe after a fork, and never returns.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            // SAFETY: as above.
            unsafe { work_for_ever(work) }
        }
        let worker = Self { pid };
        worker.wait_for_stop();
        worker
    }

    /// A stopped process in a job, which counts only with one.
    pub fn idle_in(cgroup: &Cgroup) -> Self {
        let worker = Self::start(&Work::Sleeps(0, 0));
        cgroup.enter(worker.pid);
        worker
    }

    /// Waits until the process has stopped and is off its CPU. Its counts do not change afterwards.
    pub fn wait_for_stop(&self) {
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its state.
        let pid = unsafe { libc::waitpid(self.pid, &mut status, libc::WUNTRACED) };
        assert!(pid == self.pid && libc::WIFSTOPPED(status), "the process ended: {status}");
    }

    pub fn run(&self) {
        // SAFETY: a child that was not waited for to its end.
        unsafe { libc::kill(self.pid, libc::SIGCONT) };
        self.wait_for_stop();
    }

    /// `/proc/<pid>/schedstat` when two reads with a pause between them agree: the process may be preempted once more while it stops.
    pub fn sched_stat(&self) -> SchedStat {
        let read = || {
            let text = std::fs::read_to_string(format!("/proc/{}/schedstat", self.pid)).unwrap();
            let numbers: Vec<i64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
            SchedStat { run_delay_ns: numbers[1], count: numbers[2] }
        };
        wait_for("a process at rest", || {
            let first = read();
            std::thread::sleep(std::time::Duration::from_millis(30));
            (read() == first).then_some(first)
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: a child that was not waited for to its end.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// # Safety
/// In a child after a fork: no allocation, no lock.
unsafe fn work_for_ever(work: &Work) -> ! {
    // SAFETY: system calls with values of this function.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        loop {
            libc::raise(libc::SIGSTOP);
            match work {
                Work::Sleeps(count, ns) => {
                    let pause = libc::timespec { tv_sec: 0, tv_nsec: *ns };
                    for _ in 0..*count {
                        libc::nanosleep(&pause, std::ptr::null_mut());
                    }
                }
                Work::Reads(path, count) => {
                    let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECT);
                    let buffer = libc::mmap(
                        std::ptr::null_mut(),
                        4096,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                        -1,
                        0,
                    );
                    for index in 0..*count {
                        if libc::pread(file, buffer, 4096, i64::from(index) * 4096) != 4096 {
                            libc::_exit(1);
                        }
                    }
                    libc::close(file);
                }
                Work::Connect(port) => {
                    let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
                    let address = libc::sockaddr_in {
                        sin_family: libc::AF_INET as u16,
                        sin_port: port.to_be(),
                        sin_addr: libc::in_addr { s_addr: u32::from_be_bytes([127, 0, 0, 1]).to_be() },
                        sin_zero: [0; 8],
                    };
                    libc::connect(socket, std::ptr::from_ref(&address).cast(), size_of_val(&address) as u32);
                }
            }
        }
    }
}

/// A file of so many pages that can be read past the page cache; `None` where the file system does not allow that.
pub fn direct_file(path: &Path, pages: u32) -> Option<CString> {
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::File::create(path).unwrap();
    file.write_all(&vec![7; pages as usize * 4096]).unwrap();
    file.sync_all().unwrap();
    std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
    CString::new(path.as_os_str().as_bytes()).ok()
}
