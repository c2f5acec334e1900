//! The driver's table `gpu_metrics`: a header with size and revision, then numbers at places that depend on the revision.
//!
//! Source of all layouts and units: drivers/gpu/drm/amd/include/kgd_pp_interface.h of Linux. A number of which all bits are set is one that this card does
//! not have.

use wholegrain_model::SensorDef;

use crate::reader::Row;

/// The length of the header: size (16 bits), format revision, content revision.
const HEADER_BYTES: usize = 4;
/// The energy counter counts 2^-16 J ("15.259uJ (2^-16) units").
const ENERGY_J: f64 = 1.0 / 65536.0;
/// The links between cards (NUM_XGMI_LINKS).
const XGMI_LINKS: u16 = 8;
/// The graphics clocks of a card (MAX_GFX_CLKS).
const GRAPHICS_CLOCKS: u16 = 8;

/// A number of the table: where it is, how many bytes it has, and what it means.
pub struct TableNumber {
    at: u16,
    bytes: u8,
    pub sensor: SensorDef,
    /// Of a set of bits: the 16 bits from this one on, of which one counts.
    bits_from: Option<u8>,
}

/// The layout of one revision.
pub struct TableLayout {
    pub numbers: Vec<TableNumber>,
}

fn number(at: u16, bytes: u8, sensor: SensorDef) -> TableNumber {
    TableNumber { at, bytes, sensor, bits_from: None }
}

fn celsius(at: u16, name: &str, scale: f64) -> TableNumber {
    let description = format!("Temperature: {name}.");
    number(at, 2, SensorDef::gauge(format!("temperature/{name}"), "Cel", &description).scaled(scale))
}

fn percent(at: u16, name: &str, description: &str, scale: f64) -> TableNumber {
    number(at, 2, SensorDef::gauge(format!("utilization/{name}"), "%", description).scaled(scale))
}

fn clock(at: u16, name: impl std::fmt::Display) -> TableNumber {
    number(at, 2, SensorDef::gauge(format!("clocks/{name}"), "Hz", "Present clock frequency.").scaled(1e6))
}

fn counter(at: u16, bytes: u8, name: &str, unit: &str, description: &str) -> TableNumber {
    let wraps_at = (bytes == 4).then_some(1 << 32);
    number(at, bytes, SensorDef { wraps_at, ..SensorDef::counter(name, unit, description) })
}

fn energy(at: u16) -> TableNumber {
    let sensor = SensorDef::counter("energy", "J", "Energy used by card and memory.").scaled(ENERGY_J);
    number(at, 8, sensor)
}

fn power(at: u16, scale: f64) -> TableNumber {
    number(at, 2, SensorDef::gauge("power", "W", "Power of card and memory.").scaled(scale))
}

/// The bits of the throttle status that is the same for all cards: 16 for each kind of cause.
fn throttle(at: u16) -> Vec<TableNumber> {
    let kinds = [(0, "power"), (16, "current"), (32, "temperature"), (48, "other")];
    let of = |(from, kind): (u8, &str)| TableNumber {
        at,
        bytes: 8,
        sensor: SensorDef::gauge(format!("throttle/{kind}"), "1", &format!("1: clocks are limited by {kind}.")),
        bits_from: Some(from),
    };
    kinds.map(of).into()
}

/// Width and speed of the PCIe link, which has units of 0.1 GT/s.
fn link(at: u16, bytes: u8) -> [TableNumber; 2] {
    let width = SensorDef::gauge("pcie/link_width", "1", "Present lanes of the PCIe link.");
    let speed = SensorDef::gauge("pcie/link_speed", "{transfer}/s", "Transfers a second on each lane.").scaled(1e8);
    [number(at, bytes, width), number(at + u16::from(bytes), bytes, speed)]
}

