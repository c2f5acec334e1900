//! Events by their names in `perf list`.

use wholegrain_model::SensorDef;
use wholegrain_model::config::unknown;
use wholegrain_model::name::sanitize_level;

use super::kernel::{EXCLUDE_HV, EXCLUDE_KERNEL, EXCLUDE_USER, TYPE_CACHE, TYPE_HARDWARE, TYPE_RAW, TYPE_SOFTWARE};

/// The names of an event (the sensor has the first), its `config`, and its description.
type KnownEvent = (&'static [&'static str], u64, &'static str);

/// The events of `enum perf_hw_id`.
const HARDWARE: &[KnownEvent] = &[
    (&["cycles", "cpu-cycles"], 0, "Processor cycles, which change in length with the clock."),
    (&["instructions"], 1, "Instructions retired."),
    (&["cache-references"], 2, "Accesses to the last level of cache, mostly."),
    (&["cache-misses"], 3, "Accesses that the last level of cache did not have, mostly."),
    (&["branches", "branch-instructions"], 4, "Branches retired."),
    (&["branch-misses"], 5, "Branches that were predicted wrongly."),
    (&["bus-cycles"], 6, "Bus cycles."),
    (&["stalled-cycles-frontend", "idle-cycles-frontend"], 7, "Cycles in which no instruction was issued."),
    (&["stalled-cycles-backend", "idle-cycles-backend"], 8, "Cycles in which no instruction was retired."),
    (&["ref-cycles"], 9, "Cycles of a clock that does not change."),
];

/// The events of `enum perf_sw_ids`.
const SOFTWARE: &[KnownEvent] = &[
    (&["cpu-clock"], 0, "Time on the CPU by its clock."),
    (&["task-clock"], 1, "Time on the CPU."),
    (&["page-faults", "faults"], 2, "Page faults."),
    (&["context-switches", "cs"], 3, "Switches from one task to another."),
    (&["cpu-migrations", "migrations"], 4, "Tasks that went on on another CPU."),
    (&["minor-faults"], 5, "Page faults that needed no disk."),
    (&["major-faults"], 6, "Page faults that needed a disk."),
    (&["alignment-faults"], 7, "Accesses that were not aligned and that the kernel made good."),
    (&["emulation-faults"], 8, "Instructions that the kernel emulated."),
    (&["cgroup-switches"], 11, "Switches from a task of one cgroup to one of another."),
];

/// `PERF_COUNT_SW_CPU_CLOCK` and `PERF_COUNT_SW_TASK_CLOCK`, which count ns.
const CLOCKS: [u64; 2] = [0, 1];

/// The caches of `enum perf_hw_cache_id`.
const CACHES: [(&str, u64); 7] =
    [("L1-dcache", 0), ("L1-icache", 1), ("LLC", 2), ("dTLB", 3), ("iTLB", 4), ("branch", 5), ("node", 6)];
/// `enum perf_hw_cache_op_id` in bits 8 to 15 and `enum perf_hw_cache_op_result_id` in bits 16 to 23.
const CACHE_OPERATIONS: [(&str, u64); 6] = [
    ("loads", 0x0_0000),
    ("load-misses", 0x1_0000),
    ("stores", 0x0_0100),
    ("store-misses", 0x1_0100),
    ("prefetches", 0x0_0200),
    ("prefetch-misses", 0x1_0200),
];

/// The most hexadecimal digits of a raw event.
const RAW_DIGITS_MAX: usize = 16;

/// An event of the configuration. The machine may lack it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The name in the configuration, such as `cycles`, `sched:sched_switch`, `power/energy-pkg/`.
    pub text: String,
    /// The last level of its sensor's name, below `perf`.
    pub level: String,
    pub location: EventLocation,
    /// A combination of `exclude_user`, `exclude_kernel`, `exclude_hv`.
    pub flags: u64,
    description: String,
    is_clock: bool,
}

/// How the kernel identifies an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventLocation {
    /// By a type and a number of the kernel.
    Numbered { kind: u32, config: u64 },
    /// By the directory of its subsystem in tracefs.
    Tracepoint { system: String, name: String },
    /// By the files of a PMU in sysfs.
    Dynamic {
        /// The name of the PMU, or its beginning for several PMUs.
        pmu: String,
        /// Terms such as `event=0x3c` or `edge`, or the name of an event.
        terms: Vec<(String, Option<u64>)>,
    },
}

