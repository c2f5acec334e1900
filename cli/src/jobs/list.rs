//! The list of jobs.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use serde::{Deserialize, Serialize};
use wholegrain_model::Timestamp;
use wholegrain_model::size::ByteSize;
use wholegrain_model::text::csv_field;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::Output;
use crate::sensors::ListFormat;
use crate::shown;
use crate::style::{self, Style};
use crate::table::Table;

/// Jobs that are asked for at once.
const PAGE: u64 = 1000;
/// The largest page that is read, in bytes.
const PAGE_BYTES_MAX: u64 = 64 << 20;

/// Which jobs, and how they are written.
#[derive(Args)]
pub struct ListArgs {
    /// Jobs of this user: a name or a uid
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Jobs that are or were on this node; * stands for any text
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Jobs of this account
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
    /// Jobs in this partition
    #[arg(long, value_name = "PARTITION")]
    partition: Option<String>,
    /// Jobs of this resource manager, such as slurm
    #[arg(long, value_name = "MANAGER")]
    manager: Option<String>,
    /// Jobs of this name; * stands for any text
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Jobs that run
    #[arg(long, conflicts_with = "ended")]
    running: bool,
    /// Jobs that have ended
    #[arg(long)]
    ended: bool,
    /// Jobs that were there at this time or later
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<String>,
    /// Jobs that were there before this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<String>,
    /// At most so many, the newest
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// How to write it
    #[arg(long, short, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

/// A job as the server lists it.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct Job {
    pub job: String,
    #[serde(default)]
    pub also: Option<String>,
    #[serde(default)]
    pub manager: String,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub uid: Option<u32>,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub account: Option<String>,
    #[serde(default)]
    pub partition: Option<String>,
    #[serde(default)]
    pub state: String,
    #[serde(default)]
    pub nodes: u64,
    #[serde(default)]
    pub node_names: Vec<String>,
    pub from: String,
    #[serde(default)]
    pub to: Option<String>,
    #[serde(default)]
    pub cpu_s: Option<f64>,
    #[serde(default)]
    pub memory_peak: Option<f64>,
}

#[derive(Deserialize)]
struct Page {
    jobs: Vec<Job>,
    next: Option<String>,
}

impl Job {
    /// Whose it is: the name, or the number where there is none.
    pub fn owner(&self) -> String {
        self.user.clone().or_else(|| self.uid.map(|uid| uid.to_string())).unwrap_or_default()
    }

    /// When it began and how long it took, or has taken until `now`; in ns.
    pub fn span(&self, now: i64) -> (i64, i64) {
        let time = |text: &str| Timestamp::parse(text, Timestamp(now)).ok().map(|time| time.0);
        let from = time(&self.from).unwrap_or_default();
        (from, self.to.as_deref().and_then(time).unwrap_or(now).saturating_sub(from).max(0))
    }
}

/// A length of time in its two largest units.
pub fn duration(ns: i64) -> String {
    const UNITS: [(&str, i64); 5] = [
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
    ];
    let Some(at) = UNITS.iter().position(|(_, unit)| ns >= *unit) else { return "0s".to_owned() };
    let (name, unit) = UNITS[at];
    let whole = format!("{}{name}", ns / unit);
    match UNITS.get(at + 1).filter(|(next, _)| *next != "ms") {
        Some((next, smaller)) if ns % unit >= *smaller => format!("{whole}{}{next}", ns % unit / smaller),
        _ => whole,
    }
}

/// A size in bytes for people.
pub fn size(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes.max(0.0), 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { ByteSize(value as u64).to_string() } else { format!("{value:.1}{}", UNITS[unit]) }
}

/// Runs it.
pub fn run(args: &ListArgs, client: Option<&Path>) -> Result<(), Failure> {
    let parameters = args.parameters(shown::now())?;
    let (jobs, more) = fetch(&Connection::open(client)?, &parameters, args.limit)?;
    if jobs.is_empty() {
        let text = match parameters.is_empty() {
            true => "the server knows no job yet; docs/jobs.md says which resource managers the agents find jobs of",
            false => "no job matches; `wholegrain jobs` without options lists the newest",
        };
        return Err(Failure::NothingMatched(text.into()));
    }
    let mut output = Output::open(None)?;
    let written = match args.format {
        ListFormat::Table => table(&jobs, shown::now().0, style::on_stdout(), &mut output),
        ListFormat::Csv => csv(&jobs, shown::now().0, &mut output),
        ListFormat::Json => jobs.iter().try_for_each(|job| {
            serde_json::to_writer(&mut output, job)?;
            writeln!(output)
        }),
    };
    written.map_err(Failure::writing("standard output"))?;
    output.finish()?;
    if more {
        eprintln!("note: there are more; --limit shows them");
    }
    Ok(())
}

impl ListArgs {
    fn parameters(&self, now: Timestamp) -> Result<Vec<(&'static str, String)>, Failure> {
        let texts = [
            ("user", &self.user),
            ("node", &self.node),
            ("account", &self.account),
            ("partition", &self.partition),
            ("manager", &self.manager),
            ("name", &self.name),
        ];
        let mut parameters: Vec<_> =
            texts.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect();
        for (option, name, text) in [("since", "from", &self.since), ("until", "to", &self.until)] {
            let Some(text) = text else { continue };
            let time = Timestamp::parse(text, now).map_err(|error| Failure::Usage(format!("--{option}: {error}")))?;
            parameters.push((name, time.to_string()));
        }
        for (wanted, state) in [(self.running, "running"), (self.ended, "ended")] {
            if wanted {
                parameters.push(("state", state.to_owned()));
            }
        }
        Ok(parameters)
    }
}

