//! The CPU time of one poll: 100 devices with 20 values each, which a process of its own answers.
//!
//! `cargo run --release -p wholegrain-plugin-rest --example cost`

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use wholegrain_plugin_rest::SOURCE;
use wholegrain_source_testkit::{PeerProcess, PollCost, SampledSource, configure_plugin};

const DEVICES: usize = 100;
const VALUES: usize = 20;
/// How long the polls are counted: 20 s.
const COUNTED: Duration = Duration::from_secs(20);

fn main() {
    if PeerProcess::is_this() {
        return serve();
    }
    let server = PeerProcess::start();
    let values: Vec<String> =
        (0..VALUES).map(|number| format!("{{ name = \"v{number}\", path = \"$.sensors.v{number}.value\" }}")).collect();
    let text = format!(
        "[plugins.rest]\ninterval = \"1s\"\n[[plugins.rest.device]]\nhosts = [\"d[1-{DEVICES}]\"]\n[[plugins.rest.device.url]]\nname = \"u\"\n\
         url = \"http://127.0.0.1:{}/\"\nvalue = [{}]\n",
        server.line,
        values.join(", ")
    );
    let source = configure_plugin(&SOURCE, "".as_ref(), &text).expect("good settings");
    let cost = PollCost::measure(&mut SampledSource::of(source), "rest", COUNTED, Duration::from_millis(100));
    println!("{DEVICES} devices of {VALUES} values each second: {cost}");
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
