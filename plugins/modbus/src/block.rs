//! Which registers are read together: values that are adjacent, or nearly, share a request.

use std::ops::Range;

use crate::frame::{DataTable, ReadRequest};
use crate::value::{Decoder, RegisterValue};

/// Where the value of one sensor is in a device, and how it is read from its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub table: DataTable,
    /// The first address, from 0.
    pub address: u16,
    pub decoder: Decoder,
}

impl Point {
    /// The number of registers or bits of the value.
    pub fn count(&self) -> u16 {
        if self.table.has_bits() { 1 } else { self.decoder.data_type.registers() }
    }

    /// The address after the last one of the value.
    fn end(&self) -> u32 {
        u32::from(self.address) + u32::from(self.count())
    }
}

/// Consecutive points, in the order of [`sorted`], that one request reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Indices into the order, not into the points.
    pub points: Range<usize>,
    pub table: DataTable,
    pub address: u16,
    pub count: u16,
}

/// The indices of points by table and address.
pub fn sorted(points: &[Point]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by_key(|index| (points[*index].table, points[*index].address, *index));
    order
}

/// The fewest requests that read all points: a request ends where more than `gap` unused registers would follow, or where it would be longer than
/// `registers_max` (or the protocol's limit for bits). No value is divided.
pub fn blocks(points: &[Point], order: &[usize], gap: u16, registers_max: u16) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (at, point) in order.iter().map(|index| &points[*index]).enumerate() {
        let count_max = if point.table.has_bits() { point.table.count_max() } else { registers_max };
        if let Some(block) = blocks.last_mut().filter(|block| block.table == point.table) {
            let end = u32::from(block.address) + u32::from(block.count);
            let joined = end.max(point.end()) - u32::from(block.address);
            if u32::from(point.address) <= end + u32::from(gap) && joined <= u32::from(count_max) {
                block.count = joined as u16;
                block.points.end = at + 1;
                continue;
            }
        }
        blocks.push(Block { points: at..at + 1, table: point.table, address: point.address, count: point.count() });
    }
    blocks
}

impl Block {
    /// The request of this block to a unit.
    pub fn request(&self, unit: u8) -> ReadRequest {
        ReadRequest { unit, table: self.table, address: self.address, count: self.count }
    }

    /// Two blocks with half of the values each; `None` for a block with one value.
    pub fn halves(&self, points: &[Point], order: &[usize]) -> Option<[Block; 2]> {
        let middle = self.points.start + self.points.len() / 2;
        if middle == self.points.start {
            return None;
        }
        Some([self.points.start..middle, middle..self.points.end].map(|part| {
            let of = |at: usize| &points[order[at]];
            let address = of(part.start).address;
            let end = part.clone().map(|at| of(at).end()).max().unwrap_or_default();
            Block { table: self.table, address, count: (end - u32::from(address)) as u16, points: part }
        }))
    }

    /// The value of a point in the data of the answer to this block's request.
    pub fn value(&self, point: &Point, data: &[u8]) -> Option<RegisterValue> {
        let at = usize::from(point.address.checked_sub(self.address)?);
        if self.table.has_bits() {
            return point.decoder.bit_value(data.get(at / 8)? >> (at % 8) & 1 == 1);
        }
        point.decoder.value(data.get(at * 2..at * 2 + usize::from(point.count()) * 2)?)
    }
}

#[cfg(test)]
mod tests {
    use wholegrain_testkit::Random;

    use super::*;
    use crate::frame::REGISTERS_MAX;
    use crate::value::{ByteOrder, RegisterType};

    fn point(table: DataTable, address: u16, data_type: RegisterType) -> Point {
        let decoder = Decoder { data_type, order: ByteOrder::Big, bit: 0, absent: Vec::new(), linear: None };
        Point { table, address, decoder }
    }

    fn ranges(points: &[Point], gap: u16) -> Vec<(u16, u16)> {
        blocks(points, &sorted(points), gap, REGISTERS_MAX).iter().map(|b| (b.address, b.count)).collect()
    }

