//! The side of the plug-in: any [`Source`](wholegrain_sources::Source) behind the functions of the interface. [`crate::export!`] uses it.

use std::ffi::c_void;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use wholegrain_model::config::Document;
use wholegrain_model::{Kind, ValueType};
use wholegrain_sources::{ConfigureContext, GroupPlan, ReadProblem, Reader, Roots, Row, Source, SourceType};

use crate::abi::{
    ABI_VERSION, CONCURRENT, ConfigureFunction, LAYOUT_CHANGED, PluginDescriptor, PluginDiscovery, PluginGroup,
    PluginSample, PluginSensor, PluginSettings, PluginText, UNCHANGED,
};

/// What a function of the interface returns after a failure.
const FAILED: i32 = 1;
/// The longest text of a problem, in bytes.
const PROBLEM_BYTES_MAX: usize = 200;
/// The longest text that the agent gives, in bytes: a table of the configuration.
const TABLE_BYTES_MAX: usize = 4 << 20;

/// The descriptor of a source type. Its readers and its discovery have no common state, as `Send` types in safe Rust.
pub const fn descriptor(
    source: &'static SourceType,
    version: &'static str,
    configure: ConfigureFunction,
) -> PluginDescriptor {
    PluginDescriptor {
        size: size_of::<PluginDescriptor>() as u64,
        abi: ABI_VERSION,
        flags: CONCURRENT,
        name: PluginText::new(source.name),
        summary: PluginText::new(source.summary),
        version: PluginText::new(version),
        configure: Some(configure),
        discover: Some(discover),
        read: Some(read),
        free_reader: Some(free_reader),
        free_source: Some(free_source),
    }
}

/// What a panic said.
fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Runs `work`; a panic becomes a text.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| format!("the plug-in panicked: {}", panic_text(&*panic)))
}

/// # Safety
/// The text must be valid for the length of the call.
unsafe fn text_of(text: PluginText) -> String {
    // SAFETY: the caller's.
    let bytes = unsafe { text.bytes(TABLE_BYTES_MAX) };
    String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
}

/// Configures a source of this type.
///
/// # Safety
/// `settings` and `source` must be valid, as the interface says.
pub unsafe fn configure(kind: &'static SourceType, settings: *const PluginSettings, source: *mut *mut c_void) -> i32 {
    // SAFETY: the agent's pointers are valid for the call.
    let (given, texts) = unsafe {
        let given = &*settings;
        (
            given,
            [given.table, given.file, given.config_dir, given.proc, given.sys, given.cgroup].map(|text| text_of(text)),
        )
    };
    let [table, file, config_dir, proc, sys, cgroup] = texts;
    let fail = |line: u64, message: &str| {
        if let Some(fail) = given.fail {
            // SAFETY: the agent's function, with the agent's settings and texts that are valid for the call.
            unsafe { fail(settings, line, PluginText::EMPTY, PluginText::new(message)) };
        }
        FAILED
    };
    let roots = Roots { proc: proc.into(), sys: sys.into(), cgroup: cgroup.into() };
    let context = ConfigureContext { roots, config_dir: config_dir.into() };
    let built = caught(|| (kind.configure)(&Document::new(&file, &table).root(), &context));
    match built {
        Ok(Ok(built)) => {
            // SAFETY: the agent gives a place for the source.
            unsafe { source.write(Box::into_raw(Box::new(built)).cast()) };
            0
        }
        Ok(Err(error)) => fail(error.line as u64, &error.message),
        Err(panicked) => fail(0, &panicked),
    }
}

/// # Safety
/// `source` must come from [`configure`], and `discovery` from the agent.
unsafe extern "C" fn discover(source: *mut c_void, discovery: *mut PluginDiscovery) -> i32 {
    // SAFETY: the agent gives what `configure` gave it, to one call at a time.
    let (source, given) = unsafe { (&mut *source.cast::<Box<dyn Source>>(), &*discovery) };
    let report = |line: &str| {
        if let Some(report) = given.report {
            // SAFETY: the agent's function, with a text that is valid for the call.
            unsafe { report(discovery, PluginText::new(line)) };
        }
    };
    let done = caught(|| {
        for plan in source.discover(&mut |line| report(&line)) {
            // SAFETY: `discovery` is the agent's.
            unsafe { add(discovery, plan) };
        }
        if let Some(keep) = given.keep {
            // SAFETY: the agent's function, with a text that is valid for the call.
            source.unseen().iter().for_each(|name| unsafe { keep(discovery, PluginText::new(name)) });
        }
    });
    match done {
        Ok(()) => 0,
        Err(panicked) => {
            report(&panicked);
            FAILED
        }
    }
}

