//! The checks, one for each guarantee of [`WritableStore`] and of its snapshots.

use std::collections::BTreeMap;

use wholegrain_model::{Kind, ValueType};
use wholegrain_store::{Chunk, Resolution, ScanPart, ScanRequest, SensorId};

use super::{
    Check, Finding, Place, PutOutcome, ReadingBits, WritableStore, all, define, floats, info, ints, pattern, row,
    rows_of, same, scan, sensor,
};
use crate::Random;

pub(super) const ALL: &[Check] = &[
    ("sensors are chosen by pattern, sorted, each once", sensors_by_pattern),
    ("a definition's properties come back, and the latest count", properties),
    ("what is put comes out, to the bit", exact),
    ("a range takes its start and leaves out its end", ranges),
    ("chunks come out in time order, however they were put", order),
    ("the later put of a time takes the place of the earlier", later_wins),
    ("the same put again changes nothing", duplicates),
    ("a put that is refused leaves nothing", refused),
    ("a sub-tree is not its neighbour", neighbours),
    ("a snapshot stays what it was", snapshots),
    ("what is acknowledged is there after the next opening", durable),
    ("large puts come out in chunks that fit", large),
    ("the newest reading is the one of the latest time", newest),
    ("a deletion takes what it names and nothing else", deletion),
    ("what was deleted does not come back with its put", deleted_for_good),
    ("a sensor that changes its type gives both", types),
    ("windows come to what their readings come to", windows),
    ("many put and read at a time", at_a_time),
    ("hundreds of random steps come to what they should", random_steps),
];

const S: i64 = 1_000_000_000;
/// A time in this century that is not a multiple of any unit.
const T: i64 = 1_700_000_123_456_789_012;

/// Puts chunks with a number and expects them to be stored.
fn put(store: &dyn WritableStore, number: u64, chunks: &[(SensorId, Chunk)]) -> Finding {
    match store.put("conformance", number, chunks) {
        Ok(PutOutcome::Stored) => Ok(()),
        other => Err(format!("put {number}: {other:?} in place of Stored")),
    }
}

/// `count` readings with an interval of a second that begin with the value `first`.
fn run(from: i64, count: i64, first: i64) -> Chunk {
    ints((0..count).map(|i| (from + i * S, Some(first + i))))
}

fn sensors_by_pattern(place: &dyn Place) -> Finding {
    let store = place.open();
    let paths = ["/a/n2/power", "/a/n1/power", "/a/n1/temp", "/b/power", "/a/n10/power"];
    let ids = define(&*store, &paths)?;
    let again = define(&*store, &paths)?;
    same("numbers of the same sensors", again, ids.clone())?;
    for (patterns, expected) in [
        (vec!["/**"], vec!["/a/n1/power", "/a/n1/temp", "/a/n10/power", "/a/n2/power", "/b/power"]),
        (vec!["/a/*/power"], vec!["/a/n1/power", "/a/n10/power", "/a/n2/power"]),
        (vec!["/a/n1/**", "/**/power"], vec!["/a/n1/power", "/a/n1/temp", "/a/n10/power", "/a/n2/power", "/b/power"]),
        (vec!["/c/**"], vec![]),
    ] {
        let chosen = patterns.iter().map(|text| pattern(text)).collect::<Result<Vec<_>, _>>()?;
        let found: Vec<String> = store.sensors(&chosen).iter().map(|info| info.path.to_string()).collect();
        same(&format!("{patterns:?}"), found, expected.iter().map(|path| (*path).to_owned()).collect())?;
    }
    let numbers = |path: &str| Ok::<_, String>(info(&*store, path)?.id);
    same("the number of /b/power", numbers("/b/power")?, ids[3])
}

fn properties(place: &dyn Place) -> Finding {
    let define_as = |store: &dyn WritableStore, unit: &str, kind: Kind| {
        let mut wanted = sensor("/p", ValueType::Float)?;
        (wanted.unit, wanted.kind) = (unit.to_owned(), kind);
        store.define("conformance", &[wanted]).map(drop).map_err(|error| error.to_string())
    };
    {
        let store = place.open();
        define_as(&*store, "W", Kind::Gauge)?;
        let found = info(&*store, "/p")?;
        same("scale", found.scale, 0.5)?;
        same("type", found.value_type, ValueType::Float)?;
        same("description", found.description.as_str(), "what /p is")?;
        define_as(&*store, "J", Kind::Counter)?;
    }
    let found = info(&*place.open(), "/p")?;
    same("unit and kind after the next opening", (found.unit.as_str(), found.kind), ("J", Kind::Counter))
}

