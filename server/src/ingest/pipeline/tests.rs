use super::*;
use wholegrain_model::{Batch, BatchHeader, Column, ColumnValues, Gaps, SensorDef, SensorPath};

fn schema(name: &str) -> Schema {
    Schema::new(SensorPath::new("/n1").unwrap(), "g", vec![SensorDef::gauge(name, "1", "")]).unwrap()
}

fn batch_of(agent: &str, schema: &Schema, seq: u64) -> Bytes {
    let header =
        BatchHeader { agent: agent.to_owned(), boot: 1, seq, schema: schema.hash(), interval_ns: 1_000_000_000 };
    let column = Column { values: ColumnValues::Int(vec![seq as i64, 2]), gaps: Gaps::default() };
    payload::encode_batch(&Batch { header, times: vec![1_000, 2_000], columns: vec![column] }).into()
}

const SCHEMA_WAIT_MAX: Duration = Duration::from_secs(60);

/// A pipeline, its clock and what it asked for.
struct PipelineFixture {
    pipeline: PublishPipeline,
    metrics: Arc<Metrics>,
    now: Instant,
    next_id: u16,
}

impl PipelineFixture {
    fn new(reasons: bool) -> Self {
        let metrics = Arc::new(Metrics::default());
        Self::sharing(metrics, reasons, 1 << 30)
    }

    /// One of several clients.
    fn sharing(metrics: Arc<Metrics>, reasons: bool, inflight_total_bytes_max: usize) -> Self {
        let terms = ClientTerms {
            identity: "n1".to_owned(),
            reasons,
            relay: false,
            inflight_max: 4,
            inflight_bytes_max: 1 << 20,
            inflight_total_bytes_max,
            schema_wait_max: SCHEMA_WAIT_MAX,
        };
        Self { pipeline: PublishPipeline::new(terms, metrics.clone()), metrics, now: Instant::now(), next_id: 0 }
    }

    fn publish(&mut self, topic: &str, payload: Bytes) -> Vec<String> {
        self.next_id += 1;
        let (qos, properties) = (QoS::AtLeastOnce, Properties::new());
        let packet_id = Some(self.next_id);
        let incoming = IncomingPublish { topic: topic.into(), payload, qos, packet_id, retain: false, properties };
        let mut effects = Vec::new();
        self.pipeline.publish(incoming, self.now, &mut effects);
        show(&effects)
    }

    fn batch(&mut self, schema: &Schema) -> Vec<String> {
        let payload = batch_of("n1", schema, u64::from(self.next_id) + 1);
        self.publish("wholegrain/v1/batch/n1/g", payload)
    }

    fn appended(&mut self, ticket: u64, result: Result<AppendOutcome, StoreError>) -> Vec<String> {
        let mut effects = Vec::new();
        self.pipeline.appended(ticket, result, self.now, &mut effects);
        show(&effects)
    }

    fn stored(&mut self, ticket: u64) -> Vec<String> {
        self.appended(ticket, Ok(AppendOutcome::Stored))
    }

    fn registered(&mut self, ticket: u64, result: Result<Schema, SchemaRegisterError>) -> Vec<String> {
        let mut effects = Vec::new();
        self.pipeline.registered(ticket, result, self.now, &mut effects);
        show(&effects)
    }

    fn tick(&mut self, after: Duration) -> Vec<String> {
        self.now += after;
        let mut effects = Vec::new();
        self.pipeline.tick(self.now, &mut effects);
        show(&effects)
    }
}

fn show(effects: &[PublishEffect]) -> Vec<String> {
    let show = |effect: &PublishEffect| match effect {
        PublishEffect::Name { ticket, .. } => format!("name {ticket}"),
        PublishEffect::AppendReadings { ticket, readings } => format!("append {} readings as {ticket}", readings.len()),
        PublishEffect::Ack { packet_id, reason, .. } => format!("ack {packet_id} 0x{:02x}", reason.0),
        PublishEffect::Register { ticket, .. } => format!("register {ticket}"),
        PublishEffect::Append { ticket, .. } => format!("append {ticket}"),
        PublishEffect::PutJob { ticket, record, .. } => format!("job {} {ticket}", record.job),
        PublishEffect::Forward { topic, retain, .. } => {
            format!("forward {topic}{}", if *retain { " retained" } else { "" })
        }
        PublishEffect::Answered { agent, .. } => format!("answer of {agent}"),
        PublishEffect::Need(hashes) => format!("need {}", hashes.len()),
        PublishEffect::Refused(_) => "refused".to_owned(),
        PublishEffect::Close(close) => format!("close 0x{:02x} {}", close.reason.0, close.why),
    };
    effects.iter().map(show).collect()
}

