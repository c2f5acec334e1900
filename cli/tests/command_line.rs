//! The real binary without a server: help, exit codes, messages, completions, manual pages, an agent that is a fake socket.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use wholegrain_testkit::free_port;

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain"));
    command.current_dir(dir).env("HOME", dir).env_remove("WHOLEGRAIN_CLIENT");
    command
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    command(dir).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn check(arguments: &[&str], code: i32, parts: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), arguments);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{arguments:?} does not say {part:?}: {said}");
    }
    assert!(!said.contains('\x1b'), "{arguments:?} colours what is no terminal");
}

#[test]
fn help_has_examples_and_exit_codes() {
    check(&["--help"], 0, &["query", "Exit codes:", "cannot reach"]);
    check(&["--version"], 0, &["wholegrain 0."]);
    for subcommand in ["query", "config", "store"] {
        check(&[subcommand, "--help"], 0, &["Examples:", "Exit codes:", &format!("wholegrain {subcommand}")]);
    }
    check(&["query", "--help"], 0, &["Patterns:", "Times:", "Lengths:"]);
}

#[test]
fn usage_is_2() {
    check(&[], 2, &["Usage:"]);
    check(&["qury"], 2, &["query"]);
    check(&["query"], 2, &["PATTERN"]);
    check(&["query", "a//b"], 2, &["empty level"]);
    check(&["query", "a", "--from", "tomorrow"], 2, &["--from", "tomorrow", "RFC 3339", "yesterday", "14:00"]);
    check(&["query", "a", "--from", "now", "--to", "-1h"], 2, &["is after --to", "exchange"]);
    check(&["query", "a", "--from", "2300-01-01"], 2, &["is not a time"]);
    check(&["query", "a", "--from", "2200-01-01"], 2, &["--from", "is in the future"]);
    check(&["query", "a", "--every", "10"], 2, &["no unit"]);
    check(&["query", "a", "--every", "0s"], 2, &["longer than 0"]);
    check(&["query", "a", "--agg", "median"], 2, &["median", "mean"]);
    check(&["query", "a", "--op", "integral", "--agg", "max"], 2, &["omit agg"]);
    check(&["query", "a", "--limit", "0"], 2, &["limit"]);
    check(&["watch", "a", "--format", "parquet"], 2, &["table"]);
    check(&["jobs", "--since", "tomorrow"], 2, &["--since", "tomorrow", "RFC 3339"]);
    check(&["jobs", "--running", "--ended"], 2, &["cannot be used with"]);
    check(&["jobs", "show"], 2, &["ID"]);
    check(&["jobs", "--limit", "0"], 2, &["--limit"]);
    check(&["completions", "tcsh"], 2, &["bash"]);
    check(&["ctl", "interval", "g", "1us"], 2, &["shortest is 1ms"]);
    check(&["ctl", "--socket", "a", "--url", "https://b", "status"], 2, &["cannot be used with"]);
    check(&["up", "--client", "none.toml"], 2, &["unexpected argument"]);
    check(&["ca", "agent"], 2, &["NAME"]);
    check(&["ca", "agent", "n1", "--prefix", "lab"], 2, &["must begin with `/`"]);
    check(&["ca", "agent", "n1"], 2, &["no authority at var/ca.pem", "--dir"]);
    check(&["auth", "hash", "--password", "secret"], 2, &["unexpected argument"]);
    check(&["server", "--config", "none.toml"], 2, &["none.toml", "wholegrain init"]);
    check(&["up", "--agent", "/nonexistent/agent"], 2, &["/nonexistent/agent", "cargo build"]);
}

#[test]
fn a_missing_file_is_4() {
    check(&["--client", "none.toml", "sensors"], 4, &["none.toml", "--client"]);
    check(&["sensors", "--client", "none.toml"], 4, &["none.toml", "--client"]);
    check(&["--client", "other.toml", "ctl", "status", "--client", "none.toml"], 4, &["none.toml", "--client"]);
    let dir = tempfile::tempdir().unwrap();
    assert!(run(dir.path(), &["init"]).status.success());
    for arguments in [
        vec!["import", "csv", "none.csv", "--yes"],
        vec!["import", "parquet", "none.parquet", "--yes"],
        vec!["import", "csv", "none.csv", "--name-map", "none.map", "--yes"],
    ] {
        let output = run(dir.path(), &arguments);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(4) && said.contains("cannot read none."), "{arguments:?}: {said}");
    }
}

