//! Jobs: records over MQTT, and their visibility over HTTP.

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};
use wholegrain_model::{JobRecord, Schema, SensorDef, SensorPath, StepRecord};
use wholegrain_server::access::Role;
use wholegrain_transport::client::Event;
use wholegrain_transport::mqtt::{Packet, QoS, ReasonCode, Version};

use crate::harness::{NOON, SECOND, TestAgent, TestServer, VERSIONS, wait_until};
use crate::security::token;
use crate::sessions::RawClient;

const TOPIC: &str = "wholegrain/v1/job/n1";

fn record(job: &str, node: &str, user: &str, from: i64, revision: u64) -> JobRecord {
    JobRecord {
        job: job.to_owned(),
        level: job.to_owned(),
        manager: "slurm".to_owned(),
        node: node.to_owned(),
        prefix: format!("/site/{node}"),
        user: Some(user.to_owned()),
        uid: Some(1000),
        from,
        revision,
        ..JobRecord::default()
    }
}

fn send(agent: &mut TestAgent, record: &JobRecord) -> ReasonCode {
    let topic = format!("wholegrain/v1/job/{}", agent.name);
    send_bytes(agent, &topic, &serde_json::to_vec(record).unwrap())
}

fn send_bytes(agent: &mut TestAgent, topic: &str, payload: &[u8]) -> ReasonCode {
    let id = agent.publish(topic, payload);
    match agent.event() {
        Event::Acked { packet_id, reason } if packet_id == id => reason,
        other => panic!("{other:?}"),
    }
}