fn exact(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/int", "/float"])?;
    let whole = [i64::MIN, i64::MAX, 0, -1, 1 << 53, (1 << 53) + 1].map(Some);
    let whole = ints((0..).zip(whole.into_iter().chain([None, Some(7)])).map(|(i, value)| (T + i, value)));
    let tiny = f64::from_bits(1);
    let broken = [0.1, -0.0, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, tiny].map(Some);
    let broken = floats((0..).zip(broken.into_iter().chain([None])).map(|(i, value)| (-T + i * S, value)));
    put(&*store, 1, &[(ids[0], whole.clone()), (ids[1], broken.clone())])?;
    same("whole numbers", all(&*store, "/int")?, rows_of(&whole))?;
    same("floats", all(&*store, "/float")?, rows_of(&broken))
}

fn ranges(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/r"])?;
    put(&*store, 1, &[(ids[0], run(T, 10, 0))])?;
    let (snapshot, info) = (store.snapshot(), info(&*store, "/r")?);
    for (from, to, expected) in [
        (T, T + 10 * S, 0..10),
        (T + 1, T + 9 * S, 1..9),
        (T + 2 * S, T + 5 * S + 1, 2..6),
        (T + 5 * S, T + 5 * S, 0..0),
        (T + 6 * S, T + 2 * S, 0..0),
        (i64::MIN, T, 0..0),
        (T + 10 * S, i64::MAX, 0..0),
    ] {
        let expected: Vec<ReadingBits> = expected.map(|i| (T + i * S, Some((false, i.cast_unsigned())))).collect();
        same(&format!("from {from} to {to}"), scan(&*snapshot, &info, from, to)?, expected)?;
    }
    Ok(())
}

fn order(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/o"])?;
    for (number, part) in [(1, 2), (2, 0), (3, 1)] {
        put(&*store, number, &[(ids[0], run(T + part * 10 * S, 10, part * 10))])?;
    }
    put(&*store, 4, &[(ids[0], ints([(T + S / 2, None), (T + 25 * S + 1, Some(-1))]))])?;
    let mut expected = rows_of(&run(T, 30, 0));
    expected.extend([(T + S / 2, None), (T + 25 * S + 1, Some((false, u64::MAX)))]);
    expected.sort_by_key(|row| row.0);
    same("all", all(&*store, "/o")?, expected)
}

fn later_wins(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/l"])?;
    put(&*store, 9, &[(ids[0], run(T, 5, 0))])?;
    put(&*store, 3, &[(ids[0], ints([(T + S, Some(70)), (T + 2 * S, None)]))])?;
    put(&*store, 4, &[(ids[0], ints([(T + 2 * S, Some(80)), (T + 3 * S, None)]))])?;
    let expected = rows_of(&ints((0..).zip([Some(0), Some(70), Some(80), None, Some(4)]).map(|(i, v)| (T + i * S, v))));
    same("all", all(&*store, "/l")?, expected)
}

fn duplicates(place: &dyn Place) -> Finding {
    for round in 0..2 {
        let store = place.open();
        let ids = define(&*store, &["/d"])?;
        if round == 0 {
            put(&*store, 7, &[(ids[0], run(T, 3, 0))])?;
        }
        for chunk in [run(T, 3, 0), run(T + 100 * S, 3, 50)] {
            let again = store.put("conformance", 7, &[(ids[0], chunk)]).map_err(|error| error.to_string())?;
            same("the same put again", again, PutOutcome::Duplicate)?;
        }
        same("all", all(&*store, "/d")?, rows_of(&run(T, 3, 0)))?;
    }
    let store = place.open();
    let ids = define(&*store, &["/d"])?;
    let other = store.put("another", 7, &[(ids[0], run(T + 3 * S, 1, 3))]).map_err(|error| error.to_string())?;
    same("the same number of another source", other, PutOutcome::Stored)?;
    same("all", all(&*store, "/d")?, rows_of(&run(T, 4, 0)))
}

