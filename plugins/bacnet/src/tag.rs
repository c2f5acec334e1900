//! Tagged values: how BACnet writes numbers, texts and lists (ANSI/ASHRAE 135, clause 20.2).

/// The longest text that is kept, in bytes.
const TEXT_BYTES_MAX: usize = 512;
/// The deepest nesting of lists in an answer.
const DEPTH_MAX: usize = 16;
/// The most elements of a list.
pub const ELEMENTS_MAX: usize = 8192;

/// The type and instance of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// The object type, 0 to 1023.
    pub kind: u16,
    /// The instance number, 0 to 4194303.
    pub instance: u32,
}

/// The largest instance. A request for this instance of the type device is for whatever instance the device has.
pub const INSTANCE_MAX: u32 = (1 << 22) - 1;

impl ObjectId {
    /// The 32 bits of an object.
    pub fn bits(self) -> u32 {
        u32::from(self.kind) << 22 | (self.instance & INSTANCE_MAX)
    }

    fn from_bits(bits: u32) -> Self {
        Self { kind: (bits >> 22) as u16, instance: bits & INSTANCE_MAX }
    }
}

/// A value with an application tag.
#[derive(Debug, Clone, PartialEq)]
pub enum TaggedValue {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Real(f64),
    Enumerated(u32),
    Text(String),
    /// The bits in their order, at most 64.
    Bits(Vec<bool>),
    Object(ObjectId),
    /// A part of a construction or a choice: its number, and its content of at most eight bytes.
    Context(u8, Vec<u8>),
    /// A date, a time, an octet string, or a list within the value: nothing that is sampled.
    Other,
}

/// One tag with its content.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tag<'a> {
    /// An application tag: its number, and its content. Of a boolean, the content is in `length`.
    Application {
        number: u8,
        length: u32,
        content: &'a [u8],
    },
    Context {
        number: u8,
        content: &'a [u8],
    },
    Opening(u8),
    Closing(u8),
}

/// Bytes that are not as the standard writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed")]
pub struct Malformed;

/// Reads tags one after the other.
#[derive(Debug, Clone, Copy)]
pub struct TagReader<'a> {
    bytes: &'a [u8],
}

impl<'a> TagReader<'a> {
    /// A reader of all tags in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Whether all tags were read.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(Malformed)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// The next tag (20.2.1).
    pub fn next(&mut self) -> Result<Tag<'a>, Malformed> {
        let first = self.byte()?;
        let number = if first >> 4 == 15 { self.byte()? } else { first >> 4 };
        let is_context = first & 0x08 != 0;
        match (is_context, first & 0x07) {
            (true, 6) => return Ok(Tag::Opening(number)),
            (true, 7) => return Ok(Tag::Closing(number)),
            (false, 6 | 7) => return Err(Malformed),
            _ => {}
        }
        let length = match first & 0x07 {
            5 => match self.byte()? {
                254 => u32::from(u16::from_be_bytes(self.array()?)),
                255 => u32::from_be_bytes(self.array()?),
                short => u32::from(short),
            },
            short => u32::from(short),
        };
        if !is_context && number == 1 {
            // The value of a boolean is in its tag.
            return Ok(Tag::Application { number, length, content: &[] });
        }
        let content = self.take(usize::try_from(length).map_err(|_| Malformed)?)?;
        Ok(match is_context {
            true => Tag::Context { number, content },
            false => Tag::Application { number, length, content },
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    /// The next tag without taking it.
    pub fn peek(&self) -> Result<Tag<'a>, Malformed> {
        let mut copy = *self;
        copy.next()
    }

    /// Takes the content of a context tag with this number.
    pub fn context(&mut self, expected: u8) -> Result<&'a [u8], Malformed> {
        match self.next()? {
            Tag::Context { number, content } if number == expected => Ok(content),
            _ => Err(Malformed),
        }
    }

