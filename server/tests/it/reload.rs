//! Reloads: changes that take effect while connections stay open.

use std::path::Path;
use std::process::{Command, Stdio};

use wholegrain_server::certificates::CertificateFile;
use wholegrain_transport::client::Client;
use wholegrain_transport::mqtt::Version;

use crate::harness::{NOON, TestServer, schema, wait_until};

/// Replaces the server's certificate by a new one of the same authority.
fn renew(server: &TestServer) -> String {
    let toml = std::fs::read(server.path("server/server.toml")).unwrap();
    for file in ["server/server.pem", "server/server.key"] {
        std::fs::remove_file(server.path(file)).unwrap();
    }
    let options = wholegrain_server::InitOptions { agent: Some("n1".to_owned()), ..Default::default() };
    wholegrain_server::init(server.dir.path(), &options).unwrap();
    std::fs::write(server.path("server/server.toml"), toml).unwrap();
    serial(&server.path("server/server.pem"))
}

fn serial(file: &Path) -> String {
    CertificateFile::read(file).unwrap().serial
}

/// What a client of OpenSSL's is shown, as `openssl x509 -serial` writes it; an error's text when there is no handshake.
fn shown(port: u16, options: &[&str]) -> Result<String, String> {
    let mut client = Command::new("openssl");
    client.args(["s_client", "-connect", &format!("localhost:{port}")]).args(options).stdin(Stdio::null());
    let output = client.output().expect("openssl");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (Some(from), Some(to)) = (said.find("-----BEGIN"), said.find("-----END CERTIFICATE-----")) else {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("shown.pem");
    std::fs::write(&file, format!("{}-----END CERTIFICATE-----\n", &said[from..to])).unwrap();
    let output = Command::new("openssl").args(["x509", "-noout", "-serial", "-in"]).arg(&file).output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    Ok(line.trim().trim_start_matches("serial=").to_owned())
}

fn change(server: &TestServer, from: &str, to: &str) {
    let file = server.path("server/server.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from:?} is not in {text}");
    std::fs::write(&file, text.replacen(from, to, 1)).unwrap();
}

#[track_caller]
fn reloaded(server: &TestServer) -> (Vec<String>, Vec<String>) {
    let answer = server.send("POST", "/api/v1/server/reload");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let list = |name: &str| serde_json::from_value(answer.json()[name].clone()).unwrap();
    (list("changed"), list("needs_restart"))
}

#[test]
fn new_certificates_for_new_connections_while_old_ones_live_on() {
    let server = TestServer::start();
    let ports = [server.addresses.mqtt_tls.unwrap().port(), server.addresses.http.unwrap().port()];
    let old = serial(&server.path("server/server.pem"));
    for port in ports {
        assert_eq!(shown(port, &[]).as_ref(), Ok(&old));
    }
    let mut agent = server.agent(&server.mutual(Version::V5, "n1"));
    let schema = schema("n1", "mem", "MemFree");
    let ids = [agent.schema(&schema)];
    agent.acked(&ids);
    let new = renew(&server);
    assert_ne!(new, old);
    let (changed, needs_restart) = reloaded(&server);
    assert!(changed.len() == 2 && changed[0].contains("TLS of [mqtt]") && changed[1].contains("[http]"), "{changed:?}");
    assert!(needs_restart.is_empty());
    for port in ports {
        assert_eq!(shown(port, &[]).as_ref(), Ok(&new));
    }
    let ids = [agent.batch(&schema, &[(NOON, 1)])];
    agent.acked(&ids);
    assert_eq!(server.metric("wholegrain_server_connections"), 1.0);
    assert_eq!(reloaded(&server).0, [] as [&str; 0]);
    // Half a key pair changes nothing, and the error names the files.
    std::fs::remove_file(server.path("server/server.key")).unwrap();
    let answer = server.send("POST", "/api/v1/server/reload");
    assert!(answer.status == 400 && answer.text().contains("server.key"), "{}", answer.text());
    assert_eq!(shown(ports[0], &[]).as_ref(), Ok(&new));
}

#[test]
fn certificates_that_change_are_noticed_and_their_end_is_a_metric() {
    let server = TestServer::start_with_root("certificates_every = \"100ms\"\n");
    let new = renew(&server);
    let port = server.addresses.mqtt_tls.unwrap().port();
    wait_until("the new certificate", || shown(port, &[]).as_ref() == Ok(&new));
    let end = CertificateFile::read(&server.path("server/server.pem")).unwrap().not_after;
    let metrics = server.get("/metrics").text().to_owned();
    let lines: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("wholegrain_server_certificate_expiry")).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].contains("use=\"mqtt\"") && lines[0].ends_with(&format!(" {end}")), "{lines:?}");
    assert!(lines[1].contains("use=\"client_ca\"") && lines[1].contains("ca.pem"), "{lines:?}");
}

#[test]
fn after_a_change_of_the_authority_old_certificates_are_refused() {
    let server = TestServer::start();
    let old = server.mutual(Version::V5, "n2");
    let resumed = Client::connect(&old).unwrap();
    drop(resumed);
    let other = tempfile::tempdir().unwrap();
    wholegrain_server::init(other.path(), &wholegrain_server::InitOptions::default()).unwrap();
    change(&server, "client_ca = \"../ca.pem\"", &format!("client_ca = {:?}", other.path().join("ca.pem")));
    assert!(reloaded(&server).0.contains(&"mqtt.client_ca".to_owned()));
    // The same TLS configuration holds a ticket of the session before; it does not count any more.
    let Err(error) = Client::connect(&old) else { panic!("a client of the old authority was let in") };
    eprintln!("refused: {error}");
}

