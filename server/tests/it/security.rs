//! Permissions: Mosquitto's clients test topics and passwords, curl tests tokens.

use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use wholegrain_model::{Schema, SensorDef, SensorPath, Timestamp};
use wholegrain_server::access::Role;
use wholegrain_server::access::revoked::{self, Revocation};
use wholegrain_server::access::tokens::{self, NewToken};
use wholegrain_server::access::users::{self, UserChange};
use wholegrain_server::issue_agent_certificate;
use wholegrain_transport::client::{Client, ClientError, Event};
use wholegrain_transport::mqtt::{ReasonCode, Version};

use crate::harness::{DEADLINE, NOON, PASSWORD, TestServer, VERSIONS, hash, schema, wait_for, wait_until};

/// A user of mosquitto's clients over TCP.
fn mosquitto(server: &TestServer, program: &str, version: &str, user: &str, password: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-V", version, "-h", "localhost", "-p", &server.addresses.mqtt.unwrap().port().to_string()]);
    command.args(["-u", user, "-P", password]);
    command
}

fn run(command: &mut Command, arguments: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } = command.args(arguments).output().expect("Debian package mosquitto-clients");
    (
        status.success(),
        format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)).to_lowercase(),
    )
}

/// The lines of the audit log that hold all of these.
fn audited(server: &TestServer, parts: &[&str]) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(server.path("server/audit.jsonl")).unwrap();
    let lines = text.lines().filter(|line| parts.iter().all(|part| line.contains(part)));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Users that have [`PASSWORD`], in a file beside server.toml.
fn write_users(server: &TestServer, names: &[&str]) {
    names
        .iter()
        .for_each(|name| users::set(&server.path("server/passwords"), name, hash(), UserChange::Added).unwrap());
}

#[test]
fn clients_publish_and_receive_only_permitted_topics() {
    let acl = "password_file = \"passwords\"\n[[mqtt.acl]]\nidentity = \"desk\"\npublish = [\"news/#\"]\nsubscribe = [\"news/+\", \"text/#\"]";
    let server = TestServer::start_strict(acl);
    write_users(&server, &["desk"]);
    wait_for("the new user", || {
        run(&mut mosquitto(&server, "mosquitto_pub", "mqttv5", "desk", PASSWORD), &["-t", "news/a", "-m", "x"])
            .0
            .then_some(())
    });
    for version in ["mqttv311", "mqttv5"] {
        let publish = |user: &str, topic: &str| {
            run(&mut mosquitto(&server, "mosquitto_pub", version, user, PASSWORD), &["-q", "1", "-t", topic, "-m", "x"])
        };
        let subscribe = |user: &str, filter: &str| {
            run(
                &mut mosquitto(&server, "mosquitto_sub", version, user, PASSWORD),
                &["-t", filter, "-C", "1", "-W", "60"],
            )
        };
        for (user, topic, good) in [
            ("n1", "/site/n1/temperature", true),
            ("n1", "site/n1/status", true),
            ("n1", "/site/n2/temperature", false),
            ("n1", "news/a", false),
            ("desk", "news/a", true),
            ("desk", "/site/n1/temperature", false),
        ] {
            let (went, said) = publish(user, topic);
            // mosquitto_pub reports a PUBACK with a reason; 3.1.1 knows none, and a client that breaks the rules is disconnected.
            assert_eq!(went && !said.contains("not authorized"), good, "{version} {user} {topic}: {said}");
        }
        for (user, filter) in
            [("n1", "#"), ("n1", "/site/+/x"), ("desk", "news/#"), ("desk", "$share/g/#"), ("desk", "$SYS/#")]
        {
            let (_, said) = subscribe(user, filter);
            assert!(said.contains("denied"), "{version} {user} {filter}: {said}");
        }
        let mut reader = mosquitto(&server, "mosquitto_sub", version, "desk", PASSWORD);
        let reader = reader.args(["-t", "news/+", "-C", "1", "-W", "60"]).stdout(Stdio::piped()).spawn().unwrap();
        wait_until("the subscription", || server.metric("wholegrain_server_subscriptions") == 1.0);
        assert!(publish("desk", "news/today").0);
        assert_eq!(reader.wait_with_output().unwrap().stdout, b"x\n");
    }
    // The codes that go with it, and that the good filters of a packet are not lost with the bad ones.
    for (version, code) in [(Version::V311, ReasonCode::UNSPECIFIED_ERROR), (Version::V5, ReasonCode::NOT_AUTHORIZED)] {
        let mut agent = server.agent(&server.plain(version));
        for (filter, refused) in [("#", Some(code)), ("/site/n1/#", None)] {
            agent.client.subscribe(filter).unwrap();
            let Event::Subscribed { reason, .. } = agent.event() else { panic!("no SUBACK") };
            assert_eq!(Some(reason).filter(|reason| reason.is_error()), refused, "{version:?} {filter}");
        }
    }
    assert!(server.metric("wholegrain_server_subscriptions_refused_total") >= 10.0);
    wait_for("the audit log", || {
        (!audited(&server, &["\"publish\"", "\"refused\"", "news/a", "n1"]).is_empty()).then_some(())
    });
    assert!(!audited(&server, &["\"subscribe\"", "\"refused\""]).is_empty());
}

