//! Common MQTT clients, each with each, in both versions, over TCP and TLS: mosquitto_pub and mosquitto_sub, paho-mqtt, MQTT.js.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use wholegrain_testing::{Process, Site, checkout, free_port, wait_until};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Tool {
    Mosquitto,
    Paho,
    MqttJs,
}

const TOOLS: [Tool; 3] = [Tool::Mosquitto, Tool::Paho, Tool::MqttJs];
/// The version numbers of 3.1.1 and 5 in CONNECT.
const VERSIONS: [u8; 2] = [4, 5];

struct Broker {
    // Dropped first, because its log is in the installation's directory.
    server: Process,
    site: Site,
    plain: u16,
}

impl Broker {
    fn start() -> Self {
        let (site, plain) = (Site::new(), free_port());
        site.set("server/server.toml", "mqtt", "listen", &format!("\"127.0.0.1:{plain}\""));
        site.set("server/server.toml", "mqtt", "anonymous", "true");
        let server = site.start_server();
        Self { server, site, plain }
    }

    fn port(&self, tls: bool) -> u16 {
        if tls { self.site.mqtt_port } else { self.plain }
    }

    fn metric(&self, name: &str) -> f64 {
        self.site.metric(&format!("wholegrain_server_{name}")).unwrap_or(-1.0)
    }

    /// The command that publishes one message.
    fn publisher(&self, tool: Tool, tls: bool, options: &Value) -> Command {
        let mut command = self.command(tool, "publish", tls, options);
        if tool == Tool::Mosquitto {
            command.args(["-m", text(options, "payload")]);
            if options["retain"] == true {
                command.arg("-r");
            }
        }
        command
    }

    /// The command that prints received messages.
    fn subscriber(&self, tool: Tool, tls: bool, options: &Value) -> Command {
        let mut command = self.command(tool, "subscribe", tls, options);
        if tool == Tool::Mosquitto {
            command.args(["-F", "%q %r %t %p", "-C", &options["count"].to_string()]);
            if options["kept"] == true {
                command.arg("-c");
                // Without it a session of MQTT 5 ends with its connection.
                if options["version"] == 5 {
                    command.args(["-x", "60"]);
                }
            }
            if let Some(topic) = options["will"].as_str() {
                command.args(["--will-topic", topic, "--will-payload", "died", "--will-qos", "1"]);
            }
        }
        command
    }

    fn command(&self, tool: Tool, action: &str, tls: bool, options: &Value) -> Command {
        let (port, ca) = (self.port(tls).to_string(), self.site.path("ca.pem"));
        let mut options = options.clone();
        if tls {
            options["ca"] = json!(ca);
        }
        match tool {
            Tool::Mosquitto => {
                let mut command = Command::new(if action == "publish" { "mosquitto_pub" } else { "mosquitto_sub" });
                let version = if options["version"] == 5 { "mqttv5" } else { "mqttv311" };
                command.args(["-V", version, "-h", "localhost", "-p", &port, "-t", text(&options, "topic")]);
                command.args(["-q", &options["qos"].to_string()]);
                if tls {
                    command.arg("--cafile").arg(ca);
                }
                if let Some(id) = options["id"].as_str() {
                    command.args(["-i", id]);
                }
                command
            }
            Tool::Paho => {
                let interpreter = checkout().join(".venv/bin/python");
                assert!(interpreter.exists(), "{} is missing: `make prepare` installs it", interpreter.display());
                let mut command = Command::new(interpreter);
                command.arg(checkout().join("testing/mqtt/client_paho.py"));
                command.args([action, "localhost", &port, &options.to_string()]);
                command
            }
            Tool::MqttJs => {
                let folder = checkout().join("testing/mqtt/js");
                assert!(folder.join("node_modules").exists(), "MQTT.js is missing: `make prepare` installs it");
                let scheme = if tls { "mqtts" } else { "mqtt" };
                let mut command = Command::new("node");
                command.arg(folder.join("client.js"));
                command.args([action, &format!("{scheme}://localhost:{port}"), &options.to_string()]);
                command
            }
        }
    }

