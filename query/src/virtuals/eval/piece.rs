//! The encoding of cached pieces of a computed sensor.

use super::grid::OperandTrack;
use super::plan::PIECE_POINTS_MAX;

/// Encodes a piece; the store's `FORMAT.md` describes the bytes.
pub(super) fn encode(values: &[f64], sampled: &[bool]) -> Vec<u8> {
    let bits = |is: &dyn Fn(usize) -> bool, out: &mut Vec<u8>| {
        let start = out.len();
        out.resize(start + sampled.len().div_ceil(8), 0);
        (0..sampled.len()).filter(|at| is(*at)).for_each(|at| out[start + at / 8] |= 1 << (at % 8));
    };
    let has = |at: usize| sampled[at] && !values[at].is_nan();
    let present: Vec<f64> = (0..values.len()).filter(|at| has(*at)).map(|at| values[at]).collect();
    let mut out = Vec::with_capacity(8 + sampled.len() / 4 + 2 + present.len() * 8);
    out.extend_from_slice(&(sampled.len() as u32).to_le_bytes());
    out.extend_from_slice(&(present.len() as u32).to_le_bytes());
    bits(&|at| sampled[at], &mut out);
    bits(&has, &mut out);
    present.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
    out
}

/// Decodes a piece of `points` points from `base` on; `None` if the bytes are invalid.
pub(super) fn decode(bytes: &[u8], base: i64, points: i64) -> Option<OperandTrack> {
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let (len, there) = (number(0)?, number(4)?);
    let words = len.div_ceil(8);
    (len as i64 == points && points <= PIECE_POINTS_MAX && bytes.len() == 8 + 2 * words + there * 8).then_some(())?;
    let bit = |start: usize, at: usize| bytes[start + at / 8] >> (at % 8) & 1 == 1;
    let mut values =
        bytes[8 + 2 * words..].chunks_exact(8).map(|value| f64::from_le_bytes(value.try_into().unwrap_or_default()));
    let mut track = OperandTrack::holes(base, len);
    for at in 0..len {
        track.sampled[at] = bit(8, at);
        if bit(8 + words, at) {
            track.values[at] = values.next()?;
        }
    }
    values.next().is_none().then_some(track)
}

/// A piece being assembled.
#[derive(Debug)]
pub(super) struct ChunkAssembly {
    pub number: i64,
    pub values: Vec<f64>,
    pub sampled: Vec<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_decoded_unchanged_or_refused() {
        let sampled = [true, true, false, true, true, false, false, true, true, true];
        let values = [1.5, f64::NAN, f64::NAN, -0.0, 3.0, f64::NAN, f64::NAN, f64::NAN, 5.0, 6.0];
        let bytes = encode(&values, &sampled);
        let track = decode(&bytes, 70, 10).unwrap();
        assert_eq!((track.base, &track.sampled[..]), (70, &sampled[..]));
        let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&track.values), bits(&values));
        assert!(decode(&bytes, 70, 11).is_none() && decode(&bytes[..bytes.len() - 1], 70, 10).is_none());
        assert!((0..8).all(|at| decode(&bytes[..at], 70, 10).is_none()));
    }
}
