//! Memory that the agent shares with the process of a plug-in: a request to read one group, and the row that answers it.
//!
//! The plug-in's process may write anything at any time. So each word is read once, by an atomic load, and checked after it was copied.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use wholegrain_model::schema::SENSORS_MAX;
use wholegrain_plugin::abi::NOW;

/// The words before the row.
const HEAD_WORDS: usize = 64;
/// The words of the gap bits.
const GAP_WORDS: usize = SENSORS_MAX.div_ceil(64);
/// The size of the memory: 520 KiB, of which the system provides the pages that are used.
const BYTES: usize = (HEAD_WORDS + GAP_WORDS + SENSORS_MAX) * 8;
/// The longest text of a problem, in bytes.
const PROBLEM_BYTES_MAX: usize = 200;
/// Wake-ups without an answer that one read accepts.
const FALSE_WAKES_MAX: u32 = 64;
/// The values of [`RowHead::kind`].
const KIND_READ: u32 = 0;
const KIND_MESSAGE: u32 = 1;

/// The beginning of the memory.
#[repr(C)]
struct RowHead {
    /// Raised by the agent with each request.
    request: AtomicU32,
    /// Set by the plug-in's process to the request that it has answered.
    response: AtomicU32,
    /// A read, or a message on the socket.
    kind: AtomicU32,
    group: AtomicU32,
    sensors: AtomicU32,
    problem_length: AtomicU32,
    flags: AtomicU64,
    taken_at: AtomicU64,
    problem: [AtomicU8; PROBLEM_BYTES_MAX],
}

const _: () = assert!(size_of::<RowHead>() <= HEAD_WORDS * 8);

/// The memory, in either process.
pub(super) struct SharedRow {
    base: *mut libc::c_void,
}

// SAFETY: all access is by atomics.
unsafe impl Send for SharedRow {}
// SAFETY: as above.
unsafe impl Sync for SharedRow {}

/// What the plug-in's process was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowRequest {
    /// Read a group of so many sensors.
    Read { group: usize, sensors: usize },
    /// A message waits on the socket.
    Message,
}

/// The answer to a read, without its values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RowAnswer {
    pub taken_at: Option<i64>,
    /// As in a sample of the interface.
    pub flags: u64,
    pub problem: String,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowError {
    Deadline,
    /// The process wakes the agent again and again without an answer.
    Noise,
    /// [`SharedRow::interrupt`] was called: the process has ended.
    Ended,
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32, timeout: Option<Duration>) -> i64 {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a word that outlives the call, and a timeout or null.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, timeout) }
}

