//! `wholegrain auth` and `wholegrain ca` on an installation's files, and that no secret turns up where it should not.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use wholegrain_testkit::wait_until;
use wholegrain_transport::client::{Client, ClientConfig};
use wholegrain_transport::tls;

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wholegrain"));
    command.current_dir(dir).env("HOME", dir).env_remove("WHOLEGRAIN_CLIENT").env_remove("WHOLEGRAIN_SERVER_CONFIG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a process was started with, as everybody on the machine can see it.
fn command_line(process: &Child) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{}/cmdline", process.id())).unwrap()).into_owned()
}

/// Runs with this on standard input; also gives the command line that others saw.
fn run_with(dir: &Path, arguments: &[&str], input: &str) -> (Output, String) {
    let mut process = command(dir).args(arguments).spawn().unwrap();
    let seen = command_line(&process);
    // Who needs no input may be gone already.
    let _ = process.stdin.take().unwrap().write_all(input.as_bytes());
    (process.wait_with_output().unwrap(), seen)
}

fn run(dir: &Path, arguments: &[&str]) -> Output {
    run_with(dir, arguments, "").0
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn good(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn refused(output: &Output, code: i32, parts: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(code), ""), "{said}");
    parts.iter().for_each(|part| assert!(said.contains(part), "no {part:?}: {said}"));
}

fn installation() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    good(&run(dir.path(), &["init", "var", "--agent", "n1"]));
    dir
}

#[test]
fn root_writes_nothing_that_another_users_directory_leads_to() {
    use std::os::unix::fs::{chown, symlink};
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("NOT TESTED: only root can give a directory to another user");
        return;
    }
    let (theirs, victim) = (dir.path().join("theirs"), dir.path().join("victim"));
    fs::create_dir(&theirs).unwrap();
    fs::write(&victim, "whole").unwrap();
    good(&run(&theirs, &["init", "var", "--agent", "n1"]));
    let audit = theirs.join("var/server/audit.jsonl");
    let _ = fs::remove_file(&audit);
    symlink(&victim, &audit).unwrap();
    symlink(&victim, theirs.join("wholegrain.1")).unwrap();
    let give = |to| {
        for path in ["", "var", "var/server", "var/server/server.toml"] {
            chown(theirs.join(path), Some(to), None).unwrap();
        }
    };
    give(54_321);
    refused(&run(&theirs, &["man", "--dir", "."]), 2, &["uid 54321"]);
    for arguments in [
        &["auth", "token", "create", "x", "--role", "admin"][..],
        &["auth", "user", "add", "bob"],
        &["ca", "server"],
        &["ca", "revoke", "n1", "--all"],
        &["ca", "list"],
    ] {
        refused(&run(&theirs, arguments), 2, &["var"]);
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "whole");
    give(0);
    fs::remove_file(&audit).unwrap();
    good(&run(&theirs, &["auth", "token", "create", "x", "--role", "admin"]));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn users_are_added_listed_changed_and_removed() {
    let dir = installation();
    let dir = dir.path();
    assert!(good(&run(dir, &["auth", "user", "list"])).is_empty());
    let added = run_with(dir, &["auth", "user", "add", "n5"], "correct horse\n").0;
    assert!(good(&added).is_empty() && text(&added.stderr).contains("var/server/passwords"), "{added:?}");
    assert_eq!(good(&run(dir, &["auth", "user", "list"])), "n5\n");
    assert_eq!(good(&run(dir, &["auth", "user", "list", "--json"])), "{\"name\":\"n5\"}\n");
    let passwords = dir.join("var/server/passwords");
    let before = fs::read_to_string(&passwords).unwrap();
    assert!(before.contains("n5:$argon2id$") && !before.contains("horse") && mode(&passwords) == 0o600, "{before}");
    refused(&run_with(dir, &["auth", "user", "add", "n5"], "x\n").0, 2, &["\"n5\"", "already", "passwd n5"]);
    refused(&run_with(dir, &["auth", "user", "passwd", "n6"], "x\n").0, 2, &["no user \"n6\"", "add n6"]);
    refused(&run_with(dir, &["auth", "user", "add", "a/b"], "x\n").0, 2, &["a/b", "one level"]);
    refused(&run_with(dir, &["auth", "user", "add", "n6"], "\n").0, 2, &["is empty"]);
    refused(&run(dir, &["auth", "user", "add", "n6", "--password", "x"]), 2, &["unexpected argument"]);
    good(&run_with(dir, &["auth", "user", "passwd", "n5"], "battery staple\n").0);
    assert_ne!(fs::read_to_string(&passwords).unwrap(), before);
    good(&run(dir, &["auth", "user", "remove", "n5"]));
    refused(&run(dir, &["auth", "user", "remove", "n5"]), 2, &["no user \"n5\""]);
    let elsewhere = tempfile::tempdir().unwrap();
    refused(&run(elsewhere.path(), &["auth", "user", "list"]), 2, &["var/server/server.toml", "--server-config"]);
    refused(&run(dir, &["auth", "user", "list", "--server-config", "none.toml"]), 2, &["none.toml"]);
    let named = dir.join("var/server/server.toml");
    good(&run(elsewhere.path(), &["auth", "user", "list", "--server-config", named.to_str().unwrap()]));
    fs::write(&passwords, "nonsense\n").unwrap();
    refused(&run(dir, &["auth", "user", "list"]), 4, &["passwords", "line 1"]);
}

