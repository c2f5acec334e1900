//! Names of hosts in a process that has no memory for another thread. It has one test, as the limit is of the whole process.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wholegrain_device_http::{AnswerBounds, DeviceClient, DeviceRequest};
use wholegrain_devices::{
    AnswerSlot, BlockingProtocol, DeviceProblem, GroupTicks, PolledGroup, PooledDevice, WORKER_STACK_BYTES,
    WORKERS_MAX, WorkerPool,
};
use wholegrain_testkit::wait_until;

const BOUNDS: AnswerBounds = AnswerBounds { bytes_max: 1 << 10, redirects: 0, checks_certificate: true };
/// As many devices as a large machine has racks of, each with a name.
const DEVICES: usize = 128;
/// The most threads that resolve names.
const RESOLVERS: usize = 8;

/// How long a name may take.
const TIMEOUT: Duration = Duration::from_secs(2);

type ThreadNames = Arc<Mutex<BTreeSet<String>>>;

/// A device whose name is resolved by each poll. It keeps how its polls end.
struct NamedDevice {
    client: DeviceClient,
    url: String,
    thread_names: ThreadNames,
}

impl BlockingProtocol for NamedDevice {
    fn poll(&mut self, _group: usize, _slot: &AnswerSlot, deadline: Instant) -> Result<(), DeviceProblem> {
        let get = DeviceRequest::get(&self.url, &[]);
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| self.client.call(&get, deadline, &mut Vec::new())));
        let problem = match result {
            Ok(result) => result.err().unwrap_or(DeviceProblem::Silent),
            Err(_) => DeviceProblem::Refused("it panicked"),
        };
        self.thread_names.lock().unwrap().insert(problem.to_string());
        Err(problem)
    }
}

fn poll_all(workers: usize) -> (WorkerPool, ThreadNames) {
    let thread_names = ThreadNames::default();
    let device = |number: usize| PooledDevice {
        path: format!("n{number}"),
        host: format!("n{number}"),
        timeout: TIMEOUT,
        groups: vec![PolledGroup {
            ticks: GroupTicks { interval_ns: 100_000_000, offset_ns: 0 },
            slot: Arc::default(),
        }],
        protocol: Box::new(NamedDevice {
            client: DeviceClient::new(b"", None, BOUNDS).unwrap(),
            url: format!("http://n{number}.nosuch.invalid:9/"),
            thread_names: thread_names.clone(),
        }),
    };
    (WorkerPool::start("names", (0..DEVICES).map(device).collect(), workers).unwrap(), thread_names)
}

/// The bytes of `VmData`, which RLIMIT_DATA bounds.
fn data_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn limit_data(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call reads one struct, which lives until it returns.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) }, 0);
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn names_need_few_threads_and_their_lack_is_an_error_of_the_poll() {
    let client = DeviceClient::new(b"", None, BOUNDS).unwrap();
    let call = || {
        let get = DeviceRequest::get("http://n1.nosuch.invalid:9/", &[]);
        client.call(&get, Instant::now() + TIMEOUT, &mut Vec::new()).unwrap_err()
    };
    // Enough for what a request allocates, and less than any stack.
    let hook = std::panic::take_hook();
    // The message of a panic would need memory.
    std::panic::set_hook(Box::new(|_| {}));
    limit_data(data_bytes() + (256 << 10));
    let starved = std::panic::catch_unwind(AssertUnwindSafe(call));
    limit_data(libc::RLIM_INFINITY);
    std::panic::set_hook(hook);
    assert_eq!(starved.ok(), Some(DeviceProblem::NoThread), "without a problem, it panicked");
    assert_eq!(call(), DeviceProblem::Unresolved, "the next poll tries again");

    // Three stacks, and less than one more for what the threads allocate.
    limit_data(data_bytes() + 3 * WORKER_STACK_BYTES as u64 + (768 << 10));
    let (pool, _) = poll_all(WORKERS_MAX);
    limit_data(libc::RLIM_INFINITY);
    let mut notes = Vec::new();
    pool.counts().report(&mut |note| notes.push(note));
    assert!(notes[0].contains("threads poll, not 64"), "{notes:?}");
    drop(pool);

    let before = threads();
    let (pool, thread_names) = poll_all(WORKERS_MAX);
    let polls = || pool.counts().polls.load(Ordering::Relaxed);
    let mut most = 0;
    wait_until("polls of all devices", || {
        most = most.max(threads());
        polls() >= (DEVICES + WORKERS_MAX) as u64
    });
    assert!(most <= before + WORKERS_MAX + RESOLVERS, "{most} threads, {before} before");
    assert_eq!(*thread_names.lock().unwrap(), BTreeSet::from([DeviceProblem::Unresolved.to_string()]));
}