/// The layout of a revision; `None` for an unknown one, or for a table of another size.
pub fn layout(table: &[u8]) -> Option<TableLayout> {
    let header: [u8; HEADER_BYTES] = *table.first_chunk()?;
    let size = u16::from_le_bytes([header[0], header[1]]);
    let numbers = match (header[2], header[3], size) {
        (1, 0, 80) => version_1(16, None, 40),
        (1, 1, 96) => version_1(4, Some(24), 40),
        (1, 2, 104) => version_1(4, Some(24), 40),
        (1, 3, 120) => version_1(4, Some(24), 40).into_iter().chain(throttle(112)).collect(),
        (1, 4, 288) => many_dies(24, 48, None, [88, 80], 104, 240),
        (1, 5, 328) => many_dies(56, 80, None, [120, 112], 144, 280),
        (1, 6, 1664) => many_dies(16, 60, Some(32), [104, 96], 128, 264),
        (1, 7, 2208) | (1, 8, 3360) => many_dies(24, 68, Some(40), [112, 104], 136, 296),
        (2, 0, 120) => apu(16, 44, 80, None),
        (2, 1, 120) => apu(4, 40, 76, None),
        (2, 2, 128) | (2, 3, 152) | (2, 4, 168) => apu(4, 40, 76, Some(120)),
        _ => return None,
    };
    (table.len() >= usize::from(size)).then_some(TableLayout { numbers })
}

/// The revision of a table for messages.
pub fn revision(table: &[u8]) -> String {
    match table.first_chunk::<HEADER_BYTES>() {
        Some([low, high, format, content]) => {
            format!("revision {format}.{content} with {} bytes", u16::from_le_bytes([*low, *high]))
        }
        None => format!("{} bytes", table.len()),
    }
}

/// Cards of one die: temperatures from `at` on, average clocks from `clocks` on.
fn version_1(at: u16, energy_at: Option<u16>, clocks: u16) -> Vec<TableNumber> {
    let mut all: Vec<TableNumber> = ["edge", "hotspot", "memory", "vr_graphics", "vr_soc", "vr_memory"]
        .iter()
        .zip((at..).step_by(2))
        .map(|(name, at)| celsius(at, name, 1.0))
        .collect();
    all.extend([
        percent(at + 12, "gpu", "Part of the time in which the graphics engine was busy.", 1.0),
        percent(at + 14, "memory", "Part of the time in which the memory controller was busy.", 1.0),
        percent(at + 16, "media", "Part of the time in which the video engine was busy.", 1.0),
        power(at + 18, 1.0),
    ]);
    all.extend(energy_at.map(energy));
    let current = clocks + 14;
    all.extend([clock(current, "graphics"), clock(current + 2, "soc"), clock(current + 4, "memory")]);
    let fan = SensorDef::gauge("fan/speed", "/min", "Speed of the fan.");
    let first = energy_at.is_none();
    all.push(number(72, 2, fan));
    all.extend(link(74, if first { 1 } else { 2 }));
    all
}

