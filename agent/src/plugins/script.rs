//! A plug-in in Python: a program that answers lines of JSON on its standard input with lines on its standard output.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use wholegrain_model::{SensorDef, ValueType};
use wholegrain_plugin::abi::{LAYOUT_CHANGED, UNCHANGED};

use super::limits;
use super::process::LIBRARY_FD;
use super::program::PluginProgram;
use super::shared_row::RowAnswer;
use super::wire::{ConfigureMessage, DiscoveredMessage, GroupMessage, PluginAnswer, SensorMessage};

/// The longest line of a program: 32 MiB.
const LINE_BYTES_MAX: u64 = 32 << 20;
/// Runs the open file with the folder of the plug-in as the only one of its own.
const START: &str = "import sys; sys.path.insert(0, sys.argv[1]); name = sys.argv[2]; \
    code = compile(open(int(sys.argv[3]), 'rb').read(), name, 'exec'); \
    exec(code, {'__name__': '__main__', '__file__': name, '__builtins__': __builtins__})";

/// The answer of a program, of which each request uses a part.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ScriptAnswer {
    error: Option<String>,
    line: usize,
    version: String,
    groups: Vec<ScriptGroup>,
    notes: Vec<String>,
    values: Vec<serde_json::Value>,
    taken_at: Option<i64>,
    unchanged: bool,
    layout_changed: bool,
    problem: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ScriptGroup {
    name: String,
    #[serde(default)]
    interval_ns: u64,
    sensors: Vec<ScriptSensor>,
}

#[derive(Debug, Deserialize)]
struct ScriptSensor {
    name: String,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    counter: bool,
    #[serde(default)]
    integer: bool,
    #[serde(default)]
    scale: Option<f64>,
    #[serde(default)]
    wraps_at: Option<u64>,
    #[serde(default)]
    description: String,
}

pub(super) struct ScriptProgram {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The types of the values of each group.
    types: Vec<Vec<ValueType>>,
}

impl ScriptProgram {
    /// Starts the program and configures it.
    pub fn start(message: &ConfigureMessage, file: &File) -> Result<(Self, String), PluginAnswer> {
        let failed = |reason: String| PluginAnswer::Failed { reason };
        let table: toml::Table = message.table.parse().map_err(|error| failed(format!("its table: {error}")))?;
        let mut program = Self::spawn(message, file)
            .map_err(|error| failed(format!("cannot start python3: {error}; is it installed?")))?;
        let context = json!({
            "config_dir": message.config_dir, "proc": message.proc, "sys": message.sys, "cgroup": message.cgroup,
        });
        let request = json!({"do": "configure", "settings": table, "context": context});
        let answer: ScriptAnswer = program.ask(&request).map_err(failed)?;
        if let Some(error) = answer.error {
            let line = if answer.line > 0 { answer.line } else { line_of(&message.table, &error) };
            return Err(PluginAnswer::Refused { line, message: error });
        }
        Ok((program, answer.version))
    }

    fn spawn(message: &ConfigureMessage, file: &File) -> io::Result<Self> {
        let folder = Path::new(&message.path).parent().unwrap_or(Path::new("/"));
        let mut command = Command::new("python3");
        command.args(["-I", "-B", "-u", "-c", START]).arg(folder).arg(&message.path).arg(LIBRARY_FD.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let (fd, may_fork) = (file.as_raw_fd(), message.processes_max > 0);
        // SAFETY: system calls; the filter is made before the new program runs, in a process with one thread.
        unsafe {
            command.pre_exec(move || {
                if fd != LIBRARY_FD && libc::dup2(fd, LIBRARY_FD) < 0 {
                    return Err(io::Error::last_os_error());
                }
                libc::fcntl(LIBRARY_FD, libc::F_SETFD, 0);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                if may_fork { Ok(()) } else { limits::forbid_processes() }
            });
        }
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no standard input and output"));
        };
        Ok(Self { child, input, output: BufReader::new(output), types: Vec::new() })
    }

    /// Sends a line and waits for the answer. The agent ends a program that takes too long.
    fn ask<T: DeserializeOwned>(&mut self, request: &serde_json::Value) -> Result<T, String> {
        let mut line = request.to_string();
        line.push('\n');
        let mut answer = Vec::new();
        let result = self
            .input
            .write_all(line.as_bytes())
            .and_then(|()| (&mut self.output).take(LINE_BYTES_MAX).read_until(b'\n', &mut answer));
        if let Err(error) = result {
            return Err(format!("the program has ended: {error}{}", self.status()));
        }
        if answer.last() != Some(&b'\n') {
            let is_long = answer.len() as u64 == LINE_BYTES_MAX;
            let why = if is_long { "its line is longer than 32 MiB" } else { "the program has ended" };
            return Err(format!("{why}{}", if is_long { String::new() } else { self.status() }));
        }
        serde_json::from_slice(&answer).map_err(|error| format!("its answer is not as expected: {error}"))
    }

