//! `wholegrain jobs energy ID`: the energy of a job, with the rule by which it was shared and the part of the time it is of.

use std::io::{self, Write};
use std::path::Path;

use clap::{Args, ValueEnum};
use wholegrain_api::{JobEnergy, JobEnergyTotal, paths};

use super::job_fields::{JobsFormat, at_parameter};
use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::{EXIT_CODES, Failure};
use crate::output::style::Style;
use crate::output::table::Table;
use crate::output::{print, print_json, values};
use crate::socket::encoded;

const EXAMPLES: &str = "\
Energy covers the measured time only; gaps are not estimated. If several jobs ran on a node, --share decides which part of its energy \
belongs to this job; the response says so too.

Examples:
  wholegrain jobs energy 4711
  wholegrain jobs energy 4711 --share all --nodes
  wholegrain jobs energy 4711 --meter ipmi/power --meter 'powercap/package-*/energy + powercap/package-*/dram/energy'
  wholegrain jobs energy 4711 --format json | jq .total.kwh";

/// Show the energy of a job, and how much of its time that is known for
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub struct EnergyArgs {
    /// The job's id, or its other id
    #[arg(value_name = "ID")]
    job: String,
    /// Of several jobs that had this id, the newest that had begun by then
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    at: Option<String>,
    /// What measures a node, in place of the server's setting: a pattern below its prefix, or several joined by " + "; of several the first that a node has
    #[arg(long, value_name = "PATTERN")]
    meter: Vec<String>,
    /// What is the job's of a node that others were on too [default: the server's setting]
    #[arg(long, value_enum)]
    share: Option<ShareArg>,
    /// Whose sensors [default: the nodes', if any is measured]
    #[arg(long, value_enum)]
    source: Option<SourceArg>,
    /// Show each node too
    #[arg(long)]
    nodes: bool,
    /// How to write it
    #[arg(long, short, value_enum, default_value_t = JobsFormat::Table)]
    format: JobsFormat,
    #[command(flatten)]
    client: ClientOption,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ShareArg {
    /// Its part of the cores allocated at the time
    Cores,
    /// Its part of the CPU time that jobs used there
    #[value(alias = "cpu_time")]
    CpuTime,
    /// All of the node's energy
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SourceArg {
    /// The sensors of each node
    Node,
    /// The facility's, each node the same part
    Facility,
}

pub fn run(args: &EnergyArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(args.client.or(client))?;
    let mut parameters: Vec<_> = args.meter.iter().map(|meter| ("pattern", meter.clone())).collect();
    parameters.extend(at_parameter(args.at.as_deref())?);
    parameters.extend(args.share.map(|share| {
        let name = match share {
            ShareArg::Cores => "cores",
            ShareArg::CpuTime => "cpu_time",
            ShareArg::All => "all",
        };
        ("share", name.to_owned())
    }));
    parameters.extend(
        args.source.map(|source| ("source", if source == SourceArg::Node { "node" } else { "facility" }.to_owned())),
    );
    let path = paths::of_job(paths::JOB_ENERGY, &encoded(&args.job));
    let energy: JobEnergy = connection.get(path).queries(&parameters).find()?.json()?;
    match args.format {
        JobsFormat::Json => print_json(&energy)?,
        JobsFormat::Table => print(|style, out| text(&energy, args.nodes, style, out))?,
    }
    if energy.result.total.joules.is_none() {
        return Err(Failure::NothingMatched(format!(
            "the energy of job {} is not known: {}",
            args.job,
            energy.nodes.iter().find_map(|node| node.problem.as_deref()).unwrap_or("nothing was measured in its time")
        )));
    }
    Ok(())
}

fn text(energy: &JobEnergy, nodes: bool, style: Style, out: &mut impl Write) -> io::Result<()> {
    let result = &energy.result;
    let JobEnergyTotal { joules, kwh, coverage, nodes: count, nodes_measured, .. } = &result.total;
    let known = |value: &Option<f64>, unit: &str| value.map(|value| format!("{} {unit}", values::float(value)));
    let energy_text = known(kwh, "kW.h").zip(known(joules, "J")).map(|(kwh, joules)| format!("{kwh} ({joules})"));
    writeln!(out, "{}  {}", style.head("energy "), energy_text.unwrap_or("not known".to_owned()))?;
    writeln!(
        out,
        "{}  {} of the nodes' time, {nodes_measured} of {count} nodes",
        style.head("covered"),
        values::percent(*coverage)
    )?;
    writeln!(out, "{}  {}: {}", style.head("rule   "), result.source, result.rule)?;
    for warning in &result.warnings {
        writeln!(out, "{}  {warning}", style.error("warning"))?;
    }
    if !nodes || energy.nodes.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["NODE", ">J", ">COVERED", ">SHARE", ">OTHERS", "SENSORS"]);
    for node in &energy.nodes {
        table.row(vec![
            node.node.clone(),
            node.joules.map_or("-".to_owned(), values::float),
            values::percent(node.coverage),
            node.share.map_or("-".to_owned(), values::percent),
            node.shared_with.to_string(),
            node.problem.clone().unwrap_or_else(|| node.sensors.join(" ")),
        ]);
    }
    writeln!(out)?;
    table.write(style, out)
}