/// The counters that an event needs. Events of one family can be counted in one group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// No hardware counter: the kernel counts all events at the same time.
    Software,
    /// The counters of the CPU.
    Core,
    /// The counters of another PMU.
    Pmu(String),
}

impl Event {
    /// Parses the name of an event. The error names the nearest known name.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return dynamic(text);
        }
        if let Some(event) = numbered(text, 0) {
            return Ok(event);
        }
        let Some((first, rest)) = text.split_once(':') else { return Err(not_known(text)) };
        if let Some(flags) = modifiers(rest)
            && let Some(event) = numbered(first, flags)
        {
            return Ok(Self {
                text: format!("{}:{rest}", event.text),
                level: format!("{}:{rest}", event.level),
                ..event
            });
        }
        if !is_file_name(first) || !is_file_name(rest) {
            return Err(not_known(text));
        }
        Ok(Self {
            text: text.to_owned(),
            level: sanitize_level(text),
            location: EventLocation::Tracepoint { system: first.to_owned(), name: rest.to_owned() },
            flags: 0,
            description: format!("Passes of the tracepoint {text}."),
            is_clock: false,
        })
    }

    /// The counters that the event needs.
    pub fn family(&self) -> Family {
        match &self.location {
            EventLocation::Numbered { kind: TYPE_SOFTWARE, .. } | EventLocation::Tracepoint { .. } => Family::Software,
            EventLocation::Numbered { .. } => Family::Core,
            EventLocation::Dynamic { pmu, .. } if pmu == "cpu" => Family::Core,
            EventLocation::Dynamic { pmu, .. } => Family::Pmu(pmu.clone()),
        }
    }

    /// The sensor of the event, without the unit and scale of sysfs.
    pub fn sensor(&self) -> SensorDef {
        let name = format!("perf/{}", self.level);
        if self.is_clock {
            SensorDef::counter(name, "s", &self.description).scaled(1e-9)
        } else {
            SensorDef::counter(name, "1", &self.description)
        }
    }
}

/// The names of all events that the kernel numbers, with the cache events.
pub fn known_names() -> Vec<String> {
    let fixed = HARDWARE.iter().chain(SOFTWARE).flat_map(|(names, ..)| names.iter().map(|name| name.to_string()));
    let caches =
        CACHES.iter().flat_map(|(cache, _)| CACHE_OPERATIONS.iter().map(move |(op, _)| format!("{cache}-{op}")));
    fixed.chain(caches).collect()
}

fn not_known(text: &str) -> String {
    let names = known_names();
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    // The list of all names is too long for a message.
    let message = unknown("event", text, &known);
    match message.split_once("; expected one of ") {
        None => message,
        Some((head, _)) => format!(
            "{head}; expected a name of `perf list` such as `cycles`, `page-faults`, `LLC-load-misses`, a raw event `rNNN`, a \
             tracepoint `sched:sched_switch` or a PMU's event `power/energy-pkg/`"
        ),
    }
}

fn numbered(text: &str, flags: u64) -> Option<Event> {
    let (name, kind, config, description) = find_fixed(text).or_else(|| find_cache(text)).or_else(|| find_raw(text))?;
    Some(Event {
        text: name.clone(),
        level: name,
        location: EventLocation::Numbered { kind, config },
        flags,
        description,
        is_clock: kind == TYPE_SOFTWARE && CLOCKS.contains(&config),
    })
}

fn find_fixed(text: &str) -> Option<(String, u32, u64, String)> {
    let tables = [(TYPE_HARDWARE, HARDWARE), (TYPE_SOFTWARE, SOFTWARE)];
    tables.into_iter().find_map(|(kind, table)| {
        let (names, config, description) = table.iter().find(|(names, ..)| names.contains(&text))?;
        Some((names[0].to_owned(), kind, *config, (*description).to_owned()))
    })
}

