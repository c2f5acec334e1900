//! Answers that are slow, late, endless, packed, cut, of wrong types, and credentials that are wrong.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use flate2::Compression;
use flate2::write::GzEncoder;
use wholegrain_model::Kind;
use wholegrain_sources::ReadProblem;
use wholegrain_testkit::{Random, free_port, wait_until};

use wholegrain_source_testkit::SampledSource;

use super::stub::{StubAnswer, StubServer};
use super::{configure_in, started};

const PAGE: &str =
    "# TYPE a_bytes_total counter\n# HELP a_bytes_total Things.\na_bytes_total{x=\"1\",y=\"2\"} 5\nb 7\n";

/// Settings with an exporter at each port, the groups `e/PORT`.
fn config(servers: &[&StubServer], keys: &str) -> String {
    let hosts: Vec<String> = servers.iter().map(|server| format!("\"127.0.0.1:{}\"", server.port)).collect();
    format!(
        "[plugins.scrape]\ninterval = \"40ms\"\n{keys}\n[[plugins.scrape.device]]\nhosts = [{}]\npath = \"e/{{host}}\"\n",
        hosts.join(", ")
    )
}

fn group(server: &StubServer) -> String {
    format!("e/127.0.0.1:{}", server.port)
}

fn os(what: &'static str, errno: i32) -> ReadProblem {
    ReadProblem::Os { what, errno }
}

#[test]
fn a_page_becomes_sensors_with_values_and_times() {
    let server = StubServer::new(StubAnswer::text(PAGE));
    let mut running = started(&config(&[&server], ""));
    let name = group(&server);
    let values = running.answer(&name, |_| true);
    let value = |sensor: &str| values[&format!("{name}/{sensor}")];
    assert_eq!((value("a_bytes_total/1/2"), value("b"), value("scrape/series")), (Some(5.0), Some(7.0), Some(2.0)));
    assert!(value("scrape/duration").is_some_and(|duration| duration > 0.0));
    let sensor = &running.group(&name).sensors[0];
    assert_eq!((sensor.kind, sensor.unit.as_str(), sensor.description.as_str()), (Kind::Counter, "By", "Things."));
    // The same sensor, whatever the order of labels and lines.
    server.set(StubAnswer::text("b 8\na_bytes_total{y=\"2\",x=\"1\"} 6\n"));
    let values = running.answer(&name, |values| values[&format!("{name}/b")] == Some(8.0));
    assert_eq!(values[&format!("{name}/a_bytes_total/1/2")], Some(6.0));
    assert!(server.head().contains("application/openmetrics-text"), "{}", server.head());
    let polls = running.read("scrape").1;
    assert_eq!((polls["scrape/groups"], polls["scrape/failing"]), (Some(1.0), Some(0.0)));
    assert!(polls["scrape/answers"] >= Some(2.0), "{polls:?}");
}

#[test]
fn series_that_are_wrong_missing_twice_and_new() {
    let server = StubServer::new(StubAnswer::text(PAGE));
    let mut running = started(&config(&[&server], ""));
    let name = group(&server);
    let (a, b, c) = (format!("{name}/a_bytes_total/1/2"), format!("{name}/b"), format!("{name}/c"));
    running.answer(&name, |_| true);
    server.set(StubAnswer::text("a_bytes_total{x=\"1\",y=\"2\"} many\nb 8\n"));
    let values = running.answer(&name, |values| values[&b] == Some(8.0));
    assert_eq!(values[&a], None);
    running.wait_for_note("line 1 is no sample");
    server.set(StubAnswer::text("b 9\nb 10\na_bytes_total{x=\"1\",y=\"2\"} 11\n"));
    let values = running.answer(&name, |values| values[&a] == Some(11.0));
    assert_eq!(values[&b], None);
    running.wait_for_note("line 2 has a series that was there before: its sensor is a gap");
    server.set(StubAnswer::text("c 3\n"));
    let values = running.answer(&name, |values| values.get(&c) == Some(&Some(3.0)));
    assert_eq!((values[&a], values[&b]), (None, None), "what has gone may come back");
    let before = running.notes.iter().filter(|note| note.contains("is no sample")).count();
    assert_eq!(before, 1, "{:?}", running.notes);
}

