//! How patterns, times and lengths are written, for the help of each subcommand that takes them.

pub const PATTERNS: &str = "\
Patterns: a level of a sensor's path may hold * for any text, ** as a level stands for any number of levels. A pattern that \
does not begin with / matches at any depth: MemAvailable, 'cpu/*/user', '/lab/**/power'. Put patterns into quotes, so that the \
shell leaves them alone.";

pub const TIMES: &str = "\
Times: RFC 3339 (2026-01-31T12:00:00Z), a date (2026-01-31), a time of today (14:00), today, yesterday, 'yesterday 14:00', Unix seconds \
(@1769860800), now, or back from now (-10m, -1w); --to +10m counts from --from. Without a zone, times are UTC; a zone may follow \
('2026-01-31 13:00 Europe/Berlin', '14:00 Europe/Berlin'; where clocks are put forward or back, what does not exist or comes twice is \
refused). A leap second, 23:59:60 UTC at the end of a month, is the second after it.";

pub const LENGTHS: &str = "\
Lengths: a number and a unit, one of ns, us, ms, s, min (or m), h, d, w: 100ms, 10s, 1h30m.";