/// At most so many jobs, and whether there are more.
fn fetch(
    connection: &Connection,
    parameters: &[(&'static str, String)],
    limit: u64,
) -> Result<(Vec<Job>, bool), Failure> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let mut page = parameters.to_vec();
        page.push(("limit", (limit - jobs.len() as u64).min(PAGE).to_string()));
        page.extend(next.take().map(|next| ("after", next)));
        let body = connection.get("/api/v1/jobs", &page, false)?.read(PAGE_BYTES_MAX)?;
        let page: Page = serde_json::from_slice(&body).map_err(|error| {
            Failure::Unreachable(format!("the answer of {} is no list of jobs: {error}", connection.url()))
        })?;
        jobs.extend(page.jobs);
        next = page.next;
        if next.is_none() || jobs.len() as u64 >= limit {
            return Ok((jobs, next.is_some()));
        }
    }
}

fn table(jobs: &[Job], now: i64, style: Style, out: &mut impl Write) -> io::Result<()> {
    let heads = ["JOB", "USER", "MANAGER", "STATE", ">NODES", "START", ">DURATION", ">CPU s", ">MEMORY PEAK", "NAME"];
    let mut table = Table::new(&heads);
    for job in jobs {
        let (from, length) = job.span(now);
        // Totals of a job that runs are as old as the last change of its record; `jobs show` looks at its readings.
        let ended = job.to.is_some();
        table.row(vec![
            job.job.clone(),
            job.owner(),
            job.manager.clone(),
            job.state.clone(),
            job.nodes.to_string(),
            shown::time(from, 0),
            duration(length),
            job.cpu_s.filter(|_| ended).map(|seconds| format!("{seconds:.1}")).unwrap_or_default(),
            job.memory_peak.filter(|_| ended).map(size).unwrap_or_default(),
            job.name.clone().unwrap_or_default(),
        ]);
    }
    table.write(style, out)
}

fn csv(jobs: &[Job], now: i64, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "job,also,user,uid,manager,state,nodes,from,to,duration_s,cpu_s,memory_peak,name,account,partition")?;
    for job in jobs {
        let text = |text: &Option<String>| csv_field(text.as_deref().unwrap_or_default());
        let number = |value: Option<f64>| value.map(shown::float_exact).unwrap_or_default();
        let fields = [
            csv_field(&job.job),
            text(&job.also),
            text(&job.user),
            job.uid.map(|uid| uid.to_string()).unwrap_or_default(),
            csv_field(&job.manager),
            job.state.clone(),
            job.nodes.to_string(),
            job.from.clone(),
            text(&job.to),
            shown::float_exact(job.span(now).1 as f64 / 1e9),
            number(job.cpu_s),
            number(job.memory_peak),
            text(&job.name),
            text(&job.account),
            text(&job.partition),
        ];
        writeln!(out, "{}", fields.join(","))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_model::Interval;

    fn job(text: &str) -> Job {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn every_form() {
        let jobs = [
            job(
                r#"{"job":"4711","manager":"slurm","user":"anna","uid":1000,"name":"a \"b\", c","state":"ended","nodes":2,
                "from":"1970-01-01T00:00:10Z","to":"1970-01-01T01:30:10.5Z","cpu_s":5400.25,"memory_peak":1610612736}"#,
            ),
            job(
                r#"{"job":"ƒ2o","manager":"flux","uid":1001,"state":"running","nodes":1,"from":"1970-01-01T02:00:00Z","to":null,
                "cpu_s":null,"memory_peak":null}"#,
            ),
        ];
        let now = 7_290_000_000_000;
        let mut out = Vec::new();
        table(&jobs, now, Style::PLAIN, &mut out).unwrap();
        let expected = "\
JOB   USER  MANAGER  STATE    NODES  START                 DURATION   CPU s  MEMORY PEAK  NAME
4711  anna  slurm    ended        2  1970-01-01T00:00:10Z   1h30min  5400.2       1.5GiB  a \"b\", c
ƒ2o   1001  flux     running      1  1970-01-01T02:00:00Z   1min30s
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        csv(&jobs, now, &mut out).unwrap();
        let expected = "\
job,also,user,uid,manager,state,nodes,from,to,duration_s,cpu_s,memory_peak,name,account,partition
4711,,anna,1000,slurm,ended,2,1970-01-01T00:00:10Z,1970-01-01T01:30:10.5Z,5400.5,5400.25,1610612736,\"a \"\"b\"\", c\",,
ƒ2o,,,1001,flux,running,1,1970-01-01T02:00:00Z,,90,,,,,
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn lengths_and_sizes() {
        const S: i64 = 1_000_000_000;
        for (ns, expected) in [
            (0, "0s"),
            (-5, "0s"),
            (S / 4, "250ms"),
            (S + S / 2, "1s"),
            (60 * S, "1min"),
            (90 * S, "1min30s"),
            (5400 * S + 5 * S, "1h30min"),
            (86_400 * S * 3 + 60 * S, "3d"),
        ] {
            assert_eq!(duration(ns), expected);
            assert!(Interval::parse(expected).is_ok(), "it can be written back");
        }
        for (bytes, expected) in
            [(0.0, "0B"), (1023.0, "1023B"), (1536.0, "1.5KiB"), (f64::powi(1024.0, 5) * 3.0, "3.0PiB")]
        {
            assert_eq!(size(bytes), expected);
        }
    }
}
