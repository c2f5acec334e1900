//! A source behind `export!`, called as the agent calls a shared object.

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use wholegrain_model::config::{ConfigError, Section};
use wholegrain_model::{Interval, Kind, SensorDef, ValueType};
use wholegrain_plugin::abi::{ABI_VERSION, PluginDescriptor};
use wholegrain_plugin::{HostError, HostSettings, HostedSource};
use wholegrain_sources::{
    ConfigureContext, GroupPlan, ReadProblem, Reader, Reading, Roots, Row, Source, SourceType, Timing,
};

static SOURCE: SourceType = SourceType { name: "plant", summary: "the plant of this test", configure, jobs: None };

wholegrain_plugin::export!(SOURCE);

unsafe extern "C" {
    safe fn wholegrain_source_v1() -> *const PluginDescriptor;
}

/// Readers and sources that exist now.
static ALIVE: AtomicUsize = AtomicUsize::new(0);
/// The tests of this file count in [`ALIVE`].
static ALONE: Mutex<()> = Mutex::new(());

struct Alive;

impl Alive {
    fn new() -> Self {
        ALIVE.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PlantKeys {
    #[serde(default)]
    pumps: usize,
    #[serde(default)]
    mode: String,
}

fn configure(section: &Section, context: &ConfigureContext) -> Result<Box<dyn Source>, ConfigError> {
    let keys: PlantKeys = section.parse()?;
    assert_ne!(keys.mode, "panic", "no such mode");
    if keys.pumps > 9 {
        return Err(section.error("pumps", format!("{} pumps; at most 9", keys.pumps)));
    }
    assert_eq!(context.roots.proc.to_str(), Some("/recorded/proc"));
    assert_eq!(context.resolve("x".as_ref()).to_str(), Some("/etc/plant/x"));
    Ok(Box::new(PlantSource { keys, _alive: Alive::new() }))
}

struct PlantSource {
    keys: PlantKeys,
    _alive: Alive,
}

impl Source for PlantSource {
    fn discover(&mut self, report: &mut dyn FnMut(String)) -> Vec<GroupPlan> {
        assert_ne!(self.keys.mode, "panic in discover");
        report("pump 7 is\nmissing".to_owned());
        let sensors = (0..self.keys.pumps).flat_map(|pump| {
            let flow = SensorDef::gauge(format!("pump{pump}/flow"), "l/s", "Flow.").float();
            let turns = SensorDef::counter(format!("pump{pump}/turns"), "1", "Turns.").scaled(0.1);
            let bad = SensorDef::gauge(format!("pump{pump}/bad"), "not a unit", "Refused.");
            [flow, bad, SensorDef { wraps_at: Some(1 << 32), ..turns }]
        });
        let timing = Timing { interval: Some(Interval::from_s(5)), offset: Interval::from_ms(20), synchronous: false };
        let reader = |mode: &str| Box::new(PlantReader { mode: mode.to_owned(), _alive: Alive::new() });
        let plan = |name: &str, sensors: Vec<SensorDef>| GroupPlan {
            name: name.to_owned(),
            sensors,
            reader: reader(&self.keys.mode),
            timing,
            blocking: true,
        };
        let one = |name: &str| vec![SensorDef::gauge(name, "1", "One.")];
        vec![plan("plant/pumps", sensors.collect()), plan("plant pumps", one("a")), plan("plant/pumps", one("b"))]
    }

    fn unseen(&self) -> &[&'static str] {
        &["plant/valves"]
    }
}

struct PlantReader {
    mode: String,
    _alive: Alive,
}

static TIME: AtomicI64 = AtomicI64::new(77);

impl Reader for PlantReader {
    fn read(&mut self, row: &mut Row<'_>) -> Reading {
        row.set_float(0, 0.5);
        row.set_int(1, 3);
        row.set_int(2, -4);
        match self.mode.as_str() {
            "panic in read" => panic!("pump on fire"),
            "problem" => {
                row.set_gap(2);
                let problem = Some(ReadProblem::Os { what: "pump", errno: 5 });
                Reading { problem, layout_changed: true, ..Reading::COMPLETE }
            }
            "unchanged" => Reading { unchanged: true, ..Reading::COMPLETE },
            "old" => Reading { taken_at: Some(TIME.load(Ordering::SeqCst)), ..Reading::COMPLETE },
            _ => Reading::COMPLETE,
        }
    }
}

fn settings(table: &str) -> HostSettings {
    let roots = Roots { proc: "/recorded/proc".into(), ..Roots::default() };
    let context = ConfigureContext { roots, config_dir: "/etc/plant".into() };
    HostSettings { table: table.to_owned(), file: "agent.toml".to_owned(), context }
}

fn hosted(table: &str) -> Result<HostedSource, HostError> {
    // SAFETY: the descriptor of this program.
    unsafe { HostedSource::configure(wholegrain_source_v1(), &settings(table)) }
}

#[test]
fn everything_arrives_and_is_freed() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    let mut source = hosted("pumps = 1\n").expect("a source");
    assert_eq!((source.name(), source.summary()), ("plant", "the plant of this test"));
    assert_eq!((source.version(), source.is_concurrent()), (env!("CARGO_PKG_VERSION"), true));
    let found = source.discover().expect("groups");
    assert_eq!(found.keeps, ["plant/valves"]);
    assert_eq!(found.notes[0], "pump 7 is missing");
    assert!(found.notes[1].contains("pump0/bad is left out: its unit \"not a unit\""), "{:?}", found.notes);
    assert!(found.notes[2].contains("plant pumps"), "{:?}", found.notes);
    assert!(found.notes[3].contains("plant/pumps is offered twice"), "{:?}", found.notes);
    let [mut group] = <[_; 1]>::try_from(found.groups).unwrap_or_else(|groups| panic!("{} groups", groups.len()));
    assert_eq!((group.name.as_str(), group.blocking), ("plant/pumps", true));
    assert_eq!((group.timing.interval, group.timing.synchronous), (Some(Interval::from_s(5)), false));
    assert_eq!(group.timing.offset, Interval::from_ms(20));
    let [flow, turns] = &group.sensors[..] else { panic!("{:?}", group.sensors) };
    assert_eq!((flow.name.as_str(), flow.unit.as_str(), flow.value_type), ("pump0/flow", "l/s", ValueType::Float));
    assert_eq!((turns.kind, turns.scale, turns.wraps_at), (Kind::Counter, 0.1, Some(1 << 32)));
    let (mut values, mut gaps) = ([9, 9], [9]);
    let reading = group.reader.read(&mut values, &mut gaps);
    assert_eq!(
        (reading.problem, reading.taken_at, reading.unchanged, reading.layout_changed),
        (None, None, false, false)
    );
    assert_eq!((f64::from_bits(values[0]), values[1] as i64, gaps[0]), (0.5, -4, 0), "the refused one keeps its place");
    drop(source);
    assert_eq!(ALIVE.load(Ordering::SeqCst), 2, "the source lives as long as its reader");
    drop(group);
    assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
}

#[test]
fn results_of_reads() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    let read = |mode: &str| {
        let mut source = hosted(&format!("pumps = 1\nmode = \"{mode}\"\n")).expect("a source");
        let mut found = source.discover().expect("groups");
        let (mut values, mut gaps) = ([9, 9], [9]);
        let reading = found.groups[0].reader.read(&mut values, &mut gaps);
        let problem = reading.problem.map(str::to_owned);
        (reading.taken_at, reading.unchanged, reading.layout_changed, problem, gaps[0])
    };
    assert_eq!(read("old"), (Some(77), false, false, None, 0));
    assert_eq!(read("unchanged"), (None, true, false, None, 0));
    let problem = Some("pump: Input/output error (os error 5)".to_owned());
    assert_eq!(read("problem"), (None, false, true, problem, 2));
    let panicked = Some("the plug-in panicked: pump on fire".to_owned());
    assert_eq!(read("panic in read"), (None, false, false, panicked, 3));
}

