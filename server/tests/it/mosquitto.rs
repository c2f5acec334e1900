//! Mosquitto's own clients as peers: an implementation that is not ours.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use crate::harness::{PASSWORD, TestServer, wait_until};

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(server: &TestServer, program: &str, version: &str, tls: bool) -> Command {
    let mut command = Command::new(program);
    command.args(["-V", version, "-h", "localhost"]);
    if tls {
        command.args(["-p", &server.addresses.mqtt_tls.unwrap().port().to_string()]);
        command.arg("--cafile").arg(server.path("ca.pem"));
        command.arg("--cert").arg(server.path("agent/agent.pem")).arg("--key").arg(server.path("agent/agent.key"));
    } else {
        command.args(["-p", &server.addresses.mqtt.unwrap().port().to_string(), "-u", "n1", "-P", PASSWORD]);
    }
    command
}

fn publish(server: &TestServer, version: &str, tls: bool, arguments: &[&str]) -> Output {
    command(server, "mosquitto_pub", version, tls)
        .args(arguments)
        .output()
        .expect("mosquitto_pub, of the Debian package mosquitto-clients")
}

#[test]
fn mosquitto_publishes_and_subscribes_in_both_versions_over_tcp_and_tls() {
    let server = TestServer::start();
    for (version, tls) in [("mqttv311", false), ("mqttv311", true), ("mqttv5", false), ("mqttv5", true)] {
        let mut subscriber = command(&server, "mosquitto_sub", version, tls);
        // A keep-alive so short that it pings while it waits.
        subscriber.args(["-t", "site/+/text", "-q", "1", "-v", "-k", "5", "-C", "2"]).stdout(Stdio::piped());
        let mut subscriber =
            KillOnDrop(subscriber.spawn().expect("mosquitto_sub, of the Debian package mosquitto-clients"));
        wait_until("the subscription", || server.metric("wholegrain_server_subscriptions") == 1.0);
        for (qos, topic) in [("0", "site/a/text"), ("1", "site/b/text"), ("1", "elsewhere")] {
            let output =
                publish(&server, version, tls, &["-q", qos, "-t", topic, "-m", &format!("{version} {tls} {qos}")]);
            assert!(output.status.success(), "{output:?}");
        }
        let lines: Vec<String> =
            BufReader::new(subscriber.0.stdout.take().unwrap()).lines().map(Result::unwrap).collect();
        assert_eq!(lines, [format!("site/a/text {version} {tls} 0"), format!("site/b/text {version} {tls} 1")]);
        assert!(subscriber.0.wait().unwrap().success());
        wait_until("its end", || server.metric("wholegrain_server_subscriptions") == 0.0);
    }
}

#[test]
fn mosquitto_pings_are_answered() {
    let server = TestServer::start();
    // Each pings after its keep-alive of 5 s and leaves after 12 s; its output comes when it leaves.
    let subscribers = ["mqttv311", "mqttv5"].map(|version| {
        let mut subscriber = command(&server, "mosquitto_sub", version, false);
        subscriber.args(["-d", "-t", "a", "-k", "5", "-W", "12"]).stdout(Stdio::piped());
        KillOnDrop(subscriber.spawn().expect("mosquitto_sub, of the Debian package mosquitto-clients"))
    });
    for mut subscriber in subscribers {
        let mut said = String::new();
        subscriber.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("received PINGRESP"), "{said}");
    }
    assert_eq!(server.metric("wholegrain_server_protocol_errors_total"), 0.0);
}

#[test]
fn mosquitto_receives_the_reason_of_a_refusal() {
    let server = TestServer::start();
    for (version, wrong) in [("mqttv311", "bad user"), ("mqttv5", "bad user")] {
        let mut command = Command::new("mosquitto_pub");
        command.args(["-V", version, "-h", "localhost", "-p", &server.addresses.mqtt.unwrap().port().to_string()]);
        let output = command.args(["-u", "n1", "-P", "wrong", "-t", "a", "-m", "b"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        assert!(!output.status.success() && said.contains(wrong), "{version}: {said}");
    }
    let output = publish(&server, "mqttv5", false, &["-q", "1", "-t", "wholegrain/v1/batch/n9/g", "-m", "x"]);
    assert!(String::from_utf8_lossy(&output.stderr).to_lowercase().contains("not authorized"), "{output:?}");
    // A retained message, taken away again by an empty one.
    for (message, count) in [(&["-m", "kept"][..], 1), (&["-n"][..], 0)] {
        let output = publish(&server, "mqttv5", false, &[&["-r", "-q", "1", "-t", "site/kept"], message].concat());
        assert!(output.status.success(), "{output:?}");
        let output = self::command(&server, "mosquitto_sub", "mqttv5", false)
            .args(["-t", "site/#", "-W", "1"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), count, "{output:?}");
    }
}