    /// Takes a context tag with this number if it is the next one.
    pub fn optional(&mut self, expected: u8) -> Option<&'a [u8]> {
        let mut copy = *self;
        let content = copy.context(expected).ok()?;
        *self = copy;
        Some(content)
    }

    /// Takes an opening or a closing tag.
    pub fn expect(&mut self, expected: Tag<'_>) -> Result<(), Malformed> {
        if self.next()? == expected { Ok(()) } else { Err(Malformed) }
    }

    /// Takes the next tag with an application value.
    pub fn value(&mut self) -> Result<TaggedValue, Malformed> {
        match self.next()? {
            Tag::Application { number, length, content } => value(number, length, content),
            _ => Err(Malformed),
        }
    }

    /// Takes all values up to the closing tag `number`, and the tag. Lists within them are skipped.
    pub fn values_to_closing(&mut self, number: u8) -> Result<Vec<TaggedValue>, Malformed> {
        let (mut values, mut depth) = (Vec::new(), 0usize);
        loop {
            if values.len() > ELEMENTS_MAX {
                return Err(Malformed);
            }
            match self.next()? {
                Tag::Closing(n) if depth == 0 => return if n == number { Ok(values) } else { Err(Malformed) },
                Tag::Closing(_) => depth -= 1,
                Tag::Opening(_) if depth == DEPTH_MAX => return Err(Malformed),
                Tag::Opening(_) => {
                    if depth == 0 {
                        values.push(TaggedValue::Other);
                    }
                    depth += 1;
                }
                Tag::Application { number, length, content } if depth == 0 => {
                    values.push(value(number, length, content)?);
                }
                Tag::Context { number, content } if depth == 0 && content.len() <= 8 => {
                    values.push(TaggedValue::Context(number, content.to_vec()));
                }
                Tag::Context { .. } if depth == 0 => values.push(TaggedValue::Other),
                _ => {}
            }
        }
    }
}

fn value(number: u8, length: u32, content: &[u8]) -> Result<TaggedValue, Malformed> {
    Ok(match number {
        0 => TaggedValue::Null,
        1 => TaggedValue::Bool(length == 1),
        2 => TaggedValue::Unsigned(unsigned(content)?),
        3 => TaggedValue::Signed(signed(content)?),
        4 => TaggedValue::Real(f32::from_be_bytes(content.try_into().map_err(|_| Malformed)?).into()),
        5 => TaggedValue::Real(f64::from_be_bytes(content.try_into().map_err(|_| Malformed)?)),
        7 => TaggedValue::Text(text(content)?),
        8 => TaggedValue::Bits(bits(content)?),
        9 => TaggedValue::Enumerated(u32::try_from(unsigned(content)?).map_err(|_| Malformed)?),
        12 => TaggedValue::Object(object(content)?),
        6 | 10 | 11 => TaggedValue::Other,
        _ => return Err(Malformed),
    })
}