#[test]
fn a_closed_standard_error_changes_no_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, code) in [(&["query", "x"][..], 3), (&["query", "x", "--from", "soon"], 2)] {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(ours);
        let stderr = std::os::fd::OwnedFd::from(theirs);
        let status = command(dir.path()).args(arguments).stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

/// Takes connections on a port of its own and answers each with these bytes.
fn listener(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("localhost:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // What the client sent is read first, or closing would reset the connection.
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
    port
}

#[test]
fn a_wrong_port_is_said_in_plain_words() {
    let dir = tempfile::tempdir().unwrap();
    assert!(run(dir.path(), &["init"]).status.success());
    let client = dir.path().join("var/client.toml");
    let toml = std::fs::read_to_string(&client).unwrap();
    for (answer, part) in
        [(&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "does not speak TLS"), (b"", "the connection was closed")]
    {
        std::fs::write(&client, toml.replace(":8443", &format!(":{}", listener(answer)))).unwrap();
        let output = run(dir.path(), &["sensors"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains(part) && !said.contains("docs.rs"), "{said}");
    }
}

#[test]
fn a_client_file_of_the_current_directory_that_others_can_write_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    assert!(run(dir.path(), &["init"]).status.success());
    let client = dir.path().join("var/client.toml");
    std::fs::set_permissions(&client, std::fs::Permissions::from_mode(0o666)).unwrap();
    let output = run(dir.path(), &["sensors"]);
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("others can write it"), "{said}");
    assert_eq!(run(dir.path(), &["sensors", "--client", "var/client.toml"]).status.code(), Some(3));
}

#[test]
fn cannot_reach_is_3() {
    check(&["sensors"], 3, &["no client.toml", "var/client.toml", "/etc/wholegrain/client.toml", "make up"]);
    check(&["ctl", "--socket", "none.sock", "status"], 3, &["none.sock", "is it running", "--socket"]);
    check(&["ctl", "status"], 3, &["/run/wholegrain/agent.sock"]);
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(run(dir.path(), &["init"]).status.success());
    // A port that was free a moment ago and that nobody listens on.
    let port = free_port();
    let client = dir.path().join("var/client.toml");
    let toml = std::fs::read_to_string(&client).unwrap().replace(":8443", &format!(":{port}"));
    std::fs::write(&client, toml).unwrap();
    for arguments in [vec!["sensors"], vec!["query", "a"], vec!["watch", "a"], vec!["jobs"], vec!["jobs", "show", "1"]]
    {
        let output = run(dir.path(), &arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        for part in [&format!("https://localhost:{port}"), "var/client.toml", "is the server running", "make up"] {
            assert!(said.contains(part), "{said}");
        }
    }
    let broken = std::fs::read_to_string(&client).unwrap().replace("token_file", "tokenfile");
    std::fs::write(&client, broken).unwrap();
    let output = run(dir.path(), &["sensors"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("did you mean `token_file`?"), "{}", text(&output.stderr));
}

#[test]
fn init_makes_what_is_missing_and_keeps_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let first = text(&run(dir.path(), &["init", "here", "--agent", "n1", "--http-port", "18443"]).stdout);
    assert!(
        first.contains("made here/token") && first.contains("wholegrain-agent --config here/agent/agent.toml"),
        "{first}"
    );
    let token = std::fs::read(dir.path().join("here/token")).unwrap();
    let second = text(&run(dir.path(), &["init", "here"]).stdout);
    assert!(second.contains("kept here/token") && !second.contains("made"), "{second}");
    assert_eq!(std::fs::read(dir.path().join("here/token")).unwrap(), token);
    assert_eq!(run(dir.path(), &["init", "other", "--agent", "a/b"]).status.code(), Some(2));
    let check = run(dir.path(), &["server", "--config", "here/server/server.toml", "--check"]);
    assert!(check.status.success() && text(&check.stdout).contains("localhost:18443"), "{}", text(&check.stdout));
}

#[test]
fn shells_ask_the_command_for_completions() {
    for shell in ["bash", "zsh", "fish"] {
        check(&["completions", shell], 0, &["WHOLEGRAIN_COMPLETE", shell]);
    }
    // Without a server, names are left out and subcommands are there.
    let dir = tempfile::tempdir().unwrap();
    let mut asked = command(dir.path());
    asked.env("WHOLEGRAIN_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "1").env("_CLAP_IFS", "\n");
    let output = asked.args(["--", "wholegrain", ""]).output().unwrap();
    let said = text(&output.stdout);
    for subcommand in ["query", "sensors", "jobs", "config", "doctor"] {
        assert!(said.lines().any(|line| line == subcommand), "{subcommand}: {said}{}", text(&output.stderr));
    }
}

#[test]
fn manual_pages_for_every_subcommand() {
    check(&["man"], 0, &[".TH wholegrain 1", "Exit codes"]);
    let dir = tempfile::tempdir().unwrap();
    assert!(run(dir.path(), &["man", "--dir", "pages"]).status.success());
    for name in [
        "wholegrain",
        "wholegrain-query",
        "wholegrain-watch",
        "wholegrain-jobs",
        "wholegrain-jobs-show",
        "wholegrain-ctl",
        "wholegrain-ctl-interval",
        "wholegrain-ctl-rule-add",
        "wholegrain-ca-agent",
        "wholegrain-auth-hash",
        "wholegrain-auth-user-add",
        "wholegrain-auth-token-create",
        "wholegrain-ca-revoke",
    ] {
        let page = std::fs::read_to_string(dir.path().join(format!("pages/{name}.1")))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(page.contains(".TH"), "{name}");
    }
    let page = std::fs::read_to_string(dir.path().join("pages/wholegrain-query.1")).unwrap();
    assert!(page.contains("Exit codes") && page.contains("nothing matched"), "{page}");
}

/// Answers one request on `dir/agent.sock`; gives the request's first line.
fn with_agent(answer: &str, arguments: &[&str]) -> (String, Output) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("agent.sock")).unwrap();
    let answer = answer.to_owned();
    let agent = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut byte) = (Vec::new(), [0]);
        while !request.ends_with(b"\r\n\r\n") {
            assert_eq!(stream.read(&mut byte).unwrap(), 1);
            request.push(byte[0]);
        }
        stream.write_all(answer.as_bytes()).unwrap();
        text(&request).lines().next().unwrap().to_owned()
    });
    let output = command(dir.path()).args(["ctl", "--socket", "agent.sock"]).args(arguments).output().unwrap();
    (agent.join().unwrap(), output)
}

