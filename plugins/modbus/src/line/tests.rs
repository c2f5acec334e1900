use wholegrain_testkit::Random;

use super::*;
use crate::frame::{DataTable, crc16};
use crate::value::{ByteOrder, Decoder, RegisterType};

const TIMEOUT: Duration = Duration::from_millis(500);

fn registers(addresses: impl IntoIterator<Item = u16>) -> Vec<Point> {
    let decoder =
        Decoder { data_type: RegisterType::U16, order: ByteOrder::Big, bit: 0, absent: Vec::new(), linear: None };
    addresses
        .into_iter()
        .map(|address| Point { table: DataTable::Holding, address, decoder: decoder.clone() })
        .collect()
}

fn unit(unit: u8, addresses: impl IntoIterator<Item = u16>) -> UnitSettings {
    UnitSettings { unit, points: registers(addresses), gap: 0, registers_max: 125 }
}

/// A line with its clock.
struct LineBench {
    line: ModbusLine,
    units: usize,
    start: Instant,
    now: Instant,
}

impl LineBench {
    fn new(framing: Framing, in_flight: usize, units: Vec<UnitSettings>) -> Self {
        let now = Instant::now();
        let settings = LineSettings { framing, timeout: TIMEOUT, in_flight, pause: Duration::ZERO, retries: 0 };
        Self { units: units.len(), line: ModbusLine::new(settings, units), start: now, now }
    }

    /// Performs steps until the line waits; what it sent, and whether it opened or closed the connection.
    fn steps(&mut self) -> (Vec<Vec<u8>>, Vec<&'static str>) {
        let (mut sent, mut actions) = (Vec::new(), Vec::new());
        for _ in 0..1000 {
            match self.line.step(self.now) {
                LineStep::Connect => actions.push("connect"),
                LineStep::Close => actions.push("close"),
                LineStep::Send(bytes) => sent.push(bytes),
                LineStep::Wait(at) => {
                    assert!(at.is_none_or(|at| at > self.now), "a wait for a time that has been");
                    return (sent, actions);
                }
            }
        }
        panic!("the line never waits");
    }

    /// Starts a poll of each unit that has none.
    fn begin(&mut self) {
        for unit in 0..self.units {
            if !self.line.units[unit].is_polling {
                self.line.begin(unit, true, self.now);
            }
        }
    }

    /// Polls all units on a connection that opens; what the line sends first.
    fn open(&mut self) -> Vec<Vec<u8>> {
        self.begin();
        assert_eq!(self.steps().1, ["connect"]);
        self.line.connected();
        self.sent()
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        let (sent, actions) = self.steps();
        assert_eq!(actions, [""; 0]);
        sent
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.line.received(self.now, self.wall(), bytes);
    }

    fn wall(&self) -> i64 {
        (self.now - self.start).as_nanos() as i64
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn events(&mut self) -> Vec<LineEvent> {
        std::iter::from_fn(|| self.line.event()).collect()
    }
}

/// The answer of a device in which the value of a register is its address plus `add`.
fn answer(request: &[u8], add: u16) -> Vec<u8> {
    let [address, count] = [8, 10].map(|at| u16::from_be_bytes([request[at], request[at + 1]]));
    let mut pdu = vec![request[7], count as u8 * 2];
    (0..count).for_each(|n| pdu.extend_from_slice(&(address + n + add).to_be_bytes()));
    frame(request, &pdu)
}

fn frame(request: &[u8], pdu: &[u8]) -> Vec<u8> {
    let mut frame = request[..4].to_vec();
    frame.extend_from_slice(&(pdu.len() as u16 + 1).to_be_bytes());
    frame.push(request[6]);
    frame.extend_from_slice(pdu);
    frame
}

fn serial_answer(request: &[u8], add: u16) -> Vec<u8> {
    let [address, count] = [2, 4].map(|at| u16::from_be_bytes([request[at], request[at + 1]]));
    let mut frame = vec![request[0], request[1], count as u8 * 2];
    (0..count).for_each(|n| frame.extend_from_slice(&(address + n + add).to_be_bytes()));
    let crc = crc16(&frame);
    frame.extend_from_slice(&crc.to_le_bytes());
    frame
}

fn ints(values: &[i64]) -> Vec<Option<RegisterValue>> {
    values.iter().map(|value| Some(RegisterValue::Int(*value))).collect()
}

fn silent(unit: usize) -> LineEvent {
    LineEvent::Failed { unit, problem: DeviceProblem::Silent }
}

#[test]
fn a_poll_reads_all_blocks_and_has_the_time_of_the_last_answer() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, [10, 11, 50])]);
    let first = bench.open();
    assert_eq!(first.len(), 1);
    bench.pass(TIMEOUT / 4);
    bench.receive(&answer(&first[0], 0));
    let second = bench.sent();
    bench.pass(TIMEOUT / 4);
    bench.receive(&answer(&second[0], 0));
    let taken_at = bench.wall();
    assert_eq!(bench.events(), [LineEvent::Values { unit: 0, taken_at, values: ints(&[10, 11, 50]) }]);
    assert!(bench.sent().is_empty());
    bench.begin();
    assert_eq!(bench.sent().len(), 1);
}