fn find_cache(text: &str) -> Option<(String, u32, u64, String)> {
    CACHES.iter().find_map(|(cache, id)| {
        let operation = text.strip_prefix(cache)?.strip_prefix('-')?;
        let (operation, bits) = CACHE_OPERATIONS.iter().find(|(name, _)| *name == operation)?;
        let description = format!("{}: {cache}.", capitalized(&operation.replace('-', " ")));
        Some((text.to_owned(), TYPE_CACHE, bits | id, description))
    })
}

fn find_raw(text: &str) -> Option<(String, u32, u64, String)> {
    let digits = text.strip_prefix('r').filter(|digits| (1..=RAW_DIGITS_MAX).contains(&digits.len()))?;
    let config =
        digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok())??;
    Some((text.to_ascii_lowercase(), TYPE_RAW, config, format!("Raw event 0x{config:x} of this processor.")))
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// The flags of the modifiers `u`, `k` and `h`, which restrict counting to these privilege levels.
fn modifiers(text: &str) -> Option<u64> {
    let known = !text.is_empty() && text.chars().all(|c| "ukh".contains(c));
    let excluded = [('u', EXCLUDE_USER), ('k', EXCLUDE_KERNEL), ('h', EXCLUDE_HV)];
    known.then(|| excluded.iter().filter(|(level, _)| !text.contains(*level)).map(|(_, flag)| flag).sum())
}

/// Whether a text is a single file name, which cannot lead out of sysfs or tracefs.
fn is_file_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// Parses an event of a PMU, such as `pmu/event=0x3c,umask=1/u` or `power/energy-pkg/`.
fn dynamic(text: &str) -> Result<Event, String> {
    let expected = "expected `pmu/event=0x3c,umask=1/` or `pmu/name/`";
    let [pmu, inner, after] = text.split('/').collect::<Vec<_>>()[..] else {
        return Err(format!("event `{text}` must have two slashes; {expected}"));
    };
    if !is_file_name(pmu) {
        return Err(format!("event `{text}`: `{pmu}` cannot be the name of a PMU; {expected}"));
    }
    let flags = match after {
        "" => 0,
        after => modifiers(after.trim_start_matches(':')).ok_or_else(|| {
            format!("event `{text}`: after the last slash only the letters u, k and h are allowed, not `{after}`")
        })?,
    };
    let (terms, name) = terms(inner).map_err(|reason| format!("event `{text}`: {reason}; {expected}"))?;
    let described = inner.split(',').filter(|term| !term.starts_with("name=")).collect::<Vec<_>>().join("_");
    let suffix = if after.is_empty() { String::new() } else { format!(":{}", after.trim_start_matches(':')) };
    let level = name.unwrap_or_else(|| format!("{pmu}.{described}{suffix}"));
    Ok(Event {
        text: text.to_owned(),
        level: sanitize_level(&level),
        location: EventLocation::Dynamic { pmu: pmu.to_owned(), terms },
        flags,
        description: format!("Event {described} of the PMU {pmu}."),
        is_clock: false,
    })
}

/// A term such as `event=0x3c` or `edge`, or the name of an event.
pub type Term = (String, Option<u64>);

/// Parses the terms between the slashes, or in the file of an event. The value of `name=…` comes separately.
pub fn terms(text: &str) -> Result<(Vec<Term>, Option<String>), String> {
    let (mut terms, mut name) = (Vec::new(), None);
    for term in text.split(',').map(str::trim) {
        let (key, value) = term.split_once('=').map_or((term, None), |(key, value)| (key, Some(value)));
        if !is_file_name(key) {
            return Err(format!("`{term}` is no term"));
        }
        match value {
            Some(value) if key == "name" => {
                if !is_file_name(value) {
                    return Err(format!("`{value}` is no name; use letters, digits, `_`, `-` and `.`"));
                }
                name = Some(value.to_owned());
            }
            Some(value) => terms.push((key.to_owned(), Some(number(value)?))),
            None => terms.push((key.to_owned(), None)),
        }
    }
    if terms.is_empty() { Err("it has no term".to_owned()) } else { Ok((terms, name)) }
}

