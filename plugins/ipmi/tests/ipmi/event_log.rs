//! The event log: new entries are counted once, and the log is never read as a whole.

use crate::sampled::device;
use crate::stand_in::{Model, StandIn, log_entry};

/// A controller whose log has this many entries of the sensor 1.
fn with_log(entries: u16) -> Model {
    let mut model = Model::with_sensors(2);
    (1..=entries).for_each(|id| model.log.push(log_entry(id, 1_700_000_000 + u32::from(id), 1, true)));
    model
}

fn add(model: &mut Model, number: u8, is_asserted: bool) {
    let id = model.log.last().map_or(1, |entry| u16::from_le_bytes([entry[0], entry[1]]) + 1);
    model.log_times.0 += 1;
    model.log.push(log_entry(id, model.log_times.0 + 1000, number, is_asserted));
}

#[test]
fn new_entries_are_counted_by_sensor() {
    let bmc = StandIn::start(with_log(300));
    let mut sampled = device(&bmc, "groups = [\"sel\"]");
    let values = sampled.wait("d0/sel");
    assert_eq!((values["d0/sel/entries"], values["d0/sel/events"], values["d0/sel/free"]), (300.0, 0.0, 4096.0));
    assert_eq!(values["d0/sel/asserted/T1"], 0.0, "what was there before is not counted");
    assert_eq!(bmc.model().count(0x0a, 0x43), 1, "the last entry only");
    {
        let mut model = bmc.model();
        add(&mut model, 1, true);
        add(&mut model, 1, false);
        add(&mut model, 2, true);
        add(&mut model, 9, true);
    }
    sampled.wait_for_value("d0/sel", "d0/sel/events", 4.0);
    let values = sampled.wait("d0/sel");
    assert_eq!((values["d0/sel/asserted/T1"], values["d0/sel/asserted/T2"]), (1.0, 1.0));
    assert_eq!((values["d0/sel/other"], values["d0/sel/erasures"]), (1.0, 0.0));
    let read = bmc.model().count(0x0a, 0x43);
    assert!(read <= 6, "{read} entries read: the known one and the four new ones");
    (0..3).for_each(|_| drop(sampled.wait("d0/sel")));
    assert_eq!(bmc.model().count(0x0a, 0x43), read, "nothing new, nothing read");
}

#[test]
fn an_erased_log_begins_again() {
    let bmc = StandIn::start(with_log(10));
    let mut sampled = device(&bmc, "groups = [\"sel\"]");
    sampled.wait("d0/sel");
    {
        let mut model = bmc.model();
        model.log.clear();
        model.log_times.1 += 100_000_000;
        model.log_times.0 = model.log_times.1;
        add(&mut model, 2, true);
    }
    sampled.wait_for_value("d0/sel", "d0/sel/erasures", 1.0);
    let values = sampled.wait("d0/sel");
    assert_eq!((values["d0/sel/events"], values["d0/sel/asserted/T2"], values["d0/sel/entries"]), (1.0, 1.0, 1.0));
    // Erased, and nothing new yet; then something.
    bmc.model().log.clear();
    sampled.wait_for_value("d0/sel", "d0/sel/entries", 0.0);
    assert_eq!(sampled.wait("d0/sel")["d0/sel/erasures"], 2.0);
    add(&mut bmc.model(), 1, true);
    sampled.wait_for_value("d0/sel", "d0/sel/events", 2.0);
}

#[test]
fn a_log_that_wrapped_gives_what_it_still_has() {
    let bmc = StandIn::start(with_log(5));
    let mut sampled = device(&bmc, "groups = [\"sel\"]");
    sampled.wait("d0/sel");
    {
        // Seven new ones in a log of five: the two oldest of them are lost.
        let mut model = bmc.model();
        (0..7).for_each(|_| add(&mut model, 2, true));
        model.log.drain(..7);
    }
    sampled.wait_for_value("d0/sel", "d0/sel/events", 5.0);
    assert_eq!(sampled.wait("d0/sel")["d0/sel/erasures"], 1.0);
    // The last known entry alone is removed: the older ones are not counted again.
    {
        let mut model = bmc.model();
        model.log.pop();
        model.log_times.1 += 200_000_000;
    }
    sampled.wait_for_value("d0/sel", "d0/sel/erasures", 2.0);
    assert_eq!(sampled.wait("d0/sel")["d0/sel/events"], 5.0);
}

#[test]
fn a_log_that_loops_is_named_and_bounded() {
    let bmc = StandIn::with(
        with_log(3),
        |model, asked| match asked {
            // After the fourth entry comes the second one again.
            (0x0a, 0x43, data) if data[2] == 4 => {
                let (code, mut data) = model.execute(asked);
                if code == 0 {
                    data[..2].copy_from_slice(&2u16.to_le_bytes());
                }
                Some((code, data))
            }
            _ => None,
        },
        |socket, to, bytes, _| drop(socket.send_to(&bytes, to)),
    );
    let mut sampled = device(&bmc, "groups = [\"sel\"]");
    sampled.wait("d0/sel");
    add(&mut bmc.model(), 1, true);
    wholegrain_testkit::wait_until("the loop is named", || sampled.noted("an event log whose entries repeat") == 1);
    let read = bmc.model().count(0x0a, 0x43);
    assert!(read <= 20, "{read} entries read");
}

#[test]
fn a_controller_without_a_log_has_no_such_sensors() {
    let bmc = StandIn::with(
        Model::with_sensors(1),
        |_, asked| (asked.1 == 0x40).then(|| (0xc1, Vec::new())),
        |socket, to, bytes, _| drop(socket.send_to(&bytes, to)),
    );
    let mut sampled = device(&bmc, "groups = [\"sensors\", \"sel\"]");
    (0..3).for_each(|_| drop(sampled.wait("d0/sensors")));
    sampled.discover();
    assert!(!sampled.has_group("d0/sel"));
    assert_eq!(sampled.status("failing"), 0);
}
