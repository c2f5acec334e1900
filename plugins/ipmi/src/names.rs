//! Names of the specification: units as UCUM codes, types of sensors, entities, thresholds.

/// Units by their number (table 43-15), as UCUM codes.
#[rustfmt::skip]
const UNITS: [&str; 93] = [
    "1", "Cel", "[degF]", "K", "V", "A", "W", "J", "C", "V.A",
    // Nit, lumen, lux, candela, kPa, PSI, newton, CFM, RPM, Hz.
    "cd/m2", "lm", "lx", "cd", "kPa", "[psi]", "N", "[cft_i]/min", "/min", "Hz",
    "us", "ms", "s", "min", "h", "d", "wk", "[mil_i]", "[in_i]", "[ft_i]",
    "[cin_i]", "[cft_i]", "mm", "cm", "m", "cm3", "m3", "L", "[foz_us]", "rad",
    // Steradian, revolutions, cycles, gravities, ounce, pound, foot-pound, ounce-inch, gauss, gilbert.
    "sr", "{revolution}", "{cycle}", "[g]", "[oz_av]", "[lb_av]", "[ft_i].[lbf_av]", "[oz_av].[in_i]", "G", "Gb",
    "H", "mH", "F", "uF", "Ohm", "S", "mol", "Bq", "[ppm]", "1",
    // Decibels (also with A and C weighting), gray, sievert, colour temperature, bits, bytes.
    "{dB}", "{dB_A}", "{dB_C}", "Gy", "Sv", "K", "bit", "kbit", "Mbit", "Gbit",
    "By", "kBy", "MBy", "GBy", "{word}", "{dword}", "{qword}", "{line}", "{hit}", "{miss}",
    "{retry}", "{reset}", "{overrun}", "{underrun}", "{collision}", "{packet}", "{message}", "{character}", "{error}", "{error}",
    "{error}", "{error}", "g",
];

/// The end of a rate's unit, by its number.
const RATES: [&str; 7] = ["", "/us", "/ms", "/s", "/min", "/h", "/d"];

/// The UCUM code of a record's three bytes of units. Units without a code are `1`.
pub fn unit(flags: u8, base: u8, modifier: u8) -> String {
    let of = |number: u8| UNITS.get(usize::from(number)).copied().unwrap_or("1");
    if flags & 1 == 1 {
        return "%".to_owned();
    }
    let mut text = match (flags >> 1 & 3, of(modifier)) {
        (1, modifier) if modifier != "1" => format!("{}/{}", of(base), modifier.trim_start_matches('/')),
        (2, modifier) if modifier != "1" => format!("{}.{modifier}", of(base)),
        _ => of(base).to_owned(),
    };
    if let Some(rate @ [_, ..]) = RATES.get(usize::from(flags >> 3 & 7)).map(|rate| rate.as_bytes()) {
        text += &String::from_utf8_lossy(rate);
    }
    if wholegrain_model::unit::Unit::parse(&text).is_ok() { text } else { "1".to_owned() }
}

/// Types of sensors by their number (table 42-3).
const SENSOR_TYPES: [&str; 45] = [
    "Sensor",
    "Temperature",
    "Voltage",
    "Current",
    "Fan",
    "Physical security",
    "Platform security",
    "Processor",
    "Power supply",
    "Power unit",
    "Cooling device",
    "Other quantity",
    "Memory",
    "Drive slot",
    "Memory resize",
    "Firmware progress",
    "Event log",
    "Watchdog 1",
    "System event",
    "Critical interrupt",
    "Button",
    "Module or board",
    "Microcontroller",
    "Add-in card",
    "Chassis",
    "Chip set",
    "Other FRU",
    "Cable",
    "Terminator",
    "System boot",
    "Boot error",
    "Base OS boot",
    "OS stop",
    "Slot or connector",
    "ACPI power state",
    "Watchdog 2",
    "Platform alert",
    "Entity presence",
    "Monitor ASIC",
    "LAN",
    "Management subsystem",
    "Battery",
    "Session audit",
    "Version change",
    "FRU state",
];

/// The name of a type of sensors.
pub fn sensor_type(number: u8) -> &'static str {
    SENSOR_TYPES.get(usize::from(number)).copied().unwrap_or("Sensor of the manufacturer")
}

/// Entities by their number (table 43-13).
const ENTITIES: [&str; 56] = [
    "unspecified",
    "other",
    "unknown",
    "processor",
    "disk",
    "peripheral bay",
    "management module",
    "system board",
    "memory module",
    "processor module",
    "power supply",
    "add-in card",
    "front panel",
    "back panel",
    "power system board",
    "drive backplane",
    "expansion board",
    "other system board",
    "processor board",
    "power unit",
    "power module",
    "power distribution",
    "chassis back panel",
    "system chassis",
    "sub-chassis",
    "other chassis",
    "disk drive bay",
    "peripheral bay",
    "device bay",
    "fan",
    "cooling unit",
    "cable",
    "memory device",
    "management software",
    "BIOS",
    "operating system",
    "system bus",
    "group",
    "remote management device",
    "external environment",
    "battery",
    "processing blade",
    "connectivity switch",
    "processor and memory module",
    "I/O module",
    "processor and I/O module",
    "management controller firmware",
    "IPMI channel",
    "PCI bus",
    "PCI Express bus",
    "SCSI bus",
    "SATA bus",
    "front-side bus",
    "real-time clock",
    "reserved",
    "air inlet",
];

/// The name of an entity and its number in the system, such as `processor 3.1`.
pub fn entity(id: u8, instance: u8) -> String {
    let name = match id {
        // The numbers of DCMI (1.5, table 6-9).
        0x40 => "air inlet",
        0x41 => "processor",
        0x42 => "baseboard",
        _ => ENTITIES.get(usize::from(id)).copied().unwrap_or("entity"),
    };
    format!("{name} {id}.{}", instance & 0x7f)
}

/// Thresholds in the order of their bits in masks and states.
pub const THRESHOLDS: [&str; 6] = [
    "lower non-critical",
    "lower critical",
    "lower non-recoverable",
    "upper non-critical",
    "upper critical",
    "upper non-recoverable",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_a_ucum_code() {
        for (number, code) in UNITS.iter().enumerate() {
            assert!(wholegrain_model::unit::Unit::parse(code).is_ok(), "{number}: {code}");
        }
        assert_eq!(unit(0x80, 1, 0), "Cel");
        assert_eq!(unit(0x00, 18, 0), "/min");
        assert_eq!(unit(0x01, 0, 0), "%");
        assert_eq!(unit(0x02, 6, 36), "W/m3");
        assert_eq!(unit(0x04, 7, 22), "J.s");
        assert_eq!(unit(0x18, 88, 0), "{error}/s");
        assert_eq!(unit(0x00, 200, 0), "1");
        for flags in 0..=255 {
            for base in 0..=255 {
                unit(flags, base, base.wrapping_mul(7));
            }
        }
    }

    #[test]
    fn names_of_numbers() {
        assert_eq!((sensor_type(0x28), sensor_type(0x2c)), ("Management subsystem", "FRU state"));
        assert_eq!((sensor_type(0xc0), sensor_type(0x23)), ("Sensor of the manufacturer", "Watchdog 2"));
        assert_eq!((entity(3, 0x61), entity(55, 1)), ("processor 3.97".to_owned(), "air inlet 55.1".to_owned()));
        assert_eq!((entity(0x40, 1), entity(200, 2)), ("air inlet 64.1".to_owned(), "entity 200.2".to_owned()));
    }
}
