//! `wholegrain config sensor`: unit, scale, kind, description, interval and time-to-live of sensors, by pattern.

mod import;
mod show;

use std::path::Path;

use clap::{Args, Subcommand, ValueEnum};
use wholegrain_api::{SetProperties, SetPropertiesOf, SetPropertiesResult, UnsetPropertiesResult, paths};
use wholegrain_model::{Interval, Kind, Pattern, Unit};

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::{EXIT_CODES, Failure};
use crate::notation::{LENGTHS, PATTERNS};

/// The retention of readings that are never dropped.
const FOREVER: &str = "forever";

const NOTES: &str = "\
Properties apply to all sensors that match the pattern, also to later ones, and to all their readings, also past ones: \
readings are stored raw, and unit and scale are applied when they are read. If several patterns match a sensor, the latest setting counts, \
property by property. Units are UCUM codes: W, kW.h, By, MiBy/s, Cel, %, 1; see docs/units.md.";

const EXAMPLES: &str = "\
Examples:
  wholegrain config sensor set '/lrz/**/power' --unit W
  wholegrain config sensor set '/lrz/**/inlet' --unit Cel --scale 0.001 --description 'Inlet temperature'
  wholegrain config sensor set '/lrz/**/debug' --ttl 7d
  wholegrain config sensor set '/hall/meter/*' --interval 15min
  wholegrain config sensor show '/lrz/**/power'
  wholegrain config sensor unset '/lrz/**/inlet' --scale
  wholegrain config sensor history '/lrz/**/power'
  wholegrain config sensor import properties.csv --dry-run";

/// Units, scales, kinds, descriptions, intervals and times-to-live of sensors
#[derive(Args)]
#[command(after_help = format!("{PATTERNS}\n\n{NOTES}\n\n{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct SensorArgs {
    #[command(subcommand)]
    command: SensorCommand,
    #[command(flatten)]
    client: ClientOption,
}

#[derive(Subcommand)]
enum SensorCommand {
    /// Set properties of the sensors that a pattern chooses
    Set(Box<SetArgs>),
    /// Take back what was set with a pattern: all of it, or the properties named
    Unset(UnsetArgs),
    /// The properties that hold, and where each comes from
    Show(show::ShowPropertiesArgs),
    /// What is set, in the order in which it counts: the later before the earlier
    List(show::ListSettingsArgs),
    /// What was ever set and taken back
    History(show::HistoryArgs),
    /// Set properties from a CSV file with a head: sensor (or pattern), unit, scale, kind, description, interval, ttl
    Import(import::ImportArgs),
}

