//! Days and windows on the time axis.

/// Nanoseconds of a day.
pub(crate) const DAY_NS: i64 = 86_400_000_000_000;

/// Year, month and day of a day since 1970-01-01, in the proleptic Gregorian calendar. Eras of 400 years begin on 1 March of a
/// year divisible by 400, so that a leap day is the last of its year.
pub(crate) fn civil(day: i64) -> (i64, i64, i64) {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The start of the window of `resolution` that `time` falls into.
pub(crate) fn floor(time: i64, resolution: i64) -> i64 {
    time.saturating_sub(time.rem_euclid(resolution))
}

/// The start of the first window that does not begin before `time`.
pub(crate) fn ceil(time: i64, resolution: i64) -> i64 {
    let start = floor(time, resolution);
    if start == time { time } else { start.saturating_add(resolution) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(-1), (1969, 12, 31));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(11_017), (2000, 3, 1));
        assert_eq!(civil(20_454), (2026, 1, 1));
        assert_eq!(civil(i64::MAX / DAY_NS), (2262, 4, 11));
        assert_eq!(civil(i64::MIN.div_euclid(DAY_NS)), (1677, 9, 21));
    }
}