fn number(text: &str) -> Result<u64, String> {
    let result = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    result.map_err(|_| match text {
        "?" => "replace its `?` by a value".to_owned(),
        _ => format!("`{text}` is no number; write 60 or 0x3c"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn numbers(text: &str, name: &str, kind: u32, config: u64, flags: u64) {
        let event = Event::parse(text).unwrap();
        assert_eq!(
            (event.level.as_str(), &event.location, event.flags),
            (name, &EventLocation::Numbered { kind, config }, flags)
        );
        wholegrain_model::name::check_relative(&event.sensor().name).unwrap();
    }

    #[test]
    fn names_have_the_kernels_numbers() {
        numbers("cpu-cycles", "cycles", 0, 0, 0);
        numbers("branch-misses", "branch-misses", 0, 5, 0);
        numbers("ref-cycles", "ref-cycles", 0, 9, 0);
        numbers("faults", "page-faults", 1, 2, 0);
        numbers("cgroup-switches", "cgroup-switches", 1, 11, 0);
        numbers("L1-dcache-load-misses", "L1-dcache-load-misses", 3, 0x1_0000, 0);
        numbers("LLC-stores", "LLC-stores", 3, 0x102, 0);
        numbers("dTLB-load-misses", "dTLB-load-misses", 3, 0x1_0003, 0);
        numbers("branch-load-misses", "branch-load-misses", 3, 0x1_0005, 0);
        numbers("node-prefetch-misses", "node-prefetch-misses", 3, 0x1_0206, 0);
        numbers("r01C7", "r01c7", 4, 0x1c7, 0);
        numbers("cycles:u", "cycles:u", 0, 0, EXCLUDE_KERNEL | EXCLUDE_HV);
        numbers("r1a8:k", "r1a8:k", 4, 0x1a8, EXCLUDE_USER | EXCLUDE_HV);
        for name in known_names() {
            assert!(Event::parse(&name).is_ok(), "{name}");
        }
    }

    #[test]
    fn tracepoints_and_pmus() {
        let event = Event::parse("sched:sched_switch").unwrap();
        let tracepoint = EventLocation::Tracepoint { system: "sched".into(), name: "sched_switch".into() };
        assert_eq!(
            (event.location.clone(), event.family(), event.sensor().name.as_str()),
            (tracepoint, Family::Software, "perf/sched:sched_switch")
        );
        let event = Event::parse("cpu/event=0x3c,umask=1,edge/u").unwrap();
        let terms = vec![("event".into(), Some(0x3c)), ("umask".into(), Some(1)), ("edge".into(), None)];
        assert_eq!(
            (event.location.clone(), event.family()),
            (EventLocation::Dynamic { pmu: "cpu".into(), terms }, Family::Core)
        );
        assert_eq!(event.level, "cpu.event=0x3c_umask=1_edge:u");
        let event = Event::parse("power/energy-pkg/").unwrap();
        assert_eq!(
            (event.family(), event.sensor().name.as_str()),
            (Family::Pmu("power".into()), "perf/power.energy-pkg")
        );
        assert_eq!(Event::parse("cpu/event=0xc7,name=flops/").unwrap().level, "flops");
        assert_eq!(Event::parse("task-clock").unwrap().sensor().unit, "s");
    }

    #[test]
    fn errors_name_the_nearest_event() {
        let check = |text: &str, part: &str| {
            let error = Event::parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?}: {error:?} does not contain {part:?}");
        };
        check("cyles", "unknown event `cyles`; did you mean `cycles`?");
        check("page_faults", "did you mean `page-faults`?");
        check("L1-dcache-misses", "did you mean `L1-dcache-load-misses`?");
        check("zzz", "unknown event `zzz`; expected a name of `perf list`");
        check("", "unknown event ``");
        check("r", "unknown event `r`");
        check("r12345678901234567", "unknown event `r12345678901234567`");
        check("cycles:x y", "unknown event");
        check("sched:../x", "must have two slashes");
        check("cpu/event=1", "must have two slashes");
        check("../event=1/", "`..` cannot be the name of a PMU");
        check("./event=1/", "cannot be the name of a PMU");
        check("cpu//", "is no term");
        check("cpu/name=x/", "it has no term");
        check("cpu/event=0xzz/", "`0xzz` is no number");
        check("cpu/event=?/", "by a value");
        check("cpu/event=1/q", "not `q`");
        check("cpu/event=1,name=a b/", "`a b` is no name");
    }
}