    #[test]
    fn adjacent_registers_share_a_request() {
        let holding = |address, data_type| point(DataTable::Holding, address, data_type);
        let points = [
            holding(12, RegisterType::F32),
            holding(10, RegisterType::U32),
            holding(14, RegisterType::U16),
            holding(17, RegisterType::U16),
            point(DataTable::Input, 15, RegisterType::U16),
        ];
        assert_eq!(ranges(&points, 0), [(10, 5), (17, 1), (15, 1)]);
        assert_eq!(ranges(&points, 2), [(10, 8), (15, 1)]);
        // Bits of one register are one register.
        let bits = [holding(5, RegisterType::Bit), holding(5, RegisterType::Bit)];
        assert_eq!(ranges(&bits, 0), [(5, 1)]);
    }

    #[test]
    fn a_request_has_the_protocols_limit_and_divides_no_value() {
        let points: Vec<Point> =
            (0..100).map(|n| point(DataTable::Holding, 65_335 + n * 2, RegisterType::U32)).collect();
        assert_eq!(ranges(&points, 0), [(65_335, 124), (65_459, 76)]);
        let coils: Vec<Point> = (0..2001).map(|n| point(DataTable::Coil, n, RegisterType::Bit)).collect();
        assert_eq!(ranges(&coils, 0), [(0, 2000), (2000, 1)]);
        assert_eq!(ranges(&[], 0), []);
    }

    #[test]
    fn halves_end_at_single_values() {
        let points: Vec<Point> = [0, 1, 4, 6].map(|a| point(DataTable::Input, a, RegisterType::U16)).to_vec();
        let order = sorted(&points);
        let all = blocks(&points, &order, 10, REGISTERS_MAX).remove(0);
        let [low, high] = all.halves(&points, &order).expect("four values");
        assert_eq!((low.address, low.count, high.address, high.count), (0, 2, 4, 3));
        let [one, _] = high.halves(&points, &order).expect("two values");
        assert_eq!(one.halves(&points, &order), None);
    }

    #[test]
    fn values_are_taken_from_their_place() {
        let points = [point(DataTable::Coil, 9, RegisterType::Bit), point(DataTable::Coil, 3, RegisterType::Bit)];
        let block = blocks(&points, &sorted(&points), 10, REGISTERS_MAX).remove(0);
        assert_eq!((block.address, block.count), (3, 7));
        let data = [0b0100_0000];
        assert_eq!(block.value(&points[0], &data), Some(RegisterValue::Int(1)));
        assert_eq!(block.value(&points[1], &data), Some(RegisterValue::Int(0)));
        let registers = point(DataTable::Input, 8, RegisterType::U32);
        let block = Block { points: 0..1, table: DataTable::Input, address: 7, count: 3 };
        assert_eq!(block.value(&registers, &[9, 9, 0, 1, 0, 2]), Some(RegisterValue::Int(0x1_0002)));
        assert_eq!(block.value(&registers, &[9, 9, 0, 1, 0]), None);
    }

    #[test]
    fn random_points_are_each_in_one_block_within_the_limits() {
        let mut random = Random::seeded();
        for _ in 0..300 {
            let points: Vec<Point> = (0..random.index(200))
                .map(|_| {
                    let table = random.pick(&[DataTable::Coil, DataTable::Holding, DataTable::Input]);
                    let data_type = random.pick(&[RegisterType::U16, RegisterType::F32, RegisterType::I64]);
                    point(table, random.below(600) as u16, data_type)
                })
                .collect();
            let (gap, max) = (random.below(20) as u16, random.within(4, 126) as u16);
            let order = sorted(&points);
            let blocks = blocks(&points, &order, gap, max);
            let mut next = 0;
            for block in &blocks {
                assert_eq!(block.points.start, next);
                next = block.points.end;
                assert!(block.count <= if block.table.has_bits() { 2000 } else { max });
                for at in block.points.clone() {
                    let point = &points[order[at]];
                    assert!(point.table == block.table && point.address >= block.address);
                    assert!(point.end() <= u32::from(block.address) + u32::from(block.count));
                }
            }
            assert_eq!(next, points.len());
        }
    }
}
