//! The agents of the centre: one MQTT connection for each node and one for the facility.
//!
//! - In: the readings of [`Centre`], a clock and a stop flag ([`RunControl`]).
//! - Out: schemas, batches and job records over MQTT, first those of the past, then new ones every few seconds.
//! - Never: more than [`STEPS_MAX`] steps that the server has not acknowledged.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, Interval, SchemaHash};
use wholegrain_transport::client::{Client, ClientConfig, ClientError, Event};
use wholegrain_transport::topics::Topic;
use wholegrain_transport::{payload, tls};

use crate::boosts::Boosts;
use crate::centre::{Centre, GroupReadings, LIVE, NodeRecord, job_metrics};
use crate::plan::{CentreOptions, CentrePlan};

/// Steps of the past that are computed before they are sent. Bounds the memory.
const STEPS_MAX: usize = 256;
/// Timeout for acknowledgements of the server.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(120);
/// How often connections are polled.
const POLL_EVERY: Duration = Duration::from_millis(100);
const HOUR: i64 = 3600;
const NS: i64 = 1_000_000_000;
const FACILITY: &str = "facility";

/// An error that stopped the centre.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("agent {agent} of the demonstration: {error}")]
    Client { agent: String, error: ClientError },
    #[error("agent {agent} of the demonstration: {error}")]
    Tls { agent: String, error: tls::TlsError },
    #[error("agent {agent} of the demonstration cannot send: {why}")]
    Refused { agent: String, why: String },
}

/// The address of the server, and the credentials of the agents.
#[derive(Debug, Clone, Copy)]
pub struct ServerAddress<'a> {
    /// The broker's address, such as `mqtts://host:8883`.
    pub url: &'a str,
    /// The certificate of the authority.
    pub ca: &'a Path,
    /// The directory of `<agent>.pem` and `<agent>.key`.
    pub certificates: &'a Path,
}

/// The names of all agents of a plan. The last one is the facility.
pub fn agents(plan: &CentrePlan) -> Vec<String> {
    plan.nodes.iter().map(|node| node.name.clone()).chain([FACILITY.to_owned()]).collect()
}

/// Clock, stop flag and progress report of a run.
pub trait RunControl {
    /// The clock, ns since the Unix epoch.
    fn now_ns(&self) -> i64;
    fn stops(&self) -> bool;
    /// Called with the number of acknowledged readings. `ready` is set once the past is complete.
    fn sent(&self, readings: u64, ready: bool);
}

/// Replays the past from `from_s` on, then sends live readings until [`RunControl::stops`].
pub fn run(
    options: &CentreOptions,
    server: &ServerAddress<'_>,
    from_s: i64,
    control: &dyn RunControl,
) -> Result<(), SendError> {
    let plan = CentrePlan::new(options.clone());
    let start_s = control.now_ns() / NS;
    let mut agents = DemoAgents::connect(server, &agents(&plan), start_s.cast_unsigned())?;
    let (mut centre, mut boosts) = (Centre::new(plan, from_s), Boosts::default());
    let mut steps = 0;
    while !control.stops() {
        let (time_s, interval) = next_step(centre.time_s(), start_s);
        if time_s * NS > control.now_ns() {
            break;
        }
        centre.step(time_s, interval, &boosts);
        steps += 1;
        if steps % STEPS_MAX == 0 {
            agents.send(centre.take())?;
            control.sent(agents.readings, false);
        }
    }
    centre.report_running();
    agents.send(centre.take())?;
    control.sent(agents.readings, true);
    while !control.stops() {
        agents.handle_commands(&centre, &mut boosts, control.now_ns())?;
        boosts.expire(control.now_ns());
        let (time_s, _) = next_step(centre.time_s(), start_s);
        if time_s * NS <= control.now_ns() {
            centre.step(time_s, LIVE, &boosts);
            agents.send(centre.take())?;
            control.sent(agents.readings, true);
        }
        std::thread::sleep(POLL_EVERY);
    }
    Ok(())
}

/// The step after `time_s` and its length. Older steps are longer.
fn next_step(time_s: i64, start_s: i64) -> (i64, Interval) {
    let live = LIVE.ns().cast_signed() / NS;
    let every = match start_s - time_s {
        age if age > 26 * HOUR => 300,
        age if age > HOUR => 60,
        _ => live,
    };
    (time_s.div_euclid(every) * every + every, Interval::from_s(every.cast_unsigned()))
}

struct DemoAgent {
    name: String,
    client: Client,
    seq: u64,
    sent_schemas: HashSet<SchemaHash>,
    unacknowledged: usize,
    commands: Vec<Vec<u8>>,
}

/// The connections of all agents.
struct DemoAgents {
    all: Vec<DemoAgent>,
    boot: u64,
    readings: u64,
}

