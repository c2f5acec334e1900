//! Requests to bytes, and bytes to answers: the frames of Modbus TCP and of the serial line (RTU).
//!
//! - In: requests for bits or registers; bytes in pieces of any length, also wrong ones.
//! - Out: the bytes of a request; the data of an answer, or why it is none.
//! - Never: I/O, a clock, trust in a length that the device sent.
//!
//! Sources: MODBUS Application Protocol Specification V1.1b3, MODBUS Messaging on TCP/IP Implementation Guide V1.0b, MODBUS over
//! Serial Line V1.02.

/// The most registers of one request (application protocol, 6.3 and 6.4).
pub const REGISTERS_MAX: u16 = 125;
/// The most coils or discrete inputs of one request (6.1 and 6.2).
pub const BITS_MAX: u16 = 2000;
/// The longest function code with its data (4.1).
const PDU_BYTES_MAX: usize = 253;
/// Transaction, protocol, length and unit: the header of TCP.
const TCP_HEADER_BYTES: usize = 7;
/// The shortest frame of a serial line with an answer: unit, function, a byte of data or an exception, checksum.
const RTU_BYTES_MIN: usize = 5;
/// The longest frame of a serial line: unit, function with data, checksum.
const RTU_BYTES_MAX: usize = 1 + PDU_BYTES_MAX + 2;
/// Marks the function of an answer as an exception.
const EXCEPTION_BIT: u8 = 0x80;

/// The four tables of a device. The number is the function that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataTable {
    /// Bits that can be written: function 1.
    Coil = 1,
    /// Bits that can only be read: function 2.
    Discrete = 2,
    /// Registers that can be written: function 3.
    Holding = 3,
    /// Registers that can only be read: function 4.
    Input = 4,
}

impl DataTable {
    /// Whether the table has bits, not registers of 16 bits.
    pub fn has_bits(self) -> bool {
        matches!(self, DataTable::Coil | DataTable::Discrete)
    }

    /// The most bits or registers of one request.
    pub fn count_max(self) -> u16 {
        if self.has_bits() { BITS_MAX } else { REGISTERS_MAX }
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            DataTable::Coil => "coil",
            DataTable::Discrete => "discrete input",
            DataTable::Holding => "holding register",
            DataTable::Input => "input register",
        }
    }
}

/// A request for consecutive bits or registers of one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// The device behind a gateway or on a line: 1 to 247; 0 or 255 for a device with TCP of its own.
    pub unit: u8,
    pub table: DataTable,
    /// The first address, from 0.
    pub address: u16,
    /// From 1 to [`DataTable::count_max`].
    pub count: u16,
}

impl ReadRequest {
    /// The number of data bytes of the right answer.
    pub fn data_bytes(&self) -> usize {
        if self.table.has_bits() { usize::from(self.count).div_ceil(8) } else { usize::from(self.count) * 2 }
    }

    fn pdu(&self) -> [u8; 5] {
        let ([address_high, address_low], [count_high, count_low]) =
            (self.address.to_be_bytes(), self.count.to_be_bytes());
        [self.table as u8, address_high, address_low, count_high, count_low]
    }

    /// The frame of a serial line.
    pub fn rtu(&self) -> Vec<u8> {
        let mut frame = vec![self.unit];
        frame.extend_from_slice(&self.pdu());
        let crc = crc16(&frame);
        frame.extend_from_slice(&crc.to_le_bytes());
        frame
    }

    /// The frame of TCP with the number of a transaction.
    pub fn tcp(&self, transaction: u16) -> Vec<u8> {
        let pdu = self.pdu();
        let mut frame = transaction.to_be_bytes().to_vec();
        frame.extend_from_slice(&[0, 0, 0, pdu.len() as u8 + 1, self.unit]);
        frame.extend_from_slice(&pdu);
        frame
    }