/// A schema of one sensor below `prefix`.
fn below(prefix: &str) -> Schema {
    Schema::new(SensorPath::new(prefix).unwrap(), "g", vec![SensorDef::gauge("s", "1", "")]).unwrap()
}

#[test]
fn of_two_agents_that_claim_one_prefix_the_second_is_refused_also_after_a_restart() {
    let server = TestServer::start_strict("[[mqtt.acl]]\nidentity = \"heir\"\npublish = [\"/site/n1/#\"]");
    ["cpu", "heir", "site"].iter().for_each(|name| drop(issue_agent_certificate(server.dir.path(), name).unwrap()));
    let own = schema("n1", "g", "s");
    // /site is a place of many.
    let mut neighbour = server.agent(&server.mutual(Version::V5, "n2"));
    let theirs = schema("n2", "g", "s");
    let ids = [neighbour.schema(&theirs), neighbour.batch(&theirs, &[(NOON, 1)])];
    neighbour.acked(&ids);
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let ids = [agent.schema(&own), agent.batch(&own, &[(NOON, 1)])];
    agent.acked(&ids);
    let refused = |server: &TestServer| {
        for (name, prefix) in [("cpu", "/site/n1/cpu"), ("site", "/site")] {
            let mut other = server.agent(&server.mutual(Version::V5, name));
            let packet_id = other.schema(&below(prefix));
            assert_eq!(other.event(), Event::Acked { packet_id, reason: ReasonCode::NOT_AUTHORIZED }, "{name}");
            let packet_id = other.publish(&format!("{prefix}/x"), b"1");
            let reason = if name == "cpu" { ReasonCode::NOT_AUTHORIZED } else { ReasonCode::SUCCESS };
            assert_eq!(other.event(), Event::Acked { packet_id, reason }, "{name}");
        }
        wait_for("a line that names the owner", || {
            (!audited(server, &["\"who\":\"cpu\"", "/site/n1 belongs to \\\"n1\\\""]).is_empty()).then_some(())
        });
    };
    refused(&server);
    drop(agent);
    let server = server.restart();
    refused(&server);
    // An explicit grant allows the publish, and the owner keeps its sensors.
    let mut heir = server.agent(&server.mutual(Version::V5, "heir"));
    let id = heir.schema(&own);
    heir.acked(&[id]);
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let ids = [agent.schema(&own), agent.batch(&own, &[(NOON + 1, 1)])];
    agent.acked(&ids);
}

/// Announces a schema and, if it is accepted, sends a batch of it; returns the reason of the last acknowledgement.
fn send(server: &TestServer, name: &str, schema: &Schema) -> ReasonCode {
    let mut agent = server.agent(&server.mutual(Version::V5, name));
    let id = agent.schema(schema);
    match agent.event() {
        Event::Acked { packet_id, reason } if packet_id == id && reason.is_error() => return reason,
        Event::Acked { packet_id, .. } if packet_id == id => {}
        other => panic!("{other:?}"),
    }
    let id = agent.batch(schema, &[(NOON, 1)]);
    agent.acked(&[id]);
    ReasonCode::SUCCESS
}

