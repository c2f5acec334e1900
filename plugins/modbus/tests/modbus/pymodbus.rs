use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use wholegrain_testkit::{checkout, free_port};

use super::*;

/// A server of pymodbus. It ends when this is dropped.
struct PymodbusServer(Child);

impl PymodbusServer {
    fn start(mode: &str, place: &str, values: &str) -> Self {
        let root = checkout::root();
        let mut child = Command::new(root.join(".venv/bin/python"))
            .arg(root.join("plugins/modbus/tests/peer.py"))
            .args([mode, place, values])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("make prepare makes .venv");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("output of the peer");
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for PymodbusServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Unit 1: each type, some in other orders, registers with a gap between them, bits. Unit 2: one register. Units 3 and 4 never answer.
const VALUES: &str = r#"[
    [1, "holding", 100, "UINT16", 65000, "big"],
    [1, "holding", 101, "INT16", -1234, "big"],
    [1, "holding", 102, "UINT32", 4000000000, "big"],
    [1, "holding", 104, "INT32", -70000, "little"],
    [1, "holding", 106, "FLOAT32", 230.5, "big"],
    [1, "holding", 108, "FLOAT32", -0.125, "little"],
    [1, "holding", 110, "FLOAT64", 49.98, "big"],
    [1, "holding", 114, "INT64", -5000000000, "little"],
    [1, "holding", 118, "UINT64", 5000000000, "big"],
    [1, "input", 7, "UINT16", 4660, "big"],
    [1, "input", 9, "UINT16", 32768, "big"],
    [1, "coil", 3, "", 1, ""],
    [1, "coil", 4, "", 0, ""],
    [1, "discrete", 17, "", 1, ""],
    [2, "holding", 5, "UINT16", 22, "big"],
    [3, "holding", 5, "UINT16", 33, "big"],
    [4, "holding", 5, "UINT16", 44, "big"]
]"#;

const METER: &str = r#"
    [plugins.modbus]
    interval = "100ms"
    timeout = "2s"
    [[plugins.modbus.template.meter.register]]
    name = "u16"
    address = 100
    [[plugins.modbus.template.meter.register]]
    name = "i16"
    address = 101
    type = "i16"
    scale = 0.1
    unit = "Cel"
    [[plugins.modbus.template.meter.register]]
    name = "u32"
    address = 102
    type = "u32"
    kind = "counter"
    wraps = true
    unit = "W.h"
    [[plugins.modbus.template.meter.register]]
    name = "i32"
    address = 104
    type = "i32"
    order = "word-swap"
    [[plugins.modbus.template.meter.register]]
    name = "f32"
    address = 106
    type = "f32"
    unit = "V"
    [[plugins.modbus.template.meter.register]]
    name = "f32-swapped"
    address = 108
    type = "f32"
    order = "CDAB"
    [[plugins.modbus.template.meter.register]]
    name = "f64"
    address = 110
    type = "f64"
    unit = "Hz"
    [[plugins.modbus.template.meter.register]]
    name = "i64"
    address = 114
    type = "i64"
    order = "word-swap"
    [[plugins.modbus.template.meter.register]]
    name = "u64"
    address = 118
    type = "u64"
    [[plugins.modbus.template.meter.register]]
    name = "decimal"
    table = "input"
    address = 7
    type = "bcd16"
    [[plugins.modbus.template.meter.register]]
    name = "bit"
    table = "input"
    address = 7
    type = "bit"
    bit = 4
    [[plugins.modbus.template.meter.register]]
    name = "linear"
    table = "input"
    address = 7
    scale = 0.5
    offset = -30.0
    [[plugins.modbus.template.meter.register]]
    name = "absent"
    table = "input"
    address = 9
    type = "i16"
    absent = [-32768]
    [[plugins.modbus.template.meter.register]]
    name = "on"
    table = "coil"
    address = 3
    [[plugins.modbus.template.meter.register]]
    name = "off"
    table = "coil"
    address = 4
    [[plugins.modbus.template.meter.register]]
    name = "alarm"
    table = "discrete"
    address = 17
"#;

/// What [`METER`] must read from [`VALUES`].
fn expected() -> Vec<SampleValue> {
    use SampleValue::{Float, Gap, Int};
    vec![
        Int(65000),
        Int(-1234),
        Int(4_000_000_000),
        Int(-70_000),
        Float(230.5),
        Float(-0.125),
        Float(49.98),
        Int(-5_000_000_000),
        Int(5_000_000_000),
        Int(1234),
        Int(1),
        Float(2300.0),
        Gap,
        Int(1),
        Int(0),
        Int(1),
    ]
}

#[test]
fn every_type_over_tcp() {
    let port = free_port();
    let _peer = PymodbusServer::start("tcp", &port.to_string(), VALUES);
    let device = "[[plugins.modbus.device]]\nhosts = [\"127.0.0.1\"]\npath = \"hall/meter\"\ntemplate = \"meter\"\n";
    let mut running = Running::new(&format!("{METER}{device}port = {port}\n"));
    assert_eq!(running.notes, [""; 0]);
    let (taken_at, values) = running.answer("hall/meter");
    assert_eq!(values, expected());
    check_time(taken_at);
    let (later, values) = running.answer("hall/meter");
    assert!(later > taken_at, "the time is that of another answer");
    assert_eq!(values, expected());
    let sensors = &running.groups[0].sensors;
    assert_eq!((sensors[1].name.as_str(), sensors[1].unit.as_str(), sensors[1].scale), ("hall/meter/i16", "Cel", 0.1));
    assert_eq!((sensors[2].unit.as_str(), sensors[2].wraps_at), ("W.h", Some(1 << 32)));
    assert!(running.groups[0].blocking);
}

#[test]
fn the_same_in_frames_of_a_serial_line_over_tcp() {
    let port = free_port();
    let _peer = PymodbusServer::start("rtu", &port.to_string(), VALUES);
    let device = "[[plugins.modbus.device]]\nhosts = [\"127.0.0.1\"]\ntemplate = \"meter\"\nframing = \"rtu\"\n";
    let mut running = Running::new(&format!("{METER}{device}port = {port}\n"));
    assert_eq!(running.answer("127.0.0.1").1, expected());
    assert_eq!(running.answer("127.0.0.1").1, expected());
}

/// Opens a pseudo terminal: its master, and the path of the terminal.
fn terminal() -> (std::fs::File, String) {
    let mut name = [0u8; 128];
    // SAFETY: posix_openpt has one argument, a number.
    let master = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY) };
    assert!(master >= 0);
    // SAFETY: the descriptor is open and nobody else has it.
    let master = unsafe { OwnedFd::from_raw_fd(master) };
    let fd = master.as_raw_fd();
    // SAFETY: the descriptor is that of a master, and the name has room for its length.
    let results =
        unsafe { [libc::grantpt(fd), libc::unlockpt(fd), libc::ptsname_r(fd, name.as_mut_ptr().cast(), name.len())] };
    assert_eq!(results, [0; 3]);
    let end = name.iter().position(|byte| *byte == 0).expect("an end");
    (master.into(), String::from_utf8(name[..end].to_vec()).expect("a path"))
}