fn refused(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/f", "/g"])?;
    let good = (ids[0], run(T, 3, 0));
    let mut short = run(T, 3, 0);
    short.times.pop();
    let unknown = SensorId(ids[1].0 + 1000);
    for (what, bad) in [
        ("a sensor that is not known", (unknown, run(T, 1, 0))),
        ("a computed sensor", (SensorId(SensorId::COMPUTED), run(T, 1, 0))),
        ("times that fall", (ids[1], ints([(T, Some(1)), (T - 1, Some(2))]))),
        ("a time twice", (ids[1], ints([(T, Some(1)), (T, Some(2))]))),
        ("fewer times than values", (ids[1], short)),
        ("a sensor twice", (ids[0], run(T + 100 * S, 1, 0))),
    ] {
        if let Ok(taken) = store.put("conformance", 1, &[good.clone(), bad]) {
            return Err(format!("{what} is {taken:?}"));
        }
        same(what, all(&*store, "/f")?, vec![])?;
    }
    // The name of a refused put can be used again.
    put(&*store, 1, &[good])?;
    same("all", all(&*store, "/f")?, rows_of(&run(T, 3, 0)))
}

fn neighbours(place: &dyn Place) -> Finding {
    let store = place.open();
    let paths = ["/a/n1/x", "/a/n1/x/y", "/a/n10/x", "/a/n1/xy", "/a/n1"];
    let ids = define(&*store, &paths)?;
    let chunks: Vec<_> = (0..).zip(&ids).map(|(i, id)| (*id, run(T + i, 2, 100 * i))).collect();
    put(&*store, 1, &chunks)?;
    for (i, path) in (0..).zip(paths) {
        same(path, all(&*store, path)?, rows_of(&run(T + i, 2, 100 * i)))?;
    }
    Ok(())
}

fn snapshots(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/s"])?;
    put(&*store, 1, &[(ids[0], run(T, 5, 0))])?;
    let (before, info) = (store.snapshot(), info(&*store, "/s")?);
    put(&*store, 2, &[(ids[0], run(T + 2 * S, 5, 50))])?;
    same("the snapshot after a put", scan(&*before, &info, 0, i64::MAX)?, rows_of(&run(T, 5, 0)))?;
    let expected: Vec<ReadingBits> =
        rows_of(&run(T, 2, 0)).into_iter().chain(rows_of(&run(T + 2 * S, 5, 50))).collect();
    same("a new one", all(&*store, "/s")?, expected)
}

fn durable(place: &dyn Place) -> Finding {
    let paths = ["/u/a", "/u/b"];
    for number in 1..=4 {
        let store = place.open();
        let ids = define(&*store, &paths)?;
        for before in 1..number {
            let at = T + before * 1000 * S;
            same(
                "all",
                scan(&*store.snapshot(), &info(&*store, paths[0])?, at, at + 500 * S)?,
                rows_of(&run(at, 300, before)),
            )?;
        }
        let at = T + number * 1000 * S;
        put(&*store, number.cast_unsigned(), &[(ids[0], run(at, 300, number)), (ids[1], run(at, 1, 0))])?;
    }
    let store = place.open();
    let newest = store.newest(&[info(&*store, paths[1])?.id]);
    same("the newest", newest, vec![Some((T + 4000 * S, Some(wholegrain_model::Value::Int(0))))])
}

fn large(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/large"])?;
    let count = 200_001;
    let mut random = Random::seeded();
    let chunk = ints((0..count).map(|i| (T + i * S / 1000, Some(random.within(0, 1 << 40).cast_signed()))));
    put(&*store, 1, &[(ids[0], chunk.clone())])?;
    same("all", all(&*store, "/large")?, rows_of(&chunk))?;
    let info = info(&*store, "/large")?;
    let found = scan(&*store.snapshot(), &info, T + 70 * S, T + 71 * S)?;
    same("a second of it", found, rows_of(&chunk)[70_000..71_000].to_vec())
}

fn newest(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/n/a", "/n/b", "/n/c"])?;
    put(&*store, 1, &[(ids[0], run(T, 5, 0)), (ids[1], ints([(T, Some(1)), (T + S, None)]))])?;
    put(&*store, 2, &[(ids[0], run(T - 100 * S, 3, 70))])?;
    let found: Vec<_> =
        store.newest(&ids).into_iter().map(|found| found.map(|(time, value)| row(time, value))).collect();
    same("the newest", found, vec![Some((T + 4 * S, Some((false, 4)))), Some((T + S, None)), None])
}

