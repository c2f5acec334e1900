//! Sensor data records (IPMI 2.0, chapter 43): full, compact and event-only sensors. Pure decoding.

use crate::names;

/// The header of a record: number, version, type, length.
pub const HEADER_BYTES: usize = 5;
const FULL: u8 = 1;
const COMPACT: u8 = 2;
const EVENT_ONLY: u8 = 3;
/// The event/reading type of sensors with thresholds.
const THRESHOLD_TYPE: u8 = 1;
/// Characters of a 6-bit name begin at the space.
const SIX_BIT_BASE: u8 = 0x20;
const BCD_PLUS: &[u8; 16] = b"0123456789 -.:,_";

/// Which sensor of a system: the controller or program that owns it, its unit, its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SensorKey {
    /// The address with bit 0 for programs, as in events.
    pub owner: u8,
    pub lun: u8,
    pub number: u8,
}

/// How a raw byte becomes a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnalogFormat {
    Unsigned,
    OnesComplement,
    TwosComplement,
}

/// The factors of a sensor with a number (36.3): y = L((M x + B 10^K1) 10^K2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SensorFactors {
    format: AnalogFormat,
    linearisation: u8,
    m: i16,
    b: i16,
    b_exponent: i8,
    exponent: i8,
}

/// A sensor, as the repository describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct SensorRecord {
    pub key: SensorKey,
    pub name: String,
    pub entity: u8,
    pub instance: u8,
    pub sensor_type: u8,
    pub event_type: u8,
    pub unit: String,
    /// `None`: the sensor has states and no number, or a formula that the record does not have.
    pub factors: Option<SensorFactors>,
    /// Event-only sensors have no reading.
    pub is_readable: bool,
    /// Whether the controller answers for thresholds.
    pub has_thresholds: bool,
}

/// The sign of a number with this many bits.
fn signed(value: u16, bits: u32) -> i16 {
    let shift = 16 - bits;
    ((value << shift) as i16) >> shift
}

impl SensorFactors {
    /// Reads the factors of a full record. `None` without a number, or with a formula of the manufacturer or for each value.
    fn read(record: &[u8]) -> Option<Self> {
        let at = |index: usize| record.get(index).copied().unwrap_or(0);
        let format = match at(20) >> 6 {
            0 => AnalogFormat::Unsigned,
            1 => AnalogFormat::OnesComplement,
            2 => AnalogFormat::TwosComplement,
            _ => return None,
        };
        let linearisation = at(23) & 0x7f;
        let ten = |low: u8, high: u8| signed(u16::from(low) | u16::from(high >> 6) << 8, 10);
        let four = |bits: u8| signed(u16::from(bits & 15), 4) as i8;
        (linearisation <= 11).then(|| Self {
            format,
            linearisation,
            m: ten(at(24), at(25)),
            b: ten(at(26), at(27)),
            exponent: four(at(29) >> 4),
            b_exponent: four(at(29)),
        })
    }

    /// The quantity of a raw byte. `None` if it is no finite number, such as 1/0.
    pub fn value(&self, raw: u8) -> Option<f64> {
        let x = match self.format {
            AnalogFormat::Unsigned => f64::from(raw),
            AnalogFormat::TwosComplement => f64::from(raw as i8),
            AnalogFormat::OnesComplement if raw & 0x80 != 0 => -f64::from(!raw),
            AnalogFormat::OnesComplement => f64::from(raw),
        };
        // Division by a power of ten gives the nearest number to the decimal one; multiplication by 0.001 does not.
        let shifted = |value: f64, exponent: i8| {
            let power = 10f64.powi(i32::from(exponent.unsigned_abs()));
            if exponent < 0 { value / power } else { value * power }
        };
        let linear = if self.b_exponent < 0 {
            let lift = -self.b_exponent;
            shifted(f64::from(self.m) * x * 10f64.powi(i32::from(lift)) + f64::from(self.b), self.exponent - lift)
        } else {
            shifted(f64::from(self.m) * x + shifted(f64::from(self.b), self.b_exponent), self.exponent)
        };
        let value = match self.linearisation {
            1 => linear.ln(),
            2 => linear.log10(),
            3 => linear.log2(),
            4 => linear.exp(),
            5 => 10f64.powf(linear),
            6 => linear.exp2(),
            7 => linear.recip(),
            8 => linear.powi(2),
            9 => linear.powi(3),
            10 => linear.sqrt(),
            11 => linear.cbrt(),
            _ => linear,
        };
        value.is_finite().then_some(value)
    }
}

