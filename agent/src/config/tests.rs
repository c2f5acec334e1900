use wholegrain_model::size::ByteSize;

use super::*;
use crate::engine::cpu_placement::SamplerCpu;

/// The configuration that `text` gives, below a directory that has `token`, `empty` and `ca.pem`, which is no certificate.
fn parse(text: &str) -> Result<Config, String> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("token"), "s3cret\nmore\n").unwrap();
    fs::write(dir.path().join("empty"), "\n").unwrap();
    fs::write(dir.path().join("ca.pem"), "nothing\n").unwrap();
    Config::parse(Path::new("agent.toml"), text, dir.path())
        .map_err(|error| error.to_string().replace(&format!("{}/", dir.path().display()), ""))
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    let error = parse(text).expect_err("should be refused");
    assert_eq!(error, expected, "\nfor:\n{text}");
}

#[track_caller]
fn refused_with(text: &str, beginning: &str) {
    let error = parse(text).expect_err("should be refused");
    assert!(error.starts_with(beginning), "{error:?} does not begin with {beginning:?}, for:\n{text}");
}

#[test]
fn an_empty_file_is_a_whole_configuration() {
    let config = parse("").unwrap();
    assert_eq!(config.prefix.as_str(), format!("/{}", config.name));
    assert_eq!((config.interval, config.rescan), (Interval::from_s(1), Interval::from_s(60)));
    assert_eq!((config.cache.duration, config.cache.bytes_max), (Interval::from_s(120), ByteSize::mib(2)));
    assert!(
        config.mqtt.is_none() && config.spool.is_none() && config.sources.is_empty() && config.api.socket.is_none()
    );
}

#[test]
fn the_packaged_example_is_read_and_its_commented_lines_too() {
    let text = include_str!("../../../packaging/agent.toml");
    let config = parse(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        config.sources.iter().map(|source| source.name).collect::<Vec<_>>(),
        [
            "procfs",
            "sysfs",
            "timex",
            "inventory",
            "cgroup",
            "tasks",
            "perf",
            "filesystems",
            "nfs",
            "lustre",
            "amdgpu",
            "intelgpu",
            "infiniband",
            "slingshot",
            "beegfs",
            "ceph"
        ]
    );
    // Every key that stands in a comment is one that exists: only files and combinations may be wrong.
    let uncommented: String = text
        .lines()
        .map(|line| {
            line.strip_prefix("# ").filter(|rest| rest.contains(" = ") || rest.starts_with('[')).unwrap_or(line)
        })
        .filter(|line| {
            !["cert", "key", "ca", "user", "password_file", "bursts_per_minute", "listen", "token", "send "]
                .iter()
                .any(|key| line.starts_with(key))
        })
        .map(|line| line.replace("mqtts://", "mqtt://") + "\n")
        .collect();
    let config = parse(&uncommented).unwrap_or_else(|error| panic!("{error}\n{uncommented}"));
    assert_eq!(config.mqtt.unwrap().send_interval, Interval::from_s(1));
    assert_eq!(config.spool.unwrap().after, Interval::from_s(5));
    assert_eq!(config.sources.len(), wholegrain_sources::SOURCES.len(), "each source stands in the file");
}

#[test]
fn everything_at_once() {
    let config = parse(
        r#"
        name = "n1"
        prefix = "/lab/r1/n1"
        rescan = "5s"
        log_level = "debug"
        roots = { proc = "tree/proc", sys = "/s" }
        [defaults]
        interval = "1ms"
        [mqtt]
        url = "mqtt://h:1883"
        version = "3.1.1"
        user = "u"
        password_file = "token"
        send = "burst"
        bursts_per_minute = 4
        [spool]
        dir = "spool"
        drain_bytes_per_second = "1MiB"
        drain_share = 1.0
        [api]
        socket = "agent.sock"
        [sources.agent]
        interval = "10s"
        "#,
    )
    .unwrap();
    let mqtt = config.mqtt.as_ref().unwrap();
    assert_eq!((mqtt.mode, mqtt.password.as_deref()), (SendMode::Burst { per_minute: 4 }, Some("s3cret")));
    assert!(config.roots.proc.is_absolute() && config.roots.proc.ends_with("tree/proc"), "relative to the file");
    assert_eq!(config.roots.sys, Path::new("/s"));
    assert_eq!(config.own.interval, Some(Interval::from_s(10)));
}

