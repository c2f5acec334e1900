//! Which workloads there are, and what their sizes mean.

use anyhow::{Context, bail, ensure};

use super::hpcc::Part;

/// The workloads there are.
pub const NAMES: [&str; 14] = [
    "hpl",
    "stream",
    "fft",
    "ptrans",
    "random_access",
    "dgemm",
    "latency",
    "hpcc",
    "ep",
    "cg",
    "noise",
    "wavefront",
    "compute",
    "memory",
];

/// A program of `bench/workloads`.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// Its name and that of its file.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
    /// Flags of its own.
    pub flags: &'static [&'static str],
}

macro_rules! source {
    ($constant:ident, $name:literal, $flags:expr) => {
        const $constant: Source =
            Source { name: $name, text: include_str!(concat!("../../workloads/", $name, ".c")), flags: $flags };
    };
}

source!(EP, "ep", &[]);
source!(CG, "cg", &[]);
source!(NOISE, "noise", &["-DUSE_MPI"]);
source!(WAVEFRONT, "wavefront", &[]);
source!(COMPUTE, "compute", &[]);
source!(MEMORY, "memory", &[]);

/// All programs of our own.
pub fn sources() -> [&'static Source; 6] {
    [&EP, &CG, &NOISE, &WAVEFRONT, &COMPUTE, &MEMORY]
}

/// The noise loop.
pub fn noise() -> &'static Source {
    &NOISE
}

/// What a workload is.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A program of our own.
    Own(&'static Source),
    /// A part of hpcc, or all.
    Hpcc(Part),
}

/// One workload.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// For people: one line.
    pub about: &'static str,
    /// What its size is.
    pub size: &'static str,
    /// Names of sizes: `S` for tests, `quick` for a few seconds on two ordinary cores, `long` for steadier figures.
    pub sizes: &'static [(&'static str, &'static str)],
    /// What is run.
    pub kind: Kind,
}

/// Sizes of hpcc: of a matrix of this order HPL and MPIRandomAccess take the longest.
const HPCC_SIZES: &[(&str, &str)] = &[("S", "500"), ("quick", "2000"), ("long", "5000")];
const HPCC_SIZE: &str = "order of HPL's matrix, from which hpcc derives the sizes of all parts";

/// The workload of a name.
pub fn find(name: &str) -> anyhow::Result<Workload> {
    let part = |about, part| Workload { about, size: HPCC_SIZE, sizes: HPCC_SIZES, kind: Kind::Hpcc(part) };
    let own = |about, size, sizes, source| Workload { about, size, sizes, kind: Kind::Own(source) };
    const CLASS: &str = "class of NAS (S, W, A, B), times how often it is done: Ax8";
    Ok(match name {
        "hpl" => part("HPL of hpcc: dense linear equations", Part::Hpl),
        "stream" => part("STREAM of hpcc: memory bandwidth", Part::Stream),
        "fft" => part("FFT of hpcc: discrete Fourier transform", Part::Fft),
        "ptrans" => part("PTRANS of hpcc: parallel matrix transpose", Part::Ptrans),
        "random_access" => part("RandomAccess of hpcc: updates of random words", Part::RandomAccess),
        "dgemm" => part("DGEMM of hpcc: matrix multiplication", Part::Dgemm),
        "latency" => part("b_eff of hpcc: latency of small messages in a ring", Part::Latency),
        "hpcc" => part("all parts of hpcc in one run, each with its seconds among the figures", Part::All),
        "ep" => own("NAS EP: Gaussian deviates, no messages", CLASS, &[("quick", "A"), ("long", "B")], &EP),
        "cg" => own("NAS CG: sparse conjugate gradients", CLASS, &[("quick", "Ax3"), ("long", "B")], &CG),
        "noise" => own(
            "fixed work again and again: what each turn took",
            "turns, times the quantum if not 100us: 100000, 10000x1ms",
            &[("S", "2000x10us"), ("quick", "50000"), ("long", "600000")],
            &NOISE,
        ),
        "wavefront" => own(
            "sweeps through a grid, ranks waiting for each other at each plane, as NAS LU",
            "points an edge x steps, x sweeps over each point's block if more than 1: 33x1500, 33x1500x2",
            &[("S", "12x50"), ("W", "33x1500"), ("A", "64x500"), ("quick", "W"), ("long", "A")],
            &WAVEFRONT,
        ),
        "compute" => own(
            "compute-bound blocks of 3 ms, ranks meet after each",
            "blocks",
            &[("S", "20"), ("quick", "1500"), ("long", "10000")],
            &COMPUTE,
        ),
        "memory" => own(
            "passes over arrays that no cache holds, ranks meet after each",
            "passes, times MiB of each of a rank's three arrays if not 64: 400, 400x16",
            &[("S", "5x4"), ("quick", "400"), ("long", "2500")],
            &MEMORY,
        ),
        _ => bail!("there is no workload called {name}; there are {}", NAMES.join(", ")),
    })
}