#[test]
fn tls_before_1_2_is_refused() {
    let server = TestServer::start();
    for port in [server.addresses.mqtt_tls.unwrap().port(), server.addresses.http.unwrap().port()] {
        for version in ["-tls1_2", "-tls1_3"] {
            assert!(shown(port, &[version]).is_ok(), "{version}");
        }
        for version in ["-tls1", "-tls1_1"] {
            // At security level 0 OpenSSL itself would still speak it.
            let error = shown(port, &[version, "-cipher", "ALL:@SECLEVEL=0"]).unwrap_err();
            assert!(error.contains("SSL alert number"), "{version}: {error}");
        }
    }
}

#[test]
fn users_and_limits_come_into_force_and_the_rest_is_named() {
    let server = TestServer::start();
    let mut before = server.agent(&server.mutual(Version::V5, "n2"));
    let hash = wholegrain_server::access::passwords::hash_password("another").unwrap();
    let text = std::fs::read_to_string(server.path("server/server.toml")).unwrap();
    let (head, _) = text.split_once("[[mqtt.users]]").unwrap();
    let text = format!(
        "log = \"debug\"\n{}[mqtt.limits]\ninflight_max = 7\n[[mqtt.users]]\nname = \"n1\"\npassword_hash = \"{hash}\"\n[store]\nlive = \"1min\"\n",
        head.replace("[http]\n", "[http]\nqueries_max = 1\n")
    );
    std::fs::write(server.path("server/server.toml"), text).unwrap();
    let (changed, needs_restart) = reloaded(&server);
    assert_eq!(changed, ["http.queries_max", "log", "mqtt.limits.inflight_max", "mqtt.users"]);
    assert_eq!(needs_restart, ["store.live"]);
    assert_eq!(reloaded(&server), (vec![], vec!["store.live".to_owned()]), "as long as it is so");
    let old = server.plain(Version::V5);
    assert!(Client::connect(&old).is_err(), "the password before still counts");
    let new = wholegrain_transport::client::ClientConfig {
        password: Some("another".to_owned()),
        client_id: "other".to_owned(),
        ..old
    };
    let client = Client::connect(&new).unwrap();
    assert_eq!(client.receive_max(), 7);
    // Existing connections stay, with the limits announced to them.
    let schema = schema("n2", "mem", "MemFree");
    let ids = [before.schema(&schema), before.batch(&schema, &[(NOON, 1)])];
    before.acked(&ids);
}

#[test]
fn a_wrong_file_changes_nothing_and_is_named_with_its_line() {
    let server = TestServer::start();
    std::fs::write(server.path("server/bad"), "short\n").unwrap();
    let good = std::fs::read_to_string(server.path("server/server.toml")).unwrap();
    for (text, expected) in [
        (format!("log = \"debug\"\nlogg = 1\n{good}"), "server.toml:2:1: unknown key `logg`"),
        (good.replace("client_ca = \"../ca.pem\"", "client_ca = \"none.pem\""), "none.pem"),
        (good.replace("tokens_file = \"tokens\"", "tokens_file = \"bad\""), "bad: line 1"),
    ] {
        std::fs::write(server.path("server/server.toml"), format!("{text}\n")).unwrap();
        let answer = server.send("POST", "/api/v1/server/reload");
        assert_eq!(answer.status, 400);
        assert!(answer.text().contains(expected) && answer.text().contains("stays"), "{}", answer.text());
    }
    assert_eq!(server.get("/api/v1/server/log").json()["level"], "info");
    assert!(Client::connect(&server.mutual(Version::V5, "n2")).is_ok());
    let stranger = server.send_as("POST", "/api/v1/server/reload", None);
    assert_eq!(stranger.status, 401);
}

#[test]
fn the_level_of_the_log_changes_for_a_while() {
    let server = TestServer::start();
    let level = || server.get("/api/v1/server/log").json()["level"].as_str().unwrap().to_owned();
    let set = server.send("PUT", "/api/v1/server/log?level=debug&for=200ms");
    assert_eq!((set.status, &set.json()["level"], &set.json()["configured"]), (200, &"debug".into(), &"info".into()));
    assert!(set.json()["until"].as_str().unwrap().ends_with('Z'));
    wait_until("the level before", || level() == "info");
    assert_eq!(server.send("PUT", "/api/v1/server/log?level=warn").json()["until"], serde_json::Value::Null);
    assert_eq!(level(), "warn");
    for (query, expected) in [
        ("", "which level?"),
        ("?level=loud", "\\\"loud\\\" is not a log level"),
        ("?level=info&for=8d", "`for` is 8d"),
    ] {
        let answer = server.send("PUT", &format!("/api/v1/server/log{query}"));
        assert!(answer.status == 400 && answer.text().contains(expected), "{}", answer.text());
    }
    assert_eq!(server.send_as("PUT", "/api/v1/server/log?level=info", None).status, 401);
}