#[test]
fn slips_of_the_finger() {
    refused(
        "intervall = \"1s\"",
        "agent.toml:1:1: unknown key `intervall`; expected one of `name`, `prefix`, `rescan`, `log_level`, `roots`, `defaults`, `sampler`, `cache`, `mqtt`, `spool`, `api`, `jobs`, `plugins`, `sources`",
    );
    refused(
        "\n[defaults]\nintervall = \"1s\"",
        "agent.toml:3:1: unknown key `intervall`; expected one of `interval`"
            .replace("expected one of `interval`", "did you mean `interval`?")
            .as_str(),
    );
    refused("[mqqt]\nurl = \"mqtt://h\"", "agent.toml:1:2: unknown key `mqqt`; did you mean `mqtt`?");
    refused(
        "[mqtt]\nurl = \"mqtt://h\"\nsend = \"stagered\"",
        "agent.toml:3:8: unknown value `stagered`; did you mean `staggered`?",
    );
    refused(
        "[mqtt]\nurl = \"mqtt://h\"\nversion = \"4\"",
        "agent.toml:3:11: unknown value `4`; expected one of `3.1.1`, `5`",
    );
    refused("[sources.procsf]", "agent.toml:1:10: unknown source `procsf`; did you mean `procfs`?");
    let sources: Vec<String> = SOURCES.iter().map(|source| format!("`{}`", source.name)).collect();
    let expected = format!("agent.toml:1:10: unknown source `zzz`; expected one of {}, `agent`", sources.join(", "));
    refused("[sources.zzz]", &expected);
    refused("[sources]\nprocfs = true", "agent.toml:2:1: a source is a table; write [sources.procfs]");
    refused_with(
        "[sources.procfs]\ngroups = [\"meminfos\"]",
        "agent.toml:2:11: unknown value `meminfos`; did you mean `meminfo`?",
    );
    refused("[sources.agent]\nintervall = \"1s\"", "agent.toml:2:1: unknown key `intervall`; did you mean `interval`?");
    refused(
        "log_level = \"loud\"",
        "agent.toml:1:13: unknown value `loud`; expected one of `error`, `warn`, `info`, `debug`, `trace`",
    );
}

#[test]
fn wrong_types_and_broken_toml() {
    refused(
        "[defaults]\ninterval = 10",
        "agent.toml:2:12: invalid type: integer `10`, expected a length of time in quotes, such as \"100ms\", \"10s\" or \"1h\"",
    );
    refused("name = n1", "agent.toml:1:8: text stands in quotes; write \"n1\"");
    refused("[mqtt]\nurl = mqtt://h:1883", "agent.toml:2:7: text stands in quotes; write \"mqtt://h:1883\"");
    refused("[defaults]\ninterval = 100ms", "agent.toml:2:12: text stands in quotes; write \"100ms\"");
    refused("name = 7", "agent.toml:1:8: invalid type: integer `7`, expected a string");
    refused("name = \"a\"\nname = \"b\"", "agent.toml:2:1: duplicate key");
    refused_with("[api\nsocket = \"s\"", "agent.toml:1:5: ");
    refused_with("name = \"a", "agent.toml:1:");
    refused(
        "[cache]\nbytes_max = \"4\"",
        "agent.toml:2:13: \"4\" is not a size; write a number with B, KiB, MiB, GiB, TiB (powers of 1024) or kB, MB, GB, TB (powers of 1000), such as 64MiB",
    );
    refused("[mqtt]", "agent.toml:1:1: [mqtt] needs `url`, the server, or `urls`, a list of servers");
}