#[test]
fn a_late_answer_is_not_that_of_a_later_request() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, [10])]);
    let first = bench.open();
    bench.pass(TIMEOUT);
    assert!(bench.sent().is_empty());
    assert_eq!(bench.events(), [silent(0)]);
    bench.begin();
    let second = bench.sent();
    bench.receive(&answer(&first[0], 1000));
    assert_eq!((bench.events(), bench.line.strays), (vec![], 1));
    bench.receive(&answer(&second[0], 0));
    assert_eq!(bench.events(), [LineEvent::Values { unit: 0, taken_at: bench.wall(), values: ints(&[10]) }]);
    // A second answer to the same request.
    bench.receive(&answer(&second[0], 2000));
    assert_eq!((bench.events(), bench.line.strays, bench.line.take_strays()), (vec![], 1, 2));
}

#[test]
fn a_unit_that_hangs_delays_another_for_one_timeout() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, 0..200), unit(2, [2])]);
    let first = bench.open();
    assert_eq!(first[0][6], 1);
    bench.pass(TIMEOUT);
    let second = bench.sent();
    assert_eq!((second.len(), second[0][6]), (1, 2));
    bench.receive(&answer(&second[0], 0));
    assert!(matches!(&bench.events()[..], [LineEvent::Failed { unit: 0, .. }, LineEvent::Values { unit: 1, .. }]));
}

#[test]
fn requests_of_several_units_are_in_flight_together_and_answers_come_in_any_order() {
    let mut bench = LineBench::new(Framing::Tcp, 3, (1..=4).map(|n| unit(n, [7])).collect());
    let sent = bench.open();
    assert_eq!(sent.iter().map(|request| request[6]).collect::<Vec<_>>(), [1, 2, 3]);
    bench.receive(&answer(&sent[2], 30));
    bench.receive(&answer(&sent[0], 10));
    assert_eq!(bench.sent().iter().map(|request| request[6]).collect::<Vec<_>>(), [4]);
    let taken_at = bench.wall();
    assert_eq!(
        bench.events(),
        [
            LineEvent::Values { unit: 2, taken_at, values: ints(&[37]) },
            LineEvent::Values { unit: 0, taken_at, values: ints(&[17]) }
        ]
    );
}

/// Answers each request as a device without some addresses; the number of requests of one poll.
fn poll_without(bench: &mut LineBench, absent: &[u16], mut requests: Vec<Vec<u8>>) -> usize {
    let mut count = 0;
    while let Some(request) = requests.pop() {
        count += 1;
        let [address, registers] = [8, 10].map(|at| u16::from_be_bytes([request[at], request[at + 1]]));
        let refuses = absent.iter().any(|a| (address..address + registers).contains(a));
        let bytes = if refuses { frame(&request, &[request[7] | 0x80, 2]) } else { answer(&request, 0) };
        bench.receive(&bytes);
        requests.extend(bench.sent());
    }
    count
}

#[test]
fn an_illegal_address_makes_only_its_values_gaps() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, 0..16)]);
    let first = bench.open();
    assert_eq!(poll_without(&mut bench, &[5], first), 9);
    let text = "holding register 5: exception 2 (illegal data address); its values are gaps";
    assert_eq!(bench.line.refusals(0).collect::<Vec<_>>(), [text]);
    let mut expected = ints(&(0..16).collect::<Vec<_>>());
    expected[5] = None;
    assert_eq!(bench.events(), [LineEvent::Values { unit: 0, taken_at: 0, values: expected.clone() }]);
    // Later polls read the parts that are left, and now and then try the refused value.
    let mut counts = Vec::new();
    for _ in 0..REFUSED_POLLS + 2 {
        bench.begin();
        let requests = bench.sent();
        counts.push(poll_without(&mut bench, &[5], requests));
        let events = bench.events();
        assert!(matches!(&events[..], [LineEvent::Values { values, .. }] if *values == expected), "{events:?}");
    }
    assert_eq!(counts.iter().filter(|count| **count == 4).count(), REFUSED_POLLS as usize + 1, "{counts:?}");
    assert_eq!(counts.iter().filter(|count| **count == 5).count(), 1, "{counts:?}");
    assert_eq!(bench.line.refusals(0).count(), 1);
    // The device has the register now.
    for _ in 0..REFUSED_POLLS {
        bench.begin();
        let requests = bench.sent();
        poll_without(&mut bench, &[], requests);
    }
    assert_eq!(bench.line.refusals(0).count(), 0);
    let all = ints(&(0..16).collect::<Vec<_>>());
    assert!(matches!(bench.events().last(), Some(LineEvent::Values { values, .. }) if *values == all));
}

