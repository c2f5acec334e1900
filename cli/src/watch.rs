//! `wholegrain watch`: prints readings as they arrive at the server.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use clap::Args;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use wholegrain_api::{QueryLine, paths};
use wholegrain_model::{Interval, Pattern, Value};

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::no_match::no_sensor;
use crate::output::readings::{PrintedReading, TextRows};
use crate::output::style;
use crate::output::{ListFormat, Output};
use crate::sensors;

/// The most lines between the reading and the printing thread.
const LINES_WAITING_MAX: usize = 1024;
/// The longest line, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// A time longer than any watch.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

const EXAMPLES: &str = "\
Examples:
  wholegrain watch MemAvailable                 until Ctrl-C
  wholegrain watch 'cpu/*/user' --for 10s
  wholegrain watch '/lab/**/power' --format json --count 100";

/// Print readings as they arrive, until Ctrl-C
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct WatchArgs {
    /// Patterns of the sensors
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<Pattern>,
    /// The format of the output
    #[arg(long, short, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    /// Stop after this number of readings
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this time, such as 10s or 5min
    #[arg(long = "for", value_name = "LENGTH")]
    length: Option<Interval>,
    #[command(flatten)]
    client: ClientOption,
}

/// An event for the printing thread.
enum WatchEvent {
    Line(String),
    /// The end of the stream, with an error if it broke off.
    Ended(Option<String>),
    Interrupted,
}

pub fn run(args: &WatchArgs, client: Option<&Path>) -> Result<(), Failure> {
    let client = args.client.or(client);
    let connection = Connection::open(client)?;
    let sensors = sensors::fetch(&connection, &args.patterns)?;
    if sensors.is_empty() {
        return Err(no_sensor(&connection, &args.patterns));
    }
    let response = connection.get(paths::WATCH).each("pattern", &args.patterns).endless().send()?;
    let (sender, events) = sync_channel(LINES_WAITING_MAX);
    stop_on_signals(sender.clone())?;
    // Neither thread is joined: both may wait forever, and the process ends with this function.
    std::thread::spawn(move || read_lines(response.into_reader(), &sender));
    let mut output = Output::open(None)?;
    let mut rows = TextRows::new(args.format, style::on_stdout());
    rows.expect(sensors.iter().map(|sensor| &*sensor.path));
    let units = sensors.into_iter().map(|sensor| (sensor.path.into_owned(), sensor.unit.into_owned())).collect();
    let deadline = Instant::now() + args.length.map_or(FOREVER, Interval::duration).min(FOREVER);
    print(&events, &units, rows, &mut output, args.count.unwrap_or(u64::MAX), deadline, connection.url())
}

fn stop_on_signals(sender: SyncSender<WatchEvent>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::Failed(format!("cannot wait for signals: {error}")))?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            // The receiver is gone if the watch has ended by itself.
            let _ = sender.send(WatchEvent::Interrupted);
        }
    });
    Ok(())
}

fn read_lines(response: impl Read, sender: &SyncSender<WatchEvent>) {
    let mut reader = BufReader::new(response);
    loop {
        let mut line = String::new();
        let event = match (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) => WatchEvent::Ended(None),
            Ok(_) => WatchEvent::Line(line),
            Err(error) => WatchEvent::Ended(Some(error.to_string())),
        };
        let ended = matches!(event, WatchEvent::Ended(_));
        if sender.send(event).is_err() || ended {
            return;
        }
    }
}

/// The reading of a line, in its unit; `None` for other lines.
fn reading<'a>(line: &'a QueryLine, units: &'a HashMap<String, String>) -> Option<PrintedReading<'a>> {
    let QueryLine::Reading { sensor, time, value } = line else { return None };
    let value = match value {
        None => None,
        Some(number) => {
            Some(number.as_i64().map_or_else(|| number.as_f64().map(Value::Float), |int| Some(Value::Int(int)))?)
        }
    };
    Some(PrintedReading { sensor, time: time.0, value, unit: units.get(sensor).map_or("", String::as_str) })
}

