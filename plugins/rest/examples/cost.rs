//! The CPU time of one poll: 100 devices with 20 values each, which a process of its own answers.
//!
//! `cargo run -p wholegrain-plugin-rest --example cost`

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use wholegrain_model::config::Document;
use wholegrain_plugin_rest::SOURCE;
use wholegrain_sources::{ConfigureContext, Row};

const DEVICES: usize = 100;
const VALUES: usize = 20;
/// How long the polls are counted: 20 s.
const COUNTED: Duration = Duration::from_secs(20);

fn main() {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return serve();
    }
    let myself = std::env::current_exe().expect("the path of this program");
    let mut server = Command::new(myself).arg("serve").stdout(Stdio::piped()).spawn().expect("a server");
    let mut port = String::new();
    let mut byte = [0];
    let mut out = server.stdout.take().expect("the output of the server");
    while out.read_exact(&mut byte).is_ok() && byte[0] != b'\n' {
        port.push(char::from(byte[0]));
    }
    let values: Vec<String> =
        (0..VALUES).map(|number| format!("{{ name = \"v{number}\", path = \"$.sensors.v{number}.value\" }}")).collect();
    let text = format!(
        "[plugins.rest]\ninterval = \"1s\"\n[[plugins.rest.device]]\nhosts = [\"d[1-{DEVICES}]\"]\n[[plugins.rest.device.url]]\nname = \"u\"\n\
         url = \"http://127.0.0.1:{port}/\"\nvalue = [{}]\n",
        values.join(", ")
    );
    let section = Document::new("cost.toml", &text).root().child("plugins").child("rest");
    let mut source = (SOURCE.configure)(&section, &ConfigureContext::default()).expect("good settings");
    let mut groups = source.discover(&mut |note| eprintln!("{note}"));
    let (begin, cpu, mut samples) = (Instant::now(), cpu_time(), 0u32);
    while begin.elapsed() < COUNTED {
        std::thread::sleep(Duration::from_millis(100));
        for group in &mut groups {
            let count = group.sensors.len();
            let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
            let reading = group.reader.read(&mut Row::new(&mut values, &mut gaps));
            samples += u32::from(reading.taken_at.is_some());
        }
    }
    let spent = cpu_time() - cpu;
    println!(
        "{DEVICES} devices of {VALUES} values: {samples} polls in {COUNTED:?}, {:?} of CPU for each",
        spent / samples.max(1)
    );
    let _ = server.kill();
    let _ = server.wait();
}

/// Answers each request on each connection.
fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    println!("{}", listener.local_addr().expect("an address").port());
    let values: Vec<String> = (0..VALUES)
        .map(|number| format!("\"v{number}\": {{\"value\": {number}.25, \"unit\": \"W\", \"state\": \"ok\"}}"))
        .collect();
    let body = format!("{{\"sensors\": {{{}}}}}", values.join(", "));
    let answer =
        format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for mut stream in listener.incoming().flatten() {
        let answer = answer.clone();
        std::thread::spawn(move || {
            let (mut request, mut chunk) = (Vec::new(), [0; 4096]);
            while let Ok(count) = stream.read(&mut chunk) {
                request.extend_from_slice(&chunk[..count]);
                if count == 0 || (request.ends_with(b"\r\n\r\n") && stream.write_all(answer.as_bytes()).is_err()) {
                    return;
                }
                if request.ends_with(b"\r\n\r\n") {
                    request.clear();
                }
            }
        });
    }
}

/// The CPU time of this process, of all its threads.
fn cpu_time() -> Duration {
    // SAFETY: `usage` has room for what getrusage writes, and all its bits may be zero.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}