#[test]
fn a_device_that_refuses_everything_has_a_problem_of_its_own() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, [5])]);
    let first = bench.open();
    poll_without(&mut bench, &[5], first);
    let refused = LineEvent::Failed { unit: 0, problem: DeviceProblem::Refused("illegal data address") };
    assert_eq!(bench.events(), vec![refused.clone()]);
    bench.begin();
    assert!(bench.sent().is_empty());
    assert_eq!(bench.events(), [refused]);
}

#[test]
fn a_gateway_that_cannot_reach_a_unit_is_a_unit_that_does_not_answer() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, 0..4), unit(2, [9])]);
    let first = bench.open();
    bench.receive(&frame(&first[0], &[0x83, 11]));
    assert_eq!(bench.events(), [silent(0)]);
    assert_eq!(bench.sent()[0][6], 2);
}

#[test]
fn wrong_lengths_and_functions_are_gaps() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, [3, 10])]);
    let first = bench.open();
    bench.receive(&frame(&first[0], &[3, 4, 0, 1, 0, 2]));
    let second = bench.sent();
    bench.receive(&answer(&second[0], 0));
    let values = vec![None, Some(RegisterValue::Int(10))];
    assert_eq!(bench.events(), [LineEvent::Values { unit: 0, taken_at: 0, values }]);
    let refusals: Vec<String> = bench.line.refusals(0).collect();
    assert!(refusals.len() == 1 && refusals[0].contains("4 bytes of data in place of 2"), "{refusals:?}");
}

#[test]
fn garbage_ends_the_connection_and_the_next_attempt_waits() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, [3])]);
    bench.open();
    bench.receive(&[0x41; 65_536]);
    assert!(bench.line.input.is_empty());
    let (sent, actions) = bench.steps();
    assert_eq!((sent.len(), actions), (0, vec!["close"]));
    let failed = LineEvent::Failed { unit: 0, problem: NO_MODBUS };
    assert_eq!(bench.events(), vec![failed.clone()]);
    bench.begin();
    assert_eq!((bench.steps().1, bench.events()), (vec![], vec![failed]));
    bench.pass(RECONNECT_PAUSE);
    bench.begin();
    assert_eq!(bench.steps().1, ["connect"]);
}

#[test]
fn a_refused_connection_fails_all_units_behind_it() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, [3]), unit(2, [3])]);
    bench.begin();
    assert_eq!(bench.steps().1, ["connect"]);
    let problem = DeviceProblem::Network(libc::ECONNREFUSED);
    bench.line.closed(bench.now, problem);
    assert_eq!(bench.events(), [0, 1].map(|unit| LineEvent::Failed { unit, problem }));
}

#[test]
fn a_connection_that_was_idle_and_closed_is_opened_again_without_a_gap() {
    let reset = DeviceProblem::Network(libc::ECONNRESET);
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, [3])]);
    let first = bench.open();
    bench.receive(&answer(&first[0], 0));
    bench.begin();
    assert_eq!(bench.sent().len(), 1);
    bench.line.closed(bench.now, reset);
    let sent = bench.open();
    bench.receive(&answer(&sent[0], 0));
    let events = bench.events();
    assert!(events.iter().all(|event| matches!(event, LineEvent::Values { .. })) && events.len() == 2, "{events:?}");
    // The second time in one poll is a failure.
    bench.begin();
    assert_eq!(bench.sent().len(), 1);
    bench.line.closed(bench.now, reset);
    bench.open();
    bench.line.closed(bench.now, reset);
    assert_eq!(bench.events(), [LineEvent::Failed { unit: 0, problem: reset }]);
}

#[test]
fn a_connection_that_is_never_accepted_is_given_up() {
    let mut bench = LineBench::new(Framing::Tcp, 1, vec![unit(1, [3])]);
    bench.begin();
    assert_eq!(bench.steps().1, ["connect"]);
    bench.pass(TIMEOUT);
    assert_eq!((bench.steps().1, bench.events()), (vec!["close"], vec![silent(0)]));
}