#[test]
fn the_number_of_sensors_is_bounded_and_what_is_left_out_is_counted() {
    let many: String = (0..100).map(|index| format!("m{{i=\"{index}\"}} 1\n")).collect();
    let server = StubServer::new(StubAnswer::text(&many));
    let text = format!("{}series_max = 10\n", config(&[&server], ""));
    let mut running = started(&text);
    let name = group(&server);
    let values = running.answer(&name, |_| true);
    assert_eq!(values.len(), 10 + 3);
    assert_eq!(values[&format!("{name}/scrape/left_out")], Some(90.0));
    running.wait_for_note("more than 10 series: the others are left out");
}

#[test]
fn an_exporter_with_more_than_has_room_harms_no_other() {
    let many: String = (0..65_000).map(|index| format!("m{{i=\"{index}\"}} 1\n")).collect();
    let (large, small) = (StubServer::new(StubAnswer::text(&many)), StubServer::new(StubAnswer::text(PAGE)));
    let keys = "timeout = \"50s\"\nfirst_answers = \"50s\"\nstale_after = \"50s\"";
    let mut running = started(&format!("{}series_max = 65000\n", config(&[&large, &small], keys)));
    let (name, other) = (group(&large), group(&small));
    let values = running.answer(&name, |_| true);
    let left_out = values[&format!("{name}/scrape/left_out")].unwrap();
    assert!((5_000.0..60_000.0).contains(&left_out), "{left_out}");
    running.wait_for_note(&format!("{name}: its series take too much memory beside those of others"));
    let values = running.answer(&other, |values| values[&format!("{other}/b")] == Some(7.0));
    assert_eq!(values[&format!("{other}/scrape/left_out")], Some(0.0));
}

#[test]
fn wrong_lines_are_named_three_times_and_counted() {
    let server = StubServer::new(StubAnswer::text(&format!("{PAGE}{}", "{\n".repeat(30))));
    let mut running = started(&config(&[&server], ""));
    let name = group(&server);
    running.answer(&name, |values| values[&format!("{name}/b")] == Some(7.0));
    running.wait_for_note(&format!("{name}: and 27 more lines or sensors are wrong"));
    assert_eq!(running.count_notes("does not match the format"), 3, "{:?}", running.notes);
}