/// Cards of many dies (MI300 and later): the places of energy, of the PCIe link, of the throttle residencies, of the counters of replays and
/// recoveries, of the data on links to other cards, and of the clocks.
fn many_dies(
    energy_at: u16,
    link_at: u16,
    residency: Option<u16>,
    [replays, recoveries]: [u16; 2],
    xgmi: u16,
    clocks: u16,
) -> Vec<TableNumber> {
    let mut all = vec![
        celsius(4, "hotspot", 1.0),
        celsius(6, "memory", 1.0),
        celsius(8, "vr_soc", 1.0),
        power(10, 1.0),
        percent(12, "gpu", "Part of the time in which the graphics engine was busy.", 1.0),
        percent(14, "memory", "Part of the time in which the memory controller was busy.", 1.0),
        energy(energy_at),
        counter(replays, 8, "pcie/replays", "1", "Packets sent again over PCIe."),
        counter(recoveries, 8, "pcie/recoveries", "1", "Times that the PCIe link recovered from an error."),
    ];
    all.extend(link(link_at, 2));
    if let Some(at) = residency {
        let names = ["cycles", "prochot", "power", "temperature_socket", "temperature_vr", "temperature_memory"];
        let cause = |name: &str| match name {
            "cycles" => "Cycles of the firmware, for the other counters of throttle_cycles.".to_owned(),
            name => format!("Cycles of the firmware in which clocks were limited: {name}."),
        };
        all.extend(names.iter().zip((at..).step_by(4)).map(|(name, at)| {
            let level = if *name == "cycles" { "all" } else { name };
            counter(at, 4, &format!("throttle_cycles/{level}"), "1", &cause(name))
        }));
    }
    for link in 0..XGMI_LINKS {
        for (from, name) in [(xgmi, "read"), (xgmi + 8 * XGMI_LINKS, "written")] {
            let sensor = SensorDef::counter(format!("xgmi/{link}/{name}"), "By", "Data over a link to another card.");
            all.push(number(from + 8 * link, 8, sensor.scaled(1024.0)));
        }
    }
    all.extend((0..GRAPHICS_CLOCKS).map(|die| clock(clocks + 2 * die, format!("graphics/{die}"))));
    all.push(clock(clocks + 2 * GRAPHICS_CLOCKS, "soc"));
    all.push(clock(clocks + 2 * GRAPHICS_CLOCKS + 3 * 8, "memory"));
    all
}

/// Processors with graphics: hundredths of a degree and of a percent, mW. The header states these units for revision 2.4; the driver's own conversion for
/// hwmon shows them for the others.
fn apu(temperatures: u16, powers: u16, clocks: u16, throttle_at: Option<u16>) -> Vec<TableNumber> {
    let mut all = vec![
        celsius(temperatures, "graphics", 1e-2),
        celsius(temperatures + 2, "soc", 1e-2),
        percent(temperatures + 24, "gpu", "Part of the time in which the graphics engine was busy.", 1e-2),
        percent(temperatures + 26, "media", "Part of the time in which the video engine was busy.", 1e-2),
        power(powers, 1e-3),
        clock(clocks, "graphics"),
        clock(clocks + 2, "soc"),
        clock(clocks + 4, "memory"),
    ];
    for (index, part) in ["cpu", "soc", "graphics"].iter().enumerate() {
        let description = format!("Power of a part: {part}.");
        let sensor = SensorDef::gauge(format!("power_of/{part}"), "W", &description).scaled(1e-3);
        all.push(number(powers + 2 + 2 * index as u16, 2, sensor));
    }
    all.extend(throttle_at.into_iter().flat_map(throttle));
    all
}

impl TableNumber {
    /// Place, bytes and bits in one number, for reads.
    pub fn packed(&self) -> usize {
        let bits = self.bits_from.map_or(0, |from| usize::from(from) + 1);
        usize::from(self.at) | usize::from(self.bytes) << 16 | bits << 24
    }
}

/// The header of a table as one number, which the slots of a reader begin with.
pub fn header(table: &[u8]) -> Option<usize> {
    table.first_chunk::<HEADER_BYTES>().map(|bytes| u32::from_le_bytes(*bytes) as usize)
}

/// The value of a packed number; `None` if the card does not have it or the table is too short.
pub fn value(table: &[u8], packed: usize) -> Option<i64> {
    let (at, bytes, bits) = (packed & 0xffff, packed >> 16 & 0xff, packed >> 24);
    let raw = table.get(at..at + bytes)?;
    if raw.iter().all(|byte| *byte == 0xff) {
        return None;
    }
    let raw = raw.iter().rev().fold(0, |value: u64, byte| value << 8 | u64::from(*byte));
    match bits {
        0 => i64::try_from(raw).ok(),
        bits => Some(i64::from(raw >> (bits - 1) & 0xffff != 0)),
    }
}