fn http(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn ctl_asks_and_shows() {
    let readings = r#"{"readings":[{"path":"/n/load","time":"2026-01-31T12:00:00Z","value":0.25,"unit":"1"}]}"#;
    let (request, output) = with_agent(&http("200 OK", readings), &["newest", "load"]);
    assert_eq!(request, "GET /v1/newest?pattern=load HTTP/1.1");
    assert!(output.status.success());
    assert_eq!(
        text(&output.stdout),
        "PATH     TIME                  VALUE  UNIT\n/n/load  2026-01-31T12:00:00Z   0.25  1\n"
    );
    let (_, output) = with_agent(&http("200 OK", readings), &["newest", "load", "--format", "json"]);
    assert_eq!(text(&output.stdout), format!("{readings}\n"));
    let (request, output) = with_agent(&http("200 OK", "{\"ok\":true}"), &["interval", "net/dev", "100ms"]);
    assert_eq!(request, "POST /v1/groups/net%2Fdev/interval?value=100ms HTTP/1.1");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn ctl_exit_codes() {
    let code = |answer: &str| {
        let (_, output) = with_agent(answer, &["newest", "load"]);
        (output.status.code().unwrap(), text(&output.stderr))
    };
    assert_eq!(code(&http("200 OK", "{\"readings\":[]}")).0, 1);
    let refused = code(&http("400 Bad Request", "{\"error\":\"no such group\"}"));
    assert!(refused.0 == 2 && refused.1.contains("no such group"), "{refused:?}");
    assert_eq!(code(&http("500 Oops", "")).0, 3);
    assert_eq!(code("not http at all\r\n\r\n").0, 3);
    assert_eq!(code(&http("200 OK", "<html>")).0, 3);
}

#[test]
fn ctl_asks_the_users_socket_where_the_administrators_is_not_for_us() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("jobs.sock")).unwrap();
    let client = dir.path().join("client.toml");
    std::fs::write(&client, format!("agent_socket = \"{}\"\n", dir.path().join("agent.sock").display())).unwrap();
    let agent = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut byte) = (Vec::new(), [0]);
        while !request.ends_with(b"}") {
            assert_eq!(stream.read(&mut byte).unwrap(), 1);
            request.push(byte[0]);
        }
        stream.write_all(http("200 OK", r#"{"done":"rule 10001","jobs":["4711"],"metrics":2}"#).as_bytes()).unwrap();
        text(&request)
    });
    let arguments = ["ctl", "rule", "add", "--job", "4711", "--metrics", "perf/*", "--every", "1ms", "--for", "10m"];
    let output = command(dir.path()).args(["--client", "client.toml"]).args(arguments).output().unwrap();
    let request = agent.join().unwrap();
    assert!(request.starts_with("POST /v1/rules HTTP/1.1\r\n"), "{request}");
    assert!(request.ends_with(r#"{"every":"1ms","for":"10min","jobs":"4711","metrics":["perf/*"]}"#), "{request}");
    assert_eq!(output.status.code(), Some(0));
    let error = text(&output.stderr);
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("agent.sock: ") && error.contains("jobs.sock, which serves your own jobs only"), "{error}");
    assert_eq!(text(&output.stdout), "DONE     rule 10001\nJOBS     4711\nMETRICS  2\n");
    // Neither is there: the administrator's is named.
    std::fs::remove_file(dir.path().join("jobs.sock")).unwrap();
    let output = command(dir.path()).args(["--client", "client.toml", "ctl", "jobs"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("agent.sock"), "{}", text(&output.stderr));
}
