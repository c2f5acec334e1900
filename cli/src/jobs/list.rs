//! `wholegrain jobs`: lists jobs.

use std::path::Path;

use clap::Args;
use wholegrain_api::{JobPage, ListedJob, paths};
use wholegrain_model::Timestamp;

use super::job_fields::{length, owner};
use crate::connection::Connection;
use crate::failure::Failure;
use crate::output::table::Table;
use crate::output::{ListFormat, print, print_json_lines, values};

/// The most jobs in a page.
const PAGE: u64 = 1000;

/// Filters and the output format.
#[derive(Args)]
pub struct ListJobsArgs {
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
    /// Only jobs that are running
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

pub fn run(args: &ListJobsArgs, client: Option<&Path>) -> Result<(), Failure> {
    let parameters = args.parameters(values::now())?;
    let (jobs, more) = fetch(&Connection::open(client)?, &parameters, args.limit)?;
    if jobs.is_empty() {
        let text = match parameters.is_empty() {
            true => "the server knows no job yet; docs/jobs.md says which resource managers the agents find jobs of",
            false => "no job matches; `wholegrain jobs` without options lists the newest",
        };
        return Err(Failure::NothingMatched(text.into()));
    }
    let now = values::now().0;
    match args.format {
        ListFormat::Table => print(|style, out| table(&jobs, now).write(style, out)),
        ListFormat::Csv => print(|_, out| csv(&jobs, now).write_csv(out)),
        ListFormat::Json => print_json_lines(&jobs),
    }?;
    if more {
        eprintln!("note: there are more; --limit shows them");
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
        for (wanted, state) in [(self.running, "running"), (self.ended, "ended")] {
            if wanted {
                parameters.push(("state", state.to_owned()));
            }
        }
        Ok(parameters)
    }
}

/// At most `limit` jobs, and whether there are more.
fn fetch(
    connection: &Connection,
    parameters: &[(&'static str, String)],
    limit: u64,
) -> Result<(Vec<ListedJob>, bool), Failure> {
    let mut jobs: Vec<ListedJob> = Vec::new();
    let mut next: Option<String> = None;
    loop {
        let request = connection.get(paths::JOBS).queries(parameters);
        let request = request.query("limit", (limit - jobs.len() as u64).min(PAGE));
        let page: JobPage = next.iter().fold(request, |request, next| request.query("after", next)).send()?.json()?;
        jobs.extend(page.jobs);
        next = page.next;
        if next.is_none() || jobs.len() as u64 >= limit {
            return Ok((jobs, next.is_some()));
        }
    }
}

fn table(jobs: &[ListedJob], now: i64) -> Table {
    let heads = ["JOB", "USER", "MANAGER", "STATE", ">NODES", "START", ">DURATION", ">CPU s", ">MEMORY PEAK", "NAME"];
    let mut table = Table::new(&heads);
    for job in jobs {
        // Totals of a running job are as old as the last change of its record; `jobs show` reads its sensors.
        let ended = job.to.is_some();
        table.row(vec![
            job.job.clone(),
            owner(job),
            job.manager.clone(),
            job.state.name().to_owned(),
            job.nodes.to_string(),
            values::time(job.from.0, 0),
            values::duration(length(job, now)),
            job.cpu_s.filter(|_| ended).map(|seconds| format!("{seconds:.1}")).unwrap_or_default(),
            job.memory_peak.filter(|_| ended).map(values::size).unwrap_or_default(),
            job.name.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn csv(jobs: &[ListedJob], now: i64) -> Table {
    let mut table = Table::new(&[
        "job",
        "also",
        "user",
        "uid",
        "manager",
        "state",
        "nodes",
        "from",
        "to",
        "duration_s",
        "cpu_s",
        "memory_peak",
        "name",
        "account",
        "partition",
    ]);
    for job in jobs {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let number = |value: Option<f64>| value.map(values::float_exact).unwrap_or_default();
        table.row(vec![
            job.job.clone(),
            text(&job.also),
            text(&job.user),
            job.uid.map(|uid| uid.to_string()).unwrap_or_default(),
            job.manager.clone(),
            job.state.name().to_owned(),
            job.nodes.to_string(),
            job.from.to_string(),
            job.to.map(|to| to.to_string()).unwrap_or_default(),
            values::float_exact(length(job, now) as f64 / 1e9),
            number(job.cpu_s),
            number(job.memory_peak),
            text(&job.name),
            text(&job.account),
            text(&job.partition),
        ]);
    }
    table
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
