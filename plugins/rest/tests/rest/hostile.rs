//! Answers and devices that are slow, silent, wrong or hostile; credentials that are wrong.

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use wholegrain_sources::ReadProblem;
use wholegrain_testkit::{Random, wait_until};

use wholegrain_source_testkit::SampledSource;

use super::stub::{StubAnswer, StubServer};
use super::{config, configure_in, started, write_credentials};

const PAGE: &str = "{\"a\": 7}";
const KEYS: &str = "value = [{ name = \"a\", path = \"$.a\" }]";

fn os(what: &'static str, errno: i32) -> ReadProblem {
    ReadProblem::Os { what, errno }
}

#[test]
fn answers_that_are_garbage_are_gaps() {
    let server = StubServer::new(StubAnswer::text(PAGE));
    let mut running =
        started(&config(&server, "", KEYS).replace("path = \"d\"", "path = \"d\"\nbody_bytes_max = \"100KiB\""));
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&vec![b' '; 50 << 20]).unwrap();
    let bomb = packed.finish().unwrap();
    let mut garbage = Random::seeded().bytes(64 << 10);
    garbage[0] = b'#';
    let json = "Content-Type: application/json\r\n";
    let page = |body: &[u8]| StubAnswer::Page(200, json, body.to_vec());
    for (answer, what) in [
        (page(&garbage), "no UTF-8"),
        (page("[".repeat(60_000).as_bytes()), "no JSON"),
        (page(format!("[{}1]", "1,".repeat(50_000)).as_bytes()), "no JSON"),
        (page(b"{\"a\": 7"), "no JSON"),
        (page(b"{\"a\": 7} {\"a\": 8}"), "no JSON"),
        (page(b""), "an empty answer"),
        (page(b"<!doctype html><html>Login</html>"), "a web page"),
        (page(b"a 1\n"), "no JSON"),
        (page(b"<?xml version=\"1.0\"?><a>7</a>"), "what begins as XML: check `format`"),
        (StubAnswer::Endless, "more than body_bytes_max"),
        (StubAnswer::Page(200, "Content-Encoding: gzip\r\n", bomb), "more than body_bytes_max"),
    ] {
        running.answer("d/u", |values| values["d/a"] == Some(7.0));
        server.set(answer);
        running.wait_for_gaps("d/u", os(what, libc::EBADMSG));
        server.set(StubAnswer::text(PAGE));
    }
    running.answer("d/u", |values| values["d/a"] == Some(7.0));
    // A wrong type of content is no harm: devices name all kinds.
    server.set(StubAnswer::Page(200, "Content-Type: text/html\r\n", b"{\"a\": 9}".to_vec()));
    running.answer("d/u", |values| values["d/a"] == Some(9.0));
    // A JSON without any of the values is an answer, with gaps at once.
    server.set(StubAnswer::text("[]"));
    running.answer("d/u", |values| values["d/a"].is_none() && values["d/rest/u/gaps"] == Some(1.0));
    assert!(running.notes.iter().all(|note| note.len() < 400), "{:?}", running.notes);
}

#[test]
fn statuses_without_values_are_gaps() {
    let server = StubServer::new(StubAnswer::text(PAGE));
    let mut running = started(&config(&server, "", KEYS));
    for (status, what) in [
        (204, "HTTP 204: an answer without a body"),
        (304, "HTTP 304: not modified, though nobody asked for that"),
        (302, "HTTP: a redirect, which `redirects` can allow"),
        (404, "HTTP 404: there is no such page"),
        (429, "HTTP 429: too many requests"),
        (503, "HTTP 5xx: an error of the device"),
    ] {
        running.answer("d/u", |values| values["d/a"] == Some(7.0));
        server.set(StubAnswer::Page(status, "Location: /y\r\n", PAGE.as_bytes().to_vec()));
        running.wait_for_gaps("d/u", ReadProblem::Message { text: what });
        server.set(StubAnswer::text(PAGE));
    }
    server.set(StubAnswer::Page(201, "", PAGE.replace('7', "8").into_bytes()));
    running.answer("d/u", |values| values["d/a"] == Some(8.0));
}