/// The name of a sensor from its type and length byte and what follows (43.15).
fn id_text(record: &[u8], at: usize) -> String {
    let Some((kind, rest)) = record.get(at..).and_then(|rest| rest.split_first()) else { return String::new() };
    let bytes = &rest[..rest.len().min(usize::from(kind & 0x1f))];
    let text: String = match kind >> 6 {
        1 => bytes
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .map(|digit| char::from(BCD_PLUS[usize::from(digit)]))
            .collect(),
        2 => bytes
            .chunks(3)
            .flat_map(|three| {
                let bits = three.iter().rev().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
                (0..three.len() * 8 / 6).map(move |place| (bits >> (6 * place)) as u8 & 0x3f)
            })
            .map(|character| char::from(SIX_BIT_BASE + character))
            .collect(),
        // Latin 1; bytes above 127 are the characters of the same numbers.
        3 => bytes.iter().map(|byte| char::from(*byte)).collect(),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    };
    text.trim_matches(|c: char| c.is_whitespace() || c.is_control()).to_owned()
}

/// The sensors of a whole record: none for other records, several for a shared one.
pub fn sensors(record: &[u8]) -> Vec<SensorRecord> {
    let kind = record.get(3).copied().unwrap_or(0);
    let (entity_at, type_at, name_at, sharing_at) = match kind {
        FULL if record.len() > 47 => (8, 12, 47, None),
        COMPACT if record.len() > 31 => (8, 12, 31, Some(23)),
        EVENT_ONLY if record.len() > 16 => (8, 10, 16, Some(12)),
        _ => return Vec::new(),
    };
    let event_type = record[type_at + 1];
    let is_threshold = event_type == THRESHOLD_TYPE && kind == FULL;
    // Access to thresholds: readable, or readable and settable.
    let has_thresholds = is_threshold && matches!(record[11] >> 2 & 3, 1 | 2);
    let mut name = id_text(record, name_at);
    if name.is_empty() {
        name = format!("{} {}", names::sensor_type(record[type_at]), record[7]);
    }
    let base = SensorRecord {
        key: SensorKey { owner: record[5], lun: record[6] & 3, number: record[7] },
        name,
        entity: record[entity_at],
        instance: record[entity_at + 1],
        sensor_type: record[type_at],
        event_type,
        unit: if kind == FULL { names::unit(record[20], record[21], record[22]) } else { "1".to_owned() },
        factors: if kind == FULL { SensorFactors::read(record) } else { None },
        is_readable: kind != EVENT_ONLY,
        has_thresholds,
    };
    let Some(sharing) = sharing_at else { return vec![base] };
    let count = record[sharing] & 15;
    if count <= 1 {
        return vec![base];
    }
    let (is_letter, first, counts_entity) =
        (record[sharing] >> 4 & 3 == 1, record[sharing + 1] & 0x7f, record[sharing + 1] & 0x80 != 0);
    let shared = |number: u8| {
        let mut sensor = base.clone();
        sensor.key.number = base.key.number.wrapping_add(number);
        if counts_entity {
            sensor.instance = base.instance.wrapping_add(number);
        }
        sensor.name += &suffix(is_letter, u16::from(first) + u16::from(number));
        sensor
    };
    (0..count).map(shared).collect()
}

/// What distinguishes the names of a shared record: a number, or A, B, …, Z, AA, AB, ….
fn suffix(is_letter: bool, number: u16) -> String {
    if !is_letter {
        return number.to_string();
    }
    let letter = |number: u16| char::from(b'A' + (number % 26) as u8);
    match (number / 26).checked_sub(1) {
        Some(first) => [letter(first), letter(number)].iter().collect(),
        None => letter(number).to_string(),
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