/// In both orders: who squats below another agent's prefix by a level of its own name neither keeps that agent out nor gets more than what it
/// had first; also when readings came, and after restarts.
#[test]
fn no_agent_keeps_another_out_of_its_prefix() {
    let (yes, no) = (ReasonCode::SUCCESS, ReasonCode::NOT_AUTHORIZED);
    let mut server = TestServer::start_strict("");
    ["itself", "newnode"].iter().for_each(|name| drop(issue_agent_certificate(server.dir.path(), name).unwrap()));
    // With readings, so that the server knows of it after a restart.
    assert_eq!(send(&server, "itself", &below("/rack1/newnode/itself")), yes);
    for round in ["at first", "after a restart"] {
        assert_eq!(send(&server, "newnode", &below("/rack1/newnode")), yes, "{round}");
        assert_eq!(send(&server, "newnode", &below("/rack1/newnode/cpu")), yes, "{round}");
        for prefix in ["/rack1/newnode", "/rack1/newnode/cpu/itself", "/rack1/newnode/x/itself/y"] {
            assert_eq!(send(&server, "itself", &below(prefix)), no, "{prefix} {round}");
        }
        assert_eq!(send(&server, "itself", &below("/rack1/newnode/itself")), yes, "what it had first stays its own");
        // Neither does the second one write the first one's sensors by a schema above them.
        let sensors = vec![SensorDef::gauge("itself/s", "1", "")];
        let above = Schema::new(SensorPath::new("/rack1/newnode").unwrap(), "g", sensors).unwrap();
        assert_eq!(send(&server, "newnode", &above), no, "{round}");
        server = server.restart();
    }
}

