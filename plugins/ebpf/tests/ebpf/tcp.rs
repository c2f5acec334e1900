//! Retransmitted segments against `RetransSegs` of `/proc/net/snmp`.

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use wholegrain_testkit::wait_for;

use crate::machine::{Cgroup, Machine, discover, skips, unified, values};
use crate::workload::{Work, Worker};

fn retransmitted_segments() -> i64 {
    let text = std::fs::read_to_string("/proc/net/snmp").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, numbers) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split(' ').position(|name| name == "RetransSegs").unwrap();
    numbers.split(' ').nth(at).unwrap().parse().unwrap()
}

#[test]
fn retransmits_of_the_node_and_of_a_job() {
    if skips("retransmits_of_the_node_and_of_a_job") {
        return;
    }
    let Some(mount) = unified() else { return };
    let (machine, cgroup) = (Machine::new(), Cgroup::new(&mount));
    let _idle = Worker::idle_in(&cgroup);
    machine.jobs(&[("5", &[&cgroup.path])]);
    let mut source = machine.source("programs = [\"tcp\"]\n");
    let (mut groups, reports) = discover(source.as_mut());
    assert!(reports.is_empty(), "{reports:?}");
    // Nobody accepts: when the queue is full, the kernel drops each SYN, and who connects sends it again.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: a listening socket.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let worker = Worker::start(&Work::Connect(listener.local_addr().unwrap().port()));
    cgroup.enter(worker.pid);
    let mut job = groups.remove("job/5/ebpf").unwrap();
    let node = groups.get_mut("ebpf").unwrap();
    let mut at_rest = || {
        wait_for("a time without retransmits", || {
            let before = retransmitted_segments();
            let counted = values(node)["ebpf/tcp/retransmits"];
            std::thread::sleep(std::time::Duration::from_millis(5));
            (before == retransmitted_segments()).then_some((before, counted))
        })
    };
    let (kernel_before, node_before) = at_rest();
    for _ in 0..4 {
        worker.run();
    }
    let of_job = wait_for("retransmits of the job", || {
        let count = values(&mut job)["job/5/ebpf/tcp/retransmits"];
        std::thread::sleep(std::time::Duration::from_millis(10));
        (count >= 2).then_some(count)
    });
    let (kernel, node) = at_rest();
    assert_eq!(node - node_before, kernel - kernel_before, "the kernel's count of this machine's network");
    assert!(node - node_before >= of_job);
}
