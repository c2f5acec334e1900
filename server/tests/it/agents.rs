//! Agents: connecting, publishing, being refused.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use wholegrain_transport::client::{Client, ClientError, Event};
use wholegrain_transport::mqtt::{ReasonCode, Version};

use crate::harness::{DEADLINE, NOON, SECOND, TestServer, VERSIONS, batch, needed, schema, wait_for};

#[test]
fn a_reading_is_acknowledged_and_visible_over_tcp_and_mutual_tls() {
    let server = TestServer::start();
    let mut time = NOON;
    for version in VERSIONS {
        for config in [server.plain(version), server.mutual(version, "n1")] {
            time += SECOND;
            let schema = schema("n1", "g", &format!("s{}", time / SECOND));
            let mut agent = server.agent(&config);
            let ids = [agent.schema(&schema), agent.batch(&schema, &[(time, 1), (time + 1, 2)])];
            agent.acked(&ids);
            // Acknowledged means visible at once.
            let newest = server.get(&format!("/api/v1/newest?pattern={}", schema.path(0)));
            assert_eq!(newest.json()["readings"][0]["value"], 2048, "{version:?} {}", config.url);
            agent.client.disconnect().unwrap();
        }
    }
}

#[test]
fn everything_acknowledged_is_there_after_a_restart() {
    let server = TestServer::start();
    let schema = schema("n1", "g", "s");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let mut ids = vec![agent.schema(&schema)];
    ids.extend((0..20).map(|i| agent.batch(&schema, &[(NOON + i * SECOND, i)])));
    agent.acked(&ids);
    let boot = agent.boot;
    let server = server.restart();
    let csv = server.get("/api/v1/query?pattern=s&from=2026-01-31&to=2026-02-01&format=csv");
    assert_eq!(csv.text().lines().count(), 21, "{}", csv.text());
    // The same batches again, as from an agent that received no acknowledgement: accepted, and not stored twice.
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    agent.boot = boot;
    let ids: Vec<u16> = (0..20).map(|i| agent.batch(&schema, &[(NOON + i * SECOND, i)])).collect();
    agent.acked(&ids);
    assert_eq!(server.metric("wholegrain_server_duplicates_total"), 20.0);
    assert_eq!(server.get("/api/v1/query?pattern=s&from=2026-01-31&to=2026-02-01&format=csv").text(), csv.text());
}

#[test]
fn an_unknown_schema_is_asked_for() {
    let server = TestServer::start();
    for version in VERSIONS {
        let schema = schema("n1", "g", &format!("{version:?}"));
        let mut agent = server.agent(&server.plain(version));
        let subscription = agent.client.subscribe("wholegrain/v1/need/n1").unwrap();
        assert_eq!(agent.event(), Event::Subscribed { packet_id: subscription, reason: ReasonCode::GRANTED_QOS_1 });
        let ids = [agent.batch(&schema, &[(NOON, 1)]), agent.batch(&schema, &[(NOON + 1, 2)])];
        match agent.event() {
            Event::Message { topic, payload, .. } => {
                assert_eq!((topic.as_str(), needed(&payload)), ("wholegrain/v1/need/n1", vec![schema.hash()]));
            }
            other => panic!("{other:?}"),
        }
        let announced = agent.schema(&schema);
        agent.acked(&[ids[0], ids[1], announced]);
        // The request is repeated after a subscription: a later subscriber receives the requests that are still open.
        let other = crate::harness::schema("n1", "late", &format!("{version:?}"));
        let late = agent.batch(&other, &[(NOON, 1)]);
        let Event::Message { .. } = agent.event() else { panic!() };
        agent.client.subscribe("wholegrain/v1/need/+").unwrap();
        let Event::Subscribed { .. } = agent.event() else { panic!() };
        let Event::Message { payload, .. } = agent.event() else { panic!() };
        assert_eq!(needed(&payload), [other.hash()]);
        let announced = agent.schema(&other);
        agent.acked(&[late, announced]);
        agent.client.disconnect().unwrap();
    }
}

#[test]
fn a_client_publishes_only_under_its_own_name() {
    let server = TestServer::start();
    let own = schema("n2", "g", "s");
    let mut agent = server.agent(&server.mutual(Version::V5, "n2"));
    let theirs = schema("n1", "g", "s");
    let refused = [
        agent.publish("wholegrain/v1/schema/n1/g", &theirs.encode()),
        agent.publish("wholegrain/v1/batch/n1/g", &batch("n1", 1, 1, &theirs, &[(NOON, 1)])),
        agent.publish("wholegrain/v1/batch/n2/g", &batch("n1", 1, 1, &theirs, &[(NOON, 1)])),
        // Under its own name, but with sensors of another agent's subtree.
        agent.publish("wholegrain/v1/schema/n2/g", &theirs.encode()),
    ];
    for packet_id in refused {
        assert_eq!(agent.event(), Event::Acked { packet_id, reason: ReasonCode::NOT_AUTHORIZED });
    }
    let ids = [agent.schema(&own), agent.batch(&own, &[(NOON, 1)])];
    agent.acked(&ids);
    assert_eq!(server.get("/api/v1/sensors").sensors.as_deref(), Some("1"));

    let mut agent = server.agent(&server.mutual(Version::V311, "n2"));
    agent.publish("wholegrain/v1/batch/n1/g", &batch("n1", 1, 1, &theirs, &[(NOON, 1)]));
    assert!(matches!(agent.client.poll(DEADLINE), Err(ClientError::Closed { .. })), "3.1.1 can only be disconnected");
}