/// The outcome of a login with this user and password.
fn login(server: &TestServer, version: Version, user: &str, password: &str) -> Result<(), ReasonCode> {
    let mut config = server.plain(version);
    (config.client_id, config.user, config.password) =
        (user.to_owned(), Some(user.to_owned()), Some(password.to_owned()));
    match Client::connect(&config) {
        Ok(_) => Ok(()),
        Err(ClientError::Refused { reason, .. }) => Err(reason),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn guessing_clients_wait_and_others_do_not() {
    let users = "password_file = \"passwords\"\n[security]\nlogin_failures_free = 2\nlogin_delay = \"1h\"\nlogin_delay_max = \"1h\"";
    let server = TestServer::start_strict(users);
    let reloads = || server.metric("wholegrain_server_security_reloads_total");
    let before = reloads();
    write_users(&server, &["n2", "n3"]);
    let (wrong, must_wait) = (Err(ReasonCode::BAD_USER_OR_PASSWORD), Err(ReasonCode::CONNECTION_RATE_EXCEEDED));
    // Not by trying to log in: failures are audited at a bounded rate, and those below must be among them.
    wait_until("the new users", || reloads() > before);
    assert_eq!(login(&server, Version::V5, "n3", PASSWORD), Ok(()));
    for user in ["n1", "n3", "nobody"] {
        for _ in 0..3 {
            assert_eq!(login(&server, Version::V5, user, "guess"), wrong, "{user}");
        }
        assert_eq!(login(&server, Version::V5, user, "guess"), must_wait, "{user}");
    }
    // Even the right password is not looked at now; 3.1.1 has a code for it too.
    assert_eq!(login(&server, Version::V5, "n1", PASSWORD), must_wait);
    assert_eq!(login(&server, Version::V311, "n1", PASSWORD), Err(ReasonCode::SERVER_UNAVAILABLE));
    // No other login waits: another user at the same address, a password that was right before, a certificate.
    assert_eq!(login(&server, Version::V5, "n2", PASSWORD), Ok(()));
    assert_eq!(login(&server, Version::V5, "n3", PASSWORD), Ok(()));
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let own = schema("n1", "g", "s");
    let ids = [agent.schema(&own), agent.batch(&own, &[(NOON, 1)])];
    agent.acked(&ids);
    assert!(server.metric("wholegrain_server_logins_failed_total") >= 9.0);
    assert!(server.metric("wholegrain_server_logins_delayed_total") >= 5.0);
    // A new password from an administrator ends the wait at once.
    let other = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHRzYWx0c2FsdA$Zm9vZm9vZm9vZm9vZm9vZm9vZm9vZm9vZm9vZm9vZm8";
    users::set(&server.path("server/passwords"), "n3", other, UserChange::Changed).unwrap();
    wait_until("the new password", || login(&server, Version::V5, "n3", PASSWORD) == wrong);
    wait_for("the audit log", || {
        (!audited(&server, &["\"mqtt_login\"", "\"failed\"", "\"who\":\"nobody\""]).is_empty()).then_some(())
    });
    assert!(audited(&server, &["guess"]).is_empty() && audited(&server, &[PASSWORD]).is_empty());
}

#[test]
fn a_user_who_is_removed_is_disconnected_and_stays_out() {
    let server = TestServer::start_strict("password_file = \"passwords\"");
    write_users(&server, &["n2"]);
    let mut config = server.plain(Version::V5);
    (config.client_id, config.user) = ("n2".to_owned(), Some("n2".to_owned()));
    let mut client = wait_for("the new user", || Client::connect(&config).ok());
    users::remove(&server.path("server/passwords"), "n2").unwrap();
    assert!(matches!(client.poll(DEADLINE), Err(ClientError::Closed { .. })), "the connection ends");
    assert_eq!(login(&server, Version::V5, "n2", PASSWORD), Err(ReasonCode::BAD_USER_OR_PASSWORD));
    // A file that is wrong changes nothing.
    std::fs::write(server.path("server/passwords"), "nonsense\n").unwrap();
    wait_for("a line about it", || {
        (!audited(&server, &["\"reload\"", "\"failed\"", "line 1"]).is_empty()).then_some(())
    });
    assert_eq!(login(&server, Version::V5, "n1", PASSWORD), Ok(()));
}

#[test]
fn a_revoked_certificate_is_refused_and_its_connection_ends() {
    let server = TestServer::start_strict("");
    for version in VERSIONS {
        let name = format!("r-{version:?}");
        issue_agent_certificate(server.dir.path(), &name).unwrap();
        let config = server.mutual(version, &name);
        let mut client = Client::connect(&config).unwrap();
        let path = server.path(&format!("agents/{name}.pem"));
        let info = wholegrain_server::authority::show(&path, None).unwrap().remove(0).info;
        revoked::revoke(&server.path("server/revoked"), &Revocation::Serial(info.serial, name.clone())).unwrap();
        assert!(matches!(client.poll(DEADLINE), Err(ClientError::Closed { .. })), "the connection ends");
        assert!(Client::connect(&config).is_err());
        assert!(Client::connect(&server.mutual(version, "n2")).is_ok(), "others are not concerned");
        wait_until("the audit log", || !audited(&server, &[&name, "is revoked"]).is_empty());
    }
    assert!(server.metric("wholegrain_server_certificates_refused_total") >= 2.0);
}

fn now() -> Timestamp {
    Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as i64)
}

/// A new token, which the server knows at once; its id and itself.
pub fn token(server: &TestServer, name: &str, role: Role, expires: Option<Timestamp>) -> (String, String) {
    let new = NewToken { name: name.to_owned(), role, expires };
    let (token, entry) = tokens::create(&server.path("server/tokens"), &new, now()).unwrap();
    assert_eq!(curl(server, "/nothing", &token).0, 404);
    (entry.id, token)
}

/// Status and body of a GET by curl, which gets the token on its standard input.
fn curl(server: &TestServer, path: &str, token: &str) -> (u16, String) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--max-time", "30", "--header", "@-", "--write-out", "\n%{http_code}", "--cacert"]);
    command.arg(server.path("ca.pem")).arg(server.url(path)).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().expect("Debian package curl");
    process.stdin.take().unwrap().write_all(format!("Authorization: Bearer {token}\n").as_bytes()).unwrap();
    let said = String::from_utf8(process.wait_with_output().unwrap().stdout).unwrap();
    let (body, status) = said.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn a_tokens_role_decides_its_routes() {
    let server = TestServer::start_strict("");
    let paths = ["/api/v1/sensors", "/api/v1/query?pattern=a", "/metrics", "/nothing", "/healthz"];
    for (role, expected) in [
        (Role::Admin, [200, 200, 200, 404, 200]),
        (Role::Support, [200, 200, 200, 404, 200]),
        (Role::User, [200, 200, 403, 404, 200]),
        (Role::Agent, [403, 403, 403, 404, 200]),
    ] {
        let (_, token) = token(&server, &format!("a {role}"), role, None);
        let statuses = paths.map(|path| curl(&server, path, &token).0);
        assert_eq!(statuses, expected, "{role}");
    }
    let (_, reader) = token(&server, "reader", Role::User, None);
    let (_, said) = curl(&server, "/metrics", &reader);
    for part in ["reader", "role user", "may not see the server's metrics", "admin or support"] {
        assert!(said.contains(part), "no {part:?}: {said}");
    }
    wait_for("the audit log", || {
        (!audited(&server, &["\"http_request\"", "\"refused\"", "reader"]).is_empty()).then_some(())
    });
    // InfluxDB's clients write the header their way.
    assert_eq!(server.get_as("/api/v1/sensors", Some(&format!("Token {reader}"))).status, 200);
}

#[test]
fn a_token_writes_below_its_name_and_where_granted() {
    let server = TestServer::start_strict("[[mqtt.acl]]\nidentity = \"telegraf\"\npublish = [\"/n8/#\"]");
    let lines = "load,host=n7 v=1\nload,host=n8 v=2\nload,host=n9 v=3\n";
    for (name, refused) in [("n7", [2, 3]), ("telegraf", [1, 3])] {
        let (_, token) = token(&server, name, Role::Agent, None);
        let (status, said) = server.post_as("/write", lines, &token);
        assert!(status == 400 && said.contains("[[mqtt.acl]]"), "{said}");
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let named: Vec<_> = said["lines"].as_array().unwrap().iter().map(|one| one["line"].as_u64().unwrap()).collect();
        assert_eq!(named, refused, "{name}");
    }
    let readings: Vec<String> = server.newest("/**").into_iter().map(|(reading, _)| reading).collect();
    assert_eq!(readings, ["/n7/load/v=1.0", "/n8/load/v=2.0"]);
    assert_eq!(server.post("/write", lines).0, 204, "an admin writes everywhere");
}

#[test]
fn tokens_end_and_are_revoked_and_so_are_the_streams_that_they_opened() {
    let server = TestServer::start_strict("");
    let (_, brief) = token(&server, "brief", Role::User, Some(now().saturating_add(5_000_000_000)));
    let (status, said) =
        wait_for("its end", || Some(curl(&server, "/api/v1/sensors", &brief)).filter(|said| said.0 == 401));
    assert!(status == 401 && said.contains("\\\"brief\\\" expired at"), "{said}");

    let (id, watcher) = token(&server, "watcher", Role::User, None);
    let mut response = server.response("/api/v1/watch?pattern=a", Some(&format!("Bearer {watcher}")));
    assert_eq!(server.metric("wholegrain_server_watchers"), 1.0);
    tokens::revoke(&server.path("server/tokens"), &id, now()).unwrap();
    let ended = response.body_mut().as_reader().read(&mut [0; 10]);
    assert!(ended.is_err(), "cut off, not ended as if it were whole: {ended:?}");
    wait_until("the watcher's end", || server.metric("wholegrain_server_watchers") == 0.0);
    let (status, said) = curl(&server, "/api/v1/sensors", &watcher);
    assert!(status == 401 && said.contains("\\\"watcher\\\" was revoked at"), "{said}");
}

#[test]
fn guessed_tokens_wait_and_valid_ones_pass() {
    let server = TestServer::start_strict(
        "[security]\nlogin_source_failures_free = 3\nlogin_delay = \"1h\"\nlogin_delay_max = \"1h\"",
    );
    for _ in 0..4 {
        assert_eq!(curl(&server, "/metrics", "guess").0, 401);
    }
    let response = server.response("/metrics", Some("Bearer guess"));
    assert_eq!(response.status().as_u16(), 429);
    let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((3000..=3600).contains(&wait), "{wait}");
    assert_eq!(server.get_as("/metrics", None).status, 401, "who shows nothing guesses nothing");
    assert_eq!(server.get("/api/v1/sensors").status, 200);
    assert!(server.metric("wholegrain_server_http_logins_delayed_total") >= 1.0);
    // Passwords from there wait too, and a certificate does not.
    assert_eq!(login(&server, Version::V5, "n1", PASSWORD), Err(ReasonCode::CONNECTION_RATE_EXCEEDED));
    assert!(Client::connect(&server.mutual(Version::V5, "n1")).is_ok());
}

#[test]
fn an_identity_that_comes_a_hundred_times_makes_one_line() {
    let server = TestServer::start_strict("");
    for _ in 0..100 {
        drop(server.agent(&server.mutual(Version::V5, "n1")));
        assert_eq!(server.get("/api/v1/sensors").status, 200);
    }
    drop(server.agent(&server.mutual(Version::V5, "n2")));
    wait_until("the last line", || !audited(&server, &["\"mqtt_login\"", "\"who\":\"n2\""]).is_empty());
    assert_eq!(audited(&server, &["\"mqtt_login\"", "\"ok\"", "\"who\":\"n1\""]).len(), 1);
    assert_eq!(audited(&server, &["\"http_login\"", "\"ok\"", "wholegrain command"]).len(), 1);
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(server.path("server/audit.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
