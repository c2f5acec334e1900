//! Starts the real Mosquitto on a free loopback port, and makes certificates for it.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use wholegrain_testkit::free_port;

const PROGRAM: &str = "/usr/sbin/mosquitto";
const DEADLINE: Duration = Duration::from_secs(30);

pub struct Mosquitto {
    child: Child,
    pub port: u16,
    pub dir: tempfile::TempDir,
}

impl Mosquitto {
    /// `listener` are lines for the listener, in which `DIR` stands for the broker's directory.
    pub fn start(listener: &str) -> Self {
        assert!(
            fs::exists(PROGRAM).unwrap(),
            "{PROGRAM} is not there; `make test` installs it (Debian package mosquitto)"
        );
        let dir = tempfile::tempdir().unwrap();
        certificates(&dir);
        // Another program may take the port between its choice and the broker's start: then with another one.
        for _ in 0..5 {
            let port = free_port();
            let config = format!("user root\nlistener {port} 127.0.0.1\n{listener}\n")
                .replace("DIR", dir.path().to_str().unwrap());
            let file = dir.path().join("mosquitto.conf");
            fs::write(&file, config).unwrap();
            let log = fs::File::create(dir.path().join("log")).unwrap();
            let mut child =
                Command::new(PROGRAM).arg("-c").arg(&file).stdout(Stdio::null()).stderr(log).spawn().unwrap();
            let deadline = Instant::now() + DEADLINE;
            while child.try_wait().unwrap().is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    return Self { child, port, dir };
                }
                assert!(Instant::now() < deadline, "mosquitto does not listen after {DEADLINE:?}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        panic!("mosquitto does not start: {}", fs::read_to_string(dir.path().join("log")).unwrap());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `ca`, `server` and `client` signed by it, `other` signed by itself; and a file of users with `agent`, password `secret`.
fn certificates(dir: &tempfile::TempDir) {
    let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
    let authority = |name: &str| {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        write(&format!("{name}.pem"), params.self_signed(&key).unwrap().pem());
        Issuer::new(params, key)
    };
    let ca = authority("ca");
    let other = authority("other-ca");
    for (name, issuer) in [("server", &ca), ("client", &ca), ("stranger", &other)] {
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        write(&format!("{name}.pem"), params.signed_by(&key, issuer).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
    write("users", "agent:secret\n".into());
    let hashed = Command::new("mosquitto_passwd").arg("-U").arg(dir.path().join("users")).output().unwrap();
    assert!(hashed.status.success(), "{hashed:?}");
}