/// An unsigned number of one to eight bytes (20.2.4).
pub fn unsigned(content: &[u8]) -> Result<u64, Malformed> {
    if content.is_empty() || content.len() > 8 {
        return Err(Malformed);
    }
    Ok(content.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// A signed number of one to eight bytes (20.2.5).
pub fn signed(content: &[u8]) -> Result<i64, Malformed> {
    let number = unsigned(content)?;
    let unused = 64 - 8 * content.len() as u32;
    Ok((number << unused) as i64 >> unused)
}

/// An object identifier (20.2.14).
pub fn object(content: &[u8]) -> Result<ObjectId, Malformed> {
    Ok(ObjectId::from_bits(u32::from_be_bytes(content.try_into().map_err(|_| Malformed)?)))
}

/// A character string (20.2.9): UTF-8, ISO 8859-1 or UCS-2. Other encodings are shown by question marks.
fn text(content: &[u8]) -> Result<String, Malformed> {
    let (encoding, bytes) = content.split_first().ok_or(Malformed)?;
    let bytes = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    Ok(match encoding {
        0 => String::from_utf8_lossy(bytes).into_owned(),
        5 => bytes.iter().map(|byte| char::from(*byte)).collect(),
        4 => {
            let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
            String::from_utf16_lossy(&units)
        }
        _ => "?".repeat(bytes.len().min(8)),
    })
}

fn bits(content: &[u8]) -> Result<Vec<bool>, Malformed> {
    let (unused, bytes) = content.split_first().ok_or(Malformed)?;
    let count = (bytes.len() * 8).checked_sub(usize::from(*unused)).ok_or(Malformed)?;
    Ok((0..count.min(64)).map(|at| bytes[at / 8] >> (7 - at % 8) & 1 == 1).collect())
}

/// Writes a context tag with an unsigned number in its fewest bytes.
pub fn put_context_unsigned(out: &mut Vec<u8>, number: u8, value: u32) {
    let bytes = value.to_be_bytes();
    let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(3);
    out.push(number << 4 | 0x08 | (4 - first) as u8);
    out.extend_from_slice(&bytes[first..]);
}

/// Writes a context tag with an object.
pub fn put_context_object(out: &mut Vec<u8>, number: u8, object: ObjectId) {
    out.push(number << 4 | 0x08 | 4);
    out.extend_from_slice(&object.bits().to_be_bytes());
}

/// Writes a context tag with a boolean.
pub fn put_context_bool(out: &mut Vec<u8>, number: u8, value: bool) {
    out.extend_from_slice(&[number << 4 | 0x08 | 1, value.into()]);
}

/// Writes an opening tag.
pub fn put_opening(out: &mut Vec<u8>, number: u8) {
    out.push(number << 4 | 0x0e);
}

/// Writes a closing tag.
pub fn put_closing(out: &mut Vec<u8>, number: u8) {
    out.push(number << 4 | 0x0f);
}

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: TaggedValue) {
        assert_eq!(TagReader::new(bytes).value(), Ok(expected), "{bytes:02x?}");
        for end in 0..bytes.len() {
            assert_eq!(TagReader::new(&bytes[..end]).value(), Err(Malformed), "{bytes:02x?} cut at {end}");
        }
    }

    /// The examples of 20.2.2 to 20.2.14.
    #[test]
    fn values_of_the_standard() {
        check(&[0x00], TaggedValue::Null);
        check(&[0x10], TaggedValue::Bool(false));
        check(&[0x11], TaggedValue::Bool(true));
        check(&[0x21, 72], TaggedValue::Unsigned(72));
        check(&[0x31, 72], TaggedValue::Signed(72));
        check(&[0x32, 0xff, 0x38], TaggedValue::Signed(-200));
        check(&[0x44, 0x42, 0x90, 0, 0], TaggedValue::Real(72.0));
        check(&[0x55, 8, 0x40, 0x52, 0, 0, 0, 0, 0, 0], TaggedValue::Real(72.0));
        check(&[0x91, 0], TaggedValue::Enumerated(0));
        check(&[0x82, 3, 0b1010_1000], TaggedValue::Bits(vec![true, false, true, false, true]));
        let object = ObjectId { kind: 3, instance: 15 };
        check(&[0xc4, 0, 0xc0, 0, 15], TaggedValue::Object(object));
        let mut name = vec![0x75, 0x19, 0];
        name.extend_from_slice(b"This is a BACnet string!");
        check(&name, TaggedValue::Text("This is a BACnet string!".to_owned()));
        check(&[0x74, 4, 0x00, 0xe9, 0x00][..5], TaggedValue::Text("é".to_owned()));
    }

    #[test]
    fn what_is_written_is_read() {
        let (mut out, object) = (Vec::new(), ObjectId { kind: 8, instance: INSTANCE_MAX });
        put_context_object(&mut out, 0, object);
        put_context_unsigned(&mut out, 1, 85);
        put_context_unsigned(&mut out, 2, 70_000);
        put_opening(&mut out, 3);
        put_context_bool(&mut out, 4, true);
        put_closing(&mut out, 3);
        let mut reader = TagReader::new(&out);
        assert_eq!(self::object(reader.context(0).unwrap()), Ok(object));
        assert_eq!(unsigned(reader.context(1).unwrap()), Ok(85));
        assert_eq!((reader.optional(5), reader.optional(2).map(unsigned)), (None, Some(Ok(70_000))));
        assert_eq!(reader.expect(Tag::Opening(3)), Ok(()));
        assert_eq!(reader.values_to_closing(3), Ok(vec![TaggedValue::Context(4, vec![1])]));
        assert!(reader.is_empty());
    }

    #[test]
    fn nested_lists_are_bounded() {
        let deep = [0x0e; DEPTH_MAX + 2];
        assert_eq!(TagReader::new(&deep).values_to_closing(0), Err(Malformed));
        let mut long = vec![0x00; ELEMENTS_MAX + 2];
        long.push(0x0f);
        assert_eq!(TagReader::new(&long).values_to_closing(0), Err(Malformed));
        let list = [0x2e, 0x21, 1, 0x2f, 0x21, 2, 0x0f];
        let values = TagReader::new(&list).values_to_closing(0);
        assert_eq!(values, Ok(vec![TaggedValue::Other, TaggedValue::Unsigned(2)]));
    }

    #[test]
    fn random_bytes_are_read_to_an_end() {
        let mut random = Random::seeded();
        for _ in 0..50_000 {
            let length = random.index(60);
            let bytes = random.bytes(length);
            let mut reader = TagReader::new(&bytes);
            for _ in 0..=bytes.len() {
                if reader.next().is_err() {
                    break;
                }
            }
            let _ = TagReader::new(&bytes).values_to_closing(3);
            let _ = TagReader::new(&bytes).value();
        }
    }
}