    fn status(&mut self) -> String {
        let Ok(status) = self.child.wait() else { return String::new() };
        // Nothing went wrong: the program has only defined its class.
        let advice = if status.success() { "; does it end with wholegrain_plugin.run(Source, VERSION)?" } else { "" };
        format!(" ({status}){advice}")
    }

    /// Ends this process with the program: the agent starts both again.
    fn give_up(&self, reason: &str) -> ! {
        eprintln!("{reason}");
        std::process::exit(1)
    }
}

/// The first line of a table with a key that the message names in quotes or as its first word; 0 if there is none.
fn line_of(table: &str, message: &str) -> usize {
    let key = message.split([':', ' ']).next().unwrap_or_default().trim_matches(['"', '\'', '`']);
    let is_key = |line: &str| line.split('=').next().is_some_and(|name| name.trim() == key && !key.is_empty());
    table.lines().position(is_key).map_or(0, |at| at + 1)
}

/// The 64 bits of a value; `None` is a gap.
fn bits(value: &serde_json::Value, value_type: ValueType) -> Option<u64> {
    match value_type {
        ValueType::Float => value.as_f64().map(f64::to_bits),
        ValueType::Int => value.as_i64().map(|value| value as u64).or_else(|| value.as_bool().map(u64::from)),
    }
}

impl PluginProgram for ScriptProgram {
    fn discover(&mut self, _reopen: bool) -> Result<DiscoveredMessage, String> {
        let answer: ScriptAnswer = match self.ask(&json!({"do": "discover"})) {
            Ok(answer) => answer,
            Err(reason) => self.give_up(&reason),
        };
        if let Some(error) = answer.error {
            return Err(error);
        }
        let mut found = DiscoveredMessage { notes: answer.notes, ..DiscoveredMessage::default() };
        self.types.clear();
        for group in answer.groups {
            let sensors: Vec<SensorMessage> = group.sensors.into_iter().map(sensor).collect();
            let value_type = |sensor: &SensorMessage| if sensor.float { ValueType::Float } else { ValueType::Int };
            self.types.push(sensors.iter().map(value_type).collect());
            found.groups.push(GroupMessage {
                name: group.name,
                interval_ns: group.interval_ns,
                offset_ns: 0,
                synchronous: true,
                sensors,
            });
        }
        Ok(found)
    }

    fn read(&mut self, group: usize, values: &mut [u64], gaps: &mut [u64]) -> RowAnswer {
        let answer: ScriptAnswer = match self.ask(&json!({"do": "read", "group": group})) {
            Ok(answer) => answer,
            Err(reason) => self.give_up(&reason),
        };
        let types = self.types.get(group).map(Vec::as_slice).unwrap_or_default();
        let given = answer.values.iter().zip(types).take(values.len());
        for (index, (value, value_type)) in given.enumerate() {
            if let Some(bits) = bits(value, *value_type) {
                values[index] = bits;
                gaps[index / 64] &= !(1 << (index % 64));
            }
        }
        let mut problem = answer.error.or(answer.problem).unwrap_or_default();
        if problem.is_empty() && answer.values.len() != types.len() && !answer.unchanged {
            problem = format!("it gave {} values for {} sensors", answer.values.len(), types.len());
        }
        let unchanged = if answer.unchanged { UNCHANGED } else { 0 };
        let changed = if answer.layout_changed { LAYOUT_CHANGED } else { 0 };
        RowAnswer { taken_at: answer.taken_at, flags: unchanged | changed, problem }
    }
}

fn sensor(sensor: ScriptSensor) -> SensorMessage {
    let unit = if sensor.unit.is_empty() { "1" } else { &sensor.unit };
    let def = SensorDef::gauge(sensor.name, unit, &sensor.description);
    SensorMessage {
        counter: sensor.counter,
        float: !sensor.integer,
        scale_bits: sensor.scale.unwrap_or(1.0).to_bits(),
        wraps_at: sensor.wraps_at,
        ..SensorMessage::from(&def)
    }
}

impl Drop for ScriptProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
