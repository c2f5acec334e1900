//! Logins: sessions that are reused, expire, are all in use, are refused, and end with the source.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use wholegrain_testkit::wait_until;

use wholegrain_source_testkit::SampledSource;

use super::configure_in;
use super::hostile::config;
use super::service::{ServiceReply, ServiceRequest, TestService, temperature};

const GROUP: &str = "b/chassis/1/thermal";
const CPU: &str = "b/chassis/1/temperature/CPU";
const SESSIONS: &str = "/redfish/v1/SessionService/Sessions";

/// Writes a file of credentials.
pub fn credentials(folder: &Path, text: &str) {
    let credentials = folder.join("credentials");
    std::fs::create_dir_all(&credentials).unwrap();
    std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(credentials.join("bmc"), text).unwrap();
    std::fs::set_permissions(credentials.join("bmc"), std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// The sessions of a service that has room for some.
#[derive(Default)]
pub struct TestSessions {
    open: Mutex<BTreeSet<String>>,
    logins: AtomicUsize,
    /// The most sessions at a time that there were.
    most: AtomicUsize,
}

impl TestSessions {
    /// Makes a service ask for sessions, of which it has at most `limit`.
    pub fn guard(service: &TestService, limit: usize, refusal: u16) -> Arc<Self> {
        let sessions = Arc::<Self>::default();
        let theirs = sessions.clone();
        service.hook(move |request| theirs.answer(request, limit, refusal));
        sessions
    }

    pub fn answer(&self, request: &ServiceRequest, limit: usize, refusal: u16) -> Option<ServiceReply> {
        if request.path.trim_end_matches('/') == "/redfish/v1" {
            return None;
        }
        let mut open = self.open.lock().unwrap();
        if request.method == "POST" && request.path == SESSIONS {
            let number = self.logins.fetch_add(1, Ordering::Relaxed) + 1;
            let body: Value = serde_json::from_str(&request.body).unwrap();
            if body != json!({ "UserName": "monitor", "Password": "pass-word" }) {
                return Some(ServiceReply::json(401, &json!({})));
            }
            if open.len() == limit {
                let error = json!({ "error": { "code": "Base.1.8.SessionLimitExceeded" } });
                return Some(ServiceReply::json(refusal, &error));
            }
            let token = format!("token-{number}");
            open.insert(token.clone());
            self.most.fetch_max(open.len(), Ordering::Relaxed);
            let headers = format!("X-Auth-Token: {token}\r\nLocation: {SESSIONS}/{token}\r\n");
            return Some(ServiceReply::Page(201, headers, b"{}".to_vec()));
        }
        let token = request.headers.get("x-auth-token");
        if !token.is_some_and(|token| open.contains(token)) {
            return Some(ServiceReply::json(401, &json!({})));
        }
        if request.method == "DELETE" {
            open.remove(request.path.rsplit('/').next().unwrap());
            return Some(ServiceReply::Page(204, String::new(), Vec::new()));
        }
        None
    }

    fn logins(&self) -> usize {
        self.logins.load(Ordering::Relaxed)
    }

    fn expire(&self) {
        self.open.lock().unwrap().clear();
    }

    fn count(&self) -> usize {
        self.open.lock().unwrap().len()
    }
}

/// A running source with these credentials.
pub fn running(folder: &Path, service: &TestService, text: &str, keys: &str) -> SampledSource {
    credentials(folder, text);
    let text = config(service.port, &format!("credentials = \"bmc\"\ninsecure = true\n{keys}"));
    SampledSource::of(configure_in(folder, &text).unwrap_or_else(|error| panic!("{error}")))
}

const RIGHT: &str = "user = \"monitor\"\npassword = \"pass-word\"\n";

#[test]
fn a_session_is_reused_renewed_and_deleted() {
    let (folder, service) = (tempfile::tempdir().unwrap(), TestService::new());
    let sessions = TestSessions::guard(&service, 1, 503);
    let mut running = running(folder.path(), &service, RIGHT, "");
    for _ in 0..5 {
        running.answer(GROUP, |_| true);
    }
    assert_eq!((sessions.logins(), sessions.count()), (1, 1));
    sessions.expire();
    service.put("/redfish/v1/Chassis/1/Thermal", temperature(json!(44)));
    running.answer(GROUP, |values| values[CPU] == Some(44.0));
    assert_eq!(sessions.logins(), 2, "opened again once");
    assert!(running.read("redfish").1["redfish/sessions"] == Some(1.0));
    drop(running);
    wait_until("the session is deleted", || sessions.count() == 0);
    assert_eq!(sessions.most.load(Ordering::Relaxed), 1);
    let passwords = service.requests().iter().filter(|request| request.headers.contains_key("authorization")).count();
    assert_eq!(passwords, 0, "with a session no request has the password");
}

#[test]
fn wrong_credentials_are_sent_once_in_minutes() {
    for (keys, is_login) in [("", true), ("authentication = \"basic\"", false)] {
        let (folder, service) = (tempfile::tempdir().unwrap(), TestService::new());
        let _sessions = TestSessions::guard(&service, 4, 503);
        let mut running = running(folder.path(), &service, "user = \"monitor\"\npassword = \"wrong-word\"\n", keys);
        running.wait_for_note("refuses the credentials");
        // Meanwhile each of the five subsystems was due some hundred times.
        let begin = std::time::Instant::now();
        wait_until("some time", || {
            running.discover();
            begin.elapsed() > std::time::Duration::from_secs(4)
        });
        let attempts = |request: &ServiceRequest| {
            request.method == "POST"
                || request.headers.get("authorization").is_some_and(|text| text.starts_with("Basic "))
        };
        let count = service.requests().iter().filter(|request| attempts(request)).count();
        assert_eq!(count, 1, "{is_login}");
        assert!(running.notes.iter().all(|note| !note.contains("wrong-word")), "{:?}", running.notes);
    }
}

#[test]
fn a_service_that_refuses_every_token_gets_one_more_login() {
    let (folder, service) = (tempfile::tempdir().unwrap(), TestService::new());
    let sessions = TestSessions::guard(&service, 4, 503);
    let theirs = sessions.clone();
    service.hook(move |request| match request.path.as_str() {
        "/redfish/v1/Chassis/1/Thermal" => Some(ServiceReply::json(401, &json!({}))),
        _ => theirs.answer(request, 4, 503),
    });
    let mut running = running(folder.path(), &service, RIGHT, "");
    running.wait_for_note("refuses the credentials");
    assert_eq!(sessions.logins(), 2);
    wait_until("no session is left", || sessions.count() <= 1);
}

#[test]
fn a_service_without_a_free_session_is_asked_seldom() {
    for refusal in [503, 400] {
        let (folder, service) = (tempfile::tempdir().unwrap(), TestService::new());
        let sessions = TestSessions::guard(&service, 1, refusal);
        sessions.open.lock().unwrap().insert("of-another".to_owned());
        let mut running = running(folder.path(), &service, RIGHT, "resources_max = 50");
        running.wait_for_note("all its sessions are in use");
        let polls = running.read("redfish").1["redfish/polls"];
        wait_until("many further polls", || {
            running.read("redfish").1["redfish/polls"] > polls.map(|count| count + 200.0)
        });
        assert!(sessions.logins() <= 3, "{}", sessions.logins());
        // The other one ends its session: this source gets it after its pause.
        sessions.expire();
        assert_eq!(running.answer(GROUP, |_| true)[CPU], Some(41.0));
        assert_eq!(sessions.most.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn basic_authentication_opens_no_session() {
    let (folder, service) = (tempfile::tempdir().unwrap(), TestService::new());
    service.hook(|request| {
        let is_root = request.path == "/redfish/v1/";
        let is_right =
            request.headers.get("authorization").map(String::as_str) == Some("Basic bW9uaXRvcjpwYXNzLXdvcmQ=");
        (!is_root && !is_right).then(|| ServiceReply::json(401, &json!({})))
    });
    let mut running = running(folder.path(), &service, RIGHT, "authentication = \"basic\"");
    assert_eq!(running.answer(GROUP, |_| true)[CPU], Some(41.0));
    assert_eq!(service.count("POST", SESSIONS), 0);
}
