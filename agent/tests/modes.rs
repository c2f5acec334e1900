//! The send modes, and the kinds of connections, with a Mosquitto.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use wholegrain_testkit::wait_until;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use support::arrived::Arrived;
use support::{Agent, Broker};

const S: i64 = 1_000_000_000;

fn config(url: &str, more: &str) -> String {
    format!(
        "name = \"n1\"\n[defaults]\ninterval = \"20ms\"\n[sources.tester]\nsensors = 5\n[mqtt]\nurl = \"{url}\"\n{more}"
    )
}

/// Batches arrive only at multiples of `period` plus `phase`: none before the first such instant after its last sample, and none after the next.
fn check_window(more: &str, period: i64, phase: i64) {
    let (broker, dir) = (Broker::start(), tempfile::tempdir().unwrap());
    let mut listener = broker.listener();
    let agent = Agent::start(dir.path(), &config(&format!("mqtt://127.0.0.1:{}", broker.port), more));
    let instant_after = |time: i64| time - (time - phase).rem_euclid(period) + period;
    let (boot, mut arrived) = (agent.handles.identity.boot_ns, Arrived::default());
    let windows = |arrived: &Arrived| {
        let last = |batch: &wholegrain_model::Batch| *batch.times.last().unwrap();
        let mut windows: Vec<i64> = arrived.batches.iter().map(|(_, _, batch)| instant_after(last(batch))).collect();
        windows.sort_unstable();
        windows.dedup();
        windows.len()
    };
    arrived.listen(&mut listener, "batches of four windows", |arrived| windows(arrived) >= 4);
    for ((_, seq, batch), at) in arrived.batches.iter().zip(&arrived.at) {
        let opens = instant_after(*batch.times.last().unwrap());
        assert!(*at >= opens, "batch {seq} came {} ms before its instant", (opens - at) / 1_000_000);
    }
    let last = arrived.batches.iter().map(|(_, seq, _)| *seq).max().unwrap();
    arrived.listen(&mut listener, "all numbers", |arrived| arrived.has_all(boot, last));
    agent.stop();
}

#[test]
fn staggered_batches_come_at_the_instant_of_the_agents_name() {
    // FNV-1a of "n1", by its definition: agents with the same settings send at different instants, each always at its own.
    let hash = b"n1"
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    check_window("send = \"staggered\"\nsend_interval = \"1s\"\n", S, (hash % S as u64) as i64);
}

#[test]
fn bursts_come_on_the_wall_clock() {
    check_window("send = \"burst\"\nbursts_per_minute = 40\nsend_interval = \"200ms\"\n", 3 * S / 2, 0);
}

/// `ca`, and `server` and `client` signed by it.
fn certificates(dir: &Path) {
    let write = |name: &str, text: String| fs::write(dir.join(name), text).unwrap();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, "authority");
    let key = KeyPair::generate().unwrap();
    write("ca.pem", authority.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(authority, key);
    for name in ["server", "client"] {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

fn tls_listener(dir: &Path) -> String {
    certificates(dir);
    let dir = dir.display();
    format!(
        "allow_anonymous true\ncafile {dir}/ca.pem\ncertfile {dir}/server.pem\nkeyfile {dir}/server.key\nrequire_certificate true"
    )
}

#[test]
fn tls_with_certificates_on_both_sides() {
    let broker = Broker::start_with(tls_listener);
    for version in ["3.1.1", "5"] {
        let dir = tempfile::tempdir().unwrap();
        let (url, files) = (format!("mqtts://localhost:{}", broker.second_port), broker.dir().display());
        let tls = format!(
            "version = \"{version}\"\nsend_interval = \"100ms\"\nca = \"{files}/ca.pem\"\n\
             cert = \"{files}/client.pem\"\nkey = \"{files}/client.key\"\n"
        );
        let mut listener = broker.listener();
        let agent = Agent::start(dir.path(), &config(&url, &tls));
        let (boot, mut arrived) = (agent.handles.identity.boot_ns, Arrived::default());
        arrived.listen(&mut listener, "ten batches", |arrived| arrived.has_all(boot, 10));
        assert_eq!(arrived.orphans, 0);
        agent.stop();
    }
    let dir = tempfile::tempdir().unwrap();
    let without = format!("ca = \"{}/ca.pem\"\n", broker.dir().display());
    let agent = Agent::start(dir.path(), &config(&format!("mqtts://localhost:{}", broker.second_port), &without));
    wait_until("a refusal", || agent.handles.status.link().last_error.is_some());
    assert_eq!(agent.handles.counters.acknowledged.load(Ordering::Relaxed), 0, "not without a certificate");
    agent.stop();
}

fn password_listener(dir: &Path) -> String {
    fs::write(dir.join("users"), "n1:s3cret\n").unwrap();
    let hashed = Command::new("mosquitto_passwd").arg("-U").arg(dir.join("users")).output().unwrap();
    assert!(hashed.status.success(), "{hashed:?}");
    format!("allow_anonymous false\npassword_file {}/users", dir.display())
}

#[test]
fn user_and_password() {
    let broker = Broker::start_with(password_listener);
    let url = format!("mqtt://127.0.0.1:{}", broker.second_port);
    for version in ["3.1.1", "5"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("password"), "wrong\n").unwrap();
        let text = config(
            &url,
            &format!(
                "version = \"{version}\"\nuser = \"n1\"\npassword_file = \"password\"\nsend_interval = \"100ms\"\n\
                 [api]\nsocket = \"agent.sock\"\n"
            ),
        );
        let mut listener = broker.listener();
        let agent = Agent::start(dir.path(), &text);
        wait_until("a refusal", || agent.handles.status.link().last_error.is_some_and(|why| why.contains("refused")));
        // A corrected password needs a reload, not a restart, and no earlier batch is lost.
        fs::write(dir.path().join("password"), "s3cret\n").unwrap();
        assert_eq!(agent.ask("POST", "/v1/reload").0, 200);
        let (boot, mut arrived) = (agent.handles.identity.boot_ns, Arrived::default());
        arrived.listen(&mut listener, "batches from the first on", |arrived| arrived.has_all(boot, 10));
        agent.stop();
    }
}