#[test]
fn after_a_timeout_a_serial_line_is_silent_until_a_late_answer_has_had_its_time() {
    let mut bench = LineBench::new(Framing::Serial, 8, vec![unit(1, [3]), unit(2, [3])]);
    let first = bench.open();
    assert_eq!(first.len(), 1, "one request at a time");
    bench.pass(TIMEOUT);
    assert!(bench.sent().is_empty());
    bench.receive(&serial_answer(&first[0], 1000));
    bench.pass(TIMEOUT);
    let second = bench.sent();
    assert_eq!(second[0][0], 2);
    bench.receive(&serial_answer(&second[0], 0));
    let values = LineEvent::Values { unit: 1, taken_at: bench.wall(), values: ints(&[3]) };
    assert_eq!(bench.events(), [silent(0), values]);
}

#[test]
fn after_a_timeout_frames_of_a_serial_line_over_tcp_get_a_fresh_connection() {
    let mut bench = LineBench::new(Framing::RtuOverTcp, 8, vec![unit(1, [3]), unit(2, [4])]);
    bench.open();
    bench.pass(TIMEOUT);
    assert_eq!(bench.steps().1, ["close", "connect"]);
    bench.line.connected();
    let sent = bench.sent();
    bench.receive(&serial_answer(&sent[0], 0));
    assert!(matches!(bench.events().last(), Some(LineEvent::Values { unit: 1, .. })));
}

#[test]
fn a_request_is_repeated_for_a_unit_that_answered_before() {
    let mut bench = LineBench::new(Framing::Serial, 1, vec![unit(1, [3])]);
    bench.line.settings.retries = 1;
    bench.open();
    bench.pass(TIMEOUT);
    assert!(bench.sent().is_empty());
    bench.pass(TIMEOUT);
    let again = bench.sent();
    bench.receive(&serial_answer(&again[0], 0));
    assert!(matches!(&bench.events()[..], [LineEvent::Values { .. }]));
    bench.line.begin(0, false, bench.now);
    assert_eq!(bench.sent().len(), 1);
    bench.pass(TIMEOUT);
    bench.sent();
    assert_eq!(bench.events(), [silent(0)]);
}

#[test]
fn damaged_frames_and_noise_of_a_serial_line_are_skipped() {
    let mut bench = LineBench::new(Framing::Serial, 1, vec![unit(1, [3])]);
    let first = bench.open();
    let good = serial_answer(&first[0], 0);
    let mut bad = serial_answer(&first[0], 7);
    bad[3] ^= 1;
    bench.receive(&[0xff; 65_536]);
    bench.receive(&bad);
    assert!(bench.line.input.len() < 300);
    good.chunks(1).for_each(|byte| bench.receive(byte));
    let taken_at = bench.wall();
    assert_eq!(bench.events(), [LineEvent::Values { unit: 0, taken_at, values: ints(&[3]) }]);
}

#[test]
fn random_events_never_confuse_values() {
    let mut random = Random::seeded();
    let refused = DeviceProblem::Network(libc::ECONNREFUSED);
    for _ in 0..200 {
        let framing = random.pick(&[Framing::Tcp, Framing::RtuOverTcp]);
        let units = (1..=3).map(|n| unit(n, [u16::from(n) * 100, u16::from(n) * 100 + 1, 900]));
        let mut bench = LineBench::new(framing, 2, units.collect());
        let mut pending: Vec<Vec<u8>> = Vec::new();
        for _ in 0..200 {
            bench.begin();
            let (sent, actions) = bench.steps();
            if actions.contains(&"close") {
                pending.clear();
            }
            if actions.last() == Some(&"connect") {
                pending.clear();
                if random.chance(70) { bench.line.connected() } else { bench.line.closed(bench.now, refused) }
            }
            for request in sent {
                let good = if framing == Framing::Tcp { answer(&request, 0) } else { serial_answer(&request, 0) };
                for _ in 0..random.pick(&[0, 1, 1, 1, if framing == Framing::Tcp { 2 } else { 1 }]) {
                    pending.push(good.clone());
                }
            }
            if !pending.is_empty() && random.chance(80) {
                let bytes = pending.remove(random.index(pending.len()));
                let cut = random.index(bytes.len());
                bench.receive(&bytes[..cut]);
                bench.receive(&bytes[cut..]);
            } else if random.chance(5) {
                let length = random.index(600);
                bench.receive(&random.bytes(length));
            } else if random.chance(5) {
                bench.line.closed(bench.now, refused);
                pending.clear();
            }
            bench.pass(Duration::from_millis(random.below(400)));
            for event in bench.events() {
                let LineEvent::Values { unit, values, .. } = event else { continue };
                let first = (unit as i64 + 1) * 100;
                for (value, expected) in values.into_iter().zip([first, first + 1, 900]) {
                    assert!(value.is_none() || value == Some(RegisterValue::Int(expected)), "{value:?} {expected}");
                }
            }
        }
    }
}
