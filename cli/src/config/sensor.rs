//! `wholegrain config sensor`: unit, scale, kind, description, interval and time-to-live of sensors, by pattern.

mod import;
mod show;

use std::io::Write;
use std::path::Path;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use wholegrain_api::{SetProperties, SetPropertiesOf, SetPropertiesResult, UnsetPropertiesResult, paths};
use wholegrain_model::{Interval, Kind, Pattern, Unit};

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::print;

/// The retention of readings that are never dropped.
const FOREVER: &str = "forever";

const HELP: &str = "\
Properties apply to all sensors that match the pattern, also to later ones, and to all their readings, also past ones: \
readings are stored raw, and unit and scale are applied when they are read. If several patterns match a sensor, the latest setting counts, \
property by property. Units are UCUM codes: W, kW.h, By, MiBy/s, Cel, %, 1; see docs/units.md.

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
#[command(after_help = HELP)]
pub struct SensorArgs {
    #[command(subcommand)]
    command: SensorCommand,
    #[command(flatten)]
    client: ClientOption,
}

#[derive(Subcommand)]
enum SensorCommand {
    /// Set properties of the sensors that match a pattern
    Set(Box<SetArgs>),
    /// Remove the settings of a pattern: all, or the named properties
    Unset(UnsetArgs),
    /// Show the properties of sensors and the origin of each property
    Show(show::ShowPropertiesArgs),
    /// List the settings in their order of precedence: later before earlier
    List(show::ListSettingsArgs),
    /// List all settings and removals
    History(show::HistoryArgs),
    /// Set properties from a CSV file with a head: sensor (or pattern), unit, scale, kind, description, interval, ttl
    Import(import::ImportArgs),
}

#[derive(Args)]
#[command(after_help = HELP)]
struct SetArgs {
    /// The pattern of the sensors
    #[arg(value_name = "PATTERN")]
    pattern: Pattern,
    /// The unit of the scaled values, a UCUM code such as W, Cel, By/s
    #[arg(long, value_name = "UNIT")]
    unit: Option<Unit>,
    /// The factor from raw values to values in this unit
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    scale: Option<f64>,
    /// The kind: values of a gauge rise and fall, values of a counter only rise
    #[arg(long, value_parser = PossibleValuesParser::new(["gauge", "counter"]).try_map(|name| name.parse::<Kind>()))]
    kind: Option<Kind>,
    /// A description of the sensors
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// The interval of the readings, such as 15min; the maximum gap is three times as long (docs/sums.md)
    #[arg(long, value_name = "LENGTH")]
    interval: Option<Interval>,
    /// How long the readings are kept, such as 30d; or forever
    #[arg(long, value_name = "LENGTH", value_parser = ttl)]
    ttl: Option<String>,
    /// Change nothing; print the number of sensors that match
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  wholegrain config sensor unset '/lrz/**/inlet'
  wholegrain config sensor unset '/lrz/**/inlet' --scale")]
struct UnsetArgs {
    /// The pattern of the settings
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
    /// Remove only the time-to-live
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
        let pattern = self.pattern.as_str().to_owned();
        let nothing = SetPropertiesOf { pattern: pattern.clone(), ..SetPropertiesOf::default() };
        let setting = SetPropertiesOf {
            pattern,
            unit: self.unit.as_ref().map(|unit| unit.code().to_owned()),
            scale: self.scale,
            kind: self.kind,
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
    let done = send(&connection, vec![setting], args.dry_run, false)?;
    let sensors = done.sensors.and_then(|counts| counts.first().copied()).unwrap_or(0);
    let applies = if args.dry_run { "would apply" } else { "set; applies" };
    let text = match sensors {
        0 => format!("{applies} to no sensor yet, and to later sensors that match"),
        1 => format!("{applies} to 1 sensor"),
        more => format!("{applies} to {more} sensors"),
    };
    print(|_, out| writeln!(out, "{text}"))
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
    let mut properties: Vec<Option<&str>> =
        flags.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| Some(*name)).collect();
    if properties.is_empty() {
        properties.push(None);
    }
    let connection = Connection::open(client)?;
    let mut count = 0;
    for property in properties {
        let request = connection.delete(paths::PROPERTIES).query("pattern", &args.pattern);
        count += request.each("property", property).send()?.json::<UnsetPropertiesResult>()?.unset;
    }
    if count == 0 {
        return Err(Failure::NothingMatched(format!(
            "no setting has the pattern {}; `wholegrain config sensor list` lists the settings",
            args.pattern
        )));
    }
    print(|_, out| writeln!(out, "{count} settings removed"))
}
