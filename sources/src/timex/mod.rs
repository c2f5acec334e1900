//! The state of the kernel's clock, as NTP or PTP disciplines it (adjtimex(2)).
//!
//! - In: `[sources.timex]`; the system call, which changes nothing here.
//! - Out: the group `timex`.
//! - Never: a file; a change of the clock.

use wholegrain_model::SensorDef;
use wholegrain_model::config::{ConfigError, Section};

use crate::options::{self, GroupOptions, NO_OPTIONS};
use crate::plan::{SensorPlan, Slot};
use crate::reader::{ReadProblem, Reader, Reading, Row};
use crate::source::{ConfigureContext, GroupPlan, Source};
use crate::source_type::SourceType;

/// The entry in [`crate::SOURCES`].
pub const SOURCE: SourceType = SourceType {
    name: "timex",
    summary: "the kernel's clock: whether it is synchronized, its offset, its frequency, its estimated errors",
    configure,
    jobs: None,
};

/// The name of the source and of its group.
const NAME: &str = SOURCE.name;

/// The values, in the order of [`values`]: name, unit, scale, description.
const SENSORS: [(&str, &str, f64, &str); 9] = [
    ("synchronized", "1", 1.0, "Whether a program disciplines the clock."),
    ("offset", "s", 1e-9, "Time that the clock is still to be moved by."),
    ("frequency", "[ppm]", 1.0 / 65536.0, "Correction of the clock's frequency."),
    ("error_max", "s", 1e-6, "Bound of the error; it grows until the clock is disciplined again."),
    ("error_estimated", "s", 1e-6, "Estimate of the error."),
    ("time_constant", "1", 1.0, "Time constant of the discipline, as a power of 2 in seconds."),
    ("tick", "s", 1e-6, "Time that a tick of the kernel adds to the clock."),
    ("tai_offset", "s", 1.0, "International Atomic Time less the clock; 0 while nobody has set it."),
    ("status", "1", 1.0, "Flags of the clock (STA_*)."),
];

/// The keys of `[sources.timex]` besides those of [`GroupOptions`].
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct TimexKeys {}

fn configure(section: &Section, _context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let (options, TimexKeys {}) = options::read(section)?;
    Ok(Box::new(TimexSource { options }))
}

struct TimexSource {
    options: GroupOptions,
}

impl Source for TimexSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        if let Err(errno) = clock() {
            report(format!(
                "{NAME}: adjtimex failed: {}; allow the system call",
                std::io::Error::from_raw_os_error(errno)
            ));
            return Vec::new();
        }
        let mut plan = SensorPlan::new(&self.options, &NO_OPTIONS, report);
        let slots = SENSORS.map(|(name, unit, scale, description)| {
            plan.add(SensorDef::gauge(format!("{NAME}/{name}"), unit, description).scaled(scale))
        });
        let sensors = plan.into_sensors();
        if sensors.is_empty() {
            return Vec::new();
        }
        let (timing, reader) = (self.options.timing(&NO_OPTIONS), Box::new(TimexReader { slots }));
        vec![GroupPlan { name: NAME.to_owned(), sensors, reader, timing, blocking: false }]
    }
}

struct TimexReader {
    slots: [Slot; SENSORS.len()],
}

impl Reader for TimexReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        match clock() {
            Ok((state, clock)) => {
                for (slot, value) in self.slots.iter().zip(values(state, &clock)) {
                    if let Some(slot) = slot {
                        row.set_int(*slot as usize, value);
                    }
                }
                Reading::default()
            }
            Err(errno) => Reading { problem: Some(ReadProblem::Os { what: "adjtimex", errno }), ..Reading::default() },
        }
    }
}

/// The state of the clock (TIME_*) and its values.
fn clock() -> Result<(i32, libc::timex), i32> {
    // SAFETY: `timex` is plain numbers, for which zero is a value; with `modes` 0 nothing is changed.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `clock` is writable.
    match unsafe { libc::adjtimex(&mut clock) } {
        -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        state => Ok((state, clock)),
    }
}

/// The raw values in the order of [`SENSORS`]. The offset is in ns with STA_NANO, else in us.
fn values(state: i32, clock: &libc::timex) -> [i64; SENSORS.len()] {
    let is_synchronized = state != libc::TIME_ERROR && clock.status & libc::STA_UNSYNC == 0;
    let offset_ns = if clock.status & libc::STA_NANO != 0 { 1 } else { 1000 };
    #[allow(clippy::useless_conversion, reason = "a long has 32 bits on some machines")]
    [
        i64::from(is_synchronized),
        i64::from(clock.offset).saturating_mul(offset_ns),
        i64::from(clock.freq),
        i64::from(clock.maxerror),
        i64::from(clock.esterror),
        i64::from(clock.constant),
        i64::from(clock.tick),
        i64::from(clock.tai),
        i64::from(clock.status),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_in_ns_whatever_the_kernel_uses() {
        // SAFETY: as in `clock`.
        let mut clock: libc::timex = unsafe { std::mem::zeroed() };
        (clock.offset, clock.freq, clock.maxerror, clock.tick) = (-250, 65_536 * 3, 16_000_000, 10_000);
        clock.status = libc::STA_UNSYNC;
        assert_eq!(values(libc::TIME_OK, &clock), [0, -250_000, 196_608, 16_000_000, 0, 0, 10_000, 0, 64]);
        clock.status = libc::STA_NANO;
        assert_eq!(values(libc::TIME_OK, &clock)[..2], [1, -250]);
        assert_eq!(values(libc::TIME_ERROR, &clock)[0], 0, "the discipline has stopped");
    }

    #[test]
    fn the_clock_of_this_machine() {
        let mut source = TimexSource { options: GroupOptions::default() };
        let mut groups = source.discover(&mut |_| {});
        let Some(group) = groups.first_mut() else { return };
        let (mut values, mut gaps) = ([0; SENSORS.len()], [0]);
        let mut row = Row::new(&mut values, &mut gaps);
        assert_eq!(group.reader.read(&mut row), Reading::default());
        assert!((0..SENSORS.len()).all(|index| row.int(index).is_some()));
        let tick = SENSORS.iter().position(|sensor| sensor.0 == "tick").unwrap();
        // The kernel accepts 900,000 to 1,100,000 us in a second of 100 ticks.
        assert!((9_000..=11_000).contains(&row.int(tick).unwrap()), "{:?}", row.int(tick));
    }
}