#[test]
fn a_device_that_is_slow_or_hangs_delays_no_other() {
    let hanging = StubServer::new(StubAnswer::Never);
    let slow = StubServer::new(StubAnswer::Slow(PAGE.repeat(100).into()));
    let quick = StubServer::new(StubAnswer::text("{\"a\": 0}"));
    let hosts = [&hanging, &slow, &quick].map(|server| format!("\"127.0.0.1:{}\"", server.port)).join(", ");
    let mut running = started(&format!(
        "[plugins.rest]\ninterval = \"40ms\"\ntimeout = \"300ms\"\nfirst_answers = \"1s\"\n[[plugins.rest.device]]\nhosts = [{hosts}]\n\
         path = \"{{host}}\"\n[[plugins.rest.device.url]]\nname = \"u\"\nuri = \"/\"\n{KEYS}"
    ));
    let name = |server: &StubServer| format!("127.0.0.1:{}", server.port);
    let sensor = format!("{}/a", name(&quick));
    for count in 1..20 {
        quick.set(StubAnswer::text(&format!("{{\"a\": {count}}}")));
        running.answer(&format!("{}/u", name(&quick)), |values| values[&sensor] == Some(f64::from(count)));
    }
    for server in [&hanging, &slow] {
        running.wait_for_note(&format!("device {0} ({0}): no answer in time", name(server)));
        running.wait_for_gaps(&format!("{}/u", name(server)), os("device", libc::ETIMEDOUT));
    }
    assert!(hanging.requests() < 10, "{} requests: no backoff", hanging.requests());
}

#[test]
fn wrong_credentials_are_named_once_and_not_tried_again_soon() {
    let folder = tempfile::tempdir().unwrap();
    write_credentials(
        folder.path(),
        &[
            ("basic", "user = \"site\"\npassword = \"pass:word\"\n"),
            ("bearer", "token = \"abc\"\n"),
            ("both", "token = \"abc\"\nuser = \"a\"\npassword = \"b\"\n"),
            ("key", "plant_key = \"k-1\"\n"),
        ],
    );
    let server = StubServer::new(StubAnswer::text(PAGE));
    let text = |name: &str, more: &str| {
        config(&server, "", KEYS).replace("path = \"d\"", &format!("path = \"d\"\ncredentials = \"{name}\"\n{more}"))
    };
    let secret = "secret_headers = { X-Api-Key = \"plant_key\" }";
    for (name, more, header) in [
        ("basic", "", "authorization: basic c2l0ztpwyxnzondvcmq="),
        ("bearer", "", "authorization: bearer abc"),
        ("key", secret, "x-api-key: k-1"),
    ] {
        let mut running = SampledSource::of(configure_in(folder.path(), &text(name, more)).unwrap());
        running.answer("d/u", |values| values["d/a"] == Some(7.0));
        assert!(server.last().to_lowercase().contains(header), "{}", server.last());
    }
    for (name, more, part) in [
        ("both", "", "have a token and a user"),
        ("key", "", "unknown key `plant_key`"),
        ("bearer", secret, "have no `plant_key`"),
        ("none", "", "cannot open"),
    ] {
        let error = configure_in(folder.path(), &text(name, more)).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
    let mut running = SampledSource::of(configure_in(folder.path(), &text("basic", "")).unwrap());
    running.answer("d/u", |values| values["d/a"] == Some(7.0));
    server.set(StubAnswer::Page(401, "", Vec::new()));
    running.wait_for_gaps("d/u", os("credentials of the device", libc::EACCES));
    running.wait_for_note("refuses the credentials; check its file of credentials");
    let (requests, start) = (server.requests(), Instant::now());
    wait_until("many intervals", || {
        running.read("d/u");
        start.elapsed() > Duration::from_secs(2)
    });
    assert_eq!(server.requests(), requests, "the account would be locked");
    assert_eq!(running.count_notes("refuses the credentials"), 1);
    assert!(running.notes.iter().all(|note| !note.contains("pass:word")));
}

#[test]
fn a_redirect_to_another_host_gets_no_credentials() {
    let folder = tempfile::tempdir().unwrap();
    write_credentials(folder.path(), &[("c", "token = \"abc\"\nplant_key = \"k-1\"\n")]);
    let other = StubServer::at("127.0.0.2", StubAnswer::text("{\"a\": 8}"));
    let server = StubServer::new(StubAnswer::text(PAGE));
    let more = "path = \"d\"\ncredentials = \"c\"\nredirects = 1\nsecret_headers = { X-Api-Key = \"plant_key\" }";
    let text = config(&server, "", &format!("headers = {{ X-Site = \"s\" }}\n{KEYS}")).replace("path = \"d\"", more);
    let mut running = SampledSource::of(configure_in(folder.path(), &text).unwrap());
    running.answer("d/u", |values| values["d/a"] == Some(7.0));
    assert!(server.last().to_lowercase().contains("x-site: s"));
    let answer = format!("HTTP/1.1 302 X\r\nLocation: http://127.0.0.2:{}/\r\nContent-Length: 0\r\n\r\n", other.port);
    server.set(StubAnswer::Open(answer.into_bytes()));
    running.answer("d/u", |values| values["d/a"] == Some(8.0));
    let sent = other.last().to_lowercase();
    assert!(["abc", "k-1", "x-site"].iter().all(|secret| !sent.contains(secret)), "{sent}");
}
