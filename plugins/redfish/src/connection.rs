//! The connection to one service: requests, and the session that authorizes them (DSP0266, section 13.3).
//!
//! A session is used by all requests of a controller, as some have only one. It is opened with the first request, opened again once if the service does
//! not know it any more, and deleted at the end. Refused credentials are not sent again for minutes, so that no account is locked.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wholegrain_device_http::{AnswerHead, DeviceClient, DeviceRequest, JsonTree, TreeFault, json};
use wholegrain_devices::{DeviceProblem, SecretText};

use crate::links::check_link;

/// Where sessions are if the service root does not say it (DSP0266, section 13.3.4).
const SESSIONS_USUAL: &str = "/redfish/v1/SessionService/Sessions";
/// The longest token of a session, in bytes.
const TOKEN_BYTES_MAX: usize = 4096;
/// The first pause after refused credentials: 4 min, less than the pool's so that its first poll after its pause asks again. It doubles to 1 h.
const REFUSED_PAUSE_MIN: Duration = Duration::from_secs(240);
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(3600);
/// The first pause after a login for which the service had no session: 5 s. It doubles to 5 min.
const FULL_PAUSE_MIN: Duration = Duration::from_secs(5);
const FULL_PAUSE_MAX: Duration = Duration::from_secs(300);
/// How long the deletion of a session may take at the end: 2 s.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(2);

/// There is no resource of this name any more.
pub const MISSING: DeviceProblem = DeviceProblem::Refused("Redfish: the resource does not exist (404)");
/// The service has no room for another session.
pub const NO_SESSION: DeviceProblem = DeviceProblem::Refused("Redfish: all its sessions are in use");
const NO_SERVICE: DeviceProblem =
    DeviceProblem::Refused("Redfish: it opens no sessions; write authentication = \"basic\"");
const NO_PRIVILEGE: DeviceProblem = DeviceProblem::Refused("Redfish: the user may not read the resource (403)");

/// How requests are authorized.
pub enum LoginMode {
    /// By a session of this user.
    Session { user: SecretText, password: SecretText },
    /// By the client's own header: Basic, or a token.
    Header,
    /// Not at all: the service needs no credentials.
    Open,
}

/// What was requested of a service so far.
#[derive(Debug, Default)]
pub struct RequestCounts {
    pub requests: AtomicU64,
    pub logins: AtomicU64,
}

/// The connection to one service, shared by its polls and its stream of events.
pub struct RedfishConnection {
    client: DeviceClient,
    /// Scheme, host and port.
    base: String,
    mode: LoginMode,
    timeout: Duration,
    session: Mutex<LoginState>,
    pub counts: RequestCounts,
}

#[derive(Default)]
struct LoginState {
    token: Option<SecretText>,
    /// The session's own resource, to delete it.
    location: Option<String>,
    sessions: Option<String>,
    /// No login and no request with credentials before this time, because of the problem.
    blocked: Option<(Instant, DeviceProblem)>,
    pause: Duration,
    has_ended: bool,
}

impl LoginState {
    fn block(&mut self, problem: DeviceProblem, first: Duration, longest: Duration) -> DeviceProblem {
        self.pause = (self.pause * 2).clamp(first, longest);
        self.blocked = Some((Instant::now() + self.pause, problem));
        (self.token, self.location) = (None, None);
        problem
    }

    fn check(&self) -> Result<(), DeviceProblem> {
        if self.has_ended {
            return Err(DeviceProblem::Refused("the source has ended"));
        }
        match self.blocked {
            Some((until, problem)) if Instant::now() < until => Err(problem),
            _ => Ok(()),
        }
    }
}

impl RedfishConnection {
    /// A connection that opens with its first request.
    pub fn new(client: DeviceClient, base: String, mode: LoginMode, timeout: Duration) -> Self {
        Self { client, base, mode, timeout, session: Mutex::default(), counts: RequestCounts::default() }
    }

    /// Scheme, host and port, as links may begin with them.
    pub fn base(&self) -> &str {
        &self.base
    }

    fn state(&self) -> MutexGuard<'_, LoginState> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets where sessions are opened, from the service root.
    pub fn set_sessions(&self, path: String) {
        self.state().sessions = Some(path);
    }

    /// Gets the service root, which needs no credentials (DSP0266, section 13.2).
    pub fn get_root(&self, deadline: Instant, body: &mut Vec<u8>) -> Result<JsonTree, DeviceProblem> {
        let url = format!("{}/redfish/v1/", self.base);
        let request = DeviceRequest { authorized: false, ..DeviceRequest::get(&url, &HEADERS) };
        let head = self.call(&request, deadline, body)?;
        parse(&head, body)
    }

