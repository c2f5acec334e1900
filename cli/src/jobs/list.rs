//! `wholegrain jobs`: lists jobs.

use std::path::Path;

use clap::Args;
use wholegrain_api::{JobPage, ListedJob, paths};
use wholegrain_model::Timestamp;

use super::listed::{length, owner};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::{ListFormat, print, print_json_lines, print_table, values};

/// The most jobs in a page.
const PAGE: u64 = 1000;

/// Filters and the output format.
#[derive(Args)]
pub struct ListJobsArgs {
    /// Jobs of this user: a name or a uid
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Jobs on this node; * stands for any text
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
    /// Jobs with this name; * stands for any text
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Only jobs that run
    #[arg(long, conflicts_with = "ended")]
    running: bool,
    /// Only jobs that have ended
    #[arg(long)]
    ended: bool,
    /// Jobs that ran at this time or later
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    since: Option<String>,
    /// Jobs that began before this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<String>,
    /// The most jobs; the newest are listed
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// The format of the output
    #[arg(long, short, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

pub fn run(args: &ListJobsArgs, client: Option<&Path>) -> Result<(), Failure> {
    let parameters = args.parameters(values::now())?;
    let connection = Connection::open(client)?;
    let request = connection.get(paths::JOBS).queries(&parameters);
    let (jobs, more) = request.pages(PAGE, args.limit, |page: JobPage| (page.jobs, page.next))?;
    if jobs.is_empty() {
        let text = match parameters.is_empty() {
            true => "the server knows no job yet; docs/jobs.md lists the resource managers whose jobs agents find",
            false => "no job matches; `wholegrain jobs` without options lists the newest",
        };
        return Err(Failure::NothingMatched(text.into()));
    }
    let now = values::now().0;
    match args.format {
        ListFormat::Table => print_table(&table(&jobs, now)),
        ListFormat::Csv => print(|_, out| csv(&jobs, now).write_csv(out)),
        ListFormat::Json => print_json_lines(&jobs),
    }?;
    if more {
        eprintln!("note: there are more jobs; --limit shows them");
    }
    Ok(())
}

impl ListJobsArgs {
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
        for (is_set, state) in [(self.running, "running"), (self.ended, "ended")] {
            if is_set {
                parameters.push(("state", state.to_owned()));
            }
        }
        Ok(parameters)
    }
}

fn table(jobs: &[ListedJob], now: i64) -> Table {
    // The totals of a running job are as old as the last change of its record; `jobs show` reads its sensors.
    let total = |job: &ListedJob, total: Option<f64>, show: &dyn Fn(f64) -> String| {
        total.filter(|_| job.to.is_some()).map(show).unwrap_or_default()
    };
    Table::of(
        jobs,
        &[
            ("JOB", &|job| job.job.clone()),
            ("USER", &owner),
            ("MANAGER", &|job| job.manager.clone()),
            ("STATE", &|job| job.state.name().to_owned()),
            (">NODES", &|job| job.nodes.to_string()),
            ("START", &|job| values::time(job.from.0, 0)),
            (">DURATION", &|job| values::duration(length(job, now))),
            (">CPU s", &|job| total(job, job.cpu_s, &|seconds| format!("{seconds:.1}"))),
            (">MEMORY PEAK", &|job| total(job, job.memory_peak, &values::size)),
            ("NAME", &|job| job.name.clone().unwrap_or_default()),
        ],
    )
}

fn csv(jobs: &[ListedJob], now: i64) -> Table {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let number = |value: Option<f64>| value.map(values::float_exact).unwrap_or_default();
    Table::of(
        jobs,
        &[
            ("job", &|job| job.job.clone()),
            ("also", &|job| text(&job.also)),
            ("user", &|job| text(&job.user)),
            ("uid", &|job| job.uid.map(|uid| uid.to_string()).unwrap_or_default()),
            ("manager", &|job| job.manager.clone()),
            ("state", &|job| job.state.name().to_owned()),
            ("nodes", &|job| job.nodes.to_string()),
            ("from", &|job| job.from.to_string()),
            ("to", &|job| job.to.map(|to| to.to_string()).unwrap_or_default()),
            ("duration_s", &|job| values::float_exact(length(job, now) as f64 / 1e9)),
            ("cpu_s", &|job| number(job.cpu_s)),
            ("memory_peak", &|job| number(job.memory_peak)),
            ("name", &|job| text(&job.name)),
            ("account", &|job| text(&job.account)),
            ("partition", &|job| text(&job.partition)),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::style::Style;

    fn job(text: &str) -> ListedJob {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn every_format() {
        let jobs = [
            job(
                r#"{"job":"4711","manager":"slurm","user":"anna","uid":1000,"name":"a \"b\", c","state":"ended","nodes":2,
                "from":"1970-01-01T00:00:10Z","to":"1970-01-01T01:30:10.5Z","cpu_s":5400.25,"memory_peak":1610612736,"node_names":[]}"#,
            ),
            job(
                r#"{"job":"ƒ2o","manager":"flux","uid":1001,"state":"running","nodes":1,"from":"1970-01-01T02:00:00Z","to":null,
                "cpu_s":null,"memory_peak":null,"node_names":[]}"#,
            ),
        ];
        let now = 7_290_000_000_000;
        let mut out = Vec::new();
        table(&jobs, now).write(Style::PLAIN, &mut out).unwrap();
        let expected = "\
JOB   USER  MANAGER  STATE    NODES  START                 DURATION   CPU s  MEMORY PEAK  NAME
4711  anna  slurm    ended        2  1970-01-01T00:00:10Z   1h30min  5400.2       1.5GiB  a \"b\", c
ƒ2o   1001  flux     running      1  1970-01-01T02:00:00Z   1min30s
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let mut out = Vec::new();
        csv(&jobs, now).write_csv(&mut out).unwrap();
        let expected = "\
job,also,user,uid,manager,state,nodes,from,to,duration_s,cpu_s,memory_peak,name,account,partition
4711,,anna,1000,slurm,ended,2,1970-01-01T00:00:10Z,1970-01-01T01:30:10.5Z,5400.5,5400.25,1610612736,\"a \"\"b\"\", c\",,
ƒ2o,,,1001,flux,running,1,1970-01-01T02:00:00Z,,90,,,,,
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