/// Ids of the jobs of a list.
fn jobs(server: &TestServer, query: &str, token: &str) -> Vec<String> {
    let answer = server.get_as(&format!("/api/v1/jobs?{query}"), Some(&format!("Bearer {token}")));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["jobs"].as_array().unwrap().iter().map(|job| job["job"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn acknowledged_records_survive_a_restart_and_the_highest_revision_counts() {
    for version in VERSIONS {
        let mut server = TestServer::start();
        let mut agent = server.agent(&server.mutual(version, "n1"));
        let mut job = record("4711", "n1", "anna", NOON, 2);
        job.totals.insert("cpu/usage".to_owned(), 12.5);
        assert_eq!(send(&mut agent, &job), ReasonCode::SUCCESS);
        assert_eq!(send(&mut agent, &record("4711", "n1", "anna", NOON, 1)), ReasonCode::SUCCESS);
        assert_eq!(send(&mut agent, &job), ReasonCode::SUCCESS);
        assert_eq!(server.metric("wholegrain_server_job_records_total"), 1.0);
        assert_eq!(server.metric("wholegrain_server_job_records_repeated_total"), 2.0);
        drop(agent);
        server = server.restart();
        let answer = server.get("/api/v1/jobs").json();
        let expected = json!([{
            "job": "4711", "also": null, "manager": "slurm", "user": "anna", "uid": 1000, "name": null, "account": null, "partition": null,
            "state": "running", "nodes": 1, "node_names": ["n1"], "from": "2026-01-31T12:00:00Z", "to": null, "cpu_s": 12.5, "memory_peak": null,
        }]);
        assert_eq!(answer, json!({ "jobs": expected, "next": null }));
    }
}

#[test]
fn records_of_others_and_invalid_records_are_refused_without_effect() {
    for version in VERSIONS {
        let server = TestServer::start();
        let mut agent = server.agent(&server.mutual(version, "n1"));
        let good = record("1", "n1", "anna", NOON, 1);
        let json = |record: &JobRecord| serde_json::to_vec(record).unwrap();
        let (denied, malformed) = (ReasonCode::NOT_AUTHORIZED, ReasonCode::PAYLOAD_FORMAT_INVALID);
        let mut refused = 0.0;
        for (topic, payload, reason) in [
            ("wholegrain/v1/job/n2", json(&good), denied),
            (TOPIC, json(&JobRecord { node: "n2".to_owned(), ..good.clone() }), denied),
            (TOPIC, json(&JobRecord { prefix: "/site/n2".to_owned(), ..good.clone() }), denied),
            (TOPIC, json(&JobRecord { prefix: "/".to_owned(), ..good.clone() }), malformed),
            (TOPIC, json(&JobRecord { level: "a/b".to_owned(), ..good.clone() }), malformed),
            (TOPIC, json(&JobRecord { job: String::new(), ..good.clone() }), malformed),
            (TOPIC, b"{\"job\":".to_vec(), malformed),
            (TOPIC, b"[]".to_vec(), malformed),
            (TOPIC, Vec::new(), malformed),
            (TOPIC, vec![b' '; (1 << 20) + 1], malformed),
            (TOPIC, br#"{"job":"1","from":"yesterday"}"#.to_vec(), malformed),
        ] {
            // MQTT 3.1.1 has no refusals; closing would make the agent reconnect with the same record forever.
            let expected = if version == Version::V5 { reason } else { ReasonCode::SUCCESS };
            let shown = String::from_utf8_lossy(&payload[..payload.len().min(200)]).into_owned();
            assert_eq!(send_bytes(&mut agent, topic, &payload), expected, "{topic} {shown}");
            refused += 1.0;
            assert_eq!(server.metric("wholegrain_server_job_records_refused_total"), refused, "{shown}");
        }
        assert_eq!(send(&mut agent, &good), ReasonCode::SUCCESS, "the connection is as good as before");
        assert_eq!(jobs(&server, "", &server.token), ["1"]);
    }
}

#[test]
fn records_of_one_agent_are_bounded_by_the_hour_and_their_texts_are_cut() {
    let text = "ä".repeat(20_000);
    let long = JobRecord { name: Some(text.clone()), account: Some(text), ..record("1", "n1", "anna", NOON, 1) };
    for version in VERSIONS {
        // Two of them fit, not three.
        let server = TestServer::start_with("limits = { job_bytes_per_hour_max = \"200KiB\" }");
        let mut agent = server.agent(&server.mutual(version, "n1"));
        assert_eq!(send(&mut agent, &long), ReasonCode::SUCCESS);
        assert_eq!(send(&mut agent, &JobRecord { revision: 2, ..long.clone() }), ReasonCode::SUCCESS);
        let refused = if version == Version::V5 { ReasonCode::QUOTA_EXCEEDED } else { ReasonCode::SUCCESS };
        assert_eq!(send(&mut agent, &JobRecord { job: "2".to_owned(), ..long.clone() }), refused);
        assert_eq!(server.metric("wholegrain_server_job_records_over_allowance_total"), 1.0);
        assert_eq!(server.metric("wholegrain_server_job_records_refused_total"), 1.0);
        let answer = server.get("/api/v1/jobs").json();
        assert_eq!(answer["jobs"].as_array().unwrap().len(), 1);
        assert_eq!(answer["jobs"][0]["name"], "ä".repeat(512));
        // Others have an allowance of their own.
        let mut other = server.agent(&server.mutual(version, "n2"));
        assert_eq!(send(&mut other, &record("3", "n2", "anna", NOON, 1)), ReasonCode::SUCCESS);
        assert_eq!(jobs(&server, "", &server.token).len(), 2);
    }
}

#[test]
fn totals_that_no_node_can_come_to_are_left_out_of_the_sums() {
    let server = TestServer::start();
    let node = |name: &str, cpu_s: f64, memory: f64| JobRecord {
        to: Some(NOON + 3600 * SECOND),
        totals: [("cpu/usage".to_owned(), cpu_s), ("memory/peak".to_owned(), memory)].into(),
        ..record("7", name, "anna", NOON, 1)
    };
    let mut agents = ["n1", "n2"].map(|name| server.agent(&server.mutual(Version::V5, name)));
    assert_eq!(send(&mut agents[0], &node("n1", 12.5, 1e9)), ReasonCode::SUCCESS);
    assert_eq!(send(&mut agents[1], &node("n2", 1e18, 1e18)), ReasonCode::SUCCESS);
    assert_eq!(server.metric("wholegrain_server_job_totals_impossible_total"), 2.0);
    let job = server.get("/api/v1/jobs").json()["jobs"][0].clone();
    assert_eq!((&job["nodes"], &job["cpu_s"], &job["memory_peak"]), (&json!(2), &json!(12.5), &json!(1e9)));
    assert_eq!(server.get("/api/v1/jobs/7").json()["summary"]["totals"]["cpu/usage"]["nodes"], 1);
}

#[test]
fn a_record_can_come_with_qos_2_and_subscribers_hear_of_it_once() {
    let server = TestServer::start_with("anonymous = true");
    let mut ear = server.agent(&server.mutual(Version::V5, "n2"));
    ear.client.subscribe("wholegrain/v1/job/#").unwrap();
    assert!(matches!(ear.event(), Event::Subscribed { .. }));
    let mut raw = RawClient::new(&server, Version::V5, "n1");
    let payload = serde_json::to_vec(&record("9", "n1", "anna", NOON, 1)).unwrap();
    for dup in [false, true] {
        raw.publish(TOPIC, payload.clone(), QoS::ExactlyOnce, 5, dup);
        match raw.next() {
            Packet::PubRec(ack) => assert_eq!((ack.packet_id, ack.reason), (5, ReasonCode::SUCCESS)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.metric("wholegrain_server_job_records_total"), 1.0);
    assert_eq!(jobs(&server, "", &server.token), ["9"]);
    let Event::Message { topic, payload: heard, .. } = ear.event() else { panic!() };
    assert_eq!((topic.as_str(), &heard[..]), (TOPIC, &payload[..]));
    assert!(ear.client.poll(std::time::Duration::from_millis(50)).unwrap().is_none());
}

/// Jobs on two nodes, of two users.
fn with_jobs() -> (TestServer, [TestAgent; 2]) {
    let server = TestServer::start();
    let mut agents = ["n1", "n2"].map(|name| server.agent(&server.mutual(Version::V5, name)));
    for (job, user, from, to, partition) in [
        ("10", "anna", 0, Some(100), "short"),
        ("11", "bert", 50, Some(60), "long"),
        ("12", "anna", 200, None, "long"),
        ("13", "bert", 300, None, "short"),
    ] {
        for (index, agent) in agents.iter_mut().enumerate() {
            if job == "11" && index == 1 {
                continue;
            }
            let mut one = record(job, &agent.name, user, NOON + (from + index as i64) * SECOND, 4);
            one.to = to.map(|to: i64| NOON + to * SECOND);
            one.partition = Some(partition.to_owned());
            one.name = Some(format!("case \"{job}\", first"));
            one.cpus = Some("0-3".to_owned());
            one.also = Some(format!("s{job}")).filter(|_| job == "12");
            one.steps = vec![StepRecord { name: "step_0".to_owned(), from: one.from, to: one.to }];
            one.totals = [("cpu/usage".to_owned(), 10.0 + index as f64), ("memory/peak".to_owned(), 1e6)].into();
            assert_eq!(send(agent, &one), ReasonCode::SUCCESS);
        }
    }
    (server, agents)
}

#[test]
fn lists_are_filtered_paged_and_written_as_csv() {
    let (server, _agents) = with_jobs();
    let token = &server.token;
    for (query, expected) in [
        ("", vec!["13", "12", "11", "10"]),
        ("user=anna", vec!["12", "10"]),
        ("user=1000", vec!["13", "12", "11", "10"]),
        ("user=nobody", vec![]),
        ("node=n2", vec!["13", "12", "10"]),
        ("node=n*&partition=long", vec!["12", "11"]),
        ("state=running", vec!["13", "12"]),
        ("state=ended&manager=slurm", vec!["11", "10"]),
        ("manager=oar", vec![]),
        ("name=*11*", vec!["11"]),
        ("account=x", vec![]),
        ("to=2026-01-31T12:00:40Z", vec!["10"]),
        ("from=2026-01-31T12:01:30Z&to=2026-01-31T12:03:30Z", vec!["12", "10"]),
    ] {
        assert_eq!(jobs(&server, query, token), expected, "{query}");
    }
    let first = server.get("/api/v1/jobs?limit=3").json();
    assert_eq!(first["jobs"].as_array().unwrap().len(), 3);
    let next = first["next"].as_str().unwrap();
    let last = server.get(&format!("/api/v1/jobs?limit=3&after={next}")).json();
    assert_eq!((last["jobs"][0]["job"].as_str(), &last["next"]), (Some("10"), &Value::Null));
    let csv = server.get("/api/v1/jobs?format=csv&user=bert&state=ended");
    assert_eq!(csv.content_type, "text/csv; charset=utf-8");
    assert_eq!(
        csv.text(),
        "job,also,manager,user,uid,name,account,partition,state,nodes,from,to,cpu_s,memory_peak\n\
         11,,slurm,bert,1000,\"case \"\"11\"\", first\",,long,ended,1,2026-01-31T12:00:50Z,2026-01-31T12:01:00Z,10,1000000\n"
    );
    for bad in [
        "limit=0",
        "limit=10001",
        "limit=x",
        "state=gone",
        "after=x",
        "from=soon",
        "format=xml",
        "nod=1",
        "user=a&user=b",
    ] {
        let answer = server.get(&format!("/api/v1/jobs?{bad}"));
        assert_eq!(answer.status, 400, "{bad}: {}", answer.text());
    }
}

#[test]
fn one_job_over_all_its_nodes() {
    let (server, _agents) = with_jobs();
    let answer = server.get("/api/v1/jobs/10").json();
    assert_eq!(answer["job"]["nodes"], 2);
    assert_eq!(
        (&answer["job"]["from"], &answer["job"]["to"]),
        (&json!("2026-01-31T12:00:00Z"), &json!("2026-01-31T12:01:40Z"))
    );
    let allocations = answer["allocations"].as_array().unwrap();
    assert_eq!((allocations.len(), &allocations[1]["node"]), (2, &json!("n2")));
    assert_eq!(allocations[1]["steps"][0]["from"], "2026-01-31T12:00:01Z");
    let summary = &answer["summary"];
    assert_eq!(summary["totals"]["cpu/usage"], json!({ "sum": 21.0, "min": 10.0, "max": 11.0, "nodes": 2 }));
    assert_eq!((&summary["cpus"], &summary["end_unseen"]), (&json!(8), &json!(0)));
    assert_eq!(
        summary["steps"],
        json!([{ "name": "step_0", "from": "2026-01-31T12:00:00Z", "to": "2026-01-31T12:01:40Z", "nodes": 2 }])
    );
    assert_eq!(server.get("/api/v1/jobs/s12").json()["job"]["job"], "12", "by the other id");
    let missing = server.get("/api/v1/jobs/99");
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("there is no job 99"), "{}", missing.text());
    assert_eq!(server.get("/api/v1/jobs/10?at=2026-01-31T11:00:00Z").status, 404);
    assert_eq!(server.get_as("/api/v1/jobs/10", None).status, 401, "the path's template is known to the way in");
}

fn job_schema(node: &str, job: &str) -> Schema {
    let prefix = SensorPath::new(format!("/site/{node}")).unwrap();
    let name = format!("job/{job}/1s");
    Schema::new(prefix, &name, vec![SensorDef::gauge(format!("job/{job}/memory/usage"), "By", "")]).unwrap()
}

#[test]
fn a_user_sees_their_own_jobs_and_their_sensors_and_those_of_the_nodes() {
    let (server, [mut agent, _other]) = with_jobs();
    let tokens = [Role::User, Role::Support, Role::Agent].map(|role| {
        let name = if role == Role::User { "anna" } else { role.name() };
        token(&server, name, role, None).1
    });
    let [anna, support, machine] = &tokens;
    assert_eq!(jobs(&server, "", anna), ["12", "10"]);
    assert_eq!(jobs(&server, "user=bert", anna), Vec::<String>::new());
    assert_eq!(jobs(&server, "", support).len(), 4);
    let status = |path: &str, token: &str| server.get_as(path, Some(&format!("Bearer {token}"))).status;
    assert_eq!((status("/api/v1/jobs/12", anna), status("/api/v1/jobs/13", anna)), (200, 404));
    assert_eq!((status("/api/v1/jobs/13", support), status("/api/v1/jobs/13", machine)), (200, 403));

    let node = crate::harness::schema("n1", "mem", "MemFree");
    for schema in [&job_schema("n1", "12"), &job_schema("n1", "13"), &node] {
        let ids = [agent.schema(schema), agent.batch(schema, &[(NOON + 400 * SECOND, 1)])];
        agent.acked(&ids);
    }
    let everything = ["/site/n1/MemFree", "/site/n1/job/12/memory/usage", "/site/n1/job/13/memory/usage"];
    let hers = &everything[..2];
    let read = |path: &str, token: &str| {
        let text = server.get_as(path, Some(&format!("Bearer {token}"))).text().to_owned();
        everything.iter().copied().filter(|sensor| text.contains(sensor)).collect::<Vec<_>>()
    };
    for path in [
        "/api/v1/sensors",
        "/api/v1/newest?pattern=/**",
        "/api/v1/query?pattern=/**&from=2026-01-31&to=2026-02-01",
        "/api/v1/query?pattern=/site/n1/job/13/**&pattern=/**&from=2026-01-31&to=2026-02-01&format=csv&agg=max",
    ] {
        assert_eq!(read(path, anna), hers, "{path}");
        assert_eq!(read(path, support), everything, "{path}");
        assert_eq!(read(path, &server.token), everything, "{path}");
    }

    // Live readings include those of a job whose first batch arrives before its record.
    let response = server.response("/api/v1/watch?pattern=/**", Some(&format!("Bearer {anna}")));
    let mut lines = BufReader::new(response.into_body().into_reader()).lines();
    wait_until("the watcher", || server.metric("wholegrain_server_watchers") == 1.0);
    let early = job_schema("n1", "14");
    let ids = [
        agent.schema(&early),
        agent.batch(&early, &[(NOON + 401 * SECOND, 5)]),
        agent.batch(&job_schema("n1", "13"), &[(NOON + 402 * SECOND, 6)]),
    ];
    agent.acked(&ids);
    assert_eq!(send(&mut agent, &record("14", "n1", "anna", NOON + 400 * SECOND, 1)), ReasonCode::SUCCESS);
    let id = agent.batch(&early, &[(NOON + 403 * SECOND, 7)]);
    agent.acked(&[id]);
    // The first reading comes too if the server passes it on after the record has arrived.
    let mut values = std::iter::from_fn(|| {
        let line: Value = serde_json::from_str(&lines.next()?.unwrap()).unwrap();
        assert_eq!(line["sensor"].as_str(), Some("/site/n1/job/14/memory/usage"));
        line["value"].as_i64()
    });
    assert_eq!(values.find(|value| *value != 5), Some(7));
}

#[test]
fn jobs_older_than_they_are_kept_are_forgotten() {
    let server = TestServer::start_remote("[store]\njobs_age = \"1s\"\n");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let ended = JobRecord { to: Some(NOON), ..record("1", "n1", "anna", NOON - SECOND, 1) };
    assert_eq!(send(&mut agent, &ended), ReasonCode::SUCCESS);
    assert_eq!(send(&mut agent, &record("2", "n1", "anna", NOON, 1)), ReasonCode::SUCCESS);
    wait_until("the old one is gone", || jobs(&server, "", &server.token) == ["2"]);
    assert_eq!(server.metric("wholegrain_server_store_jobs_dropped_total"), 1.0);
}
