//! Reads one device.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wholegrain_sources::{ReadProblem, Reader, Reading, Row};

use crate::library::NvmlCode;
use crate::quantities::{ReadValues, VALUES_MAX};
use crate::session::Session;

/// What messages call the library.
pub const WHAT: &str = "NVML";

/// A call, and the places of its values in the row.
pub struct BoundProbe {
    pub read: ReadValues,
    pub argument: u32,
    pub slots: [Option<usize>; VALUES_MAX],
}

/// Reads the values of one group of a device.
pub struct DeviceReader {
    pub session: Arc<Mutex<Session>>,
    pub device: u32,
    pub probes: Vec<BoundProbe>,
}

/// The session. All groups are read on one thread, so that only a discovery can hold it.
pub fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The problem of a failed call.
pub fn problem(code: NvmlCode) -> ReadProblem {
    ReadProblem::Os { what: WHAT, errno: code.errno() }
}

impl Reader for DeviceReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        let mut session = lock(&self.session);
        let mut reading = Reading::COMPLETE;
        for probe in &self.probes {
            let Some((library, handle)) = session.device(self.device) else {
                reading.problem.get_or_insert(ReadProblem::Os { what: WHAT, errno: libc::ENODEV });
                break;
            };
            let mut values = [None; VALUES_MAX];
            let result = (probe.read)(library, handle, probe.argument, &mut values);
            match result {
                Ok(()) => {
                    for (slot, value) in probe.slots.iter().zip(values) {
                        if let (Some(slot), Some(value)) = (slot, value) {
                            row.set_int(*slot, value);
                        }
                    }
                }
                Err(code) if code.is_lost() => {
                    reading.layout_changed |= session.lose(self.device);
                    reading.problem.get_or_insert(problem(code));
                }
                Err(code) => {
                    // The value no longer exists: MIG was switched on, or the instance was removed.
                    reading.layout_changed |= code.is_unsupported();
                    reading.problem.get_or_insert(problem(code));
                }
            }
        }
        reading
    }
}