    /// Gets a resource, with the session or the credentials.
    pub fn get(&self, path: &str, deadline: Instant, body: &mut Vec<u8>) -> Result<JsonTree, DeviceProblem> {
        let head = self.authorized(deadline, |token| {
            let url = format!("{}{path}", self.base);
            let mut headers = HEADERS.to_vec();
            headers.extend(token.map(|token| ("X-Auth-Token", token.expose())));
            let request = self.request(&url, &headers);
            let head = self.call(&request, deadline, body)?;
            Ok((head.status, head))
        })?;
        parse(&head, body)
    }

    /// Opens a stream of events. A read of it fails after `idle` without a byte.
    pub fn open(
        &self,
        path: &str,
        last_id: Option<&str>,
        deadline: Instant,
        idle: Duration,
    ) -> Result<impl Read + Send + use<>, DeviceProblem> {
        let (head, reader) = self.authorized(deadline, |token| {
            let url = format!("{}{path}", self.base);
            let mut headers = vec![("Accept", "text/event-stream"), ("OData-Version", "4.0")];
            headers.extend(last_id.map(|id| ("Last-Event-ID", id)));
            headers.extend(token.map(|token| ("X-Auth-Token", token.expose())));
            self.counts.requests.fetch_add(1, Ordering::Relaxed);
            let (head, reader) = self.client.open(&self.request(&url, &headers), self.soon(deadline), idle)?;
            Ok((head.status, (head, reader)))
        })?;
        check_answer(head.status)?;
        let media_type = head.header("content-type").unwrap_or_default().trim_start();
        if !media_type.starts_with("text/event-stream") {
            return Err(DeviceProblem::Garbage("no stream of events"));
        }
        Ok(reader)
    }

    fn request<'a>(&self, url: &'a str, headers: &'a [(&'a str, &'a str)]) -> DeviceRequest<'a> {
        DeviceRequest { authorized: matches!(self.mode, LoginMode::Header), ..DeviceRequest::get(url, headers) }
    }

    fn soon(&self, deadline: Instant) -> Instant {
        deadline.min(Instant::now() + self.timeout)
    }

    fn call(
        &self,
        request: &DeviceRequest,
        deadline: Instant,
        body: &mut Vec<u8>,
    ) -> Result<AnswerHead, DeviceProblem> {
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.client.call(request, self.soon(deadline), body)
    }

    /// Sends a request with the session's token. A session that the service does not know any more is opened again, once.
    fn authorized<T>(
        &self,
        deadline: Instant,
        mut send: impl FnMut(Option<&SecretText>) -> Result<(u16, T), DeviceProblem>,
    ) -> Result<T, DeviceProblem> {
        let mut is_new = false;
        loop {
            let token = match &self.mode {
                LoginMode::Session { user, password } => {
                    let (token, opened) = self.token(user, password, deadline)?;
                    is_new |= opened;
                    Some(token)
                }
                LoginMode::Header | LoginMode::Open => {
                    self.state().check()?;
                    None
                }
            };
            let (status, answer) = send(token.as_ref())?;
            let mut state = self.state();
            if status != 401 {
                if token.is_none() {
                    (state.blocked, state.pause) = (None, Duration::ZERO);
                }
                return Ok(answer);
            }
            if is_new || token.is_none() {
                let session = (state.token.take(), state.location.take());
                let problem = state.block(DeviceProblem::Credentials, REFUSED_PAUSE_MIN, REFUSED_PAUSE_MAX);
                drop(state);
                self.delete(session);
                return Err(problem);
            }
            // Another thread may have opened a new one meanwhile.
            if state.token == token {
                (state.token, state.location) = (None, None);
            }
        }
    }