const FORWARD: &str = "forward wholegrain/v1/batch/n1/g";
const FORWARD_SCHEMA: &str = "forward wholegrain/v1/schema/n1/g retained";

#[test]
fn acknowledgements_come_after_the_store_and_in_order() {
    let mut bench = PipelineFixture::new(true);
    let schema = schema("a");
    assert_eq!(bench.batch(&schema), ["append 0"]);
    assert_eq!(bench.batch(&schema), ["append 1"]);
    assert_eq!(bench.batch(&schema), ["append 2"]);
    assert_eq!(bench.stored(1), [FORWARD], "the first is not durable yet");
    assert_eq!(
        bench.appended(0, Ok(AppendOutcome::Duplicate)),
        ["ack 1 0x00", "ack 2 0x00"],
        "duplicates are not forwarded"
    );
    assert_eq!(bench.stored(2), [FORWARD, "ack 3 0x00"]);
    assert!(bench.pipeline.is_empty());
    assert_eq!((bench.metrics.batches.get(), bench.metrics.readings.get(), bench.metrics.duplicates.get()), (2, 4, 1));
    assert_eq!(bench.stored(2), [""; 0], "an answer that comes twice changes nothing");
}

#[test]
fn a_batch_waits_for_the_schema_before_it() {
    let mut bench = PipelineFixture::new(true);
    let schema = schema("a");
    assert_eq!(bench.publish("wholegrain/v1/schema/n1/g", schema.encode().into()), ["register 0"]);
    assert_eq!(bench.batch(&schema), [""; 0]);
    assert_eq!(bench.batch(&schema), [""; 0]);
    assert_eq!(bench.registered(0, Ok(schema)), [FORWARD_SCHEMA, "append 1", "append 2", "ack 1 0x00"]);
}

#[test]
fn an_unknown_schema_is_asked_for_and_parked_batches_follow_in_order() {
    let mut bench = PipelineFixture::new(true);
    let (a, b) = (schema("a"), schema("b"));
    for ticket in 0..2 {
        assert_eq!(bench.batch(&a), [format!("append {ticket}")]);
    }
    assert_eq!(bench.batch(&b), ["append 2"]);
    assert_eq!(bench.appended(0, Err(StoreError::UnknownSchema(a.hash()))), ["need 1"]);
    assert_eq!(bench.appended(1, Err(StoreError::UnknownSchema(a.hash()))), [""; 0], "asked for once");
    assert_eq!(bench.stored(2), [FORWARD], "others go on, their acknowledgement waits its turn");
    assert_eq!(bench.pipeline.needed(), [a.hash()]);
    assert_eq!(bench.metrics.waiting_for_schema.get(), 2);
    assert_eq!(
        bench.publish("wholegrain/v1/schema/n1/g", a.encode().into()),
        ["register 3"],
        "though batches wait before it"
    );
    assert_eq!(bench.registered(3, Ok(a)), [FORWARD_SCHEMA, "append 0", "append 1"]);
    assert_eq!(bench.stored(0), [FORWARD, "ack 1 0x00"]);
    assert_eq!(bench.stored(1), [FORWARD, "ack 2 0x00", "ack 3 0x00", "ack 4 0x00"]);
    assert_eq!(bench.metrics.waiting_for_schema.get(), 0);
}

#[test]
fn a_schema_from_another_connection_frees_parked_batches() {
    let mut bench = PipelineFixture::new(true);
    let a = schema("a");
    bench.batch(&a);
    bench.appended(0, Err(StoreError::UnknownSchema(a.hash())));
    let mut effects = Vec::new();
    bench.pipeline.schemas_changed(|_| false, bench.now, &mut effects);
    assert_eq!(show(&effects), [""; 0]);
    bench.pipeline.schemas_changed(|hash| *hash == a.hash(), bench.now, &mut effects);
    assert_eq!(show(&effects), ["append 0"]);
}