#[test]
fn intervals() {
    let not = "is not a length of time";
    let write = "write a number with ns, us, ms, s, min (or m), h, d or w, such as 100ms, 10s or 1h30m";
    refused(
        "[defaults]\ninterval = \"-1s\"",
        &format!("agent.toml:2:12: \"-1s\" {not} (no number before the unit); {write}"),
    );
    refused("[defaults]\ninterval = \"10\"", &format!("agent.toml:2:12: \"10\" {not} (no unit); {write}"));
    refused(
        "[defaults]\ninterval = \"500us\"",
        "agent.toml:2:1: interval is 500us; 1ms is the shortest that is sampled",
    );
    refused("[defaults]\ninterval = \"0s\"", "agent.toml:2:1: interval is 0s; 1ms is the shortest that is sampled");
    refused(
        "[sources.agent]\ninterval = \"1us\"",
        "agent.toml:2:1: interval is 1us; 1ms is the shortest that is sampled",
    );
    refused_with("[sources.tester]\ninterval = \"1us\"", "agent.toml:2:1: interval 1us is shorter than 1ms");
    refused(
        "[sampler]\ncpu = \"fast\"",
        "agent.toml:2:7: cpu is \"fast\"; use \"sticky\", \"any\" or the number of a CPU",
    );
    assert_eq!(parse("[sampler]\ncpu = 3").unwrap().sampler_cpu, SamplerCpu::Number(3));
    refused("rescan = \"1ms\"", "agent.toml:1:1: rescan is 1ms; 1s is the shortest");
    refused("[mqtt]\nurl = \"mqtt://h\"\nsend_interval = \"0s\"", "agent.toml:3:1: send_interval is 0s; use 1ms to 1h");
    refused("[mqtt]\nurl = \"mqtt://h\"\nkeep_alive = \"1ms\"", "agent.toml:3:1: keep_alive is 1ms; use 1s to 18h");
    refused("[cache]\nduration = \"0s\"", "agent.toml:2:1: the cache's duration and bytes_max must not be 0");
}

#[test]
fn names_and_places() {
    refused(
        "name = \"a/b\"",
        "agent.toml:1:1: name = \"a/b\": a name is one level of at most 128 bytes; a place in the hierarchy goes into `prefix`",
    );
    refused_with("name = \"a+b\"", "agent.toml:1:1: name = \"a+b\": sensor name \"a+b\" has '+' at byte 1");
    refused_with("name = \"\"", "agent.toml:1:1: name = \"\": sensor name \"\" has an empty level");
    refused("prefix = \"lab/n1\"", "agent.toml:1:1: sensor name \"lab/n1\" must begin with `/`");
    refused_with("prefix = \"/lab/../n1\"", "agent.toml:1:1: sensor name \"/lab/../n1\" has the level \"..\"");
    refused_with("prefix = \"/lab/n1/\"", "agent.toml:1:1: sensor name \"/lab/n1/\" has an empty level");
}