    /// The data of an answer to this request.
    pub fn data<'a>(&self, answer: &ModbusAnswer<'a>) -> Result<&'a [u8], Refusal> {
        if answer.unit != self.unit {
            return Err(Refusal::Unit(answer.unit));
        }
        let function = self.table as u8;
        match answer.pdu {
            [first, code] if *first == function | EXCEPTION_BIT => Err(Refusal::Exception(*code)),
            [first, rest @ ..] if *first == function => match rest {
                [count, data @ ..] if usize::from(*count) == data.len() && data.len() == self.data_bytes() => Ok(data),
                _ => Err(Refusal::Length { data: rest.len().saturating_sub(1), expected: self.data_bytes() }),
            },
            [first, ..] => Err(Refusal::Function(*first)),
            [] => Err(Refusal::Length { data: 0, expected: self.data_bytes() }),
        }
    }
}

/// A frame that a device sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModbusAnswer<'a> {
    /// The transaction of the request, over TCP; a serial line has none.
    pub transaction: Option<u16>,
    pub unit: u8,
    /// The function code and its data.
    pub pdu: &'a [u8],
}

/// Why an answer has no data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The device refused the request with a code (application protocol, 7).
    #[error("exception {0} ({name})", name = exception_name(*.0))]
    Exception(u8),
    #[error("an answer from unit {0}")]
    Unit(u8),
    #[error("an answer with function {0}")]
    Function(u8),
    #[error("an answer with {data} bytes of data in place of {expected}")]
    Length { data: usize, expected: usize },
}

/// The meaning of an exception code (application protocol, 7).
pub fn exception_name(code: u8) -> &'static str {
    match code {
        1 => "illegal function",
        2 => "illegal data address",
        3 => "illegal data value",
        4 => "server device failure",
        5 => "acknowledge",
        6 => "server device busy",
        8 => "memory parity error",
        10 => "gateway path unavailable",
        11 => "gateway target device failed to respond",
        _ => "a code that Modbus does not define",
    }
}

/// The result of a search for a frame at the beginning of received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameScan<'a> {
    /// A frame that ends after `used` bytes.
    Frame { answer: ModbusAnswer<'a>, used: usize },
    /// No whole frame yet. The first `discard` bytes belong to none.
    Incomplete { discard: usize },
    /// The bytes are no Modbus, and nothing after them can be: the connection must be closed.
    Broken,
}

/// Finds the first frame of TCP.
pub fn scan_tcp(bytes: &[u8]) -> FrameScan<'_> {
    // Each field is checked as soon as it is there: garbage ends the connection, and does not wait for more.
    if bytes.get(2).is_some_and(|b| *b != 0) || bytes.get(3).is_some_and(|b| *b != 0) {
        return FrameScan::Broken;
    }
    let &[high, low, _, _, length_high, length_low, ref rest @ ..] = bytes else {
        return FrameScan::Incomplete { discard: 0 };
    };
    let length = usize::from(u16::from_be_bytes([length_high, length_low]));
    // The unit, a function, and a byte of data.
    if !(3..=PDU_BYTES_MAX + 1).contains(&length) {
        return FrameScan::Broken;
    }
    match rest.get(..length) {
        Some([unit, pdu @ ..]) => {
            let answer = ModbusAnswer { transaction: Some(u16::from_be_bytes([high, low])), unit: *unit, pdu };
            FrameScan::Frame { answer, used: TCP_HEADER_BYTES - 1 + length }
        }
        _ => FrameScan::Incomplete { discard: 0 },
    }
}

/// Finds the first frame of a serial line that can answer `request`. Frames have no mark at their beginning: every byte can be the first, if a frame with
/// the unit, the function and a right checksum follows.
pub fn scan_rtu<'a>(bytes: &'a [u8], request: &ReadRequest) -> FrameScan<'a> {
    let mut first_possible = bytes.len();
    for start in 0..bytes.len() {
        let rest = &bytes[start..];
        match rtu_frame_bytes(rest, request) {
            RtuLength::None => continue,
            RtuLength::Known(length) if length <= rest.len() => {
                let (body, crc) = rest[..length].split_at(length - 2);
                if crc == crc16(body).to_le_bytes() {
                    let answer = ModbusAnswer { transaction: None, unit: body[0], pdu: &body[1..] };
                    return FrameScan::Frame { answer, used: start + length };
                }
            }
            RtuLength::Known(_) | RtuLength::Unknown => first_possible = first_possible.min(start),
        }
    }
    FrameScan::Incomplete { discard: first_possible }
}