/// Sets the values of packed numbers; false if the table has not the header that comes first.
pub fn fill(table: &[u8], slots: &[(usize, u32)], row: &mut Row<'_>) -> bool {
    let Some((first, numbers)) = slots.split_first() else { return true };
    if header(table) != Some(first.0) {
        return false;
    }
    for (packed, slot) in numbers {
        if let Some(value) = value(table, *packed) {
            row.set_int(*slot as usize, value);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use wholegrain_testkit::Random;

    const REVISIONS: [(u8, u8, u16); 14] = [
        (1, 0, 80),
        (1, 1, 96),
        (1, 2, 104),
        (1, 3, 120),
        (1, 4, 288),
        (1, 5, 328),
        (1, 6, 1664),
        (1, 7, 2208),
        (1, 8, 3360),
        (2, 0, 120),
        (2, 1, 120),
        (2, 2, 128),
        (2, 3, 152),
        (2, 4, 168),
    ];

    fn table(format: u8, content: u8, size: u16, byte: u8) -> Vec<u8> {
        let mut table = vec![byte; usize::from(size)];
        table[..2].copy_from_slice(&size.to_le_bytes());
        (table[2], table[3]) = (format, content);
        table
    }

    #[test]
    fn numbers_of_a_revision_have_places_and_names_of_their_own() {
        for (format, content, size) in REVISIONS {
            let numbers = layout(&table(format, content, size, 0)).expect("a known revision").numbers;
            let mut names: Vec<&str> = numbers.iter().map(|number| number.sensor.name.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), numbers.len(), "{format}.{content}");
            let mut places: Vec<(u16, u8)> = numbers
                .iter()
                .filter(|number| number.bits_from.is_none())
                .map(|number| (number.at, number.bytes))
                .collect();
            places.sort_unstable();
            for pair in places.windows(2) {
                assert!(pair[0].0 + u16::from(pair[0].1) <= pair[1].0, "{format}.{content}: {pair:?}");
            }
            for (at, bytes) in places {
                assert!(at >= 4 && at + u16::from(bytes) <= size, "{format}.{content}: {at}");
                // The structures of the header have natural alignment.
                assert_eq!(at % u16::from(bytes), 0, "{format}.{content}: {at}");
            }
        }
    }

    #[test]
    fn what_a_card_does_not_have_is_no_value() {
        for (format, content, size) in REVISIONS {
            let table = table(format, content, size, 0xff);
            for number in layout(&table).unwrap().numbers {
                assert_eq!(value(&table, number.packed()), None, "{}", number.sensor.name);
            }
        }
    }

    #[test]
    fn unknown_revisions_sizes_and_short_tables_are_refused() {
        for (format, content, size) in [(1, 9, 80), (3, 0, 264), (0, 0, 4), (1, 3, 128), (2, 1, 128)] {
            assert!(layout(&table(format, content, size, 0)).is_none(), "{format}.{content} {size}");
        }
        let good = table(1, 3, 120, 0);
        for length in 0..good.len() {
            assert!(layout(&good[..length]).is_none(), "{length}");
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_fault() {
        let mut random = Random::seeded();
        let packed: Vec<(usize, u32)> = std::iter::once((header(&table(1, 8, 3360, 0)).unwrap(), 0))
            .chain(
                layout(&table(1, 8, 3360, 0)).unwrap().numbers.iter().zip(0..).map(|(number, n)| (number.packed(), n)),
            )
            .collect();
        for _ in 0..1000 {
            let length = random.below(3400) as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            if let Some(first) = bytes.first_chunk_mut::<4>() {
                *first = (packed[0].0 as u32).to_le_bytes();
            }
            let (mut values, mut gaps) = (vec![0; packed.len()], vec![0; packed.len().div_ceil(64)]);
            assert_eq!(fill(&bytes, &packed, &mut Row::new(&mut values, &mut gaps)), length >= 4);
        }
    }
}