/// Prints until the count, the deadline, a signal or the end of the stream.
fn print(
    events: &Receiver<WatchEvent>,
    units: &HashMap<String, String>,
    mut rows: TextRows,
    output: &mut impl Write,
    mut count_left: u64,
    deadline: Instant,
    url: &str,
) -> Result<(), Failure> {
    let failed = Failure::writing("standard output");
    let mut result = Ok(());
    while count_left > 0 && result.is_ok() {
        let event = match events.try_recv() {
            Ok(event) => event,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                // No line waits: print the held rows before blocking.
                rows.write_held(output).and_then(|()| output.flush()).map_err(&failed)?;
                match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(event) => event,
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
        };
        match event {
            WatchEvent::Interrupted => break,
            WatchEvent::Line(line) if line.trim().is_empty() => {}
            WatchEvent::Line(line) => {
                let parsed: Option<QueryLine> = serde_json::from_str(&line).ok();
                match parsed.as_ref().and_then(|line| reading(line, units)) {
                    Some(reading) => rows.write(&reading, output).map_err(&failed)?,
                    None => {
                        result =
                            Err(Failure::Unreachable(format!("{url} sent a line without a reading: {}", line.trim())))
                    }
                }
                count_left -= 1;
            }
            WatchEvent::Ended(reason) => {
                let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
                result = Err(Failure::Unreachable(format!("{url} ended the stream{reason}; has the server stopped?")));
            }
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    rows.write_held(output).and_then(|()| output.flush()).map_err(&failed)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::style::Style;

    fn watch(events: Vec<WatchEvent>, count: u64) -> (String, Result<(), Failure>) {
        let (sender, receiver) = sync_channel(LINES_WAITING_MAX);
        events.into_iter().for_each(|event| sender.send(event).unwrap());
        drop(sender);
        let units = HashMap::from([("/a".to_owned(), "By".to_owned())]);
        let mut out = Vec::new();
        let rows = TextRows::new(ListFormat::Table, Style::PLAIN);
        let result = print(&receiver, &units, rows, &mut out, count, Instant::now() + FOREVER, "https://h");
        (String::from_utf8(out).unwrap(), result)
    }

    fn line(sensor: &str, value: &str) -> WatchEvent {
        WatchEvent::Line(format!("{{\"sensor\":\"{sensor}\",\"time\":\"1970-01-01T00:00:00Z\",\"value\":{value}}}\n"))
    }

    #[test]
    fn lines_become_rows() {
        let (out, result) = watch(
            vec![line("/a", "1"), line("/a", "1.5"), line("/b", "null"), WatchEvent::Line("\n".into())],
            u64::MAX,
        );
        let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            rows[1..],
            [
                vec!["/a", "1970-01-01T00:00:00Z", "1", "By"],
                vec!["/a", "1970-01-01T00:00:00Z", "1.5", "By"],
                vec!["/b", "1970-01-01T00:00:00Z", "-"]
            ]
        );
        assert!(result.is_ok());
    }

    #[test]
    fn ends() {
        let (out, result) = watch(vec![line("/a", "1"), line("/a", "2"), line("/a", "3")], 2);
        assert_eq!((out.lines().count(), result.is_ok()), (3, true));
        let (out, result) = watch(vec![line("/a", "1"), WatchEvent::Interrupted, line("/a", "2")], 9);
        assert_eq!((out.lines().count(), result.is_ok()), (2, true));
        let (out, result) = watch(vec![line("/a", "1"), WatchEvent::Ended(Some("reset".into()))], 9);
        assert_eq!(out.lines().count(), 2);
        assert!(matches!(result, Err(Failure::Unreachable(text)) if text.contains("reset")));
        let (_, result) = watch(vec![WatchEvent::Line("{\"error\":1}".into())], 9);
        assert!(matches!(result, Err(Failure::Unreachable(_))));
    }
}
