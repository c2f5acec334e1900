//! Answers that are slow, late, twice, endless, packed, cut, or lead elsewhere.

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use wholegrain_device_http::{
    AnswerBounds, DeviceRequest, check_credentials, check_credentials_with, check_header, check_status, check_url,
};
use wholegrain_devices::{Credentials, DeviceProblem, SecretText};
use wholegrain_testkit::{Random, free_port};

use super::stub::{StubAnswer, StubServer};
use super::{BOUNDS, client, get, get_within, url};

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

#[test]
fn an_answer_has_status_headers_and_body() {
    let server = StubServer::new(StubAnswer::Page(201, "X-Kind: a\r\n", b"hello".to_vec()));
    let client = client(None, BOUNDS);
    let (head, body) = get(&client, &url(&server, "/x?y=1")).unwrap();
    assert_eq!((head.status, head.header("x-kind"), body.as_str()), (201, Some("a"), "hello"));
    assert!(server.last().starts_with("GET /x?y=1 HTTP/1.1\r\n"), "{}", server.last());
    server.set(StubAnswer::Page(200, "Content-Encoding: gzip\r\n", packed(b"unpacked")));
    assert_eq!(get(&client, &url(&server, "/")).unwrap().1, "unpacked");
    // Without this header the client could use the connection once more while it ends.
    let chunks = "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    server.set(StubAnswer::Raw(format!("HTTP/1.1 200 X\r\n{chunks}").into_bytes()));
    assert_eq!(get(&client, &url(&server, "/")).unwrap().1, "abcde");
    server.set(StubAnswer::Page(304, "", Vec::new()));
    let (head, body) = get(&client, &url(&server, "/")).unwrap();
    assert_eq!((head.status, body.as_str()), (304, ""));
}

#[test]
fn bodies_and_headers_of_requests() {
    let server = StubServer::new(StubAnswer::text("ok"));
    let credentials = Credentials::of("c", &[("token", "abc"), ("api", "k1")]);
    let client = client(Some(&credentials), BOUNDS).with_secret_header("X-Api-Key", &SecretText::new("k1")).unwrap();
    let mut body = Vec::new();
    let mut call = |authorized| {
        let at = url(&server, "/rpc");
        let request =
            DeviceRequest { method: "POST", url: &at, headers: &[("X-A", "1")], body: Some("{\"a\":1}"), authorized };
        client.call(&request, Instant::now() + Duration::from_secs(30), &mut body).unwrap();
        server.last().to_lowercase()
    };
    let sent = call(true);
    for part in [
        "post /rpc ",
        "content-type: application/json\r\n",
        "x-a: 1\r\n",
        "authorization: bearer abc\r\n",
        "x-api-key: k1\r\n",
        "\r\n\r\n{\"a\":1}",
    ] {
        assert!(sent.contains(part), "{part} in {sent}");
    }
    let sent = call(false);
    assert!(!sent.contains("authorization") && !sent.contains("x-api-key"), "{sent}");
}

