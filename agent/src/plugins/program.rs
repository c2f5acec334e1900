//! The work of a plug-in's process: requests of the agent, answered by the plug-in one after the other.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;

use wholegrain_plugin::abi::{LAYOUT_CHANGED, UNCHANGED};
use wholegrain_plugin::{HostError, HostSettings, HostedGroup, HostedSource};

use super::script::ScriptProgram;
use super::shared_row::{RowAnswer, RowRequest, SharedRow};
use super::wire::{
    self, ConfigureMessage, DiscoveredMessage, GroupMessage, PluginAnswer, PluginRequest, SensorMessage,
};
use super::{library, limits};

/// A configured plug-in in this process.
pub(super) trait PluginProgram {
    fn discover(&mut self, reopen: bool) -> Result<DiscoveredMessage, String>;

    /// Reads a group of the last discovery into its row.
    fn read(&mut self, group: usize, values: &mut [u64], gaps: &mut [u64]) -> RowAnswer;
}

/// Serves the agent until it closes the socket.
pub(super) fn serve(socket: &UnixStream, row: &SharedRow, file: File) -> io::Result<()> {
    let PluginRequest::Configure(message) = wire::receive(socket, None)? else {
        return Err(io::Error::other("the first message is not the configuration"));
    };
    let (mut program, version) = match configure(&message, file) {
        Ok(configured) => configured,
        Err(answer) => return wire::send(socket, &answer),
    };
    wire::send(socket, &PluginAnswer::Configured { version })?;
    let (mut last, mut values, mut gaps) = (0, Vec::new(), Vec::new());
    loop {
        match row.wait(&mut last) {
            RowRequest::Message => {
                let PluginRequest::Discover { reopen } = wire::receive(socket, None)? else {
                    return Err(io::Error::other("an unexpected message"));
                };
                let answer = match program.discover(reopen) {
                    Ok(found) => PluginAnswer::Discovered(found),
                    Err(reason) => PluginAnswer::Failed { reason },
                };
                wire::send(socket, &answer)?;
            }
            RowRequest::Read { group, sensors } => {
                values.clear();
                values.resize(sensors, 0);
                gaps.clear();
                gaps.resize(sensors.div_ceil(64), u64::MAX);
                let answer = program.read(group, &mut values, &mut gaps);
                row.answer(last, &answer, &values, &gaps);
            }
        }
    }
}

fn configure(message: &ConfigureMessage, file: File) -> Result<(Box<dyn PluginProgram>, String), PluginAnswer> {
    let failed = |reason: String| PluginAnswer::Failed { reason };
    limits::apply(message).map_err(|error| failed(format!("cannot bound its process: {error}")))?;
    if message.is_script {
        let (program, version) = ScriptProgram::start(message, &file)?;
        return Ok((Box::new(program), version));
    }
    if message.processes_max == 0 {
        limits::forbid_processes().map_err(|error| failed(format!("cannot bound its process: {error}")))?;
    }
    let settings =
        HostSettings { table: message.table.clone(), file: message.file.clone(), context: message.context() };
    let source = library::configure(&file, &settings).map_err(|error| match &error {
        HostError::Settings { line, .. } => PluginAnswer::Refused { line: *line, message: error.to_string() },
        error => PluginAnswer::Refused { line: 0, message: format!("the plug-in {}: {error}", message.path) },
    })?;
    let version = source.version().to_owned();
    Ok((Box::new(LibraryProgram { source, groups: Vec::new() }), version))
}

/// A shared object that was loaded.
struct LibraryProgram {
    source: HostedSource,
    groups: Vec<HostedGroup>,
}

impl PluginProgram for LibraryProgram {
    fn discover(&mut self, reopen: bool) -> Result<DiscoveredMessage, String> {
        let mut found = self.source.discover().map_err(|error| error.to_string())?;
        for group in &mut found.groups {
            // As the agent does for its own sources: an unchanged group keeps its reader, which may remember the last values.
            let same = self.groups.iter().position(|old| old.name == group.name && old.sensors == group.sensors);
            if let Some(at) = same.filter(|_| !reopen) {
                std::mem::swap(&mut group.reader, &mut self.groups[at].reader);
            }
        }
        self.groups = found.groups;
        let group = |group: &HostedGroup| GroupMessage {
            name: group.name.clone(),
            interval_ns: group.timing.interval.map_or(0, |interval| interval.ns()),
            offset_ns: group.timing.offset.ns(),
            synchronous: group.timing.synchronous,
            sensors: group.sensors.iter().map(SensorMessage::from).collect(),
        };
        Ok(DiscoveredMessage {
            groups: self.groups.iter().map(group).collect(),
            notes: found.notes,
            keeps: found.keeps,
        })
    }

    fn read(&mut self, group: usize, values: &mut [u64], gaps: &mut [u64]) -> RowAnswer {
        let Some(group) = self.groups.get_mut(group) else {
            return RowAnswer { flags: LAYOUT_CHANGED, ..RowAnswer::default() };
        };
        let reading = group.reader.read(values, gaps);
        let unchanged = if reading.unchanged { UNCHANGED } else { 0 };
        let changed = if reading.layout_changed { LAYOUT_CHANGED } else { 0 };
        let problem = reading.problem.unwrap_or_default().to_owned();
        RowAnswer { taken_at: reading.taken_at, flags: unchanged | changed, problem }
    }
}
