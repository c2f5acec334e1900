//! `wholegrain config sensor import`: properties from a CSV file, such as the store's `sensors.csv`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use wholegrain_api::SetPropertiesOf;
use wholegrain_model::{Interval, Pattern, Unit, config};

use super::{send, ttl};
use crate::connection::Connection;
use crate::csv::Fields;
use crate::failure::Failure;
use crate::output::print;

/// The longest line, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The most settings in one request; all are set or none.
const BATCH: usize = 5000;
/// The most bytes of settings in one request.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// The names of columns that are read.
const COLUMNS: [&str; 9] = ["sensor", "pattern", "path", "unit", "scale", "kind", "description", "interval", "ttl"];
/// Columns of the server's lists that cannot be set.
const IGNORED: [&str; 5] = ["type", "wraps_at", "interval_ns", "last_time", "agent"];

#[derive(Args)]
#[command(after_help = "\
The first line names the columns: sensor (or pattern, or path), and any of unit, scale, kind, description, interval, ttl, separated by \
commas, semicolons or tabs. An empty field keeps the property. The columns type, wraps_at, interval_ns, last_time and agent are ignored, \
so that sensors.csv of a store, or the output of `wholegrain sensors --format csv`, can be edited and imported; equal values are not set.

Bad lines are listed with their numbers, and nothing is set without --skip-bad.

Examples:
  wholegrain config sensor import properties.csv --dry-run
  wholegrain sensors '/lrz/**' --format csv > edit.csv; wholegrain config sensor import edit.csv")]
pub struct ImportArgs {
    /// The CSV file to read
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Change nothing; print the number of settings and the bad lines
    #[arg(long)]
    dry_run: bool,
    /// Apply good lines; list and skip bad ones
    #[arg(long)]
    skip_bad: bool,
}

pub fn run(args: &ImportArgs, client: Option<&Path>) -> Result<(), Failure> {
    let (mut good, mut bad) = (0u64, 0u64);
    // Reads the whole file before it sends anything, so that a file with an error further down sets nothing.
    read(&args.file, |line, setting| {
        match setting {
            Ok(setting) => good += u64::from(setting.is_some()),
            Err(reason) => {
                eprintln!("{}, line {line}: {reason}", args.file.display());
                bad += 1;
            }
        }
        Ok(())
    })?;
    if bad > 0 && !args.skip_bad && !args.dry_run {
        return Err(Failure::Usage(format!(
            "{bad} of {} lines are bad and nothing was set; correct them, or add --skip-bad",
            good + bad
        )));
    }
    let connection = Connection::open(client)?;
    let mut sender = Sender { args, connection: &connection, settings: Vec::new(), bytes: 0, set: 0, same: 0 };
    read(&args.file, |line, setting| match setting {
        Ok(Some(setting)) => sender.add(line, setting),
        _ => Ok(()),
    })?;
    sender.flush()?;
    let would = if args.dry_run { "would be set" } else { "set" };
    let (set, same) = (sender.set, sender.same);
    print(|_, out| {
        writeln!(out, "{set} properties {would}, {same} had this value already, {bad} of {} lines bad", good + bad)
    })?;
    if bad > 0 {
        return Err(Failure::Usage(format!("{bad} bad lines were skipped")));
    }
    Ok(())
}

struct Sender<'a> {
    args: &'a ImportArgs,
    connection: &'a Connection,
    /// Each with its line number.
    settings: Vec<(u64, SetPropertiesOf)>,
    bytes: usize,
    set: u64,
    same: u64,
}

impl Sender<'_> {
    fn add(&mut self, line: u64, setting: SetPropertiesOf) -> Result<(), Failure> {
        let bytes = serde_json::to_vec(&setting).map_or(0, |text| text.len()) + 1;
        if self.settings.len() >= BATCH || self.bytes + bytes > BATCH_BYTES_MAX {
            self.flush()?;
        }
        self.bytes += bytes;
        self.settings.push((line, setting));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.bytes = 0;
        let (lines, settings): (Vec<u64>, Vec<SetPropertiesOf>) =
            std::mem::take(&mut self.settings).into_iter().unzip();
        let (Some(first), Some(last)) = (lines.first(), lines.last()) else { return Ok(()) };
        let done = send(self.connection, settings, self.args.dry_run, true).map_err(|failure| match failure {
            Failure::Usage(text) => Failure::Usage(format!(
                "{}, lines {first} to {last}: {text}; of these nothing was set, {} properties of earlier lines were",
                self.args.file.display(),
                self.set
            )),
            other => other,
        })?;
        self.set += done.set;
        self.same += done.same;
        Ok(())
    }
}

/// Calls `found` for each line after the header, with its setting (`None`: nothing to set) or its error.
fn read(
    path: &Path,
    mut found: impl FnMut(u64, Result<Option<SetPropertiesOf>, String>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = Failure::reading(path);
    let mut file = BufReader::new(File::open(path).map_err(&failed)?);
    let mut head: Option<Head> = None;
    let mut bytes = Vec::new();
    for number in 1u64.. {
        bytes.clear();
        let read = file.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes).map_err(&failed)?;
        if read == 0 {
            break;
        }
        if bytes.len() > LINE_BYTES_MAX {
            while !bytes.ends_with(b"\n") {
                bytes.clear();
                if file.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut bytes).map_err(&failed)? == 0 {
                    break;
                }
            }
            found(number, Err(format!("is longer than {LINE_BYTES_MAX} bytes")))?;
            continue;
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_start_matches('\u{feff}').trim_end_matches(['\r', '\n']);
        if text.contains('\u{fffd}') {
            found(number, Err("is not UTF-8".to_owned()))?;
            continue;
        }
        match &head {
            _ if text.trim().is_empty() => {}
            Some(head) => found(number, head.setting(text))?,
            None => {
                let wrong = |reason| Failure::Usage(format!("{}, line {number}: {reason}", path.display()));
                head = Some(Head::new(text).map_err(wrong)?);
            }
        }
    }
    match head {
        Some(_) => Ok(()),
        None => Err(Failure::Usage(format!("{} is empty; expected a header such as sensor,unit", path.display()))),
    }
}

