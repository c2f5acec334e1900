use wholegrain_testkit::Random;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).expect("hex")).collect()
}

/// A datagram from a device with this message.
pub fn datagram(apdu: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    begin(&mut out, BVLC_UNICAST, false);
    out.extend_from_slice(apdu);
    end(&mut out);
    out
}

const INPUT_5: ObjectId = ObjectId { kind: 0, instance: 5 };

fn present(object: ObjectId) -> PropertyRef {
    PropertyRef { object, property: property::PRESENT_VALUE, index: None }
}

/// F.3.5 of the standard: ReadProperty of the present value of analog input 5, and its answer 72.3.
#[test]
fn reading_one_property() {
    let mut out = Vec::new();
    read_property(&mut out, 1, present(INPUT_5));
    assert_eq!(out, hex("81 0a 00 11 01 04 00 05 01 0c 0c 00 00 00 05 19 55"));
    let answer = datagram(&hex("30 01 0c 0c 00 00 00 05 19 55 3e 44 42 90 99 9a 3f"));
    let values = vec![(present(INPUT_5), Ok(vec![TaggedValue::Real(f64::from(72.3f32))]))];
    assert_eq!(parse(&answer), Ok(DeviceMessage::Values { invoke: 1, values }));
}

/// F.3.7: ReadPropertyMultiple of present value and reliability of analog input 16, and a part that is an error.
#[test]
fn reading_several_properties() {
    let (input, absent) = (ObjectId { kind: 0, instance: 16 }, ObjectId { kind: 0, instance: 33 });
    let reliability = PropertyRef { property: 103, ..present(input) };
    let mut out = Vec::new();
    read_multiple(&mut out, 241, &[present(input), reliability, present(absent)]);
    let apdu = "00 05 f1 0e 0c 00 00 00 10 1e 09 55 09 67 1f 0c 00 00 00 21 1e 09 55 1f";
    assert_eq!(out[6..], hex(apdu));
    let answer = "30 f1 0e 0c 00 00 00 10 1e 29 55 4e 44 42 90 99 9a 4f 29 67 4e 91 00 4f 1f \
                  0c 00 00 00 21 1e 29 55 5e 91 01 91 1f 5f 1f";
    let values = vec![
        (present(input), Ok(vec![TaggedValue::Real(f64::from(72.3f32))])),
        (reliability, Ok(vec![TaggedValue::Enumerated(0)])),
        (present(absent), Err(PropertyError { class: 1, code: 31 })),
    ];
    assert_eq!(parse(&datagram(&hex(answer))), Ok(DeviceMessage::Values { invoke: 241, values }));
    assert_eq!(PropertyError { class: 1, code: 31 }.to_string(), "unknown object");
}

/// F.4.9: the identity of device 3.
#[test]
fn identities() {
    let mut out = Vec::new();
    who_is(&mut out, Some(3), false);
    assert_eq!(out, hex("81 0a 00 0c 01 00 10 08 09 03 19 03"));
    let answer = datagram(&hex("10 00 c4 02 00 00 03 22 04 00 91 03 21 63"));
    let identity = DeviceIdentity { instance: 3, apdu_bytes_max: 1024 };
    assert_eq!(parse(&answer), Ok(DeviceMessage::IAm(identity)));
    // The same through a router: network and address of the device stand before it.
    let from_network = hex("81 0a 00 18 01 08 00 02 01 07 10 00 c4 02 00 00 03 22 04 00 91 03 21 63");
    assert_eq!(parse(&from_network), Ok(DeviceMessage::IAm(identity)));
}

/// F.1.11 and F.1.3: a subscription, and a change of analog input 10.
#[test]
fn subscriptions_and_changes() {
    let input = ObjectId { kind: 0, instance: 10 };
    let mut out = Vec::new();
    subscribe(&mut out, 15, 18, input, true, 0);
    assert_eq!(out[6..], hex("00 05 0f 05 09 12 1c 00 00 00 0a 29 01 39 00"));
    let body = "09 12 1c 02 00 00 04 2c 00 00 00 0a 39 00 4e 09 55 2e 44 42 82 00 00 2f 09 6f 2e 82 04 00 2f 4f";
    let notice = ChangeNotice {
        process: 18,
        device: 4,
        object: input,
        values: vec![
            (property::PRESENT_VALUE, vec![TaggedValue::Real(65.0)]),
            (property::STATUS_FLAGS, vec![TaggedValue::Bits(vec![false; 4])]),
        ],
    };
    let confirmed = datagram(&hex(&format!("00 02 0f 01 {body}")));
    assert_eq!(parse(&confirmed), Ok(DeviceMessage::Change { invoke: Some(15), notice: notice.clone() }));
    let unconfirmed = datagram(&hex(&format!("10 02 {body}")));
    assert_eq!(parse(&unconfirmed), Ok(DeviceMessage::Change { invoke: None, notice }));
    let mut out = Vec::new();
    acknowledge(&mut out, 15);
    assert_eq!(out[6..], hex("20 0f 01"));
    assert_eq!(parse(&out), Ok(DeviceMessage::Done { invoke: 15 }));
}

#[test]
fn refusals() {
    let check = |text: &str, expected| assert_eq!(parse(&datagram(&hex(text))), Ok(expected), "{text}");
    let error = PropertyError { class: 2, code: 32 };
    check("50 07 0c 91 02 91 20", DeviceMessage::Error { invoke: 7, error });
    check("60 07 09", DeviceMessage::Reject { invoke: 7, reason: REJECT_UNRECOGNIZED_SERVICE });
    check("71 07 04", DeviceMessage::Abort { invoke: 7, reason: ABORT_SEGMENTATION });
    check("3c 07 00 10 0e 0c", DeviceMessage::Abort { invoke: 7, reason: ABORT_SEGMENTATION });
    assert!(is_too_long(1) && is_too_long(4) && !is_too_long(0));
}

#[test]
fn wrong_lengths_are_refused() {
    let good = datagram(&hex("60 07 09"));
    for end in 0..good.len() {
        assert_eq!(parse(&good[..end]), Err(Malformed), "cut at {end}");
    }
    let mut long = good.clone();
    long.push(0);
    assert_eq!(parse(&long), Err(Malformed));
    assert_eq!(parse(&[0x82, 0x0a, 0, 4]), Err(Malformed));
}

#[test]
fn changed_messages_are_read_to_an_end() {
    let mut random = Random::seeded();
    let examples = [
        "30 f1 0e 0c 00 00 00 10 1e 29 55 4e 44 42 90 99 9a 4f 29 67 4e 91 00 4f 1f",
        "30 01 0c 0c 00 00 00 05 19 55 3e 44 42 90 99 9a 3f",
        "10 02 09 12 1c 02 00 00 04 2c 00 00 00 0a 39 00 4e 09 55 2e 44 42 82 00 00 2f 09 6f 2e 82 04 00 2f 4f",
        "10 00 c4 02 00 00 03 22 04 00 91 03 21 63",
        "50 07 0c 91 02 91 20",
    ];
    for _ in 0..50_000 {
        let mut bytes = hex(random.pick(&examples));
        for _ in 0..1 + random.index(4) {
            let at = random.index(bytes.len());
            bytes[at] = random.draw() as u8;
        }
        bytes.truncate(random.index(bytes.len() + 1));
        let _ = parse(&datagram(&bytes));
        let _ = parse(&bytes);
    }
}