#[test]
fn tokens_are_shown_once_and_listed_without_themselves() {
    let dir = installation();
    let dir = dir.path();
    let made = run(dir, &["auth", "token", "create", "grafana", "--role", "user", "--expires", "90d"]);
    let token = good(&made).trim().to_owned();
    assert!(token.len() >= 43 && !text(&made.stderr).contains(&token), "{made:?}");
    let json = run(dir, &["auth", "token", "create", "telegraf", "--role", "agent", "--json"]);
    let json: serde_json::Value = serde_json::from_str(good(&json)).unwrap();
    assert_eq!((&json["role"], &json["expires"]), (&"agent".into(), &serde_json::Value::Null));
    let tokens = dir.join("var/server/tokens");
    let stored = fs::read_to_string(&tokens).unwrap();
    assert!(!stored.contains(&token) && !stored.contains(json["token"].as_str().unwrap()) && mode(&tokens) == 0o600);
    let list = run(dir, &["auth", "token", "list"]);
    for part in ["ID ", "wholegrain command", "admin", "grafana", "user", "telegraf", "agent", "never"] {
        assert!(good(&list).contains(part), "no {part:?}: {list:?}");
    }
    let lines = run(dir, &["auth", "token", "list", "--json"]);
    let lines: Vec<serde_json::Value> = good(&lines).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[1]["name"], &lines[1]["state"]), (3, &"grafana".into(), &"good".into()));
    good(&run(dir, &["auth", "token", "revoke", lines[1]["id"].as_str().unwrap()]));
    refused(&run(dir, &["auth", "token", "revoke", "grafana"]), 2, &["is revoked already"]);
    refused(&run(dir, &["auth", "token", "revoke", "nobody"]), 2, &["does not exist", "token list"]);
    refused(&run(dir, &["auth", "token", "create", "x"]), 2, &["--role"]);
    refused(&run(dir, &["auth", "token", "create", "x", "--role", "king"]), 2, &["admin", "support", "user", "agent"]);
    refused(&run(dir, &["auth", "token", "create", "x", "--role", "user", "--expires", "90"]), 2, &["90d"]);
    refused(&run(dir, &["auth", "token", "create", "", "--role", "user"]), 2, &["is empty"]);
    // What was done stands in the audit log.
    let audit = fs::read_to_string(dir.join("var/server/audit.jsonl")).unwrap();
    for part in ["token_create", "token_revoke", "grafana", "uid ", "local"] {
        assert!(audit.contains(part), "no {part:?}: {audit}");
    }
}