#[test]
fn a_schema_that_never_comes_ends_the_connection() {
    let mut bench = PipelineFixture::new(true);
    let a = schema("a");
    bench.batch(&a);
    assert_eq!(bench.pipeline.deadline(), None);
    bench.appended(0, Err(StoreError::UnknownSchema(a.hash())));
    assert_eq!(bench.pipeline.deadline(), Some(bench.now + SCHEMA_WAIT_MAX));
    assert_eq!(bench.tick(SCHEMA_WAIT_MAX - Duration::from_millis(1)), [""; 0]);
    let last = bench.tick(Duration::from_millis(1));
    assert!(last[0].starts_with("close 0x83 wholegrain/v1/batch/n1/g: the schema"), "{last:?}");
}

#[test]
fn batches_of_a_refused_schema_are_refused_and_the_others_go_on() {
    let mut bench = PipelineFixture::new(true);
    let (a, b) = (schema("a"), schema("b"));
    let announce = |bench: &mut PipelineFixture| bench.publish("wholegrain/v1/schema/n1/g", a.encode().into());
    let refusal = || Err(SchemaRegisterError::Refused(ReasonCode::QUOTA_EXCEEDED, "too much".to_owned()));
    let has = |effects: &[String], wanted: &str| effects.iter().any(|effect| effect.starts_with(wanted));
    announce(&mut bench);
    bench.batch(&a);
    bench.batch(&b);
    let effects = bench.registered(0, refusal());
    assert!(has(&effects, "ack 1 0x97") && has(&effects, "append 1") && has(&effects, "append 2"), "{effects:?}");
    let effects = bench.appended(1, Err(StoreError::UnknownSchema(a.hash())));
    assert!(has(&effects, "ack 2 0x97") && !has(&effects, "need"), "{effects:?}");
    assert!(has(&bench.stored(2), "ack 3 0x00"), "the batch behind it is acknowledged");
    assert!(!bench.pipeline.has_parked() && bench.pipeline.is_empty());
    // A batch that came first, and waits, is refused with its schema; a later announcement may succeed.
    let mut bench = PipelineFixture::new(true);
    bench.batch(&a);
    bench.appended(0, Err(StoreError::UnknownSchema(a.hash())));
    announce(&mut bench);
    let effects = bench.registered(1, refusal());
    assert!(has(&effects, "append 0"), "{effects:?}");
    let effects = bench.appended(0, Err(StoreError::UnknownSchema(a.hash())));
    assert!(has(&effects, "ack 1 0x97") && has(&effects, "ack 2 0x97"), "{effects:?}");
    announce(&mut bench);
    bench.batch(&a);
    bench.registered(2, Ok(a.clone()));
    assert!(has(&bench.stored(3), "ack 4 0x00"));
    assert_eq!(bench.metrics.waiting_for_schema.get(), 0);
}

#[test]
fn a_full_store_stops_reading_and_nothing_is_lost() {
    let mut bench = PipelineFixture::new(true);
    let a = schema("a");
    for _ in 0..4 {
        assert!(bench.pipeline.can_read());
        bench.batch(&a);
    }
    assert!(!bench.pipeline.can_read(), "four is the bound");
    assert_eq!(bench.appended(0, Err(StoreError::Busy)), [""; 0]);
    assert_eq!(bench.appended(1, Err(StoreError::Busy)), [""; 0]);
    assert_eq!(bench.tick(BUSY_RETRY), [""; 0], "the second refusal made the wait longer");
    assert_eq!(bench.tick(BUSY_RETRY), ["append 0", "append 1"]);
    for ticket in 0..3 {
        bench.stored(ticket);
    }
    assert!(bench.pipeline.can_read());
    assert_eq!(bench.stored(3), [FORWARD, "ack 4 0x00"]);
}

#[test]
fn all_clients_together_have_a_bound_and_none_is_shut_out() {
    let metrics = Arc::new(Metrics::default());
    let a = schema("a");
    let bytes = batch_of("n1", &a, 1).len();
    let [mut one, mut two] = [(); 2].map(|()| PipelineFixture::sharing(metrics.clone(), true, bytes + 1));
    one.batch(&a);
    assert!(one.pipeline.can_read());
    one.batch(&a);
    assert!(!one.pipeline.can_read() && two.pipeline.can_read(), "who has nothing in flight is still read");
    two.batch(&a);
    assert!(!two.pipeline.can_read());
    assert!(metrics.in_flight_bytes.get() > 2 * bytes as i64);
    two.stored(0);
    assert!(two.pipeline.can_read() && !one.pipeline.can_read());
    drop(one);
    two.batch(&a);
    assert!(two.pipeline.can_read(), "what a lost connection had in flight is free");
    drop(two);
    assert_eq!((metrics.in_flight.get(), metrics.in_flight_bytes.get()), (0, 0));
}