#[test]
fn servers_and_files() {
    let write = "write mqtt://host:port, or mqtts://host:port for TLS";
    refused("[mqtt]\nurl = \"server:1883\"", &format!("agent.toml:2:1: url = \"server:1883\": {write}"));
    refused("[mqtt]\nurl = \"tcp://server\"", &format!("agent.toml:2:1: url = \"tcp://server\": {write}"));
    refused(
        "[mqtt]\nurl = \"mqtts://h\"",
        "agent.toml:2:1: mqtts needs `ca`, the PEM file of the authority that signed the server's certificate",
    );
    refused(
        "[mqtt]\nurl = \"mqtt://h\"\nca = \"ca.pem\"",
        "agent.toml:3:1: ca is for TLS, but url begins with mqtt://; write mqtts://",
    );
    refused(
        "[mqtt]\nurl = \"mqtts://h\"\nca = \"absent.pem\"",
        "agent.toml:3:1: cannot read absent.pem: No such file or directory (os error 2)",
    );
    refused_with("[mqtt]\nurl = \"mqtts://h\"\nca = \"ca.pem\"", "agent.toml:3:1: ");
    refused(
        "[mqtt]\nurl = \"mqtts://h\"\nca = \"ca.pem\"\ncert = \"ca.pem\"",
        "agent.toml:4:1: a certificate needs `key` too, the PEM file of its key",
    );
    refused(
        "[mqtt]\nurl = \"mqtt://h\"\nuser = \"u\"\npassword_file = \"absent\"",
        "agent.toml:4:1: cannot read absent: No such file or directory (os error 2)",
    );
    refused(
        "[mqtt]\nurl = \"mqtt://h\"\nuser = \"u\"\npassword_file = \"empty\"",
        "agent.toml:4:1: empty is empty; its first line is the secret",
    );
    refused("[mqtt]\nurl = \"mqtt://h\"\npassword_file = \"token\"", "agent.toml:3:1: a password needs `user` too");
    refused(
        "[mqtt]\nurl = \"mqtt://h\"\nsend = \"burst\"",
        "agent.toml:3:1: send = \"burst\" needs `bursts_per_minute`, such as 2",
    );
    refused(
        "[mqtt]\nurl = \"mqtt://h\"\nbursts_per_minute = 2",
        "agent.toml:3:1: bursts_per_minute is for send = \"burst\"",
    );
    refused(
        "[mqtt]\nurl = \"mqtt://h\"\nsend = \"burst\"\nbursts_per_minute = 0",
        "agent.toml:4:1: bursts_per_minute is 0; use 1 to 600",
    );
    refused(
        "[mqtt]\nurl = \"mqtt://h\"\nqueue_bytes_max = \"1KiB\"",
        "agent.toml:3:1: queue_bytes_max is 1KiB; 64KiB is the least",
    );
    refused("[spool]\ndir = \"s\"\nbytes_max = \"1KiB\"", "agent.toml:3:1: bytes_max is 1KiB; 1MiB is the least");
    refused(
        "[spool]\ndir = \"s\"\ndrain_share = 0.0",
        "agent.toml:3:1: drain_share is 0; use more than 0 and at most 1",
    );
    refused(
        "[api]\nlisten = \"8444\"",
        "agent.toml:2:1: \"8444\" is not an address with a port, such as 0.0.0.0:8444 or [::]:8444",
    );
    refused(
        "[api]\nlisten = \"0.0.0.0:8444\"",
        "agent.toml:2:1: HTTPS needs `cert`, `key` and `token_file` or `tokens_file`; cert is missing",
    );
    refused(
        "[api]\ncert = \"ca.pem\"",
        "agent.toml:2:1: cert is for HTTPS, which needs `listen` too, such as \"0.0.0.0:8444\"",
    );
}

#[test]
fn lists_of_servers() {
    let mqtt = parse("[mqtt]\nurls = [\"mqtt://a\", \"mqtt://[::1]:7\", \"mqtt://a:1884\"]").unwrap().mqtt.unwrap();
    assert_eq!(mqtt.shown(), "mqtt://a, mqtt://[::1]:7, mqtt://a:1884");
    assert_eq!(mqtt.servers.iter().map(ServerUrl::host_and_port).collect::<Vec<_>>(), ["a:1883", "[::1]:7", "a:1884"]);
    assert_eq!((mqtt.connect_timeout, mqtt.return_interval), (None, Interval::from_s(300)));
    refused("[mqtt]\nurls = []", "agent.toml:2:8: urls is empty; write at least one server, or leave [mqtt] out");
    refused(
        "[mqtt]\nurls = \"mqtt://a\"",
        "agent.toml:2:8: invalid type: string \"mqtt://a\", expected a list of servers, such as \
         [\"mqtts://a.example:8883\", \"mqtts://b.example:8883\"]",
    );
    refused(
        "[mqtt]\nurls = [\"mqtt://a\", 7]",
        "agent.toml:2:21: invalid type: integer `7`, expected a server in quotes, such as \"mqtts://a.example:8883\"",
    );
    refused(
        "[mqtt]\nurls = [\n  \"mqtt://a\",\n  \"b:1883\",\n]",
        "agent.toml:4:3: \"b:1883\": write mqtt://host:port, or mqtts://host:port for TLS",
    );
    refused(
        "[mqtt]\nurls = [\"mqtt://a\", \"mqtt://b\", \"mqtt://A:1883/\"]",
        "agent.toml:2:33: \"mqtt://A:1883/\" is the same server as \"mqtt://a\"; write it once",
    );
    refused(
        "[mqtt]\nurls = [\"mqtts://a\", \"mqtt://b\"]",
        "agent.toml:2:22: \"mqtt://b\" beside \"mqtts://a\": use mqtts:// for all servers or mqtt:// for all",
    );
    refused(
        "[mqtt]\nurl = \"mqtt://a\"\nurls = [\"mqtt://b\"]",
        "agent.toml:3:1: url and urls exclude each other; write all servers into urls and remove url",
    );
    refused(
        "[mqtt]\nurls = [\"mqtts://h\"]",
        "agent.toml:2:1: mqtts needs `ca`, the PEM file of the authority that signed the server's certificate",
    );
    refused(
        "[mqtt]\nurls = [\"mqtt://h\"]\nca = \"ca.pem\"",
        "agent.toml:3:1: ca is for TLS, but urls begin with mqtt://; write mqtts://",
    );
    let list = |count: usize| (0..count).map(|n| format!("  \"mqtt://s{n}\",\n")).collect::<String>();
    parse(&format!("[mqtt]\nurls = [\n{}]", list(SERVERS_MAX))).unwrap();
    refused(
        &format!("[mqtt]\nurls = [\n{}]", list(SERVERS_MAX + 1)),
        "agent.toml:67:3: urls has more than 64 servers; a name can have several addresses",
    );
    refused(
        "[mqtt]\nurls = [\"mqtt://a\"]\nreturn_interval = \"10ms\"",
        "agent.toml:3:1: return_interval is 10ms; use 1s to 18h",
    );
    refused(
        "[mqtt]\nurls = [\"mqtt://a\"]\nanswer_timeout = \"0s\"",
        "agent.toml:3:1: answer_timeout is 0s; use 1s to 18h",
    );
}

