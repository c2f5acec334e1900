//! What the kernel refused, in words: which events, why, and what to do.

use super::machine::Machine;
use crate::file::Errno;

/// Refusals of one look.
#[derive(Debug, Default)]
pub struct Refusals(Vec<(Errno, Vec<String>)>);

impl Refusals {
    /// An event was refused.
    pub fn add(&mut self, errno: Errno, event: &str) {
        let place = match self.0.iter().position(|(other, _)| *other == errno) {
            Some(place) => place,
            None => {
                self.0.push((errno, Vec::new()));
                self.0.len() - 1
            }
        };
        let events = &mut self.0[place].1;
        if !events.iter().any(|other| other == event) {
            events.push(event.to_owned());
        }
    }

    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One line for each reason. The same refusals give the same text, whichever job they came from.
    pub fn tell(self, machine: &Machine, report: &mut dyn FnMut(String)) {
        for (errno, events) in self.0 {
            let error = std::io::Error::from_raw_os_error(errno);
            let events = events.join(", ");
            report(format!("perf: {}", reason(errno, &events, &error, machine)));
        }
    }
}

fn reason(errno: Errno, events: &str, error: &std::io::Error, machine: &Machine) -> String {
    match errno {
        libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::ENXIO => {
            format!("this machine has no {events}: left out ({error})")
        }
        libc::EACCES | libc::EPERM => {
            let level = machine.paranoid().map_or("cannot be read".to_owned(), |level| format!("is {level}"));
            format!(
                "{events} may not be counted ({error}): /proc/sys/kernel/perf_event_paranoid {level}. To count what others run \
                 takes the capability CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), such as AmbientCapabilities=CAP_PERFMON in \
                 the agent's unit, or `sysctl kernel.perf_event_paranoid=0` (-1 for tracepoints); where a filter of system calls \
                 is in force, it must let perf_event_open through"
            )
        }
        libc::EMFILE | libc::ENFILE => format!(
            "{events}: no file descriptors are left for another group ({error}), as each event takes one for each CPU: raise \
             LimitNOFILE= of the agent's unit (ulimit -n), of which counters take three quarters at most, or count fewer events"
        ),
        libc::ENOMEM => format!("{events}: the kernel has no memory for more counters ({error})"),
        libc::EINVAL => format!(
            "{events}: the kernel refuses them as they are ({error}): a PMU that does not know these parameters, or more events in \
             a group than it has counters (group_max)"
        ),
        libc::EBUSY => format!("{events}: another program has these counters for itself ({error})"),
        libc::ENOSPC => format!("{events}: more of them than the hardware has ({error})"),
        libc::EBADF => format!(
            "{events}: perf does not count by the hierarchy that the jobs' directories are in ({error}): it does by the perf_event \
             controller where that is mounted, and by the unified hierarchy otherwise"
        ),
        libc::ENOSYS => format!("{events}: this kernel was built without perf events ({error})"),
        _ => format!("{events} cannot be counted: {error}"),
    }
}