impl DemoAgents {
    fn connect(server: &ServerAddress<'_>, names: &[String], boot: u64) -> Result<Self, SendError> {
        let connect = |name: &String| {
            let file = |ending: &str| server.certificates.join(format!("{name}.{ending}"));
            let (cert, key) = (file("pem"), file("key"));
            let identity = tls::Identity { cert: &cert, key: &key };
            let tls = tls::client_config(server.ca, Some(identity))
                .map_err(|error| SendError::Tls { agent: name.clone(), error })?;
            let config = ClientConfig {
                url: server.url.to_owned(),
                client_id: name.clone(),
                tls: Some(tls),
                ..ClientConfig::default()
            };
            let failed = |error| SendError::Client { agent: name.clone(), error };
            let mut client = Client::connect(&config).map_err(failed)?;
            client.subscribe(&Topic::Control { agent: name }.to_string()).map_err(failed)?;
            let (sent_schemas, commands) = (HashSet::new(), Vec::new());
            Ok(DemoAgent { name: name.clone(), client, seq: 0, sent_schemas, unacknowledged: 0, commands })
        };
        Ok(Self { all: names.iter().map(connect).collect::<Result<_, _>>()?, boot, readings: 0 })
    }

    /// Sends readings and records, and waits until all are acknowledged.
    fn send(&mut self, (series, records): (Vec<GroupReadings>, Vec<NodeRecord>)) -> Result<(), SendError> {
        let mut readings = 0;
        for series in series {
            readings += (series.times.len() * series.columns.len()) as u64;
            if let Some(agent) = self.all.get_mut(series.agent) {
                agent.send(series, self.boot)?;
            }
        }
        for (index, record) in records {
            let Some(agent) = self.all.get_mut(index) else { continue };
            let topic = Topic::Job { agent: &agent.name }.to_string();
            let json = serde_json::to_vec(&record).map_err(|error| agent.refused(error.to_string()))?;
            agent.publish(&topic, &json, false)?;
        }
        for agent in &mut self.all {
            agent.client.flush().map_err(|error| agent.failed(error))?;
        }
        for agent in &mut self.all {
            agent.wait_until_acknowledged(0)?;
        }
        self.readings += readings;
        Ok(())
    }

    /// Handles the commands of the server, and keeps the connections alive.
    fn handle_commands(&mut self, centre: &Centre, boosts: &mut Boosts, now_ns: i64) -> Result<(), SendError> {
        let metrics = job_metrics();
        for (index, agent) in self.all.iter_mut().enumerate() {
            while agent.poll(Duration::ZERO)? {}
            for command in std::mem::take(&mut agent.commands) {
                let Some(answer) = boosts.handle(centre.plan(), index, &command, now_ns, &metrics, LIVE) else {
                    continue;
                };
                let topic = Topic::Response { agent: &agent.name }.to_string();
                agent.publish(&topic, answer.to_string().as_bytes(), false)?;
                agent.client.flush().map_err(|error| agent.failed(error))?;
            }
        }
        Ok(())
    }
}

impl DemoAgent {
    fn failed(&self, error: ClientError) -> SendError {
        SendError::Client { agent: self.name.clone(), error }
    }

    fn refused(&self, why: String) -> SendError {
        SendError::Refused { agent: self.name.clone(), why }
    }

    fn send(&mut self, series: GroupReadings, boot: u64) -> Result<(), SendError> {
        let schema = series.schema().map_err(|why| self.refused(why))?;
        let hash = schema.hash();
        if self.sent_schemas.insert(hash) {
            let topic = Topic::Schema { agent: &self.name, group: &series.group }.to_string();
            self.publish(&topic, &schema.encode(), true)?;
        }
        self.seq += 1;
        let (agent, seq) = (self.name.clone(), self.seq);
        let header = BatchHeader { agent, boot, seq, schema: hash, interval_ns: series.interval.ns() };
        let column = |values| Column { values: ColumnValues::Int(values), gaps: Gaps::default() };
        let columns = series.columns.into_iter().map(column).collect();
        let batch = payload::encode_batch(&Batch { header, times: series.times, columns });
        self.publish(&Topic::Batch { agent: &self.name, group: &series.group }.to_string(), &batch, false)
    }

    fn publish(&mut self, topic: &str, payload: &[u8], retain: bool) -> Result<(), SendError> {
        loop {
            match self.client.publish(topic, payload, true, retain) {
                Ok(_) => {
                    self.unacknowledged += 1;
                    return Ok(());
                }
                Err(ClientError::WindowFull(_)) => {
                    self.wait_until_acknowledged(self.unacknowledged.saturating_sub(1))?
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Waits until at most `most` messages are unacknowledged.
    fn wait_until_acknowledged(&mut self, most: usize) -> Result<(), SendError> {
        let deadline = Instant::now() + ACKNOWLEDGED_WITHIN;
        while self.unacknowledged > most {
            self.poll(Duration::from_secs(1))?;
            if Instant::now() > deadline {
                return Err(
                    self.refused(format!("the server did not acknowledge all messages within {ACKNOWLEDGED_WITHIN:?}"))
                );
            }
        }
        Ok(())
    }

    /// Handles one event of the connection. Returns `false` when there was none within `wait`.
    fn poll(&mut self, wait: Duration) -> Result<bool, SendError> {
        match self.client.poll(wait).map_err(|error| self.failed(error))? {
            Some(Event::Acked { reason, .. }) => {
                self.unacknowledged = self.unacknowledged.saturating_sub(1);
                if reason.is_error() {
                    return Err(self.refused(reason.to_string()));
                }
            }
            Some(Event::Subscribed { reason, .. }) if reason.is_error() => return Err(self.refused(reason.to_string())),
            Some(Event::Message { payload, .. }) => self.commands.push(payload.to_vec()),
            Some(_) => {}
            None => return Ok(false),
        }
        Ok(true)
    }
}