#[test]
fn only_the_list_of_servers_changes_without_another_connection() {
    let mqtt = |text: &str| parse(&format!("[mqtt]\n{text}")).unwrap().mqtt.unwrap();
    let old = mqtt("urls = [\"mqtt://a\", \"mqtt://b\"]\nreturn_interval = \"1min\"");
    for (new, stays) in [
        ("urls = [\"mqtt://b\", \"mqtt://c\"]", true),
        ("url = \"mqtt://a\"", true),
        ("url = \"mqtt://a\"\nuser = \"u\"", false),
        ("url = \"mqtt://a\"\nanswer_timeout = \"9s\"", true),
        ("url = \"mqtt://a\"\nconnect_timeout = \"9s\"", false),
    ] {
        let new = mqtt(new);
        assert!(*old != *new, "a reload has to apply it");
        assert_eq!(old.is_same_connection(&new), stays, "{new:?}");
    }
}

#[test]
fn a_file_that_is_not_there() {
    let error = Config::load(Path::new("/nonexistent/agent.toml")).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot read the configuration /nonexistent/agent.toml: No such file or directory (os error 2); name it with --config"
    );
}

#[test]
fn what_needs_a_restart_is_named_once_and_as_long_as_it_is_so() {
    let parse = |text: &str| Config::parse(Path::new("agent.toml"), text, Path::new("/")).unwrap();
    let old = parse("[jobs]\nsocket = \"a.sock\"\ndir = \"a\"\n");
    let text = "name = \"x\"\n[jobs]\nsocket = \"b.sock\"\ndir = \"b\"\n";
    for _ in 0..2 {
        let mut new = parse(text);
        assert_eq!(old.needs_restart(&new), ["name", "prefix", "jobs.socket", "jobs.dir"]);
        new.keep(&old);
        assert_eq!(old.needs_restart(&new), [""; 0]);
    }
    let without = parse("");
    assert_eq!(old.needs_restart(&without), ["jobs.socket"]);
}

#[test]
fn a_renewed_certificate_is_another_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let renew = || {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        fs::write(dir.path().join("n1.pem"), made.cert.pem()).unwrap();
        fs::write(dir.path().join("n1.key"), made.signing_key.serialize_pem()).unwrap();
    };
    renew();
    fs::copy(dir.path().join("n1.pem"), dir.path().join("ca.pem")).unwrap();
    let text = "[mqtt]\nurl = \"mqtts://h\"\nca = \"ca.pem\"\ncert = \"n1.pem\"\nkey = \"n1.key\"\n";
    let load = || Config::parse(Path::new("agent.toml"), text, dir.path()).unwrap().mqtt.unwrap();
    let first = load();
    assert_eq!(*first, *load());
    renew();
    assert_ne!(*first, *load(), "the same paths, other contents: a reload has to reconnect");
}