/// The length of a frame, as far as its first bytes show it.
enum RtuLength {
    None,
    Unknown,
    Known(usize),
}

fn rtu_frame_bytes(bytes: &[u8], request: &ReadRequest) -> RtuLength {
    let function = request.table as u8;
    match *bytes {
        [unit, ..] if unit != request.unit => RtuLength::None,
        [_, first, ..] if first == function | EXCEPTION_BIT => RtuLength::Known(RTU_BYTES_MIN),
        [_, first, ..] if first != function => RtuLength::None,
        [_, _, count, ..] if 5 + usize::from(count) <= RTU_BYTES_MAX => RtuLength::Known(5 + usize::from(count)),
        [_, _, _, ..] => RtuLength::None,
        _ => RtuLength::Unknown,
    }
}

/// The checksum of a serial line (MODBUS over Serial Line, 6.2.2): polynomial 0xA001, beginning with 0xFFFF.
pub fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0xffff, |crc, byte| CRC_TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

const CRC_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut crc, mut bit) = (index as u16, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xa001 } else { crc >> 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::*;

    const REQUEST: ReadRequest = ReadRequest { unit: 17, table: DataTable::Holding, address: 0x6b, count: 3 };
    /// The answer of the example of the application protocol, 6.3.
    const ANSWER_PDU: [u8; 8] = [3, 6, 0x02, 0x2b, 0, 0, 0, 0x64];

    fn tcp_answer(transaction: u16, unit: u8, pdu: &[u8]) -> Vec<u8> {
        let mut frame = transaction.to_be_bytes().to_vec();
        frame.extend_from_slice(&[0, 0]);
        frame.extend_from_slice(&(pdu.len() as u16 + 1).to_be_bytes());
        frame.push(unit);
        frame.extend_from_slice(pdu);
        frame
    }

    fn rtu_answer(unit: u8, pdu: &[u8]) -> Vec<u8> {
        let mut frame = vec![unit];
        frame.extend_from_slice(pdu);
        let crc = crc16(&frame);
        frame.extend_from_slice(&crc.to_le_bytes());
        frame
    }

    #[test]
    fn requests_have_the_bytes_of_the_specification() {
        assert_eq!(REQUEST.pdu(), [3, 0, 0x6b, 0, 3]);
        assert_eq!(REQUEST.tcp(0x1501), [0x15, 0x01, 0, 0, 0, 6, 17, 3, 0, 0x6b, 0, 3]);
        // Published example: 11 03 00 6B 00 03 with the checksum 76 87.
        assert_eq!(REQUEST.rtu(), [0x11, 3, 0, 0x6b, 0, 3, 0x76, 0x87]);
    }

    #[test]
    fn answers_are_found_in_pieces_and_between_others() {
        let mut bytes = tcp_answer(1, 17, &ANSWER_PDU);
        let whole = bytes.len();
        for end in 0..whole {
            assert_eq!(scan_tcp(&bytes[..end]), FrameScan::Incomplete { discard: 0 }, "{end}");
        }
        bytes.extend_from_slice(&tcp_answer(2, 17, &[0x83, 2]));
        let FrameScan::Frame { answer, used } = scan_tcp(&bytes) else { panic!("no frame") };
        assert_eq!((answer.transaction, used), (Some(1), whole));
        assert_eq!(REQUEST.data(&answer), Ok(&ANSWER_PDU[2..]));
        let FrameScan::Frame { answer, .. } = scan_tcp(&bytes[used..]) else { panic!("no second frame") };
        assert_eq!(REQUEST.data(&answer), Err(Refusal::Exception(2)));
        assert_eq!(Refusal::Exception(2).to_string(), "exception 2 (illegal data address)");
    }

    #[test]
    fn the_longest_answers_fit() {
        let request = ReadRequest { count: REGISTERS_MAX, ..REQUEST };
        let mut pdu = vec![3, 250];
        pdu.extend_from_slice(&[7; 250]);
        let tcp = tcp_answer(1, 17, &pdu);
        let FrameScan::Frame { answer, used } = scan_tcp(&tcp) else { panic!("no frame") };
        assert_eq!((request.data(&answer), used), (Ok(&[7; 250][..]), 259));
        let rtu = rtu_answer(17, &pdu);
        let FrameScan::Frame { answer, .. } = scan_rtu(&rtu, &request) else { panic!("no frame") };
        assert_eq!(request.data(&answer), Ok(&[7; 250][..]));
        let bits = ReadRequest { table: DataTable::Coil, count: BITS_MAX, ..REQUEST };
        assert_eq!(bits.data_bytes(), 250);
    }

    #[test]
    fn answers_that_match_no_request_are_refused() {
        let check = |unit, pdu: &[u8], expected| {
            let answer = ModbusAnswer { transaction: Some(1), unit, pdu };
            assert_eq!(REQUEST.data(&answer), Err(expected));
        };
        check(16, &ANSWER_PDU, Refusal::Unit(16));
        check(17, &[4, 6, 0, 0, 0, 0, 0, 0], Refusal::Function(4));
        check(17, &[3, 4, 0, 0, 0, 0], Refusal::Length { data: 4, expected: 6 });
        check(17, &[3, 6, 0, 0, 0, 0], Refusal::Length { data: 4, expected: 6 });
        check(17, &[3], Refusal::Length { data: 0, expected: 6 });
        check(17, &[], Refusal::Length { data: 0, expected: 6 });
        check(17, &[0x83, 2, 0], Refusal::Function(0x83));
    }

    #[test]
    fn no_modbus_over_tcp_breaks_the_connection_at_once() {
        assert_eq!(scan_tcp(b"HTTP/1.1 400 Bad Request\r\n"), FrameScan::Broken);
        assert_eq!(scan_tcp(&[0, 1, 0, 0, 0, 0]), FrameScan::Broken);
        assert_eq!(scan_tcp(&[0, 1, 0, 0, 0xff, 0xff]), FrameScan::Broken);
        assert_eq!(scan_tcp(&[0, 1, 7]), FrameScan::Broken);
    }

    #[test]
    fn a_serial_answer_is_found_after_any_garbage() {
        let mut random = Random::seeded();
        for _ in 0..2000 {
            let length = random.index(40);
            let mut bytes = random.bytes(length);
            // Beginnings of frames that never come to an end are the hard case.
            bytes.extend_from_slice(&[17, 3, 200][..random.index(4)]);
            bytes.extend_from_slice(&rtu_answer(17, &ANSWER_PDU));
            let FrameScan::Frame { answer, .. } = scan_rtu(&bytes, &REQUEST) else { panic!("{bytes:?}") };
            assert_eq!(answer.unit, 17);
            assert!(REQUEST.data(&answer) == Ok(&ANSWER_PDU[2..]) || bytes.len() > 20, "{bytes:?}");
        }
    }

    #[test]
    fn a_serial_answer_with_a_wrong_bit_is_none() {
        let good = rtu_answer(17, &ANSWER_PDU);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(scan_rtu(&bad, &REQUEST), FrameScan::Incomplete { .. }), "bit {bit}");
        }
        for end in 0..good.len() {
            assert_eq!(scan_rtu(&good[..end], &REQUEST), FrameScan::Incomplete { discard: 0 }, "{end}");
        }
        let other_unit = rtu_answer(18, &ANSWER_PDU);
        assert_eq!(scan_rtu(&other_unit, &REQUEST), FrameScan::Incomplete { discard: other_unit.len() });
    }

    #[test]
    fn random_bytes_are_no_data_of_a_wrong_length() {
        let mut random = Random::seeded();
        for _ in 0..20_000 {
            let mut bytes = tcp_answer(1, 17, &ANSWER_PDU);
            for _ in 0..1 + random.index(3) {
                let at = random.index(bytes.len());
                bytes[at] = random.draw() as u8;
            }
            bytes.truncate(random.index(bytes.len() + 1));
            for scan in [scan_tcp(&bytes), scan_rtu(&bytes, &REQUEST)] {
                match scan {
                    FrameScan::Frame { answer, used } => {
                        assert!(used <= bytes.len());
                        assert!(REQUEST.data(&answer).map_or(0, <[u8]>::len) <= 6);
                    }
                    FrameScan::Incomplete { discard } => assert!(discard <= bytes.len()),
                    FrameScan::Broken => {}
                }
            }
        }
    }
}