#[test]
fn certificates_are_listed_shown_renewed_and_revoked() {
    let dir = installation();
    let dir = dir.path();
    good(&run(dir, &["ca", "agent", "n2"]));
    let list = run(dir, &["ca", "list", "--json"]);
    let list: Vec<serde_json::Value> = good(&list).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(list.len(), 4);
    assert!(list.iter().all(|line| line["state"] == "good" && line["days_left"].as_i64() > Some(1800)), "{list:?}");
    good(&run(dir, &["ca", "server", "--host", "monitor.example"]));
    let shown = run(dir, &["ca", "show", "var/server/server.pem"]);
    for part in ["monitor.example", "localhost", "until", "serial", "Wholegrain local authority"] {
        assert!(good(&shown).contains(part), "no {part:?}: {shown:?}");
    }
    good(&run(dir, &["ca", "revoke", "n2"]));
    assert!(!dir.join("var/agents/n2.pem").exists());
    good(&run(dir, &["ca", "agent", "n2"]));
    good(&run(dir, &["ca", "revoke", "n1"]));
    let list = run(dir, &["ca", "list"]);
    let revoked = |line: &&str| line.split_whitespace().nth(1) == Some("revoked");
    let revoked: Vec<&str> = good(&list).lines().filter(revoked).collect();
    assert!(revoked.len() == 2 && revoked[0].starts_with("n1 ") && revoked[1].starts_with("n2 "), "{list:?}");
    refused(&run(dir, &["ca", "revoke", "n9"]), 2, &["\"n9\"", "--all"]);
    refused(&run(dir, &["ca", "show", "var/ca.key"]), 2, &["var/ca.key", "holds no certificate"]);
    refused(&run(dir, &["ca", "list", "--dir", "none"]), 2, &["no authority", "--dir"]);
    refused(&run(dir, &["ca", "server", "--host", "not a name"]), 2, &["not a name", "neither"]);
    let audit = fs::read_to_string(dir.join("var/server/audit.jsonl")).unwrap();
    assert!(audit.contains("certificate_revoke") && audit.contains("certificate_issue"), "{audit}");
}

/// A server of the installation in `dir`, and all that it logs, at the level at which it says most.
struct Server {
    process: Child,
    mqtt: String,
    log: std::thread::JoinHandle<String>,
}

fn serve(dir: &Path) -> Server {
    let toml = dir.join("var/server/server.toml");
    let changed = fs::read_to_string(&toml).unwrap().replace(":8883\"", ":0\"").replace(":8443\"", ":0\"");
    fs::write(&toml, format!("log = \"debug\"\n{changed}")).unwrap();
    let mut process = command(dir).args(["server", "--config", "var/server/server.toml"]).spawn().unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut before = String::new();
    let mut port = |what: &str| {
        for line in lines.by_ref() {
            before.push_str(&line);
            if let Some((_, address)) = line.split_once(&format!("listening for {what} on ")) {
                return address.rsplit_once(':').unwrap().1.trim().to_owned();
            }
        }
        panic!("the server does not listen: {before}")
    };
    let (mqtt, http) = (port("MQTT over TLS"), port("HTTPS"));
    let client = dir.join("var/client.toml");
    fs::write(&client, fs::read_to_string(&client).unwrap().replace(":8443", &format!(":{http}"))).unwrap();
    let log = std::thread::spawn(move || lines.fold(before, |all, line| all + &line + "\n"));
    Server { process, mqtt, log }
}

/// Every file below `dir` that is not there to hold a secret.
fn public_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(public_files(&path));
        } else if path.extension().is_none_or(|extension| extension != "key") && !path.ends_with("var/token") {
            found.push(path);
        }
    }
    found
}