impl SharedRow {
    /// New memory of a fixed size, and its file for the other process.
    pub fn create() -> io::Result<(Self, File)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a string with an end.
        let fd = unsafe { libc::memfd_create(c"wholegrain-plugin".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was opened here.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(BYTES as u64)?;
        // Without its pages the agent would end by SIGBUS.
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: an open file.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((Self::map(&file)?, file))
    }

    /// Maps the memory in the process of the plug-in.
    pub fn map(file: &File) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of an open file.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { base }) }
    }

    fn head(&self) -> &RowHead {
        // SAFETY: the mapping begins with the head, of atomics only, and lives as long as `self`.
        unsafe { &*self.base.cast::<RowHead>() }
    }

    /// The gap bits, then the values.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has these words behind the head, of atomics only.
        unsafe {
            let first = self.base.cast::<AtomicU64>().add(HEAD_WORDS);
            std::slice::from_raw_parts(first, GAP_WORDS + SENSORS_MAX)
        }
    }

    fn send(&self, kind: u32) -> u32 {
        let head = self.head();
        head.kind.store(kind, Ordering::Relaxed);
        let request = head.request.load(Ordering::Relaxed).wrapping_add(1);
        head.request.store(request, Ordering::Release);
        futex(&head.request, libc::FUTEX_WAKE, 1, None);
        request
    }

    /// The agent: says that a message waits on the socket.
    pub fn announce(&self) {
        self.send(KIND_MESSAGE);
    }

    /// The agent: ends the wait for an answer that will not come.
    pub fn interrupt(&self, is_ended: &AtomicU32) {
        is_ended.store(1, Ordering::Release);
        futex(&self.head().response, libc::FUTEX_WAKE, i32::MAX as u32, None);
    }

    /// The agent: has a group read, and copies its row. The gap bits behind the last sensor are 0.
    pub fn read(
        &self,
        group: usize,
        values: &mut [u64],
        gaps: &mut [u64],
        timeout: Duration,
        is_ended: &AtomicU32,
    ) -> Result<RowAnswer, RowError> {
        let head = self.head();
        head.group.store(group as u32, Ordering::Relaxed);
        head.sensors.store(values.len() as u32, Ordering::Relaxed);
        let request = self.send(KIND_READ);
        let (deadline, mut wakes) = (Instant::now() + timeout, 0);
        loop {
            let response = head.response.load(Ordering::Acquire);
            if response == request {
                break;
            }
            if is_ended.load(Ordering::Acquire) != 0 {
                return Err(RowError::Ended);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(RowError::Deadline);
            }
            if wakes == FALSE_WAKES_MAX {
                return Err(RowError::Noise);
            }
            wakes += 1;
            futex(&head.response, libc::FUTEX_WAIT, response, Some(left));
        }
        let words = self.words();
        for (value, word) in values.iter_mut().zip(&words[GAP_WORDS..]) {
            *value = word.load(Ordering::Relaxed);
        }
        for (index, (gap, word)) in gaps.iter_mut().zip(words).enumerate() {
            let left = values.len() - index * 64;
            *gap = word.load(Ordering::Relaxed) & if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        }
        let length = (head.problem_length.load(Ordering::Relaxed) as usize).min(PROBLEM_BYTES_MAX);
        let problem: Vec<u8> = head.problem[..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        let problem = String::from_utf8_lossy(&problem).chars().filter(|c| !c.is_control()).collect();
        let taken_at = head.taken_at.load(Ordering::Relaxed) as i64;
        let flags = head.flags.load(Ordering::Relaxed);
        Ok(RowAnswer { taken_at: (taken_at != NOW).then_some(taken_at), flags, problem })
    }

    /// The plug-in's process: waits for the request after `last`.
    pub fn wait(&self, last: &mut u32) -> RowRequest {
        let head = self.head();
        loop {
            let request = head.request.load(Ordering::Acquire);
            if request != *last {
                *last = request;
                break;
            }
            futex(&head.request, libc::FUTEX_WAIT, request, None);
        }
        if head.kind.load(Ordering::Relaxed) == KIND_MESSAGE {
            return RowRequest::Message;
        }
        let group = head.group.load(Ordering::Relaxed) as usize;
        RowRequest::Read { group, sensors: (head.sensors.load(Ordering::Relaxed) as usize).min(SENSORS_MAX) }
    }

    /// The plug-in's process: answers request `last` of a read.
    pub fn answer(&self, last: u32, answer: &RowAnswer, values: &[u64], gaps: &[u64]) {
        let (head, words) = (self.head(), self.words());
        words[GAP_WORDS..].iter().zip(values).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        words[..GAP_WORDS].iter().zip(gaps).for_each(|(word, gap)| word.store(*gap, Ordering::Relaxed));
        let problem = &answer.problem.as_bytes()[..answer.problem.len().min(PROBLEM_BYTES_MAX)];
        head.problem.iter().zip(problem).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
        head.problem_length.store(problem.len() as u32, Ordering::Relaxed);
        head.taken_at.store(answer.taken_at.unwrap_or(NOW) as u64, Ordering::Relaxed);
        head.flags.store(answer.flags, Ordering::Relaxed);
        head.response.store(last, Ordering::Release);
        futex(&head.response, libc::FUTEX_WAKE, 1, None);
    }
}