    #[track_caller]
    fn publish(&self, tool: Tool, tls: bool, options: &Value) {
        let output = self.publisher(tool, tls, options).output().unwrap_or_else(|e| panic!("{tool:?}: {e}"));
        assert!(output.status.success(), "{tool:?} {options}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn text<'a>(options: &'a Value, key: &str) -> &'a str {
    options[key].as_str().expect("a text")
}

struct Subscriber {
    what: String,
    child: Child,
}

impl Subscriber {
    fn start(broker: &Broker, tool: Tool, tls: bool, options: &Value) -> Self {
        let mut command = broker.subscriber(tool, tls, options);
        let child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
        Self {
            what: format!("{tool:?} {options}"),
            child: child.unwrap_or_else(|e| panic!("{tool:?}: {e}; `make prepare` installs it")),
        }
    }

    /// The lines that it printed until its end.
    #[track_caller]
    fn lines(&mut self) -> Vec<String> {
        let output = self.child.stdout.take().expect("its output");
        let lines = BufReader::new(output).lines().map(|line| line.expect("text")).collect();
        let status = self.child.wait().expect("its end");
        assert!(status.success(), "{}: {status} after {lines:?}", self.what);
        lines
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Each client publishes with each QoS in each version, and each client receives all of it.
fn each_with_each(tls: bool) {
    let broker = Broker::start();
    let everybody = || TOOLS.iter().flat_map(|&tool| VERSIONS.map(|version| (tool, version)));
    let mut wanted = Vec::new();
    for (tool, version) in everybody() {
        for qos in 0..3 {
            wanted.push(format!("{qos} 0 site/a/{qos} {tool:?} {version} {qos}"));
        }
    }
    let listen = json!({"topic": "site/+/#", "qos": 2, "count": wanted.len()});
    let mut subscribers: Vec<Subscriber> = everybody()
        .map(|(tool, version)| {
            let mut options = listen.clone();
            options["version"] = json!(version);
            Subscriber::start(&broker, tool, tls, &options)
        })
        .collect();
    wait_until("all subscribe", || broker.metric("subscriptions") == subscribers.len() as f64);
    for (tool, version) in everybody() {
        for qos in 0..3 {
            let payload = format!("{tool:?} {version} {qos}");
            let topic = format!("site/a/{qos}");
            let options = json!({"topic": topic, "qos": qos, "version": version, "payload": payload, "retain": false});
            broker.publish(tool, tls, &options);
        }
    }
    wanted.sort();
    for subscriber in &mut subscribers {
        let mut heard = subscriber.lines();
        heard.sort();
        assert_eq!(heard, wanted, "{}", subscriber.what);
    }
    assert_eq!(broker.metric("protocol_errors_total"), 0.0, "{}", broker.server.log());
}

#[test]
fn each_with_each_over_tcp() {
    each_with_each(false);
}

#[test]
fn each_with_each_over_tls() {
    each_with_each(true);
}

#[test]
fn each_client_retains_and_removes_a_message() {
    let broker = Broker::start();
    for (publisher, subscriber) in TOOLS.iter().zip(TOOLS.iter().cycle().skip(1)) {
        for version in VERSIONS {
            let topic = format!("kept/{publisher:?}/{version}");
            let keep = |payload: &str| json!({"topic": topic, "qos": 1, "version": version, "payload": payload, "retain": true});
            broker.publish(*publisher, false, &keep("kept"));
            let listen = json!({"topic": "kept/#", "qos": 1, "version": version, "count": 1});
            let heard = Subscriber::start(&broker, *subscriber, false, &listen).lines();
            assert_eq!(heard, [format!("1 1 {topic} kept")], "{publisher:?} to {subscriber:?}");
            // Otherwise it would be the next round's first message.
            let nothing = keep("");
            if *publisher == Tool::Mosquitto {
                let mut command = broker.command(*publisher, "publish", false, &nothing);
                assert!(command.args(["-r", "-n"]).status().expect("mosquitto_pub").success());
            } else {
                broker.publish(*publisher, false, &nothing);
            }
        }
    }
}

#[test]
fn messages_are_queued_for_each_disconnected_client() {
    let broker = Broker::start();
    for tool in TOOLS {
        for version in VERSIONS {
            let topic = format!("waiting/{tool:?}/{version}");
            let id = format!("{tool:?}{version}");
            let listen = json!({"topic": topic, "qos": 1, "version": version, "count": 1, "id": id, "kept": true});
            let message =
                |payload: &str| json!({"topic": topic, "qos": 2, "version": 5, "payload": payload, "retain": false});
            let mut first = Subscriber::start(&broker, tool, false, &listen);
            wait_until("it subscribes", || {
                broker.metric("connections") == 1.0 && broker.metric("subscriptions") >= 1.0
            });
            broker.publish(Tool::Mosquitto, false, &message("while here"));
            assert_eq!(first.lines(), [format!("1 0 {topic} while here")]);
            wait_until("it left", || broker.metric("connections") == 0.0);
            broker.publish(Tool::Mosquitto, false, &message("while away"));
            let heard = Subscriber::start(&broker, tool, false, &listen).lines();
            assert_eq!(heard, [format!("1 0 {topic} while away")], "{tool:?} {version}");
            wait_until("it left", || broker.metric("connections") == 0.0);
        }
    }
}

#[test]
fn the_will_of_each_killed_client_is_published() {
    let broker = Broker::start();
    let listen = json!({"topic": "wills/#", "qos": 1, "version": 5, "count": TOOLS.len() * VERSIONS.len()});
    let mut watcher = Subscriber::start(&broker, Tool::Mosquitto, false, &listen);
    wait_until("the watcher subscribes", || broker.metric("subscriptions") == 1.0);
    let mut wanted = Vec::new();
    for tool in TOOLS {
        for version in VERSIONS {
            let will = format!("wills/{tool:?}/{version}");
            wanted.push(format!("1 0 {will} died"));
            let options = json!({"topic": "nothing", "qos": 0, "version": version, "count": 1, "will": will});
            let dying = Subscriber::start(&broker, tool, false, &options);
            wait_until("it subscribes", || broker.metric("subscriptions") == 2.0);
            drop(dying);
            // The watcher ends with the last client.
            wait_until("its subscription is gone", || broker.metric("subscriptions") <= 1.0);
        }
    }
    let mut heard = watcher.lines();
    heard.sort();
    wanted.sort();
    assert_eq!(heard, wanted);
}