fn deletion(place: &dyn Place) -> Finding {
    let expected = |store: &dyn WritableStore| {
        let kept = |rows: Vec<ReadingBits>| {
            rows.into_iter().filter(|(time, _)| !(T + 2 * S..T + 5 * S).contains(time)).collect()
        };
        same("/x/a", all(store, "/x/a")?, kept(rows_of(&run(T, 10, 0))))?;
        same("/x/ab", all(store, "/x/ab")?, rows_of(&run(T, 10, 0)))?;
        same("/y/a", all(store, "/y/a")?, rows_of(&run(T, 10, 0)))
    };
    {
        let store = place.open();
        let ids = define(&*store, &["/x/a", "/x/ab", "/y/a"])?;
        let chunks: Vec<_> = ids.iter().map(|id| (*id, run(T, 10, 0))).collect();
        put(&*store, 1, &chunks)?;
        store.delete(&[pattern("/x/a")?], T + 2 * S, T + 5 * S).map_err(|error| error.to_string())?;
        expected(&*store)?;
        store.delete(&[pattern("/z/**")?], i64::MIN, i64::MAX).map_err(|error| error.to_string())?;
        expected(&*store)?;
    }
    expected(&*place.open())
}

fn deleted_for_good(place: &dyn Place) -> Finding {
    let fresh = run(T + S, 1, 99);
    {
        let store = place.open();
        let ids = define(&*store, &["/k"])?;
        put(&*store, 1, &[(ids[0], run(T, 3, 0))])?;
        store.delete(&[pattern("/k")?], i64::MIN, i64::MAX).map_err(|error| error.to_string())?;
        let again = store.put("conformance", 1, &[(ids[0], run(T, 3, 0))]).map_err(|error| error.to_string())?;
        same("the put again", again, PutOutcome::Duplicate)?;
        same("after it", all(&*store, "/k")?, vec![])?;
        put(&*store, 2, &[(ids[0], fresh.clone())])?;
        same("a new put of that time", all(&*store, "/k")?, rows_of(&fresh))?;
    }
    same("after the next opening", all(&*place.open(), "/k")?, rows_of(&fresh))
}

fn types(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/t"])?;
    let (whole, broken) = (run(T, 3, 0), floats((3..6).map(|i| (T + i * S, Some(i as f64 + 0.5)))));
    put(&*store, 1, &[(ids[0], whole.clone())])?;
    put(&*store, 2, &[(ids[0], broken.clone())])?;
    same("all", all(&*store, "/t")?, [rows_of(&whole), rows_of(&broken)].concat())
}

fn windows(place: &dyn Place) -> Finding {
    let store = place.open();
    let ids = define(&*store, &["/w"])?;
    let day = T - T.rem_euclid(86_400 * S);
    let chunk = ints((0..7200).map(|i| (day + i * S, (i % 100 != 0).then_some(i * i % 1001 - 500))));
    put(&*store, 1, &[(ids[0], chunk.clone())])?;
    let (snapshot, info) = (store.snapshot(), info(&*store, "/w")?);
    let (from, to, every) = (day + 601 * S, day + 6600 * S, 600 * S);
    let request = ScanRequest::readings(&info, from, to).at(Resolution::Windows { every: Some(every) });
    let reader = snapshot.open(&mut std::iter::empty()).map_err(|error| error.to_string())?;
    let scanned = reader.scan(&request).map_err(|error| error.to_string())?;
    same("range", scanned.range, (from, to))?;
    let mut found: BTreeMap<i64, (u64, f64)> = BTreeMap::new();
    let mut add = |time: i64, count: u64, sum: f64| {
        let window = found.entry(time - time.rem_euclid(every)).or_default();
        *window = (window.0 + count, window.1 + sum);
    };
    for part in scanned.parts {
        match part.map_err(|error| error.to_string())? {
            ScanPart::Readings(chunk) => (0..chunk.times.len())
                .filter_map(|at| Some((chunk.times[at], chunk.column.get(at)?)))
                .for_each(|(time, value)| add(time, 1, value.as_f64())),
            ScanPart::Windows(windows) => (0..windows.len())
                .map(|at| windows.get(at))
                .for_each(|window| add(window.time, window.count, window.sum.as_f64())),
        }
    }
    let mut expected: BTreeMap<i64, (u64, f64)> = BTreeMap::new();
    for (time, value) in chunk.times.iter().enumerate().filter_map(|(at, time)| Some((*time, chunk.column.get(at)?))) {
        if (from..to).contains(&time) {
            let window = expected.entry(time - time.rem_euclid(every)).or_default();
            *window = (window.0 + 1, window.1 + value.as_f64());
        }
    }
    same("counts and sums", found, expected)
}