/// The columns of the file.
struct Head {
    delimiter: u8,
    /// The property of each column; empty for ignored ones.
    columns: Vec<&'static str>,
}

impl Head {
    fn new(text: &str) -> Result<Self, String> {
        let count = |delimiter: &u8| text.matches(char::from(*delimiter)).count();
        let delimiter = [b',', b';', b'\t'].into_iter().max_by_key(count).unwrap_or(b',');
        let mut columns = Vec::new();
        for name in Fields::new(delimiter).texts(text)? {
            let name = name.trim().to_lowercase();
            let column = match COLUMNS.into_iter().find(|known| *known == name) {
                Some("sensor" | "path") => "pattern",
                Some(known) => known,
                None if IGNORED.contains(&name.as_str()) => "",
                None => return Err(config::unknown("column", &name, &COLUMNS)),
            };
            if !column.is_empty() && columns.contains(&column) {
                return Err(format!("the column {name} appears twice"));
            }
            columns.push(column);
        }
        if !columns.contains(&"pattern") {
            return Err("the header has no column sensor or pattern".to_owned());
        }
        Ok(Self { delimiter, columns })
    }

    /// The setting of a line; `None` if all its fields are empty.
    fn setting(&self, text: &str) -> Result<Option<SetPropertiesOf>, String> {
        let fields = Fields::new(self.delimiter).texts(text)?;
        if fields.len() != self.columns.len() {
            return Err(format!("has {} fields, the header has {}", fields.len(), self.columns.len()));
        }
        let mut setting = SetPropertiesOf::default();
        let filled = self.columns.iter().zip(fields).filter(|(column, field)| !column.is_empty() && !field.is_empty());
        let mut is_set = false;
        for (column, field) in filled {
            is_set |= *column != "pattern";
            match *column {
                "pattern" => {
                    setting.pattern = Pattern::new(field.as_str()).map_err(|error| error.to_string())?.to_string();
                }
                "unit" => {
                    let unit = Unit::parse(&field).map_err(|error| error.to_string())?;
                    setting.unit = Some(unit.code().to_owned());
                }
                "scale" => match field.parse::<f64>() {
                    Ok(scale) if scale.is_finite() && scale != 0.0 => setting.scale = Some(scale),
                    _ => return Err(format!("scale {field:?}: expected a finite number other than 0")),
                },
                "kind" => {
                    setting.kind = Some(field.parse().map_err(|error| format!("kind {field:?}: {error}"))?);
                }
                "interval" => {
                    let interval = Interval::parse(&field).map_err(|error| format!("interval {error}"))?;
                    setting.interval = Some(interval.to_string());
                }
                "ttl" => setting.ttl = Some(ttl(&field).map_err(|error| format!("ttl {error}"))?),
                _ => setting.description = Some(field),
            }
        }
        if setting.pattern.is_empty() {
            return Err("names no sensor".to_owned());
        }
        Ok(is_set.then_some(setting))
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_model::Kind;

    use super::*;

    #[test]
    fn heads_and_lines() {
        let head = Head::new("sensor,unit,kind,type,scale,wraps_at,interval_ns,description").unwrap();
        let setting = head.setting(r#"/a/b,"By",gauge,int,1024,,1000,"Free, ""unused"".""#).unwrap().unwrap();
        let expected = SetPropertiesOf {
            pattern: "/a/b".into(),
            unit: Some("By".into()),
            kind: Some(Kind::Gauge),
            scale: Some(1024.0),
            description: Some("Free, \"unused\".".into()),
            ..SetPropertiesOf::default()
        };
        assert_eq!(setting, expected);
        let head = Head::new("pattern;ttl;Unit").unwrap();
        assert_eq!(
            head.setting("**/x;30d;").unwrap(),
            Some(SetPropertiesOf { pattern: "**/x".into(), ttl: Some("30d".into()), ..SetPropertiesOf::default() })
        );
        assert_eq!(head.setting("**/x;;").unwrap(), None);
        for (line, part) in [
            ("/a;;kw", "did you mean `kW`?"),
            (";30d;W", "names no sensor"),
            ("/a;30d", "has 2 fields, the header has 3"),
            ("/a;soon;W", "ttl"),
            ("/a/+;;W", "wildcards"),
            ("/a;;\"W", "not closed"),
            ("/a;;\"W\"x", "after a closing quote"),
        ] {
            let error = head.setting(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
        for (text, part) in
            [("unit,scale", "no column sensor"), ("sensor,path", "twice"), ("sensor,units", "did you mean `unit`?")]
        {
            let error = Head::new(text).err().unwrap();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn every_line_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.csv");
        let long = "x".repeat(LINE_BYTES_MAX * 2);
        std::fs::write(
            &path,
            [b"\xef\xbb\xbfsensor,unit\r\n\r\n/a,W\r\n/b,kw\n".as_slice(), long.as_bytes(), b"\n/c,\xff\n/d,J"]
                .concat(),
        )
        .unwrap();
        let mut reported = Vec::new();
        read(&path, |line, setting| {
            reported.push((line, setting.is_ok()));
            Ok(())
        })
        .unwrap();
        assert_eq!(reported, [(3, true), (4, false), (5, false), (6, false), (7, true)]);
    }
}