#[test]
fn a_batch_of_anothers_schema_is_refused_in_its_turn() {
    let mut bench = PipelineFixture::new(true);
    let a = schema("a");
    bench.batch(&a);
    bench.batch(&a);
    let mut effects = Vec::new();
    bench.pipeline.denied(1, ReasonCode::NOT_AUTHORIZED, "not yours".to_owned(), bench.now, &mut effects);
    assert_eq!(show(&effects), ["refused"]);
    assert_eq!(bench.stored(0), [FORWARD, "ack 1 0x00", "ack 2 0x87"]);
    effects.clear();
    bench.pipeline.denied(1, ReasonCode::NOT_AUTHORIZED, "not yours".to_owned(), bench.now, &mut effects);
    assert_eq!(show(&effects), [""; 0], "an answer that comes twice changes nothing");
}

#[test]
fn a_full_disk_is_waited_out() {
    let mut bench = PipelineFixture::new(false);
    let a = schema("a");
    bench.batch(&a);
    let full = || StoreError::DiskFull { doing: "writing", path: "journal".into() };
    for _ in 0..3 {
        assert_eq!(bench.appended(0, Err(full())), [""; 0]);
        assert_eq!(bench.tick(FAILED_RETRY), ["append 0"]);
    }
    assert_eq!(bench.stored(0), [FORWARD, "ack 1 0x00"]);
    bench.publish("wholegrain/v1/schema/n1/g", a.encode().into());
    assert_eq!(bench.registered(1, Err(SchemaRegisterError::Store(full()))), [""; 0]);
    assert_eq!(bench.tick(FAILED_RETRY), ["register 1"]);
    assert_eq!(bench.registered(1, Ok(a)), [FORWARD_SCHEMA, "ack 2 0x00"]);
}

#[test]
fn when_everything_waits_for_a_schema_it_is_still_read_up_to_a_bound() {
    let mut bench = PipelineFixture::new(true);
    let a = schema("a");
    for ticket in 0..8 {
        assert!(bench.pipeline.can_read(), "{ticket}");
        bench.batch(&a);
        bench.appended(ticket, Err(StoreError::UnknownSchema(a.hash())));
    }
    assert!(!bench.pipeline.can_read());
    assert!(bench.batch(&a)[0].starts_with("close 0x93 8 publishes wait for a schema"));
}

#[test]
fn a_client_publishes_only_under_its_own_name() {
    let a = schema("a");
    let foreign = batch_of("n2", &a, 1);
    for (topic, payload, code) in [
        ("wholegrain/v1/batch/n2/g", foreign.clone(), "0x87"),
        ("wholegrain/v1/batch/n1/g", foreign, "0x87"),
        ("wholegrain/v1/schema/n2/g", Bytes::from(a.encode()), "0x87"),
        ("wholegrain/v1/need/n1", Bytes::new(), "0x87"),
        ("wholegrain/v1/need/n2", Bytes::new(), "0x87"),
        ("wholegrain/v1/other", Bytes::new(), "0x90"),
        ("$SYS/x", Bytes::new(), "0x90"),
        ("wholegrain/v1/batch/n1/g", Bytes::from_static(b"rubbish"), "0x99"),
        ("wholegrain/v1/batch/n1/g", Bytes::new(), "0x99"),
    ] {
        let mut bench = PipelineFixture::new(true);
        assert_eq!(bench.publish(topic, payload.clone()), ["refused".to_owned(), format!("ack 1 {code}")], "{topic}");
        assert_eq!((bench.metrics.refused.get(), bench.metrics.acks.get()), (1, 0));
        let closed = PipelineFixture::new(false).publish(topic, payload);
        if topic.starts_with('$') {
            assert_eq!(closed, ["refused", "ack 1 0x00"], "3.1.1: acknowledged, and goes nowhere");
            continue;
        }
        assert!(closed[0].starts_with(&format!("close {code} {topic}: ")), "3.1.1 has no reasons: {closed:?}");
    }
}