#[test]
fn garbage_truncated_and_endless_answers_are_gaps() {
    let server = StubServer::new(StubAnswer::text(PAGE));
    let mut running = started(&format!("{}body_bytes_max = \"100KiB\"\n", config(&[&server], "timeout = \"10s\"")));
    let name = group(&server);
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    (0..2_000).for_each(|_| packed.write_all(&[b'\n'; 10_000]).unwrap());
    let bomb = packed.finish().unwrap();
    assert!(bomb.len() < 100_000, "{}", bomb.len());
    let mut garbage = Random::seeded().bytes(64 << 10);
    garbage.retain(|byte| *byte != b'#');
    garbage.push(b'\n');
    let gzip = "Content-Encoding: gzip\r\n";
    let open = "Content-Type: application/openmetrics-text; version=1.0.0\r\n";
    let page = |body: &[u8]| StubAnswer::Page(200, "", body.to_vec());
    for (answer, what) in [
        (page(&garbage), "no exposition"),
        (page(b"a_bytes_total{x=\"1\",y=\"2\"} 5\nb 7"), "an exposition that has no end"),
        (StubAnswer::Page(200, open, PAGE.as_bytes().to_vec()), "an exposition that has no end"),
        (StubAnswer::Endless, "more than body_bytes_max"),
        (StubAnswer::Page(200, gzip, bomb), "more than body_bytes_max"),
        (StubAnswer::Page(200, gzip, vec![0x1f, 0x8b, 8, 0, 1, 2, 3]), "gzip that is damaged"),
        (StubAnswer::Raw(garbage.clone()), "not HTTP"),
        (
            StubAnswer::Raw(b"HTTP/1.1 200 X\r\nContent-Length: 100\r\n\r\na 1\n".to_vec()),
            "an answer that ends too early",
        ),
    ] {
        running.answer(&name, |values| values[&format!("{name}/b")] == Some(7.0));
        server.set(answer);
        running.wait_for_gaps(&name, os(what, libc::EBADMSG));
        server.set(StubAnswer::text(PAGE));
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(PAGE.replace("b 7", "b 71").as_bytes()).unwrap();
    server.set(StubAnswer::Page(200, gzip, packed.finish().unwrap()));
    running.answer(&name, |values| values[&format!("{name}/b")] == Some(71.0));
    assert!(server.head().to_lowercase().contains("accept-encoding: gzip"));
}

#[test]
fn statuses_redirects_and_dead_ports() {
    let server = StubServer::new(StubAnswer::text(PAGE));
    let mut running = started(&config(&[&server], ""));
    let name = group(&server);
    running.answer(&name, |values| values[&format!("{name}/b")] == Some(7.0));
    server.set(StubAnswer::Page(200, "", b"\n<!DOCTYPE HTML><title>Exporter</title>".to_vec()));
    running.wait_for_gaps(&name, ReadProblem::Message { text: "a web page, not metrics: check `uri`" });
    server.set(StubAnswer::text(PAGE));
    let away = "Location: http://127.0.0.1:1/\r\n";
    for (status, headers, what) in [
        (404, "", "HTTP 404: there is no such page"),
        (503, "", "HTTP 5xx: an error of the device"),
        (302, away, "HTTP: a redirect, which `redirects` can allow"),
    ] {
        running.answer(&name, |values| values[&format!("{name}/b")] == Some(7.0));
        server.set(StubAnswer::Page(status, headers, b"b 1\n".to_vec()));
        running.wait_for_gaps(&name, ReadProblem::Message { text: what });
        server.set(StubAnswer::text(PAGE));
    }
    let (dead, other) = (free_port(), StubServer::new(StubAnswer::text("b 1\n")));
    let text = format!(
        "{}[[plugins.scrape.device]]\nhosts = [\"127.0.0.1:{dead}\"]\npath = \"dead\"\n",
        config(&[&other], "")
    );
    let mut running = started(&text);
    running.answer(&group(&other), |_| true);
    running.wait_for_note(&format!("device dead (127.0.0.1:{dead}): Connection refused"));
}

#[test]
fn an_exporter_that_is_slow_or_hangs_delays_no_other() {
    let (hanging, slow) =
        (StubServer::new(StubAnswer::Never), StubServer::new(StubAnswer::Slow(PAGE.repeat(100).into())));
    let quick = StubServer::new(StubAnswer::text("count 0\n"));
    let mut running = started(&config(&[&hanging, &slow, &quick], "timeout = \"300ms\"\nfirst_answers = \"1s\""));
    let sensor = format!("{}/count", group(&quick));
    for count in 1..20 {
        quick.set(StubAnswer::text(&format!("count {count}\n")));
        running.answer(&group(&quick), |values| values[&sensor] == Some(f64::from(count)));
    }
    for server in [&hanging, &slow] {
        running.wait_for_note(&format!("device {} (127.0.0.1:{}): no answer in time", group(server), server.port));
    }
    assert!(hanging.requests() < 10, "{} requests: no backoff", hanging.requests());
}

#[test]
fn wrong_credentials_are_named_once_and_not_tried_again_soon() {
    let folder = tempfile::tempdir().unwrap();
    let credentials = folder.path().join("credentials");
    std::fs::create_dir(&credentials).unwrap();
    std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(credentials.join(name), text).unwrap();
        std::fs::set_permissions(credentials.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("basic", "user = \"site\"\npassword = \"pass:word\"\n");
    write("bearer", "token = \"abc\"\n");
    write("both", "token = \"abc\"\nuser = \"a\"\npassword = \"b\"\n");
    let server = StubServer::new(StubAnswer::text("b 1\n"));
    let text = |name: &str| format!("{}credentials = \"{name}\"\n", config(&[&server], ""));
    for (name, header) in
        [("basic", "authorization: Basic c2l0ZTpwYXNzOndvcmQ="), ("bearer", "authorization: Bearer abc")]
    {
        let mut running = SampledSource::of(configure_in(folder.path(), &text(name)).unwrap());
        running.answer(&group(&server), |_| true);
        // A last request of the source before may still come.
        wait_until(header, || server.head().replace("Authorization", "authorization").contains(header));
    }
    let error = configure_in(folder.path(), &text("both")).err().unwrap().to_string();
    assert!(error.contains("have a token and a user"), "{error}");
    let mut running = SampledSource::of(configure_in(folder.path(), &text("basic")).unwrap());
    running.answer(&group(&server), |_| true);
    server.set(StubAnswer::Page(401, "", Vec::new()));
    running.wait_for_gaps(&group(&server), os("credentials of the device", libc::EACCES));
    running.wait_for_note("refuses the credentials; check its file of credentials");
    let requests = server.requests();
    let (mut reads, start) = (0, std::time::Instant::now());
    wait_until("many intervals", || {
        reads += 1;
        running.read(&group(&server));
        start.elapsed() > std::time::Duration::from_secs(2)
    });
    assert_eq!(server.requests(), requests, "no attempt in {reads} reads");
    assert!(running.notes.iter().all(|note| !note.contains("pass:word")));
}

#[test]
fn times_of_series_decide_whether_they_are_stale() {
    let now = wholegrain_devices::system_time() / 1_000_000;
    let page = |first: i64| StubAnswer::text(&format!("old 1 {first}\nnew 2 {now}\nnone 3\n"));
    let server = StubServer::new(page(now));
    let mut running = started(&config(&[&server], ""));
    let name = group(&server);
    let values = running.answer(&name, |_| true);
    assert_eq!(values[&format!("{name}/old")], Some(1.0));
    server.set(page(now - 400_000));
    let values = running.answer(&name, |values| values[&format!("{name}/old")].is_none());
    assert_eq!((values[&format!("{name}/new")], values[&format!("{name}/none")]), (Some(2.0), Some(3.0)));
}

#[test]
fn settings_with_mistakes() {
    let device = "[[plugins.scrape.device]]\nhosts = [\"h:1\"]\n";
    for (text, expected) in [
        ("[[plugins.scrape.device]]\nhosts = [\"h\"]\n".to_owned(), "port is missing; write it in hosts"),
        (format!("{device}scheme = \"ftp\""), "unknown value `ftp`"),
        (format!("{device}scheme = \"https\""), "https needs ca = \"ca.pem\""),
        (format!("{device}uri = \"metrics\""), "uri \"metrics\" does not begin with /"),
        (format!("{device}url = \"http://h/\""), "url has scheme, port and path"),
        (format!("{device}body_bytes_max = \"1GiB\""), "body_bytes_max is 1073741824; expected 1B to 256MiB"),
        (format!("{device}series_max = 0"), "series_max is 0; expected 1 to 65533"),
        (format!("{device}redirects = 9"), "redirects is 9; at most 5"),
        (format!("{device}colour = 1"), "unknown key `colour`"),
        (format!("[plugins.scrape]\nnames = \"x\"\n{device}"), "a path without a placeholder"),
        (
            format!("[plugins.scrape]\nrules = [{{ metrics = \"*\", scale = 0.0 }}]\n{device}"),
            "the scale 0 of the rule",
        ),
    ] {
        let error = configure_in("".as_ref(), &text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("agent.toml:") && error.contains(expected), "{text}: {error:?}");
    }
}

#[test]
fn the_examples_of_the_documents_are_valid() {
    let readme = include_str!("../../README.md");
    let mut blocks = vec![String::new()];
    for line in readme.lines() {
        match line.strip_prefix("    ") {
            Some(code) => blocks.last_mut().unwrap().push_str(&format!("{code}\n")),
            None if line.is_empty() => blocks.last_mut().unwrap().push('\n'),
            None => blocks.push(String::new()),
        }
    }
    blocks.retain(|block| block.contains("plugins.scrape"));
    assert_eq!(blocks.len(), 4);
    blocks.push(include_str!("../../../../packaging/plugins/scrape.toml").to_owned());
    for block in blocks {
        if let Err(error) = configure_in("".as_ref(), &block) {
            panic!("{error} in\n{block}");
        }
    }
}