/// Two terminals that are connected as by a cable: what is written to one is read from the other.
fn cable() -> [String; 2] {
    let ((left, left_path), (right, right_path)) = (terminal(), terminal());
    for (mut from, mut to) in [(left.try_clone().expect("a copy"), right.try_clone().expect("a copy")), (right, left)] {
        std::thread::spawn(move || {
            let mut buffer = [0; 512];
            loop {
                match from.read(&mut buffer) {
                    Ok(length) => to.write_all(&buffer[..length]).expect("the other end"),
                    // Nobody has the terminal open yet, or no longer.
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
    }
    [left_path, right_path]
}

#[test]
fn several_units_on_a_serial_line() {
    let [ours, theirs] = cable();
    let _peer = PymodbusServer::start("serial", &theirs, VALUES);
    let mut running = Running::new(&format!(
        "{METER}
        [[plugins.modbus.device]]
        hosts = [\"meter1\"]
        template = \"meter\"
        serial = \"{ours}\"
        baud = 9600
        [[plugins.modbus.device]]
        hosts = [\"meter[2-3]\"]
        unit = \"{{1}}\"
        serial = \"{ours}\"
        baud = 9600
        timeout = \"2s\"
        register = [{{ name = \"power\", address = 5 }}]
        "
    ));
    // Unit 3 does not exist: it delays the others by its timeout, but takes nothing from them.
    for _ in 0..2 {
        assert_eq!(running.answer("meter1").1, expected());
        assert_eq!(running.answer("meter2").1, [SampleValue::Int(22)]);
    }
    running.wait_for_gaps("meter3", has_errno(libc::ETIMEDOUT));
    let notes = running.notes();
    assert_eq!(notes.iter().filter(|note| note.contains("meter3")).count(), 1, "{notes:?}");
}

#[test]
fn units_behind_a_gateway_of_which_one_hangs() {
    let port = free_port();
    let _peer = PymodbusServer::start("tcp", &port.to_string(), VALUES);
    let mut running = Running::new(&format!(
        "[plugins.modbus]
        interval = \"100ms\"
        timeout = \"300ms\"
        [[plugins.modbus.device]]
        hosts = [\"rack[2-4]\"]
        connect = \"127.0.0.1:{port}\"
        unit = \"{{1}}\"
        register = [{{ name = \"power\", address = 5, unit = \"W\" }}]
        "
    ));
    for _ in 0..5 {
        assert_eq!(running.answer("rack2").1, [SampleValue::Int(22)]);
    }
    running.wait_for_gaps("rack3", has_errno(libc::ETIMEDOUT));
    running.wait_for_gaps("rack4", has_errno(libc::ETIMEDOUT));
    assert_eq!(running.answer("rack2").1, [SampleValue::Int(22)]);
}

#[test]
fn an_illegal_address_is_a_gap_and_is_named_once() {
    let port = free_port();
    let _peer = PymodbusServer::start("tcp", &port.to_string(), VALUES);
    let mut running = Running::new(&format!(
        "[plugins.modbus]
        interval = \"100ms\"
        [[plugins.modbus.device]]
        hosts = [\"127.0.0.1:{port}\"]
        path = \"cooler\"
        gap = 10
        register = [
            {{ name = \"a\", address = 100 }},
            {{ name = \"b\", address = 122 }},
            {{ name = \"c\", address = 101, type = \"i16\" }},
        ]
        "
    ));
    let expected = [SampleValue::Int(65000), SampleValue::Gap, SampleValue::Int(-1234)];
    (0..3).for_each(|_| assert_eq!(running.answer("cooler").1, expected));
    let text = format!(
        "device cooler (127.0.0.1:{port}): holding register 122: exception 2 (illegal data address); its values are gaps"
    );
    let mut notes = running.notes();
    notes.dedup();
    assert_eq!(notes, [text]);
}