impl Drop for SharedRow {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which nothing refers to any more.
        unsafe { libc::munmap(self.base, BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// Runs `plugin` with the plug-in's side, and returns the answers to reads of one sensor each.
    fn reads(count: usize, plugin: impl FnOnce(SharedRow) + Send + 'static) -> Vec<Result<RowAnswer, RowError>> {
        let (agent, file) = SharedRow::create().unwrap();
        assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err(), "its size is sealed");
        let theirs = SharedRow::map(&file).unwrap();
        let thread = std::thread::spawn(move || plugin(theirs));
        let ended = AtomicU32::new(0);
        let answers = (0..count).map(|_| agent.read(7, &mut [0; 3], &mut [0], SOON, &ended)).collect();
        thread.join().unwrap();
        answers
    }

    #[test]
    fn a_row_crosses() {
        let (agent, file) = SharedRow::create().unwrap();
        let plugin = SharedRow::map(&file).unwrap();
        let thread = std::thread::spawn(move || {
            let mut last = 0;
            assert_eq!(plugin.wait(&mut last), RowRequest::Read { group: 7, sensors: 3 });
            let answer = RowAnswer { taken_at: Some(5), flags: 2, problem: "no\nwater".to_owned() };
            plugin.answer(last, &answer, &[1, 2, 3], &[u64::MAX - 1]);
            assert_eq!(plugin.wait(&mut last), RowRequest::Message);
        });
        let (ended, mut values, mut gaps) = (AtomicU32::new(0), [9; 3], [9; 1]);
        let answer = agent.read(7, &mut values, &mut gaps, SOON, &ended).unwrap();
        assert_eq!((answer.taken_at, answer.flags, answer.problem.as_str()), (Some(5), 2, "nowater"));
        assert_eq!((values, gaps), ([1, 2, 3], [0b110]));
        agent.announce();
        thread.join().unwrap();
        agent.interrupt(&ended);
        assert_eq!(agent.read(0, &mut [0], &mut [0], SOON, &ended), Err(RowError::Ended));
    }

    #[test]
    fn garbage_is_bounded() {
        let answers = reads(1, |plugin| {
            let mut last = 0;
            plugin.wait(&mut last);
            plugin.head().problem.iter().for_each(|byte| byte.store(0xff, Ordering::Relaxed));
            plugin.head().problem_length.store(u32::MAX, Ordering::Relaxed);
            plugin.head().flags.store(u64::MAX, Ordering::Relaxed);
            plugin.head().response.store(last, Ordering::Release);
            futex(&plugin.head().response, libc::FUTEX_WAKE, 1, None);
        });
        let answer = answers[0].as_ref().unwrap();
        assert_eq!((answer.taken_at, answer.problem.chars().count()), (Some(0), PROBLEM_BYTES_MAX));
    }

    #[test]
    fn a_process_that_only_makes_noise_is_given_up() {
        let is_over = std::sync::Arc::new(AtomicU32::new(0));
        let theirs = is_over.clone();
        let watch = std::thread::spawn(move || {
            let answers = reads(1, move |plugin| {
                let mut noise = 1 << 31;
                while theirs.load(Ordering::Acquire) == 0 && noise != u32::MAX {
                    noise += 1;
                    plugin.head().response.store(noise, Ordering::Release);
                    futex(&plugin.head().response, libc::FUTEX_WAKE, 1, None);
                    if noise == (1 << 31) + (1 << 22) {
                        break;
                    }
                }
            });
            answers[0].clone()
        });
        assert_eq!(watch.join().unwrap(), Err(RowError::Noise));
        is_over.store(1, Ordering::Release);
    }

    #[test]
    fn a_read_has_a_deadline() {
        let (agent, _file) = SharedRow::create().unwrap();
        let ended = AtomicU32::new(0);
        let result = agent.read(0, &mut [0], &mut [0], Duration::from_millis(5), &ended);
        assert_eq!(result, Err(RowError::Deadline));
    }
}