#[test]
fn refusals_of_the_store_and_the_schema_check_come_in_order() {
    let mut bench = PipelineFixture::new(true);
    let a = schema("a");
    bench.batch(&a);
    bench.batch(&a);
    bench.publish("wholegrain/v1/schema/n1/g", Bytes::from_static(b"x"));
    assert_eq!(bench.appended(1, Err(StoreError::Payload("cut short".into()))), ["refused"]);
    assert_eq!(
        bench.registered(2, Err(SchemaRegisterError::Refused(ReasonCode::NOT_AUTHORIZED, String::new()))),
        ["refused"]
    );
    assert_eq!(bench.stored(0), [FORWARD, "ack 1 0x00", "ack 2 0x99", "ack 3 0x87"]);
}

#[test]
fn other_topics_go_to_subscribers_and_qos_0_is_not_acknowledged() {
    let mut bench = PipelineFixture::new(true);
    assert_eq!(bench.publish("site/text", Bytes::new()), ["forward site/text", "ack 1 0x00"]);
    let mut effects = Vec::new();
    let payload = batch_of("n1", &schema("a"), 1);
    let (topic, properties) = ("wholegrain/v1/batch/n1/g".into(), Properties::new());
    let incoming = IncomingPublish { topic, payload, qos: QoS::AtMostOnce, packet_id: None, retain: false, properties };
    bench.pipeline.publish(incoming, bench.now, &mut effects);
    assert_eq!(show(&effects), ["append 1"]);
    assert_eq!(bench.stored(1), [FORWARD]);
    assert!(bench.pipeline.is_empty());
}

#[test]
fn a_stopped_pipeline_still_acknowledges_sent_batches() {
    let mut bench = PipelineFixture::new(true);
    let a = schema("a");
    bench.batch(&a);
    bench.pipeline.stop();
    assert_eq!(bench.batch(&a), [""; 0]);
    assert!(bench.pipeline.awaits_store());
    assert_eq!(bench.stored(0), [FORWARD, "ack 1 0x00"]);
    assert!(!bench.pipeline.awaits_store());
}

/// A run's life: gathered, named, appended, answered in order among other publishes.
#[test]
fn readings_are_one_entry_and_many_acknowledgements() {
    use crate::interop::resolution::ResolvedSensor;
    use wholegrain_model::Value;
    use wholegrain_store::SensorId;
    let mut bench = PipelineFixture::new(true);
    let mut effects = Vec::new();
    let known = Some(ResolvedSensor { id: SensorId(7), float: true });
    for (id, sensor) in [(11, known), (12, None), (13, None)] {
        let (qos, properties) = (QoS::AtLeastOnce, Properties::new());
        let topic = format!("/n1/{id}").as_str().into();
        let incoming =
            IncomingPublish { topic, payload: Bytes::new(), qos, packet_id: Some(id), retain: false, properties };
        bench.pipeline.gather(incoming, bench.now, &mut effects, |run, incoming| {
            run.put(incoming, sensor, std::iter::once((5, Value::Int(1))), false);
        });
    }
    assert!(effects.is_empty() && bench.pipeline.len() == 3);
    assert_eq!(
        bench.publish("site/text", Bytes::new()),
        ["name 0", "forward site/text"],
        "the run is closed before it"
    );
    let refusal = Err((ReasonCode::QUOTA_EXCEEDED, "too many".to_owned()));
    let named = vec![Ok(ResolvedSensor { id: SensorId(8), float: false }), refusal];
    bench.pipeline.named(0, Ok(named), bench.now, &mut effects);
    assert_eq!(show(&effects[1..]), ["append 2 readings as 0"]);
    let PublishEffect::AppendReadings { readings, .. } = &effects[1] else { panic!("{effects:?}") };
    let stored: Vec<_> = readings.iter().map(|reading| (reading.sensor.0, reading.value)).collect();
    assert_eq!(stored, [(7, Value::Float(1.0)), (8, Value::Int(1))]);
    effects.clear();
    bench.pipeline.appended(0, Err(StoreError::Busy), bench.now, &mut effects);
    assert!(effects.is_empty() && !bench.pipeline.is_empty());
    bench.pipeline.tick(bench.now + BUSY_RETRY, &mut effects);
    assert_eq!(show(&effects), ["append 2 readings as 0"], "tried again");
    effects.clear();
    bench.pipeline.appended(0, Ok(AppendOutcome::Stored), bench.now, &mut effects);
    assert_eq!(show(&effects), ["ack 11 0x00", "ack 12 0x00", "ack 13 0x97", "ack 1 0x00"]);
    assert!(bench.pipeline.is_empty());
    assert_eq!((bench.metrics.in_flight.get(), bench.metrics.in_flight_bytes.get()), (0, 0));
}
