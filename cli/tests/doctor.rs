//! `wholegrain doctor` on installations that are made ill, one illness each.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use wholegrain_testkit::{free_port, wait_until};

struct Site(tempfile::TempDir);

impl Site {
    /// A fresh installation on ports that were free a moment ago.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let free = || free_port().to_string();
        let site = Self(dir);
        let (mqtt, http) = (free(), free());
        let made = site.run(&["init", "var", "--agent", "n1", "--mqtt-port", &mqtt, "--http-port", &http]);
        assert!(made.status.success(), "{made:?}");
        site
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join("var").join(file)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain"));
        command.args(arguments).current_dir(self.0.path()).env("HOME", self.0.path()).env_remove("WHOLEGRAIN_CLIENT");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Exit code, and the findings as `level check text advice`.
    fn doctor(&self, arguments: &[&str]) -> (i32, Vec<String>) {
        let output = self.run(&[&["doctor", "--json"], arguments].concat());
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)));
        let field = |finding: &serde_json::Value, name: &str| finding[name].as_str().unwrap_or_default().to_owned();
        let lines = report["findings"].as_array().unwrap().iter().map(|finding| {
            let [level, check, text, advice] = ["level", "check", "text", "advice"].map(|name| field(finding, name));
            assert_eq!(level == "ok", advice.is_empty(), "advice exactly for problems: {finding}");
            format!("{level} {check} {text} {advice}")
        });
        (output.status.code().unwrap(), lines.collect())
    }

    fn change(&self, file: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(file)).unwrap();
        assert!(text.contains(from), "{from:?} is not in {text}");
        fs::write(self.path(file), text.replace(from, to)).unwrap();
    }

    /// Its server, until the value is dropped.
    fn serve(&self) -> Running {
        let mut command = self.command(&["server", "--config", "var/server/server.toml"]);
        let server = Running(command.stderr(Stdio::null()).spawn().unwrap());
        wait_until("the server answers", || matches!(self.run(&["sensors"]).status.code(), Some(0 | 1)));
        server
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const SERVER: [&str; 2] = ["--config", "var/server/server.toml"];
const AGENT: [&str; 2] = ["--agent", "var/agent/agent.toml"];

#[track_caller]
fn found(lines: &[String], begin: &str, part: &str) {
    assert!(
        lines.iter().any(|line| line.starts_with(begin) && line.contains(part)),
        "no {begin:?} {part:?} in {lines:#?}"
    );
}

/// Does something to a fresh installation and wants one finding of it, and the exit code that goes with its level.
#[track_caller]
fn ill(arguments: &[&str], make: impl FnOnce(&Site), begin: &str, part: &str) {
    let site = Site::new();
    make(&site);
    let (code, lines) = site.doctor(arguments);
    found(&lines, begin, part);
    if begin.starts_with("fail") {
        assert_eq!(code, 4, "{lines:#?}");
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Makes a certificate with OpenSSL in place of `cert` and `key`, signed by the installation's authority.
fn signed(site: &Site, cert: &str, key: &str, subject: &str, extension: &str, days: &[&str]) {
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).current_dir(site.path("")).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    fs::write(site.path("ext"), extension).unwrap();
    let request = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj"];
    openssl(&[&request[..], &[subject, "-keyout", key, "-out", "csr"]].concat());
    let sign =
        ["x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext"];
    openssl(&[&sign[..], days, &["-out", cert]].concat());
    mode(&site.path(key), 0o600);
}

#[test]
fn a_healthy_server_and_agent() {
    let site = Site::new();
    let (code, lines) = site.doctor(&SERVER);
    assert_eq!(code, 0, "{lines:#?}");
    found(&lines, "warn connection", "no server runs here");
    let _server = site.serve();
    let (code, lines) = site.doctor(&SERVER);
    assert_eq!(code, 0, "{lines:#?}");
    for (begin, part) in [
        ("ok configuration", "server.toml is valid"),
        ("ok certificate", "server.pem is valid for another 182"),
        ("ok certificate", "is signed by"),
        ("ok permissions", "server.key is private"),
        ("ok permissions", "tokens_file"),
        ("ok disk", "a sync in"),
        ("ok data", "a server runs on it, process"),
        ("ok port", "is used by the running server"),
        ("ok clock", "at most two seconds from the server's"),
        ("ok connection", "responds and accepts the token"),
    ] {
        found(&lines, begin, part);
    }
    let (_, lines) = site.doctor(&AGENT);
    assert!(!lines.iter().any(|line| line.starts_with("fail")), "{lines:#?}");
    found(&lines, "ok connection", "accepts n1");
    found(&lines, "warn agent", "no response at");
    let plain = site.run(&["doctor"]);
    let said = String::from_utf8(plain.stdout).unwrap();
    assert!(said.contains("ok    certificate") && said.contains(" -> ") && !said.contains('\x1b'), "{said}");
    assert_eq!(Site::new().run(&["doctor", "--config", "none.toml"]).status.code(), Some(4));
}

#[test]
fn nothing_to_look_at_is_a_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain"));
    let output = command.arg("doctor").current_dir(dir.path()).output().unwrap();
    if !Path::new("/etc/wholegrain").exists() {
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn configurations() {
    let line = ": unknown key `dat`; did you mean `data`?";
    ill(&SERVER, |site| site.change("server/server.toml", "data = \".\"", "dat = 1"), "fail configuration", line);
    let open = |site: &Site| {
        site.change("server/server.toml", "[mqtt]\n", "[mqtt]\nlisten = \"[::]:0\"\nanonymous = true\n");
    };
    ill(&SERVER, open, "warn configuration", "without TLS");
    ill(
        &AGENT,
        |site| fs::write(site.path("agent/agent.toml"), "nam = [").unwrap(),
        "fail configuration",
        "agent.toml:1",
    );
    let no_mqtt = |site: &Site| fs::write(site.path("agent/agent.toml"), "name = \"n1\"\n").unwrap();
    ill(&AGENT, no_mqtt, "warn connection", "no [mqtt]");
}

#[test]
fn certificates() {
    let alien = |site: &Site| {
        for file in ["server.pem", "server.key"] {
            fs::copy(Site::new().path("server").join(file), site.path("server").join(file)).unwrap();
        }
    };
    ill(&SERVER, alien, "fail certificate", "cannot be used together");
    let other_authority = |site: &Site| {
        fs::copy(Site::new().path("ca.pem"), site.path("ca.pem")).unwrap();
    };
    ill(&SERVER, other_authority, "fail certificate", "is not signed by");
    ill(&AGENT, other_authority, "fail certificate", "is not signed by");
    ill(&SERVER, |site| fs::remove_file(site.path("server/server.pem")).unwrap(), "fail certificate", "server.pem");
    let server = |days: &'static [&'static str], names: &'static str| {
        move |site: &Site| signed(site, "server/server.pem", "server/server.key", "/CN=x", names, days)
    };
    let local = "subjectAltName=DNS:localhost";
    ill(&SERVER, server(&["-days", "9"], local), "warn certificate", "expires in ");
    ill(
        &SERVER,
        server(&["-days", "99"], local),
        "warn certificate",
        "is valid for localhost, not for the name of this host",
    );
    let expired = |site: &Site| {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (rcgen::date_time_ymd(2020, 1, 1), rcgen::date_time_ymd(2021, 1, 1));
        let key = rcgen::KeyPair::generate().unwrap();
        fs::write(site.path("server/server.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(site.path("server/server.key"), key.serialize_pem()).unwrap();
    };
    ill(&SERVER, expired, "fail certificate", "has expired");
    let agent = |site: &Site| {
        signed(site, "agent/agent.pem", "agent/agent.key", "/CN=n2", "extendedKeyUsage=clientAuth", &["-days", "99"])
    };
    ill(&AGENT, agent, "fail certificate", "is for \"n2\", but the agent's name is \"n1\"");
}

#[test]
fn permissions() {
    ill(
        &SERVER,
        |site| mode(&site.path("server/server.key"), 0o644),
        "fail permissions",
        "everybody on this machine can read or change it",
    );
    ill(&SERVER, |site| mode(&site.path("server/tokens"), 0o604), "fail permissions", "chmod o=");
    ill(&SERVER, |site| mode(&site.path("server/server.key"), 0o660), "warn permissions", "its group can change it");
    ill(&SERVER, |site| fs::remove_file(site.path("server/tokens")).unwrap(), "fail permissions", "No such file");
    ill(&AGENT, |site| mode(&site.path("agent/agent.key"), 0o604), "fail permissions", "agent.key");
}

#[test]
fn disks_and_data() {
    let away = |site: &Site| site.change("server/server.toml", "data = \".\"", "data = \"away\"");
    ill(&SERVER, away, "warn disk", "does not exist yet");
    // A kernel file system takes no files, whoever asks.
    let no_disk = |site: &Site| site.change("server/server.toml", "data = \".\"", "data = \"/proc\"");
    ill(&SERVER, no_disk, "fail disk", "cannot write and sync");
    ill(&SERVER, no_disk, "fail disk", "/proc has 0 MiB free");
}

#[test]
fn ports_and_the_way_to_the_server() {
    let site = Site::new();
    let text = fs::read_to_string(site.path("server/server.toml")).unwrap();
    let address =
        text.lines().find_map(|line| line.strip_prefix("tls_listen = ")).unwrap().trim_matches('"').to_owned();
    let taken = TcpListener::bind(&address).unwrap();
    let (code, lines) = site.doctor(&SERVER);
    found(&lines, "fail port", "taken by another program");
    assert_eq!(code, 4);
    drop(taken);
    let (_, lines) = site.doctor(&AGENT);
    found(&lines, "fail connection", "mqtts://localhost");

    let server = site.serve();
    let token = fs::read_to_string(site.path("token")).unwrap();
    fs::write(site.path("token"), "another-token-of-the-right-length-0123456789\n").unwrap();
    found(&site.doctor(&SERVER).1, "fail connection", "wholegrain auth token create");
    fs::write(site.path("token"), token).unwrap();
    site.change("server/server.toml", &address, "localhost:0");
    found(&site.doctor(&SERVER).1, "warn port", "is free, though the server runs");
    drop(server);
    site.change("server/server.toml", "localhost:0", "192.0.2.1:8883");
    found(&site.doctor(&SERVER).1, "fail port", "cannot be listened on");
    fs::remove_file(site.path("client.toml")).unwrap();
    found(&site.doctor(&SERVER).1, "warn connection", "no client.toml");
}

#[test]
fn limits() {
    let site = Site::new();
    let script = format!(
        "ulimit -Hn 1100; ulimit -n 1100; exec '{}' doctor --json --config var/server/server.toml",
        env!("CARGO_BIN_EXE_wholegrain")
    );
    let output = Command::new("sh").args(["-c", &script]).current_dir(site.0.path()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("1100 files may be open") && said.contains("LimitNOFILE"), "{said}");
}
