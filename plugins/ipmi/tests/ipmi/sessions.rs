//! Sessions: the witness of ipmitool, suites, keys, levels, few sessions, restarts.

use std::process::Command;

use wholegrain_plugin_ipmi::suite::CipherSuite;
use wholegrain_testkit::wait_until;

use crate::sampled::{device, devices, right, source};
use crate::stand_in::{Model, PASSWORD, StandIn, USER};

/// What ipmitool prints for a command.
fn ipmitool(port: u16, suite: &str, arguments: &[&str]) -> (bool, String) {
    let port = port.to_string();
    let output = Command::new("ipmitool")
        .args(["-I", "lanplus", "-H", "127.0.0.1", "-p", &port, "-U", USER, "-P", PASSWORD, "-L", "user", "-C", suite])
        .args(arguments)
        .output()
        .expect("ipmitool runs; testing/prepare installs it");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn ipmitool_takes_the_stand_in_for_a_controller_with_both_suites() {
    let bmc = StandIn::start(Model::with_sensors(3));
    for suite in ["3", "17"] {
        let (is_good, text) = ipmitool(bmc.port, suite, &["-y", &hex(PASSWORD), "mc", "info"]);
        assert!(is_good && text.contains("IPMI Version              : 2.0"), "suite {suite}: {text}");
        let (is_good, text) = ipmitool(bmc.port, suite, &["sdr", "list"]);
        assert!(is_good && text.contains("T3               | 3 degrees C       | ok"), "suite {suite}: {text}");
    }
    // The plug-in and ipmitool derive the same keys, also from a key of the controller.
    let bmc = StandIn::start(Model { kg: Some(b"another-key".to_vec()), ..Model::with_sensors(1) });
    for suite in ["3", "17"] {
        let (is_good, text) = ipmitool(bmc.port, suite, &["-k", "another-key", "sdr", "list"]);
        assert!(is_good && text.contains("T1 "), "suite {suite}: {text}");
        let keys = format!("cipher_suites = [{suite}]");
        let text = format!(
            "[[plugins.ipmi.device]]\nhosts = [\"127.0.0.1:{}\"]\npath = \"d0\"\ncredentials = \"bmc\"\ninterval = \"200ms\"\n{keys}\n",
            bmc.port
        );
        let mut sampled = source(&text, &(right() + "kg = \"another-key\"\n"));
        assert_eq!(sampled.wait("d0/sensors")["d0/T1"], 1.0);
    }
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn each_suite_and_the_fallback_read_the_same() {
    for (suites, keys) in [
        (vec![CipherSuite::Sha1], ""),
        (vec![CipherSuite::Sha256], ""),
        (vec![CipherSuite::Sha1], "cipher_suites = [3]"),
        (vec![CipherSuite::Sha1, CipherSuite::Sha256], "cipher_suites = [17]"),
    ] {
        let bmc = StandIn::start(Model { suites, ..Model::with_sensors(2) });
        let mut sampled = device(&bmc, keys);
        let values = sampled.wait("d0/sensors");
        assert_eq!((values["d0/T1"], values["d0/T2"], values["d0/state/T1"]), (1.0, 2.0, 0.0), "{keys}");
        let power = sampled.wait("d0/power");
        assert_eq!(power["d0/dcmi/power"], 250.0);
    }
    let bmc = StandIn::start(Model { suites: vec![CipherSuite::Sha1], ..Model::with_sensors(1) });
    let mut sampled = device(&bmc, "cipher_suites = [17]");
    wait_until("the suite is named", || sampled.noted("none of the cipher suites") == 1);
    assert!(!sampled.has_group("d0/sensors"));
}

#[test]
fn a_kept_session_is_used_for_all_polls_and_closed_at_the_end() {
    let bmc = StandIn::start(Model::with_sensors(2));
    let mut sampled = device(&bmc, "session = \"keep\"");
    (0..5).for_each(|_| drop(sampled.wait("d0/sensors")));
    sampled.wait("d0/sel");
    assert_eq!(bmc.model().opens, 1);
    assert_eq!(bmc.model().open_sessions(), 1);
    drop(sampled);
    wait_until("the session is closed", || bmc.model().open_sessions() == 0);
    assert_eq!(bmc.model().closes, 1);
}

#[test]
fn a_session_for_each_poll_is_closed_after_it() {
    let bmc = StandIn::start(Model { sessions_max: 1, ..Model::with_sensors(2) });
    let mut sampled = device(&bmc, "session = \"close\"\ngroups = [\"sensors\"]");
    (0..5).for_each(|_| drop(sampled.wait("d0/sensors")));
    assert!(bmc.model().opens >= 5);
    assert_eq!(sampled.noted("in use"), 0, "each session is closed before the next one opens");
    drop(sampled);
    wait_until("no session is left", || bmc.model().open_sessions() == 0);
}

#[test]
fn a_controller_without_a_free_session_is_asked_seldom() {
    let busy = StandIn::start(Model { sessions_max: 0, ..Model::with_sensors(1) });
    let good = StandIn::start(Model::with_sensors(1));
    let mut sampled = devices(&[busy.port, good.port], "groups = [\"sensors\"]");
    (0..10).for_each(|_| drop(sampled.wait("d1/sensors")));
    // The first pause is 10 s.
    assert!(busy.model().opens <= 2, "{} requests for a session", busy.model().opens);
    assert_eq!(sampled.noted("all its sessions are in use"), 1);
}

#[test]
fn a_controller_that_starts_again_costs_no_value() {
    let bmc = StandIn::start(Model::with_sensors(2));
    let mut sampled = device(&bmc, "session = \"keep\"\ngroups = [\"sensors\"]");
    sampled.wait("d0/sensors");
    let walks = bmc.model().count(0x0a, 0x20);
    bmc.model().forget_sessions();
    wait_until("a new session", || bmc.model().opens == 2);
    sampled.wait("d0/sensors");
    assert_eq!(sampled.noted("no answer in time"), 0, "the last try of the request opens a session");
    assert!(bmc.model().count(0x0a, 0x20) > walks, "its repository may be another one");
}

#[test]
fn wrong_credentials_are_named_once_and_tried_seldom() {
    let (bmc, good) = (StandIn::start(Model::with_sensors(1)), StandIn::start(Model::with_sensors(1)));
    // A code that does not match can be damaged: it is asked for three times, which says nothing of the password. A status is believed at once.
    for (credentials, tries) in [
        (format!("user = \"{USER}\"\npassword = \"wrong-word\"\n"), 3),
        (format!("user = \"nobody\"\npassword = \"{PASSWORD}\"\n"), 1),
        (right() + "kg = \"wrong-key\"\n", 1),
    ] {
        let handshakes = bmc.model().handshakes;
        let text = format!(
            "[plugins.ipmi]\ninterval = \"200ms\"\n[[plugins.ipmi.device]]\nhosts = [\"127.0.0.1:{}\"]\npath = \"d0\"\ncredentials = \"bmc\"\n",
            bmc.port
        );
        let mut sampled = source(&text, &credentials);
        wait_until("the refusal is named", || sampled.noted("refuses the credentials") == 1);
        // Meanwhile another controller is polled ten times, which takes longer than ten intervals.
        let mut other = device(&good, "groups = [\"sensors\"]");
        (0..10).for_each(|_| drop(other.wait("d0/sensors")));
        assert_eq!(bmc.model().handshakes, handshakes + tries, "few tries, so that no account is locked");
        assert_eq!(sampled.noted("refuses the credentials"), 1);
        assert!(!sampled.notes.concat().contains("wrong-"));
    }
    assert_eq!(bmc.model().open_sessions(), 1, "the controller with another key believes in its session");
}

/// A controller with one sensor that sends what `change` makes of each answer before a session is open.
fn opening(mut change: impl FnMut(Vec<u8>) -> Option<Vec<u8>> + Send + 'static) -> StandIn {
    StandIn::with(
        Model::with_sensors(1),
        |_, _| None,
        move |socket, to, bytes, is_session| {
            let bytes = if is_session { Some(bytes) } else { change(bytes) };
            bytes.map(|bytes| socket.send_to(&bytes, to));
        },
    )
}

#[test]
fn damaged_codes_are_no_wrong_credentials() {
    for kind in [0x13, 0x15] {
        let mut left = 2;
        let bmc = opening(move |mut bytes| {
            if bytes[5] == kind && left > 0 {
                left -= 1;
                *bytes.last_mut().unwrap() ^= 1;
            }
            Some(bytes)
        });
        let mut sampled = device(&bmc, "groups = [\"sensors\"]");
        assert_eq!(sampled.wait("d0/sensors")["d0/T1"], 1.0);
        assert_eq!(sampled.noted("credentials"), 0, "{:?}", sampled.notes);
    }
}

#[test]
fn an_answer_after_the_repeated_request_is_no_sign_of_wrong_credentials() {
    let mut late = None;
    // The first RAKP 2 comes when the controller has already made another random number.
    let bmc = opening(move |bytes| if bytes[5] == 0x13 { late.replace(bytes) } else { Some(bytes) });
    let mut sampled = device(&bmc, "groups = [\"sensors\"]");
    wait_until("it is named", || sampled.noted("it answers too late to open a session; see `timeout`") == 1);
    assert_eq!(sampled.noted("credentials"), 0, "{:?}", sampled.notes);
}

#[test]
fn a_level_is_set_and_one_too_high_is_named() {
    let bmc = StandIn::start(Model { level_max: 3, ..Model::with_sensors(1) });
    let mut sampled = device(&bmc, "privilege = \"operator\"");
    sampled.wait("d0/sensors");
    assert_eq!(bmc.model().count(0x06, 0x3b), 1);
    let mut sampled = device(&bmc, "privilege = \"administrator\"");
    wait_until("the level is named", || sampled.noted("may not have this privilege level") == 1);
}