    /// The token of the session, and whether it was opened for this request.
    fn token(
        &self,
        user: &SecretText,
        password: &SecretText,
        deadline: Instant,
    ) -> Result<(SecretText, bool), DeviceProblem> {
        // Held during the login: two threads never open two sessions.
        let mut state = self.state();
        state.check()?;
        if let Some(token) = &state.token {
            return Ok((token.clone(), false));
        }
        let url = format!("{}{}", self.base, state.sessions.as_deref().unwrap_or(SESSIONS_USUAL));
        let login = serde_json::json!({ "UserName": user.expose(), "Password": password.expose() }).to_string();
        let headers = &HEADERS;
        let request = DeviceRequest { method: "POST", url: &url, headers, body: Some(&login), authorized: false };
        self.counts.logins.fetch_add(1, Ordering::Relaxed);
        let mut body = Vec::new();
        let head = self.call(&request, deadline, &mut body)?;
        let is_full = |body: &[u8]| {
            let text = String::from_utf8_lossy(body);
            ["SessionLimitExceeded", "ServiceTemporarilyUnavailable", "ResourceExhaustion"]
                .iter()
                .any(|id| text.contains(id))
        };
        match head.status {
            200 | 201 => {}
            status if matches!(status, 429 | 503) || is_full(&body) => {
                return Err(state.block(NO_SESSION, FULL_PAUSE_MIN, FULL_PAUSE_MAX));
            }
            400 | 401 | 403 => {
                return Err(state.block(DeviceProblem::Credentials, REFUSED_PAUSE_MIN, REFUSED_PAUSE_MAX));
            }
            404 | 405 | 501 => return Err(state.block(NO_SERVICE, FULL_PAUSE_MIN, FULL_PAUSE_MAX)),
            status => {
                let problem = check_answer(status).err().unwrap_or(DeviceProblem::Garbage("an answer to a login"));
                return Err(state.block(problem, FULL_PAUSE_MIN, FULL_PAUSE_MAX));
            }
        }
        let is_token = |text: &&str| {
            !text.is_empty() && text.len() <= TOKEN_BYTES_MAX && text.chars().all(|c| c.is_ascii_graphic())
        };
        let Some(token) = head.header("x-auth-token").filter(is_token).map(SecretText::new) else {
            let problem = DeviceProblem::Garbage("a session without a token");
            return Err(state.block(problem, FULL_PAUSE_MIN, FULL_PAUSE_MAX));
        };
        let of_body = || json::parse_bytes(&body).ok()?.get("@odata.id")?.as_str().map(str::to_owned);
        let location = head.header("location").map(str::to_owned).or_else(of_body);
        state.location = location.and_then(|link| check_link(&link, &self.base).map(str::to_owned));
        state.token = Some(token.clone());
        (state.blocked, state.pause) = (None, Duration::ZERO);
        Ok((token, true))
    }

    /// Sends nothing more. Whether there is a session to delete.
    pub fn end_later(&self) -> bool {
        // Held by a login: that session is deleted when it is there.
        let Ok(mut state) = self.session.try_lock() else { return true };
        state.has_ended = true;
        state.token.is_some()
    }

    /// Deletes the session, and sends nothing more.
    pub fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        let session = (state.token.take(), state.location.take());
        drop(state);
        self.delete(session);
    }

    fn delete(&self, session: (Option<SecretText>, Option<String>)) {
        let (Some(token), Some(location)) = session else { return };
        let url = format!("{}{location}", self.base);
        let headers = [HEADERS[0], HEADERS[1], ("X-Auth-Token", token.expose())];
        let request = DeviceRequest { method: "DELETE", url: &url, headers: &headers, body: None, authorized: false };
        let _ = self.call(&request, Instant::now() + LOGOUT_TIMEOUT, &mut Vec::new());
    }

    /// Whether requests can be sent: with a session, if the service needs one, and without a pause after a refusal.
    pub fn is_ready(&self) -> bool {
        let state = self.state();
        state.check().is_ok() && (state.token.is_some() || !matches!(self.mode, LoginMode::Session { .. }))
    }

    /// Whether a session is open.
    pub fn has_session(&self) -> bool {
        self.state().token.is_some()
    }
}

/// The headers of each request (DSP0266, section 6.5).
const HEADERS: [(&str, &str); 2] = [("Accept", "application/json"), ("OData-Version", "4.0")];

/// Any status but 200 as a problem. 403 concerns one resource: a user may lack the privilege for it.
fn check_answer(status: u16) -> Result<(), DeviceProblem> {
    match status {
        200 => Ok(()),
        403 => Err(NO_PRIVILEGE),
        404 | 410 => Err(MISSING),
        300..=399 => Err(DeviceProblem::Refused("HTTP: a redirect, which is not followed")),
        status => wholegrain_device_http::check_status(status),
    }
}

fn parse(head: &AnswerHead, body: &[u8]) -> Result<JsonTree, DeviceProblem> {
    check_answer(head.status)?;
    let tree = json::parse_bytes(body).map_err(|fault| match fault {
        TreeFault::Wrong(_) => DeviceProblem::Garbage("not JSON"),
        TreeFault::TooLarge(_) => DeviceProblem::Garbage("more than 50000 values or 8 MiB as a tree"),
        TreeFault::NoRoom => DeviceProblem::Refused("an answer that is too large beside those of other devices"),
    })?;
    if tree.is_object() { Ok(tree) } else { Err(DeviceProblem::Garbage("JSON that is no resource")) }
}