#[derive(Args)]
#[command(after_help = format!("{PATTERNS}\n\n{LENGTHS}\n\n{NOTES}\n\n{EXAMPLES}\n\n{EXIT_CODES}"))]
struct SetArgs {
    /// The pattern of the sensors
    #[arg(value_name = "PATTERN")]
    pattern: Pattern,
    /// The unit of their values, a UCUM code such as W, Cel, By/s
    #[arg(long, value_name = "UNIT")]
    unit: Option<Unit>,
    /// What raw values are multiplied with to be in that unit
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    scale: Option<f64>,
    /// Whether values rise and fall, or only rise
    #[arg(long, value_enum)]
    kind: Option<KindName>,
    /// A description of the sensors
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// How far apart their readings are, such as 15min: up to three times as far nothing is missing between two (docs/sums.md)
    #[arg(long, value_name = "LENGTH")]
    interval: Option<Interval>,
    /// How long their readings are kept, such as 30d; or forever
    #[arg(long, value_name = "LENGTH", value_parser = ttl)]
    ttl: Option<String>,
    /// Change nothing; say how many sensors it would concern
    #[arg(long = "try")]
    dry: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum KindName {
    Gauge,
    Counter,
}

#[derive(Args)]
struct UnsetArgs {
    /// The pattern as it was given when they were set
    #[arg(value_name = "PATTERN")]
    pattern: Pattern,
    /// Remove only the unit
    #[arg(long)]
    unit: bool,
    /// Remove only the scale
    #[arg(long)]
    scale: bool,
    /// Remove only the kind
    #[arg(long)]
    kind: bool,
    /// Remove only the description
    #[arg(long)]
    description: bool,
    /// Remove only the interval
    #[arg(long)]
    interval: bool,
    /// Only how long readings are kept
    #[arg(long)]
    ttl: bool,
}

fn ttl(text: &str) -> Result<String, String> {
    if text == FOREVER {
        return Ok(text.to_owned());
    }
    Interval::parse(text).map(|age| age.to_string()).map_err(|error| format!("{error}, or {FOREVER}"))
}

pub fn run(args: &SensorArgs, client: Option<&Path>) -> Result<(), Failure> {
    let client = args.client.or(client);
    match &args.command {
        SensorCommand::Set(args) => set(args, client),
        SensorCommand::Unset(args) => unset(args, client),
        SensorCommand::Show(args) => show::show(args, client),
        SensorCommand::List(args) => show::list(args, client),
        SensorCommand::History(args) => show::history(args, client),
        SensorCommand::Import(args) => import::run(args, client),
    }
}

impl SetArgs {
    fn setting(&self) -> Result<SetPropertiesOf, Failure> {
        if let Some(scale) = self.scale.filter(|scale| !scale.is_finite() || *scale == 0.0) {
            return Err(Failure::Usage(format!("--scale {scale}: expected a finite number other than 0")));
        }
        let kind = self.kind.map(|kind| match kind {
            KindName::Gauge => Kind::Gauge,
            KindName::Counter => Kind::Counter,
        });
        let pattern = self.pattern.as_str().to_owned();
        let nothing = SetPropertiesOf { pattern: pattern.clone(), ..SetPropertiesOf::default() };
        let setting = SetPropertiesOf {
            pattern,
            unit: self.unit.as_ref().map(|unit| unit.code().to_owned()),
            scale: self.scale,
            kind,
            description: self.description.clone(),
            interval: self.interval.map(|interval| interval.to_string()),
            ttl: self.ttl.clone(),
        };
        if setting == nothing {
            return Err(Failure::Usage(
                "nothing to set; add --unit, --scale, --kind, --description, --interval or --ttl, or print the properties with `wholegrain config sensor show`"
                    .into(),
            ));
        }
        Ok(setting)
    }
}

fn set(args: &SetArgs, client: Option<&Path>) -> Result<(), Failure> {
    let setting = args.setting()?;
    let connection = Connection::open(client)?;
    let done = send(&connection, vec![setting], args.dry, false)?;
    let sensors = done.sensors.and_then(|counts| counts.first().copied()).unwrap_or(0);
    let would = if args.dry { "it would hold" } else { "set; it holds" };
    match sensors {
        0 => println!("{would} for no sensor yet, and for those that come"),
        1 => println!("{would} for 1 sensor"),
        more => println!("{would} for {more} sensors"),
    }
    Ok(())
}

/// Sends settings to the server.
fn send(
    connection: &Connection,
    settings: Vec<SetPropertiesOf>,
    dry_run: bool,
    only_new: bool,
) -> Result<SetPropertiesResult, Failure> {
    let request = connection.put(paths::PROPERTIES).query("try", u8::from(dry_run));
    request.query("only_new", u8::from(only_new)).json(&SetProperties { settings }).send()?.json()
}

fn unset(args: &UnsetArgs, client: Option<&Path>) -> Result<(), Failure> {
    let flags = [
        ("unit", args.unit),
        ("scale", args.scale),
        ("kind", args.kind),
        ("description", args.description),
        ("interval", args.interval),
        ("ttl", args.ttl),
    ];
    let mut wanted: Vec<Option<&str>> = flags.iter().filter(|(_, named)| *named).map(|(name, _)| Some(*name)).collect();
    if wanted.is_empty() {
        wanted.push(None);
    }
    let connection = Connection::open(client)?;
    let mut count = 0;
    for property in wanted {
        let request = connection.delete(paths::PROPERTIES).query("pattern", &args.pattern);
        let request = property.iter().fold(request, |request, property| request.query("property", property));
        count += request.send()?.json::<UnsetPropertiesResult>()?.unset;
    }
    if count == 0 {
        return Err(Failure::NothingMatched(format!(
            "no setting has the pattern {}; `wholegrain config sensor list` lists the settings",
            args.pattern
        )));
    }
    println!("{count} settings removed");
    Ok(())
}
