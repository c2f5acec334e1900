//! The source against Net-SNMP's snmpd, in all versions and with real users.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{Sampled, put_credentials, source};
use wholegrain_testkit::{free_port, wait_until};

/// A running snmpd on a port of 127.0.0.1.
struct Snmpd {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Snmpd {
    fn start(settings: &str) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let config = folder.path().join("snmpd.conf");
        let text = format!("rocommunity hidden-community 127.0.0.1\nsysLocation here\n{settings}\n");
        std::fs::write(&config, text).unwrap();
        let child = Self::run(folder.path(), &config, port);
        let daemon = Self { child, port, folder };
        wait_until("snmpd answers", || daemon.get("1.3.6.1.2.1.1.3.0").is_some());
        daemon
    }

    fn run(folder: &Path, config: &Path, port: u16) -> Child {
        let program = if Path::new("/usr/sbin/snmpd").exists() { "/usr/sbin/snmpd" } else { "snmpd" };
        Command::new(program)
            .args(["-f", "-Lf", "/dev/null", "-C", "-c"])
            .arg(config)
            .arg(format!("udp:127.0.0.1:{port}"))
            .env("SNMP_PERSISTENT_DIR", folder.join("state"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("snmpd runs; testing/prepare installs it")
    }

    /// What snmpget prints for an object.
    fn get(&self, oid: &str) -> Option<String> {
        let address = format!("127.0.0.1:{}", self.port);
        let arguments = ["-v2c", "-c", "hidden-community", "-r0", "-t1", "-Oqvtn", &address, oid];
        let output = Command::new("snmpget").args(arguments).output().expect("snmpget runs");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.success() && !text.contains("No Such")).then_some(text)
    }

    fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Snmpd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const OVERRIDES: &str = "override 1.3.6.1.4.1.99999.1.0 integer 4711\n\
    override 1.3.6.1.4.1.99999.2.0 counter 4294967295\n\
    override 1.3.6.1.4.1.99999.3.0 octet_str \"23.5\"\n\
    override 1.3.6.1.4.1.99999.4.0 octet_str \"no number\"\n";

fn device(port: u16, keys: &str) -> String {
    format!(
        "[plugins.snmp]\ninterval = \"200ms\"\ntimeout = \"500ms\"\n\
         [plugins.snmp.template.own]\npath = \"lab/agent\"\n\
         [[plugins.snmp.template.own.group]]\nname = \"own\"\nget = [\"sysUpTime\"]\n\
         object = [\n\
           {{ oid = \"1.3.6.1.4.1.99999.1.0\", name = \"power\", unit = \"W\", scale = 0.1 }},\n\
           {{ oid = \"1.3.6.1.4.1.99999.2.0\", name = \"energy\", unit = \"J\" }},\n\
           {{ oid = \"1.3.6.1.4.1.99999.3.0\", name = \"temperature\", unit = \"Cel\" }},\n\
           {{ oid = \"1.3.6.1.4.1.99999.4.0\", name = \"text\" }},\n\
           {{ oid = \"1.3.6.1.4.1.99999.5.0\", name = \"absent\" }},\n\
         ]\n\
         [[plugins.snmp.device]]\nhosts = [\"127.0.0.1:{port}\"]\ntemplate = \"own\"\n{keys}\n"
    )
}

#[track_caller]
fn check_own(sampled: &mut Sampled) {
    // In the first answer, the Counter32 is a gap: whether it wrapped before is not known.
    let mut values = BTreeMap::new();
    wait_until("a second answer", || {
        values = sampled.wait("lab/agent/own");
        values.contains_key("lab/agent/energy")
    });
    let expected: BTreeMap<&str, f64> =
        [("lab/agent/power", 4711.0), ("lab/agent/energy", 4_294_967_295.0), ("lab/agent/temperature", 23.5)].into();
    for (name, value) in &expected {
        assert_eq!(values.get(*name), Some(value), "{name} of {values:?}");
    }
    assert!(values.contains_key("lab/agent/sysUpTime"));
    assert_eq!(values.len(), 4, "what is absent or no number is no sensor: {values:?}");
}

#[test]
fn versions_1_and_2c() {
    let daemon = Snmpd::start(OVERRIDES);
    let folder: PathBuf = daemon.folder.path().into();
    put_credentials(&folder, "lab", "community = \"hidden-community\"");
    for version in ["1", "2c"] {
        let keys = format!("credentials = \"lab\"\nversion = \"{version}\"");
        let mut sampled = source(&device(daemon.port, &keys), &folder);
        check_own(&mut sampled);
        let power = sampled.sensor("lab/agent/power");
        assert_eq!((power.unit.as_str(), power.scale), ("W", 0.1));
        assert_eq!(sampled.sensor("lab/agent/energy").kind, wholegrain_model::Kind::Counter);
    }
}

#[test]
fn users_of_version_3_with_every_algorithm() {
    let algorithms = [
        ("md5", "MD5", "des", "DES"),
        ("sha1", "SHA", "aes128", "AES"),
        ("sha224", "SHA-224", "aes128", "AES"),
        ("sha256", "SHA-256", "aes192", "AES-192"),
        ("sha384", "SHA-384", "aes256", "AES-256"),
        ("sha512", "SHA-512", "des", "DES"),
        ("sha1", "SHA", "aes256", "AES-256"),
    ];
    let mut settings = OVERRIDES.to_owned();
    for (at, (_, auth, _, privacy)) in algorithms.iter().enumerate() {
        settings += &format!(
            "createUser user{at} {auth} \"hidden-auth-{at}\" {privacy} \"hidden-priv-{at}\"\nrouser user{at} priv\n"
        );
    }
    settings += "createUser plain\nrouser plain noauth\ncreateUser signed SHA \"hidden-auth-9\"\nrouser signed auth\n";
    let daemon = Snmpd::start(&settings);
    let folder: PathBuf = daemon.folder.path().into();
    for (at, (auth, _, privacy, _)) in algorithms.iter().enumerate() {
        let text = format!(
            "user = \"user{at}\"\nauth = \"{auth}\"\nauth_password = \"hidden-auth-{at}\"\n\
             privacy = \"{privacy}\"\nprivacy_password = \"hidden-priv-{at}\"\n"
        );
        put_credentials(&folder, &format!("user{at}"), &text);
        let mut sampled = source(&device(daemon.port, &format!("credentials = \"user{at}\"")), &folder);
        check_own(&mut sampled);
    }
    put_credentials(&folder, "plain", "user = \"plain\"");
    check_own(&mut source(&device(daemon.port, "credentials = \"plain\""), &folder));
    put_credentials(&folder, "signed", "user = \"signed\"\nauth = \"sha1\"\nauth_password = \"hidden-auth-9\"");
    check_own(&mut source(&device(daemon.port, "credentials = \"signed\""), &folder));
}

#[test]
fn wrong_credentials_are_named_once_and_tried_seldom() {
    let daemon = Snmpd::start("createUser right SHA \"hidden-auth-1\" AES \"hidden-priv-1\"\nrouser right priv\n");
    let folder: PathBuf = daemon.folder.path().into();
    let user = |name: &str, password: &str| {
        format!(
            "user = \"{name}\"\nauth = \"sha1\"\nauth_password = \"{password}\"\nprivacy = \"aes128\"\nprivacy_password = \"hidden-priv-1\"\n"
        )
    };
    put_credentials(&folder, "right", &user("right", "hidden-auth-1"));
    for (name, text) in [("password", user("right", "wrong-password")), ("user", user("nobody", "hidden-auth-1"))] {
        put_credentials(&folder, name, &text);
        let right = "[[plugins.snmp.device]]\nhosts = [\"127.0.0.1:{port}\"]\ntemplate = \"own\"\npath = \"lab/right\"\n\
                     credentials = \"right\"\n";
        let right = right.replace("{port}", &daemon.port.to_string());
        let mut sampled = source(&(device(daemon.port, &format!("credentials = \"{name}\"\n")) + &right), &folder);
        // While the device with the right credentials is polled ten times, the other one is tried once.
        wait_until("ten answers", || sampled.status("answers") >= 10);
        let tries = sampled.status("polls") - sampled.status("answers");
        assert!((1..=2).contains(&tries), "{tries} polls without an answer, one of which may be in flight");
        assert_eq!(sampled.status("failing"), 1);
        sampled.discover();
        let notes: Vec<&String> =
            sampled.notes.iter().filter(|note| note.contains("refuses the credentials")).collect();
        assert_eq!(notes.len(), 1, "named once: {notes:?}");
        assert!(!sampled.notes.concat().contains("wrong-password"));
        assert_eq!(sampled.wait("lab/right/own").len(), 1);
    }
}

#[test]
fn a_wrong_community_is_silence() {
    let daemon = Snmpd::start("");
    let folder: PathBuf = daemon.folder.path().into();
    let mut sampled = source(&device(daemon.port, "version = \"2c\""), &folder);
    wait_until("the silence is noted", || {
        sampled.discover();
        sampled.notes.iter().any(|note| note.contains("no answer in time"))
    });
    assert!(!sampled.has_group("lab/agent/own"));
}

#[test]
fn interfaces_have_the_names_and_counters_of_the_kernel() {
    let daemon = Snmpd::start("");
    let folder: PathBuf = daemon.folder.path().into();
    put_credentials(&folder, "lab", "community = \"hidden-community\"");
    let keys = "credentials = \"lab\"\npresets = [\"ports\", \"ports32\", \"host\", \"system\"]\n";
    let mut sampled = source(&device(daemon.port, keys), &folder);
    let received = || {
        let text = std::fs::read_to_string("/sys/class/net/lo/statistics/rx_bytes").unwrap();
        text.trim().parse::<f64>().unwrap()
    };
    let before = received();
    wait_until("snmpd reads its interfaces again", || {
        let value = sampled.wait("lab/agent/ports")["lab/agent/port/lo/ifHCInOctets"];
        assert!(value <= received(), "more than the kernel counts");
        value >= before
    });
    let ports = sampled.wait("lab/agent/ports");
    assert_eq!(ports["lab/agent/port/lo/ifOperStatus"], 1.0);
    // The first answer of a Counter32 is a gap: whether it wrapped before is not known.
    wait_until("a second answer", || {
        let narrow = sampled.wait("lab/agent/ports32").get("lab/agent/port32/lo/ifInOctets").copied();
        assert!(narrow.is_none_or(|narrow| narrow <= received()));
        narrow.is_some()
    });
    let host = sampled.wait("lab/agent/host");
    let memory = host["lab/agent/hrMemorySize"] * sampled.sensor("lab/agent/hrMemorySize").scale;
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total: f64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert_eq!(memory, total * 1024.0);
    let name = "lab/agent/storage/Physical_memory/hrStorageSize";
    assert_eq!(host[name] * sampled.sensor(name).scale, total * 1024.0);
    assert!(sampled.wait("lab/agent/system").contains_key("lab/agent/load/Load-1/laLoadFloat"));
    wait_until("snmpd counts context switches", || {
        sampled.wait("lab/agent/system").get("lab/agent/ssRawContexts").is_some_and(|count| *count > 0.0)
    });
}

#[test]
fn an_agent_that_starts_again_is_found_again() {
    let mut daemon = Snmpd::start(
        "createUser right SHA \"hidden-auth-1\" AES \"hidden-priv-1\"\nrouser right priv\noverride 1.3.6.1.4.1.99999.1.0 integer 1\n",
    );
    let folder: PathBuf = daemon.folder.path().into();
    let text = "user = \"right\"\nauth = \"sha1\"\nauth_password = \"hidden-auth-1\"\nprivacy = \"aes128\"\nprivacy_password = \"hidden-priv-1\"\n";
    put_credentials(&folder, "lab", text);
    let mut sampled = source(&device(daemon.port, "credentials = \"lab\"\nretries = 0"), &folder);
    assert_eq!(sampled.wait("lab/agent/own")["lab/agent/power"], 1.0);
    daemon.stop();
    wait_until("gaps while it is away", || {
        let (reading, values) = sampled.read("lab/agent/own");
        !reading.unchanged && values.is_empty() && reading.problem.is_some()
    });
    let config = folder.join("snmpd.conf");
    let changed = std::fs::read_to_string(&config).unwrap().replace("integer 1", "integer 2");
    std::fs::write(&config, changed).unwrap();
    daemon.child = Snmpd::run(&folder, &config, daemon.port);
    wait_until("the new value", || sampled.wait("lab/agent/own")["lab/agent/power"] == 2.0);
}
