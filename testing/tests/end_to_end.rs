//! One machine as a new user sees it: `wholegrain up`, a query compared with /proc, the files in DuckDB, a second start.

use std::path::Path;

use wholegrain_testing::{Process, Site, free_port, python, wait_until};

/// `wholegrain up` in its own directory.
struct Up {
    site: Site,
    process: Process,
}

impl Up {
    fn start(site: Site) -> Self {
        let mut command = site.command(&["up", "--dir"]);
        command.arg(site.dir()).args([
            "--mqtt-port",
            &site.mqtt_port.to_string(),
            "--http-port",
            &site.http_port.to_string(),
        ]);
        let process = Process::start(&mut command, &site.path("up.log"));
        let mut up = Self { site, process };
        wait_until("the agent's readings are visible", || {
            assert!(up.process.runs(), "`wholegrain up` ended: {}", up.process.log());
            up.site.run(&["query", "MemAvailable", "--from", "-1m"]).status.code() == Some(0)
        });
        up
    }

    fn stop(mut self) -> Site {
        self.process.signal(libc::SIGINT);
        let status = self.process.wait();
        assert!(status.success(), "Ctrl-C ended it with {status}");
        self.site
    }

    fn available(&self) -> Vec<i64> {
        let csv = self.site.answer(&["query", "/**/meminfo/MemAvailable", "--from", "-1h", "--format", "csv"]);
        csv.lines().skip(1).map(|line| line.split(',').nth(2).unwrap_or_default().parse().expect("bytes")).collect()
    }
}

fn mem_available() -> i64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).expect("MemAvailable");
    line.trim().trim_end_matches(" kB").parse::<i64>().expect("kB") * 1024
}

#[test]
fn a_new_user_starts_queries_and_restarts() {
    let up = Up::start(Site::new());
    wait_until("it says what to type next", || up.process.log().contains(" query "));

    let now = mem_available();
    let seen = *up.available().last().expect("a value");
    assert!((seen - now).abs() < now / 4 + (512 << 20), "MemAvailable {seen} in the store, {now} in /proc");

    wait_until("ten samples", || up.available().len() >= 10);
    let before = up.available();
    let tree = up.site.answer(&["sensors", "--tree"]);
    assert!(tree.contains("MemAvailable") && tree.contains("meminfo"), "{tree}");
    assert_eq!(up.site.run(&["query", "/no/such/sensor"]).status.code(), Some(1));

    let site = up.stop();
    assert_eq!(site.run(&["sensors"]).status.code(), Some(3), "nobody listens after Ctrl-C");

    let up = Up::start(site);
    let after = up.available();
    assert!(after.starts_with(&before), "a second start keeps the data: {before:?} is no beginning of {after:?}");
    let site = up.stop();
    check_with_duckdb(&site.path("server/store"), before.len());
}

fn check_with_duckdb(store: &Path, at_least: usize) {
    let answer = python("mem_available.py", &[store]);
    let count: usize = answer.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a count");
    assert!(count >= at_least, "DuckDB sees {count} rows, the server had {at_least}");
    assert!(answer.contains("BIGINT") && answer.contains("TIMESTAMP"), "integers stay integers: {answer}");
}

#[test]
fn a_port_in_use_is_reported() {
    let site = Site::new();
    let taken = std::net::TcpListener::bind(("127.0.0.1", site.http_port)).expect("the port");
    let output = site.run(&["server", "--config", &site.path("server/server.toml").to_string_lossy()]);
    drop(taken);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains(&site.http_port.to_string()), "{}: {message}", output.status);
    assert_ne!(free_port(), 0);
}
