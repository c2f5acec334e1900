//! Errors of perf_event_open, as messages: which events, why, and what to do.

use super::machine::Machine;
use crate::file::Errno;

/// The errors of one discovery.
#[derive(Debug, Default)]
pub struct OpenErrors(Vec<(Errno, Vec<String>)>);

impl OpenErrors {
    /// Adds the error of an event.
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

    /// Whether no event had an error.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports one line for each error number. The same errors give the same text, whichever job they came from.
    pub fn report(self, machine: &Machine, report: &mut dyn FnMut(String)) {
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
                "the agent may not count {events} ({error}): /proc/sys/kernel/perf_event_paranoid {level}. Counting the programs \
                 of others needs the capability CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8), such as AmbientCapabilities=CAP_PERFMON in \
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
            "{events}: the kernel refuses them ({error}): the PMU does not know these parameters, or a group has more events than \
             the PMU has counters (group_max)"
        ),
        libc::EBUSY => format!("{events}: another program uses these counters exclusively ({error})"),
        libc::ENOSPC => format!("{events}: more than the hardware has ({error})"),
        libc::EBADF => format!(
            "{events}: perf cannot count in the hierarchy of the jobs' directories ({error}): it counts in that of the perf_event \
             controller where it is mounted, else in the unified hierarchy"
        ),
        libc::ENOSYS => format!("{events}: this kernel was built without perf events ({error})"),
        _ => format!("{events} cannot be counted: {error}"),
    }
}