#[test]
fn answers_that_are_garbage_cut_or_too_long() {
    let server = StubServer::new(StubAnswer::text("ok"));
    let client = client(None, BOUNDS);
    let mut garbage = Random::seeded().bytes(64 << 10);
    garbage[0] = b'#';
    let gzip = "Content-Encoding: gzip\r\n";
    let raw = |text: &str| StubAnswer::Raw(text.as_bytes().to_vec());
    let bomb = packed(&vec![b' '; 50 << 20]);
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    for (answer, what) in [
        (StubAnswer::Raw(garbage), "not HTTP"),
        (StubAnswer::Endless, "more than body_bytes_max"),
        (StubAnswer::Page(200, "", vec![b' '; (100 << 10) + 1]), "more than body_bytes_max"),
        (StubAnswer::Page(200, gzip, bomb), "more than body_bytes_max"),
        (StubAnswer::Page(200, gzip, vec![0x1f, 0x8b, 8, 0, 1, 2, 3]), "gzip that is damaged"),
        (raw("HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\nshort"), "an answer that ends too early"),
        (raw("HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), "an answer that ends too early"),
        (raw("HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n"), "an answer that ends too early"),
        (raw("HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "not HTTP"),
        (raw("HTTP/1.1 200 X\r\nContent-L"), "not HTTP"),
        (raw(""), "an answer that ends too early"),
    ] {
        server.set(answer);
        let problem = get(&client, &url(&server, "/")).unwrap_err();
        assert!(matches!(problem, DeviceProblem::Garbage(_)), "{what}: {problem}");
        // How a cut answer ends depends on when the system learns of it.
        let is_cut = ["not HTTP", "an answer that ends too early"].contains(&what);
        assert!(is_cut || problem == DeviceProblem::Garbage(what), "{what}: {problem}");
        server.set(StubAnswer::text("ok"));
        assert_eq!(get(&client, &url(&server, "/")).unwrap().1, "ok", "after {what}");
    }
}

#[test]
fn a_second_answer_is_never_taken_for_the_next_one() {
    let server = StubServer::new(StubAnswer::text("ok"));
    let client = client(None, BOUNDS);
    let page = |body: &str| format!("HTTP/1.1 200 X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for _ in 0..20 {
        server.set(StubAnswer::Open(format!("{}{}", page("first"), page("second")).into_bytes()));
        assert_eq!(get(&client, &url(&server, "/")).unwrap().1, "first");
        server.set(StubAnswer::text("third"));
        assert_eq!(get(&client, &url(&server, "/")).unwrap().1, "third");
    }
}

#[test]
fn a_late_answer_reaches_nobody() {
    let server = StubServer::new(StubAnswer::Slow(b"late".repeat(100)));
    let client = client(None, BOUNDS);
    for answer in [StubAnswer::Slow(b"late".repeat(100)), StubAnswer::Never] {
        server.set(answer);
        let problem = get_within(&client, &url(&server, "/"), Duration::from_millis(300)).unwrap_err();
        assert_eq!(problem, DeviceProblem::Silent);
        server.set(StubAnswer::text("new"));
        assert_eq!(get(&client, &url(&server, "/")).unwrap().1, "new");
    }
    server.set(StubAnswer::Never);
    let problem = get_within(&client, &url(&server, "/"), Duration::ZERO).unwrap_err();
    assert_eq!(problem, DeviceProblem::Silent, "no time is left");
    let dead = format!("http://127.0.0.1:{}/", free_port());
    assert!(matches!(get(&client, &dead).unwrap_err(), DeviceProblem::Network(_)));
    let nowhere = "http://nowhere.invalid/";
    assert_eq!(get(&client, nowhere).unwrap_err(), DeviceProblem::Unresolved);
}

#[test]
fn a_connection_is_kept() {
    let server = StubServer::new(StubAnswer::text("ok"));
    let client = client(None, BOUNDS);
    (0..10).for_each(|_| drop(get(&client, &url(&server, "/")).unwrap()));
    assert_eq!((server.requests(), server.connections()), (10, 1));
}

/// A page that leads to an address, which no test changes.
fn redirect(status: u16, to: &str) -> StubAnswer {
    StubAnswer::Open(format!("HTTP/1.1 {status} X\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").into_bytes())
}

#[test]
fn secrets_go_to_the_device_itself_only() {
    let (device, other) =
        (StubServer::new(StubAnswer::text("device")), StubServer::at("127.0.0.2", StubAnswer::text("other")));
    let credentials = Credentials::of("c", &[("user", "u"), ("password", "p")]);
    let bounds = AnswerBounds { redirects: 2, ..BOUNDS };
    let client = client(Some(&credentials), bounds).with_secret_header("X-Api-Key", &SecretText::new("k1")).unwrap();
    device.set_at("/same", redirect(302, "/there"));
    let secrets = |server: &StubServer| {
        let head = server.last().to_lowercase();
        ["authorization: basic", "x-api-key: k1", "x-session: s"].map(|header| head.contains(header))
    };
    let call = |uri: &str, method: &'static str, text: Option<&str>| {
        let at = url(&device, uri);
        let request = DeviceRequest { method, url: &at, headers: &[("X-Session", "s")], body: text, authorized: true };
        let mut body = Vec::new();
        let head = client.call(&request, Instant::now() + Duration::from_secs(30), &mut body)?;
        Ok::<_, DeviceProblem>((head.status, String::from_utf8_lossy(&body).into_owned()))
    };
    assert_eq!(call("/same", "GET", None).unwrap(), (200, "device".to_owned()));
    assert!(device.last().starts_with("GET /there"));
    assert_eq!(secrets(&device), [true; 3]);
    for to in [format!("http://127.0.0.2:{}/", other.port), format!("//127.0.0.2:{}/", other.port)] {
        device.set_at("/away", redirect(302, &to));
        assert_eq!(call("/away", "GET", None).unwrap(), (200, "other".to_owned()));
        assert_eq!(secrets(&other), [false; 3], "{}", other.last());
    }
    // A body is the device's own too.
    device.set_at("/post", redirect(303, "/there"));
    assert_eq!(call("/post", "POST", Some("b")).unwrap().1, "device");
    assert!(device.last().starts_with("GET /there") && device.last().ends_with("\r\n\r\n"));
    device.set_at("/keep", redirect(307, "/there"));
    assert_eq!(call("/keep", "POST", Some("b")).unwrap().1, "device");
    assert!(device.last().starts_with("POST /there") && device.last().ends_with("\r\n\r\nb"));
    device.set_at("/keep", redirect(308, &format!("http://127.0.0.2:{}/", other.port)));
    let refused = |uri: &str, text| match call(uri, "POST", text).unwrap_err() {
        DeviceProblem::Refused(what) => what,
        other => panic!("{other}"),
    };
    assert_eq!(refused("/keep", Some("b")), "HTTP: a redirect of a body to another host");
    device.set_at("/wild", redirect(302, "javascript:x"));
    assert_eq!(refused("/wild", None), "HTTP: a redirect to what is no address");
}

#[test]
fn redirects_are_bounded() {
    let server = StubServer::new(redirect(302, "/again"));
    for redirects in [0, 3] {
        let before = server.requests();
        let (head, _) = get(&client(None, AnswerBounds { redirects, ..BOUNDS }), &url(&server, "/")).unwrap();
        assert_eq!((head.status, server.requests() - before), (302, redirects as usize + 1));
        let problem = check_status(head.status).unwrap_err();
        assert_eq!(problem, DeviceProblem::Refused("HTTP: a redirect, which `redirects` can allow"));
    }
}

#[test]
fn statuses() {
    assert_eq!(check_status(200), Ok(()));
    for status in [401, 403, 407] {
        assert_eq!(check_status(status), Err(DeviceProblem::Credentials));
    }
    for (status, part) in [
        (204, "without a body"),
        (304, "not modified"),
        (404, "no such page"),
        (429, "too many"),
        (503, "5xx"),
        (418, "other than 200"),
        (100, "other than 200"),
    ] {
        let error = check_status(status).unwrap_err().to_string();
        assert!(error.contains(part), "{status}: {error}");
    }
}

#[test]
fn credentials_headers_and_addresses_with_mistakes() {
    let of = |keys: &[(&str, &str)]| Credentials::of("c", keys);
    for (keys, is_https, part) in [
        (&[("token", "a"), ("user", "b"), ("password", "c")][..], false, "a token and a user"),
        (&[("user", "b")], false, "have no `password`"),
        (&[("password", "b")], false, "have no `user`"),
        (&[("cert", "b")], true, "have no `key`"),
        (&[("cert", "b"), ("key", "c")], false, "only https sends"),
        (&[("pasword", "b")], false, "did you mean `password`?"),
        (&[("api_key", "b")], false, "unknown key"),
    ] {
        let error = check_credentials(Some(&of(keys)), is_https).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    assert_eq!(check_credentials_with(Some(&of(&[("api_key", "b")])), false, &["api_key"]), Ok(()));
    for (name, value) in
        [("Host", "a"), ("content-length", "1"), ("a b", "c"), ("", "c"), ("A", "b\r\nC: d"), ("A", "\0")]
    {
        assert!(check_header(name, value).is_err(), "{name}: {value:?}");
    }
    let client = client(None, BOUNDS);
    let error = client.with_secret_header("X-Key", &SecretText::new("s3cret\n")).err().unwrap();
    assert!(!error.contains("s3cret"), "{error}");
    let problem =
        wholegrain_device_http::DeviceClient::new(b"", Some(&of(&[("token", "s3cret\n")])), BOUNDS).err().unwrap();
    assert!(problem.0 == "credentials" && !problem.1.contains("s3cret"), "{problem:?}");
    for url in ["http://a b/", "http://[::1", "\n"] {
        assert!(check_url(url).is_err(), "{url:?}");
    }
}
