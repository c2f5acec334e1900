//! Writes protobuf messages for tests, by the description of the encoding and not with the server's code.

/// A message in construction.
#[derive(Debug, Clone, Default)]
pub struct MessageBuilder(pub Vec<u8>);

impl MessageBuilder {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn int(mut self, field: u64, value: i64) -> Self {
        self.varint(field << 3);
        self.varint(value as u64);
        self
    }

    pub fn fixed(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn double(self, field: u64, value: f64) -> Self {
        self.fixed(field, value.to_bits())
    }

    pub fn bytes(mut self, field: u64, value: impl AsRef<[u8]>) -> Self {
        self.varint(field << 3 | 2);
        self.varint(value.as_ref().len() as u64);
        self.0.extend(value.as_ref());
        self
    }

    pub fn message(self, field: u64, value: MessageBuilder) -> Self {
        self.bytes(field, value.0)
    }

    /// A packed field of varints.
    pub fn packed(self, field: u64, values: &[u64]) -> Self {
        let mut packed = MessageBuilder::default();
        values.iter().for_each(|value| packed.varint(*value));
        self.bytes(field, packed.0)
    }
}
