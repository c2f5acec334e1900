//! `wholegrain jobs energy ID`: the energy of a job, the rule that shares it between jobs, and the part of the time that was measured.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use wholegrain_api::{JobEnergy, JobEnergyTotal, paths};

use crate::client_file::ClientOption;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::job_arguments::JobArgument;
use crate::output::style::Style;
use crate::output::table::Table;
use crate::output::{ResultFormat, print, print_json, values};

const EXAMPLES: &str = "\
Energy covers the measured time only; gaps are not estimated. If several jobs ran on a node, --share decides which part of its energy \
belongs to this job; the response says so too.

Examples:
  wholegrain jobs energy 4711
  wholegrain jobs energy 4711 --share all --nodes
  wholegrain jobs energy 4711 --meter ipmi/power --meter 'powercap/package-*/energy + powercap/package-*/dram/energy'
  wholegrain jobs energy 4711 --format json | jq .total.kwh";

/// Show the energy of a job, and the part of its time that was measured
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct EnergyArgs {
    #[command(flatten)]
    job: JobArgument,
    /// The sensors that measure a node, instead of the server's setting: a pattern below the node's prefix, or several joined by " + ". Can be repeated; the first that a node has counts
    #[arg(long, value_name = "PATTERN")]
    meter: Vec<String>,
    /// The job's share of the energy of a node with other jobs: its part of the allocated cores, or of the CPU time of all jobs there, or all [default: the server's setting]
    #[arg(long, value_parser = PossibleValuesParser::new([
        PossibleValue::new("cores"), PossibleValue::new("cpu-time").alias("cpu_time"), PossibleValue::new("all"),
    ]))]
    share: Option<String>,
    /// The source of the measurements: the sensors of each node, or of the facility, with an equal part for each node [default: the nodes, if any is measured]
    #[arg(long, value_parser = ["node", "facility"])]
    source: Option<String>,
    /// Also show each node
    #[arg(long)]
    nodes: bool,
    /// The format of the output
    #[arg(long, short, value_enum, default_value_t = ResultFormat::Table)]
    format: ResultFormat,
    #[command(flatten)]
    client: ClientOption,
}

pub fn run(args: &EnergyArgs, client: Option<&Path>) -> Result<(), Failure> {
    let connection = Connection::open(args.client.or(client))?;
    let mut parameters: Vec<_> = args.meter.iter().map(|meter| ("pattern", meter.clone())).collect();
    parameters.extend(args.share.iter().map(|share| ("share", share.replace('-', "_"))));
    parameters.extend(args.source.iter().map(|source| ("source", source.clone())));
    let energy: JobEnergy = args.job.find(&connection, paths::JOB_ENERGY, parameters)?.json()?;
    match args.format {
        ResultFormat::Json => print_json(&energy)?,
        ResultFormat::Table => print(|style, out| text(&energy, args.nodes, style, out))?,
    }
    if energy.result.total.joules.is_none() {
        return Err(Failure::NothingMatched(format!(
            "the energy of job {} is not known: {}",
            args.job.job,
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
    let table = Table::of(
        &energy.nodes,
        &[
            ("NODE", &|node| node.node.clone()),
            (">J", &|node| node.joules.map_or("-".to_owned(), values::float)),
            (">COVERED", &|node| values::percent(node.coverage)),
            (">SHARE", &|node| node.share.map_or("-".to_owned(), values::percent)),
            (">OTHERS", &|node| node.shared_with.to_string()),
            ("SENSORS", &|node| node.problem.clone().unwrap_or_else(|| node.sensors.join(" "))),
        ],
    );
    writeln!(out)?;
    table.write(style, out)
}