#[test]
fn errors_name_the_line_and_a_panic_is_an_error() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    let error = |table: &str| hosted(table).err().expect("an error");
    let settings = |line, message: &str| HostError::Settings { line, key: String::new(), message: message.to_owned() };
    assert_eq!(error("\n\npumps = 12"), settings(3, "12 pumps; at most 9"));
    assert_eq!(error("pups = 1"), settings(1, "unknown key `pups`; did you mean `pumps`?"));
    let HostError::Settings { line: 0, message, .. } = error("mode = \"panic\"") else { panic!("no panic") };
    assert!(message.starts_with("the plug-in panicked: ") && message.contains("no such mode"), "{message}");
    let mut source = hosted("mode = \"panic in discover\"").expect("a source");
    let error = source.discover().err().expect("an error").to_string();
    assert!(error.starts_with("its discovery failed: the plug-in panicked"), "{error}");
}

#[test]
fn descriptors_of_other_versions() {
    let _alone = ALONE.lock().unwrap_or_else(|error| error.into_inner());
    // SAFETY: the descriptor of this program, and changed copies of it.
    let configured = |change: &dyn Fn(&mut PluginDescriptor)| unsafe {
        let mut descriptor = *wholegrain_source_v1();
        change(&mut descriptor);
        HostedSource::configure(&descriptor, &settings("pumps = 1"))
    };
    let refused = |change: &dyn Fn(&mut PluginDescriptor), part: &str| {
        let error = configured(change).err().expect("an error").to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(&|descriptor| descriptor.abi = ABI_VERSION + 1, "built for version 2 of the interface");
    refused(&|descriptor| descriptor.abi = 0, "built for version 0 of the interface");
    refused(&|descriptor| descriptor.size = 16, "shorter than 88 bytes");
    refused(&|descriptor| descriptor.size = 0, "shorter than 88 bytes");
    refused(&|descriptor| descriptor.read = None, "lacks configure, discover or read");
    // SAFETY: null is allowed.
    let error = unsafe { HostedSource::configure(ptr::null(), &settings("")) }.err().expect("an error");
    assert!(error.to_string().contains("missing"));
    // A plug-in that knows more fields, and one that does not know the last two.
    let before = ALIVE.load(Ordering::SeqCst);
    drop(configured(&|descriptor| descriptor.size = 4096).expect("a longer descriptor"));
    assert_eq!(ALIVE.load(Ordering::SeqCst), before);
    let mut short = configured(&|descriptor| descriptor.size = 88).expect("a shorter descriptor");
    assert_eq!(short.discover().expect("groups").groups.len(), 1);
    drop(short);
    assert!(ALIVE.load(Ordering::SeqCst) > before, "without functions that free, nothing is freed");
    ALIVE.store(before, Ordering::SeqCst);
}
