use wholegrain_testkit::Random;

use super::*;
use crate::settings::{CovSettings, ObjectSettings};

fn settings(cov: bool) -> Arc<DeviceSettings> {
    let object = ObjectId { kind: 0, instance: 1 };
    let one = ObjectSettings {
        object,
        name: Some("a".to_owned()),
        unit: Some("K".to_owned()),
        scale: None,
        kind: None,
        description: Some(String::new()),
    };
    let cov = cov.then_some(CovSettings { is_confirmed: true, lifetime_s: 60 });
    Arc::new(DeviceSettings { instance: None, objects: vec![one], lists: Vec::new(), names_of_device: false, cov })
}

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect()
}

fn datagram(apdu: &str) -> Vec<u8> {
    let apdu = hex(apdu);
    let mut out = vec![0x81, 0x0a, 0, apdu.len() as u8 + 6, 1, 0];
    out.extend_from_slice(&apdu);
    out
}

/// A device with what it sent last.
struct Exchange {
    device: BacnetDevice,
    slot: Arc<AnswerSlot>,
    out: Vec<u8>,
    reply: Vec<u8>,
    ended: Option<Result<(), DeviceProblem>>,
    now_ns: i64,
}

impl Exchange {
    fn new(cov: bool) -> Self {
        let slot = Arc::new(AnswerSlot::default());
        let device = BacnetDevice::new(settings(cov), "d", slot.clone(), ObjectNotes::default(), 18);
        Self { device, slot, out: Vec::new(), reply: Vec::new(), ended: None, now_ns: 1000 }
    }