#[test]
fn an_agent_listed_with_prefixes_may_publish_there_and_only_there() {
    let server = TestServer::start_with("prefixes = { n2 = [\"/site/n1\"] }");
    let mut agent = server.agent(&server.mutual(Version::V5, "n2"));
    let id = agent.publish("wholegrain/v1/schema/n2/g", &schema("n1", "g", "s").encode());
    agent.acked(&[id]);
    let packet_id = agent.publish("wholegrain/v1/schema/n2/g", &schema("n2", "g", "s").encode());
    assert_eq!(agent.event(), Event::Acked { packet_id, reason: ReasonCode::NOT_AUTHORIZED });
}

#[track_caller]
fn refused(result: Result<Client, ClientError>, expected: ReasonCode) {
    match result.map(|_| ()) {
        Err(ClientError::Refused { reason, .. }) => assert_eq!(reason, expected),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_authenticated_clients_connect() {
    let server = TestServer::start();
    for version in VERSIONS {
        let good = server.plain(version);
        for (user, password, reason) in [
            (Some("n1"), Some("wrong"), ReasonCode::BAD_USER_OR_PASSWORD),
            (Some("n9"), Some(crate::harness::PASSWORD), ReasonCode::BAD_USER_OR_PASSWORD),
            (Some("n1"), None, ReasonCode::NOT_AUTHORIZED),
            (None, None, ReasonCode::NOT_AUTHORIZED),
        ] {
            let config = wholegrain_transport::client::ClientConfig {
                user: user.map(str::to_owned),
                password: password.map(str::to_owned),
                ..good.clone()
            };
            refused(Client::connect(&config), reason);
        }
        // TLS without a certificate and without a password.
        let tls = wholegrain_transport::tls::client_config(&server.path("ca.pem"), None).unwrap();
        let mut config = server.mutual(version, "n1");
        config.tls = Some(tls);
        refused(Client::connect(&config), ReasonCode::NOT_AUTHORIZED);
    }
    // A certificate of another authority.
    let other = TestServer::start();
    let mut config = other.mutual(Version::V5, "n1");
    config.url = server.mutual(Version::V5, "n1").url;
    assert!(Client::connect(&config).is_err());
    assert_eq!(server.metric("wholegrain_server_connections_accepted_total"), 0.0);
}

#[test]
fn a_newer_connection_gets_the_session_of_the_same_client_only() {
    let server = TestServer::start();
    for version in VERSIONS {
        let mut first = server.agent(&server.mutual(version, "n1"));
        // Another identity with the same client identifier is another client.
        let mut config = server.mutual(version, "n2");
        config.client_id = "n1".to_owned();
        let mut stranger = server.agent(&config);
        let mut second = server.agent(&server.mutual(version, "n1"));
        match first.client.poll(DEADLINE) {
            Err(ClientError::Closed { .. }) => {}
            other => panic!("{other:?}"),
        }
        let id = second.publish("a/b", b"x");
        second.acked(&[id]);
        let id = stranger.publish("a/b", b"x");
        stranger.acked(&[id]);
    }
    assert_eq!(server.metric("wholegrain_server_takeovers_total"), 2.0);
}

#[test]
fn subscribers_hear_batches_when_they_are_durable_and_schemas_are_retained() {
    let server = TestServer::start();
    let schema = schema("n1", "g", "s");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let id = agent.schema(&schema);
    agent.acked(&[id]);
    let mut listener = server.agent(&server.mutual(Version::V311, "n2"));
    listener.client.subscribe("wholegrain/v1/#").unwrap();
    let Event::Subscribed { .. } = listener.event() else { panic!() };
    let Event::Message { topic, payload, retain } = listener.event() else { panic!() };
    assert_eq!((topic.as_str(), &payload[..], retain), ("wholegrain/v1/schema/n1/g", &schema.encode()[..], true));
    let id = agent.batch(&schema, &[(NOON, 5)]);
    agent.acked(&[id]);
    let Event::Message { topic, payload, retain } = listener.event() else { panic!() };
    assert_eq!(
        (topic.as_str(), &payload[..], retain),
        ("wholegrain/v1/batch/n1/g", &batch("n1", agent.boot, 1, &schema, &[(NOON, 5)])[..], false)
    );
}

#[test]
fn more_batches_than_the_window_arrive_in_order() {
    let server = TestServer::start_with("limits = { inflight_max = 8 }");
    for version in VERSIONS {
        let schema = schema("n1", &format!("{version:?}"), "s");
        let mut agent = server.agent(&server.mutual(version, "n1"));
        let id = agent.schema(&schema);
        agent.acked(&[id]);
        let (mut sent, mut acked) = (Vec::new(), 0);
        while acked < 200 {
            while sent.len() < 200 && sent.len() - acked < usize::from(agent.client.receive_max()) {
                let time = NOON + sent.len() as i64 * SECOND;
                sent.push(agent.batch(&schema, &[(time, sent.len() as i64)]));
            }
            agent.acked(&[sent[acked]]);
            acked += 1;
        }
        let csv =
            server.get(&format!("/api/v1/query?pattern={}&from=2026-01-31&to=2026-02-01&agg=count", schema.path(0)));
        assert!(csv.text().contains("\"value\":200"), "{version:?}: {}", csv.text());
        agent.client.disconnect().unwrap();
    }
}

#[test]
fn connections_beyond_the_limit_are_refused_and_the_others_stay() {
    let server = TestServer::start_with("limits = { connections_max = 2 }");
    let mut one = server.agent(&server.mutual(Version::V5, "n1"));
    let two = server.agent(&server.mutual(Version::V5, "n2"));
    let mut third = server.plain(Version::V5);
    third.client_id = "third".to_owned();
    assert!(Client::connect(&third).is_err());
    let id = one.publish("a", b"");
    one.acked(&[id]);
    drop(two);
    let _third = wait_for("room again", || Client::connect(&third).ok());
}

#[test]
fn a_silent_client_is_disconnected_and_its_will_is_published() {
    let server = TestServer::start();
    let mut listener = server.agent(&server.mutual(Version::V5, "n1"));
    listener.client.subscribe("wills/+").unwrap();
    let Event::Subscribed { .. } = listener.event() else { panic!() };
    let mut silent = TcpStream::connect(server.addresses.mqtt.unwrap()).unwrap();
    let connect = crate::malformed::connect_with_will("n1", crate::harness::PASSWORD, 1, "wills/n1", "gone");
    std::io::Write::write_all(&mut silent, &connect).unwrap();
    silent.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut connack = [0; 4];
    silent.read_exact(&mut connack).unwrap();
    assert_eq!(connack, [0x20, 2, 0, 0]);
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).unwrap();
    let Event::Message { topic, payload, .. } = listener.event() else { panic!() };
    assert_eq!((topic.as_str(), &payload[..]), ("wills/n1", &b"gone"[..]));
    assert_eq!(server.metric("wholegrain_server_timeouts_total"), 1.0);
}

#[test]
fn an_idle_agent_stays_connected_by_its_pings() {
    let server = TestServer::start();
    let mut config = server.mutual(Version::V311, "n1");
    config.keep_alive = Duration::from_secs(1);
    let mut agent = server.agent(&config);
    // Longer than the server bears silence, so that only pings can have kept it.
    assert!(agent.client.poll(Duration::from_millis(2500)).unwrap().is_none());
    let id = agent.publish("a", b"");
    agent.acked(&[id]);
    assert_eq!(server.metric("wholegrain_server_timeouts_total"), 0.0);
}

#[test]
fn a_shutdown_acknowledges_durable_batches_and_gives_its_reason() {
    let mut server = TestServer::start();
    let schema = schema("n1", "g", "s");
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let id = agent.schema(&schema);
    agent.acked(&[id]);
    for i in 0..30 {
        agent.batch(&schema, &[(NOON + i, i)]);
    }
    agent.client.flush().unwrap();
    wait_for("the first acknowledgement", || agent.client.poll(Duration::from_millis(10)).unwrap());
    server.stop();
    let mut acked = 1;
    loop {
        match agent.client.poll(DEADLINE) {
            Ok(Some(Event::Acked { reason, .. })) => {
                assert_eq!(reason, ReasonCode::SUCCESS);
                acked += 1;
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(error.to_string().contains("shutting down"), "{error}");
                break;
            }
        }
    }
    let server = server.restart();
    let count =
        server.get("/api/v1/query?pattern=s&from=2026-01-31&to=2026-02-01&agg=count").json()["value"].as_i64().unwrap();
    assert!(count >= acked, "{acked} were acknowledged, {count} are there");
}

#[test]
fn the_wait_for_a_signal_has_begun_before_the_server_can_be_seen() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let options = wholegrain_server::InitOptions { mqtt_port: 0, http_port: 0, ..Default::default() };
    wholegrain_server::init(dir.path(), &options).unwrap();
    let config = wholegrain_server::ServerConfig::load(&dir.path().join("server/server.toml")).unwrap();
    let (waiting, stop) = (AtomicBool::new(false), tokio::sync::Notify::new());
    // Handlers of signals are set up when the future is polled first; a SIGTERM before would kill.
    let shutdown = async {
        waiting.store(true, Ordering::SeqCst);
        stop.notified().await;
    };
    let ready = |_: &_| {
        assert!(waiting.load(Ordering::SeqCst), "listening, and a signal would still kill");
        stop.notify_one();
    };
    wholegrain_server::run(config, ready, shutdown).unwrap();
}