#[test]
fn no_secret_in_logs_files_messages_or_on_a_command_line() {
    let dir = installation();
    let dir = dir.path();
    let server = serve(dir);
    let (right, wrong, guess) = ("right-secret-password", "wrong-secret-password", "guessed-secret-token-0123456789");
    let mut said = vec![command_line(&server.process)];
    let mut keep = |(output, seen): (Output, String)| {
        said.extend([seen, text(&output.stderr).to_owned()]);
        output
    };
    // Users and tokens are made, used, used wrongly, and revoked.
    good(&keep(run_with(dir, &["auth", "user", "add", "n5"], &format!("{right}\n"))));
    keep(run_with(dir, &["auth", "user", "add", "n5"], &format!("{wrong}\n")));
    let hash = keep(run_with(dir, &["auth", "hash"], right));
    let hash = good(&hash).trim().to_owned();
    let made = keep(run_with(dir, &["auth", "token", "create", "dashboard", "--role", "user"], ""));
    let made = good(&made).trim().to_owned();
    let own = fs::read_to_string(dir.join("var/token")).unwrap().trim().to_owned();
    let ca = dir.join("var/ca.pem");
    let login = |password: &str| {
        Client::connect(&ClientConfig {
            url: format!("mqtts://localhost:{}", server.mqtt),
            client_id: "n5".into(),
            user: Some("n5".into()),
            password: Some(password.to_owned()),
            tls: Some(tls::client_config(&ca, None).unwrap()),
            ..ClientConfig::default()
        })
    };
    wait_until("the new user", || login(right).is_ok());
    (0..8).for_each(|_| assert!(login(wrong).is_err()));
    for token in [&own, &made, guess] {
        fs::write(dir.join("var/token"), token).unwrap();
        let output = keep(run_with(dir, &["sensors"], ""));
        assert_eq!(output.status.code(), Some(if token == guess { 2 } else { 1 }), "{}", text(&output.stderr));
    }
    good(&keep(run_with(dir, &["auth", "token", "revoke", "dashboard"], "")));
    fs::write(dir.join("var/token"), &made).unwrap();
    wait_until("the revocation", || keep(run_with(dir, &["sensors"], "")).status.code() == Some(2));
    // A token file with an error in a line that holds a secret.
    let tokens = dir.join("var/server/tokens");
    let stored = fs::read_to_string(&tokens).unwrap();
    fs::write(&tokens, format!("{stored}{{\"id\":\"{guess}\"\n")).unwrap();
    let audit = || fs::read_to_string(dir.join("var/server/audit.jsonl")).unwrap();
    wait_until("a line about the broken file", || audit().contains("stays in force") || audit().contains("tokens: "));
    keep(run_with(dir, &["auth", "token", "list"], ""));
    fs::write(&tokens, stored).unwrap();

    // SAFETY: kill takes plain numbers; the process is our own child, not yet waited for.
    unsafe { libc::kill(server.process.id() as i32, libc::SIGTERM) };
    let Server { mut process, log, .. } = server;
    assert!(process.wait().unwrap().success());
    let mut printed = String::new();
    process.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    let log = log.join().unwrap();
    assert!(log.contains("wrong password") && log.contains("unknown token"), "it logs what happened: {log}");
    assert!(audit().contains("mqtt_login") && audit().contains("http_login"));
    said.extend([log, printed]);
    let key = fs::read_to_string(dir.join("var/server/server.key")).unwrap();
    let key = key.lines().nth(1).unwrap().to_owned();
    for secret in [right, wrong, guess, &own, &made, &key] {
        for text in &said {
            assert!(!text.contains(secret), "{secret} is in: {text}");
        }
        for path in public_files(dir) {
            let bytes = fs::read(&path).unwrap();
            assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "{secret} is in {path:?}");
        }
    }
    assert!(!said.iter().any(|text| text.contains(&hash)), "a hash is no secret, and nobody's business either");
}