fn at_a_time(place: &dyn Place) -> Finding {
    let store = place.open();
    let paths: Vec<String> = (0..4).map(|i| format!("/c/{i}")).collect();
    let ids = define(&*store, &paths.iter().map(String::as_str).collect::<Vec<_>>())?;
    let write = |writer: usize| -> Finding {
        for number in 0..20 {
            let chunk = run(T + number * 10 * S, 10, number * 10);
            let stored = store.put(&format!("writer-{writer}"), number.cast_unsigned(), &[(ids[writer], chunk)]);
            same("a put beside others", stored.map_err(|error| error.to_string())?, PutOutcome::Stored)?;
            // Every later snapshot contains the acknowledged readings, as a prefix of all.
            let seen = all(&*store, &paths[writer])?.len() as i64;
            same("readings after the put", seen, (number + 1) * 10)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4).map(|writer| scope.spawn(move || write(writer))).collect();
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|_| Err("a writer panicked".to_owned())))
    })?;
    paths.iter().try_for_each(|path| same(path, all(&*store, path)?, rows_of(&run(T, 200, 0))))
}

/// Random puts, deletions, reopenings and repetitions, compared with a map.
fn random_steps(place: &dyn Place) -> Finding {
    let mut random = Random::seeded();
    let paths = ["/m/a", "/m/b", "/m/b/c"];
    let mut model: Vec<BTreeMap<i64, Option<i64>>> = vec![BTreeMap::new(); paths.len()];
    let mut store = place.open();
    let ids = define(&*store, &paths)?;
    let mut number = 0;
    for step in 0..400 {
        let (first, length) = (random.within(0, 500).cast_signed(), random.within(1, 40).cast_signed());
        let sensor = random.within(0, paths.len() as u64) as usize;
        match random.within(0, 100) {
            0..55 => {
                let value = number + 1;
                let rows: Vec<(i64, Option<i64>)> = (first..first + length)
                    .filter_map(|at| {
                        let there = random.within(0, 4) > 0;
                        there.then(|| (T + at * S, (random.within(0, 10) > 0).then_some(value)))
                    })
                    .collect();
                if rows.is_empty() {
                    continue;
                }
                number = value;
                model[sensor].extend(rows.iter().copied());
                put(&*store, number.cast_unsigned(), &[(ids[sensor], ints(rows))])?;
            }
            55..65 if number > 0 => {
                let before = random.within(1, number.cast_unsigned() + 1);
                let again = store.put("conformance", before, &[(ids[sensor], run(T + first * S, length, -1))]);
                same("a put again", again.map_err(|error| error.to_string())?, PutOutcome::Duplicate)?;
            }
            65..75 => {
                let (from, to) = (T + first * S, T + (first + length) * S);
                store.delete(&[pattern(paths[sensor])?], from, to).map_err(|error| error.to_string())?;
                model[sensor].retain(|time, _| !(from..to).contains(time));
            }
            75..77 => {
                drop(store);
                store = place.open();
            }
            _ => {
                let (from, to) = (T + first * S, T + (first + length) * S);
                let found = scan(&*store.snapshot(), &info(&*store, paths[sensor])?, from, to)?;
                let expected = model[sensor].range(from..to);
                let expected = expected.map(|(time, value)| (*time, value.map(|value| (false, value.cast_unsigned()))));
                same(&format!("step {step}, {}", paths[sensor]), found, expected.collect())?;
            }
        }
    }
    for (path, model) in paths.iter().zip(&model) {
        let expected = model.iter().map(|(time, value)| (*time, value.map(|value| (false, value.cast_unsigned()))));
        same(path, all(&*store, path)?, expected.collect())?;
    }
    Ok(())
}