/// # Safety
/// `discovery` must be the agent's.
unsafe fn add(discovery: *mut PluginDiscovery, plan: GroupPlan) {
    // SAFETY: the caller's.
    let (add_group, add_sensor) = unsafe { ((*discovery).add_group, (*discovery).add_sensor) };
    let (Some(add_group), Some(add_sensor)) = (add_group, add_sensor) else { return };
    let group = PluginGroup {
        size: size_of::<PluginGroup>() as u64,
        name: PluginText::new(&plan.name),
        reader: Box::into_raw(Box::new(plan.reader)).cast(),
        interval_ns: plan.timing.interval.map_or(0, |interval| interval.ns()),
        offset_ns: plan.timing.offset.ns(),
        free_running: u32::from(!plan.timing.synchronous),
        blocking: u32::from(plan.blocking),
    };
    // SAFETY: the agent's function, which frees the reader also if it fails.
    if unsafe { add_group(discovery, &group) } != 0 {
        return;
    }
    for sensor in &plan.sensors {
        let sensor = PluginSensor {
            size: size_of::<PluginSensor>() as u64,
            name: PluginText::new(&sensor.name),
            unit: PluginText::new(&sensor.unit),
            description: PluginText::new(&sensor.description),
            kind: u32::from(sensor.kind == Kind::Counter),
            value_type: u32::from(sensor.value_type == ValueType::Float),
            scale: sensor.scale,
            wraps_at: sensor.wraps_at.unwrap_or(0),
        };
        // SAFETY: the agent's function; a refused sensor keeps its place in the row.
        unsafe { add_sensor(discovery, &sensor) };
    }
}

/// A text of bounded length on the stack, so that a read that fails allocates nothing.
struct ProblemText {
    bytes: [u8; PROBLEM_BYTES_MAX],
    length: usize,
}

impl Write for ProblemText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let mut length = text.len().min(PROBLEM_BYTES_MAX - self.length);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        self.bytes[self.length..self.length + length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}

/// # Safety
/// `sample` must be the agent's.
unsafe fn report_problem(sample: *mut PluginSample, problem: &dyn std::fmt::Display) {
    let mut text = ProblemText { bytes: [0; PROBLEM_BYTES_MAX], length: 0 };
    let _ = write!(text, "{problem}");
    // SAFETY: the agent's sample and function, with a text that is valid for the call.
    unsafe {
        if let Some(report) = (*sample).problem {
            report(sample, PluginText { data: text.bytes.as_ptr(), length: text.length as u64 });
        }
    }
}

/// # Safety
/// `reader` must come from [`discover`], and `sample` from the agent.
unsafe extern "C" fn read(reader: *mut c_void, sample: *mut PluginSample) -> i32 {
    // SAFETY: the agent gives a reader of `discover` to one call at a time, and rows of the length that it names.
    let (reader, values, gaps) = unsafe {
        let sensors = (*sample).sensors as usize;
        (
            &mut *reader.cast::<Box<dyn Reader>>(),
            std::slice::from_raw_parts_mut((*sample).values, sensors),
            std::slice::from_raw_parts_mut((*sample).gaps, sensors.div_ceil(64)),
        )
    };
    let reading = match caught(|| reader.read(&mut Row::new(values, gaps))) {
        Ok(reading) => reading,
        Err(panicked) => {
            // Values of a read that did not end are not used.
            Row::new(values, gaps);
            // SAFETY: the agent's sample.
            unsafe { report_problem(sample, &panicked) };
            return FAILED;
        }
    };
    // SAFETY: the agent's sample.
    unsafe {
        if let Some(time) = reading.taken_at {
            (*sample).taken_at = time;
        }
        (*sample).flags |= if reading.unchanged { UNCHANGED } else { 0 };
        (*sample).flags |= if reading.layout_changed || reading.gone { LAYOUT_CHANGED } else { 0 };
        if let Some(problem) = reading.problem {
            report_problem(sample, &problem as &ReadProblem);
        }
    }
    0
}

/// # Safety
/// `reader` must come from [`discover`].
unsafe extern "C" fn free_reader(reader: *mut c_void) {
    // SAFETY: `add` made it from a box, and the agent frees it once.
    let reader = unsafe { Box::from_raw(reader.cast::<Box<dyn Reader>>()) };
    let _ = caught(|| drop(reader));
}

/// # Safety
/// `source` must come from [`configure`].
unsafe extern "C" fn free_source(source: *mut c_void) {
    // SAFETY: `configure` made it from a box, and the agent frees it once.
    let source = unsafe { Box::from_raw(source.cast::<Box<dyn Source>>()) };
    let _ = caught(|| drop(source));
}