    fn turn(&mut self, event: impl FnOnce(&mut BacnetDevice, &mut PollTurn<'_>)) {
        let mut turn = PollTurn::new(&mut self.out, &self.slot, self.now_ns);
        event(&mut self.device, &mut turn);
        self.ended = turn.ended();
    }

    fn begin(&mut self) {
        self.turn(|device, turn| device.begin(0, turn));
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.turn(|device, turn| {
            device.receive(bytes, turn);
        });
    }

    /// The number of the request that waits.
    fn invoke(&self) -> u8 {
        self.out[8]
    }

    /// Answers Who-Is, then the values of the object: `value` is the present value with its tag.
    fn answer_values(&mut self, value: &str) {
        let invoke = self.invoke();
        let flags = "29 6f 4e 82 04 00 4f";
        self.receive(&datagram(&format!("30 {invoke:02x} 0e 0c 00 00 00 01 1e 29 55 4e {value} 4f {flags} 1f")));
    }

    fn values(&self) -> Option<(Option<i64>, Option<f64>)> {
        let (_, mut reader) = self.slot.reader(u64::MAX / 2, || 2000)?;
        let (mut values, mut gaps) = ([0; 1], [0; 1]);
        let mut row = wholegrain_sources::Row::new(&mut values, &mut gaps);
        let reading = wholegrain_sources::Reader::read(&mut reader, &mut row);
        Some((reading.taken_at, row.int(0).map(|bits| f64::from_bits(bits as u64))))
    }
}

const I_AM: &str = "10 00 c4 02 00 00 03 22 04 00 91 03 21 63";

#[test]
fn identity_then_values() {
    let mut exchange = Exchange::new(false);
    exchange.begin();
    assert_eq!(exchange.out[6..8], [0x10, 8], "Who-Is");
    exchange.receive(&datagram(I_AM));
    exchange.answer_values("44 42 90 00 00");
    assert_eq!(exchange.ended, Some(Ok(())));
    assert_eq!(exchange.values(), Some((Some(1000), Some(72.0))));
    // The next poll asks for the values only, and an answer to the request before is none to this one.
    let before = exchange.invoke();
    exchange.begin();
    assert_ne!(exchange.invoke(), before);
    let late = datagram(&format!("30 {before:02x} 0e 0c 00 00 00 01 1e 29 55 4e 44 43 90 00 00 4f 1f"));
    exchange.receive(&late);
    assert_eq!((exchange.ended, exchange.values()), (None, Some((None, None))));
    // A value of another type, and one that is no number, are gaps.
    for value in ["75 02 00 41", "00", "44 7f c0 00 00"] {
        exchange.answer_values(value);
        assert_eq!((exchange.ended, exchange.values()), (Some(Ok(())), Some((Some(1000), None))), "{value}");
        exchange.begin();
    }
}

#[test]
fn a_device_that_does_not_say_who_it_is_is_read() {
    let mut exchange = Exchange::new(false);
    exchange.begin();
    exchange.turn(|device, turn| device.again(turn));
    let invoke = exchange.invoke();
    assert_eq!(exchange.out[9], 12, "ReadProperty");
    exchange.receive(&datagram(&format!("30 {invoke:02x} 0c 0c 02 00 00 07 19 4b 3e c4 02 00 00 07 3f")));
    assert_eq!(exchange.device.identity, Some(DeviceIdentity { instance: 7, apdu_bytes_max: APDU_BYTES_UNKNOWN }));
}

#[test]
fn subscriptions_are_renewed_and_a_heartbeat_shows_that_the_device_is_there() {
    let mut exchange = Exchange::new(true);
    exchange.begin();
    exchange.receive(&datagram(I_AM));
    exchange.answer_values("44 42 90 00 00");
    assert_eq!((exchange.ended, exchange.out[9]), (None, 5), "SubscribeCOV");
    let invoke = exchange.invoke();
    exchange.receive(&datagram(&format!("20 {invoke:02x} 05")));
    assert_eq!(exchange.ended, Some(Ok(())));
    assert!(exchange.values().is_some());
    // A change between two polls, which is confirmed. One of another process is not ours.
    let change = |process: &str| {
        format!("00 02 33 01 09 {process} 1c 02 00 00 03 2c 00 00 00 01 39 00 4e 09 55 2e 44 42 82 00 00 2f 4f")
    };
    let mut reply = Vec::new();
    exchange.device.unsolicited(&datagram(&change("13")), 1500, &mut reply);
    assert!(reply.is_empty());
    exchange.device.unsolicited(&datagram(&change("12")), 1500, &mut reply);
    assert_eq!(reply[6..], [0x20, 0x33, 1]);
    assert_eq!(exchange.values(), Some((Some(1500), Some(65.0))));
    // A poll asks whether the device is there.
    exchange.now_ns = 1800;
    exchange.begin();
    assert!(exchange.out.ends_with(&hex("0c 02 00 00 03 1e 09 70 1f")), "{:02x?}", exchange.out);
    let invoke = exchange.invoke();
    exchange.receive(&datagram(&format!("30 {invoke:02x} 0e 0c 02 00 00 03 1e 29 70 4e 91 00 4f 1f")));
    assert_eq!((exchange.ended, exchange.values()), (Some(Ok(())), Some((Some(1800), Some(65.0)))));
    // After half of the lifetime all is read and subscribed to again.
    exchange.now_ns += 31_000_000_000;
    exchange.begin();
    exchange.answer_values("44 42 90 00 00");
    assert_eq!(exchange.out[9], 5, "SubscribeCOV");
    assert!(exchange.reply.is_empty());
}

#[test]
fn random_messages_give_no_value_that_was_not_sent() {
    let mut random = Random::seeded();
    for _ in 0..300 {
        let mut exchange = Exchange::new(random.chance(50));
        exchange.begin();
        for _ in 0..30 {
            let invoke = if exchange.out.len() > 8 { exchange.invoke() } else { 0 };
            let mut bytes = match random.index(5) {
                0 => datagram(I_AM),
                1 => datagram(&format!("30 {invoke:02x} 0e 0c 00 00 00 01 1e 29 55 4e 44 42 90 00 00 4f 1f")),
                2 => datagram(&format!("60 {invoke:02x} 09")),
                3 => datagram(&format!("70 {invoke:02x} 04")),
                _ => datagram(&format!("50 {invoke:02x} 0e 91 01 91 1f")),
            };
            if random.chance(20) {
                // The value itself stays as it is: a wrong number in the right form is a number.
                let at = random.index(16.min(bytes.len()));
                bytes[at] = random.draw() as u8;
            }
            exchange.receive(&bytes);
            if let Some((_, Some(value))) = exchange.values() {
                assert_eq!(value, 72.0);
            }
            if exchange.ended.is_some() {
                exchange.begin();
            }
        }
    }
}
