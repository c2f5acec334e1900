//! An agent under the control of a test, which sets readings and times.

use std::time::Duration;

use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, JobRecord, Schema, SensorDef, SensorPath};
use wholegrain_transport::client::{Client, ClientConfig, Event};
use wholegrain_transport::topics::Topic;
use wholegrain_transport::{payload, tls};

use crate::Site;

/// One such agent with its own certificate.
pub struct Publisher {
    client: Client,
    agent: String,
    prefix: SensorPath,
    seq: u64,
}

/// Values of one sensor, one for each time; `None` is a gap.
pub type Values = Vec<Option<f64>>;

impl Publisher {
    /// Connects an agent with this name, whose sensors are below `/site/<name>`.
    pub fn new(site: &Site, agent: &str) -> Self {
        let (cert, key) = site.agent_certificate(agent);
        let tls =
            tls::client_config(&site.path("ca.pem"), Some(tls::Identity { cert: &cert, key: &key })).expect("TLS");
        let url = format!("mqtts://localhost:{}", site.mqtt_port);
        let config = ClientConfig { url, client_id: agent.into(), tls: Some(tls), ..ClientConfig::default() };
        let client = Client::connect(&config).expect("a connection");
        let prefix = SensorPath::new(format!("/site/{agent}")).expect("a prefix");
        Self { client, agent: agent.into(), prefix, seq: 0 }
    }

    /// Sends readings of sensors with the same times as one group, and waits until they are durable.
    #[track_caller]
    pub fn send(&mut self, group: &str, interval_ns: i64, times: &[i64], sensors: Vec<(SensorDef, Values)>) {
        let (defs, values): (Vec<SensorDef>, Vec<Values>) = sensors.into_iter().unzip();
        let defs = defs.into_iter().map(SensorDef::float).collect();
        let schema = Schema::new(self.prefix.clone(), group, defs).expect("a schema");
        let topic = Topic::Schema { agent: &self.agent, group }.to_string();
        self.publish(&topic, &schema.encode());
        let column = |values: Values| {
            let mut gaps = Gaps::default();
            values
                .iter()
                .enumerate()
                .filter(|(_, value)| value.is_none())
                .for_each(|(at, _)| gaps.set(at, times.len()));
            Column { values: ColumnValues::Float(values.iter().map(|value| value.unwrap_or(0.0)).collect()), gaps }
        };
        self.seq += 1;
        let header = BatchHeader {
            agent: self.agent.as_str().into(),
            boot: 1,
            seq: self.seq,
            schema: schema.hash(),
            interval_ns: interval_ns.cast_unsigned(),
        };
        let columns = values.into_iter().map(column).collect();
        let payload = payload::encode_batch(&Batch { header, times: times.to_vec(), columns });
        self.publish(&Topic::Batch { agent: &self.agent, group }.to_string(), &payload);
    }

    /// Sends a job record of this agent's node; sets node and prefix of the record.
    #[track_caller]
    pub fn job(&mut self, record: JobRecord) {
        let record = JobRecord { node: self.agent.clone(), prefix: self.prefix.as_str().to_owned(), ..record };
        let json = serde_json::to_vec(&record).expect("a record");
        self.publish(&Topic::Job { agent: &self.agent }.to_string(), &json);
    }

    #[track_caller]
    fn publish(&mut self, topic: &str, payload: &[u8]) {
        self.client.publish(topic, payload, true, false).expect("a publish");
        loop {
            match self.client.poll(Duration::from_secs(60)) {
                Ok(Some(Event::Acked { reason, .. })) => {
                    assert!(!reason.is_error(), "{topic} was refused: {reason:?}");
                    return;
                }
                Ok(Some(_)) => {}
                other => panic!("{topic} was not acknowledged: {other:?}"),
            }
        }
    }
}