/// What a name of a size stands for; any other size stands for itself.
pub fn meaning<'a>(sizes: &[(&'a str, &'a str)], size: &'a str) -> &'a str {
    sizes.iter().find(|(name, _)| *name == size).map_or(size, |(_, means)| means)
}

/// Known sums of the wavefront's sizes, by its arguments; for others rank 0 does the work again alone.
const WAVEFRONT_SUMS: [(&str, &str); 3] =
    [("12x50", "835a4901588a5143"), ("33x1500", "46c432cc1b4cc7d4"), ("64x500", "dfdfa9937e3fdc71")];

/// What a program of our own is started with for a size; `units_per_ms` is asked for only by the noise loop.
pub fn arguments(
    source: &Source,
    size: &str,
    units_per_ms: impl FnOnce() -> anyhow::Result<f64>,
) -> anyhow::Result<Vec<String>> {
    let mut fields = size.split('x');
    let first = fields.next().unwrap_or_default();
    let rest: Vec<&str> = fields.collect();
    let whole = |text: &str| -> anyhow::Result<u64> {
        let number: u64 =
            text.parse().with_context(|| format!("the size {size} of {}: {text} is no number", source.name))?;
        ensure!(number > 0, "the size {size} of {}: it must be above 0", source.name);
        Ok(number)
    };
    ensure!(rest.len() <= 2, "the size {size} of {} has too many parts", source.name);
    Ok(match (source.name, rest.as_slice()) {
        ("ep" | "cg", rest @ ([] | [_])) => {
            ensure!(["S", "W", "A", "B"].contains(&first), "{size}: the classes of {} are S, W, A and B", source.name);
            let times = whole(rest.first().unwrap_or(&"1"))?;
            vec![first.to_owned(), times.to_string()]
        }
        ("noise", rest @ ([] | [_])) => {
            let quantum_ns = nanoseconds(rest.first().unwrap_or(&"100us"))?;
            let units = (units_per_ms()? * quantum_ns as f64 / 1e6).round().max(1.0);
            vec!["run".into(), units.to_string(), whole(first)?.to_string(), BIN_NS.to_string()]
        }
        ("wavefront", [steps, work @ ..]) => {
            let work = whole(work.first().unwrap_or(&"1"))?;
            let known = WAVEFRONT_SUMS.iter().find(|(known, _)| *known == size).map_or("0", |(_, sum)| sum);
            vec![whole(first)?.to_string(), whole(steps)?.to_string(), work.to_string(), known.to_owned()]
        }
        ("compute", []) => vec![whole(first)?.to_string()],
        ("memory", rest @ ([] | [_])) => {
            vec![whole(first)?.to_string(), whole(rest.first().unwrap_or(&"64"))?.to_string()]
        }
        (name, _) => bail!("{name} has no size {size}; see `wholegrain-bench workload list`"),
    })
}

/// Width of the noise loop's bins, ns.
const BIN_NS: u64 = 100;

/// A quantum as people write it.
fn nanoseconds(text: &str) -> anyhow::Result<u64> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000)];
    let value = units.iter().find_map(|(unit, ns)| Some(text.strip_suffix(unit)?.parse::<u64>().ok()? * ns));
    value
        .filter(|ns| (1_000..=1_000_000_000).contains(ns))
        .with_context(|| format!("the quantum {text}: say 100us or 1ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, size: &str) -> Result<Vec<String>, String> {
        let source = sources().into_iter().find(|s| s.name == name).expect("a program");
        arguments(source, size, || Ok(1000.0)).map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn sizes_become_arguments() {
        assert_eq!(of("ep", "A"), Ok(vec!["A".into(), "1".into()]));
        assert_eq!(of("cg", "Bx3"), Ok(vec!["B".into(), "3".into()]));
        assert_eq!(of("noise", "500"), Ok(vec!["run".into(), "100".into(), "500".into(), "100".into()]));
        assert_eq!(of("noise", "500x2ms"), Ok(vec!["run".into(), "2000".into(), "500".into(), "100".into()]));
        assert_eq!(of("wavefront", "9x7x2"), Ok(vec!["9".into(), "7".into(), "2".into(), "0".into()]));
        assert_eq!(of("memory", "5"), Ok(vec!["5".into(), "64".into()]));
        for (name, size) in
            [("ep", "C"), ("ep", "Ax0"), ("noise", "5x1h"), ("wavefront", "33"), ("compute", "-1"), ("memory", "")]
        {
            assert!(of(name, size).is_err(), "{name} {size}");
        }
    }

    #[test]
    fn every_named_size_is_one() {
        for name in NAMES {
            let workload = find(name).expect("it is there");
            for (_, size) in workload.sizes {
                let size = &meaning(workload.sizes, size);
                match workload.kind {
                    Kind::Own(source) => assert!(of(source.name, size).is_ok(), "{name} {size}"),
                    Kind::Hpcc(_) => assert!(size.parse::<u32>().is_ok(), "{name} {size}"),
                }
            }
        }
    }
}
