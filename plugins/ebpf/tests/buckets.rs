//! The kernel's choice of a bucket, compiled for this machine: a value is in the first bucket whose bound is not below it.

use std::process::Command;

/// Buckets with bounds; one more has what is longer.
const BOUNDS: u32 = 25;

const PROGRAM: &str = r#"
#include <stdio.h>
#include "bucket.h"

int main(void)
{
    u64 ns;
    while (scanf("%llu", &ns) == 1)
        printf("%u\n", bucket_of(ns));
}
"#;

fn expected(ns: u64) -> u32 {
    (0..BOUNDS).find(|power| ns <= 1000 << power).unwrap_or(BOUNDS)
}

#[test]
fn a_time_is_in_the_first_bucket_that_bounds_it() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("buckets.c"), folder.path().join("buckets"));
    std::fs::write(&source, PROGRAM).unwrap();
    let include = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-I", include, "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().expect("a C compiler").success());
    let bounds = (0..BOUNDS + 8).map(|power| 1000_u64 << power);
    let mut times: Vec<u64> =
        bounds.flat_map(|bound| [bound - 1000, bound - 1, bound, bound + 1, bound + 999]).collect();
    times.extend([0, 1, 1 << 42, u64::from(u32::MAX) * 1000, 1 << 62, (1 << 63) - 1]);
    let mut random = wholegrain_testkit::Random::seeded();
    times.extend((0..1000).map(|_| random.draw() >> random.below(64).max(1)));
    let input = folder.path().join("times");
    std::fs::write(&input, times.iter().map(|ns| format!("{ns}\n")).collect::<String>()).unwrap();
    let output = Command::new(&program).stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let buckets: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(buckets.len(), times.len());
    for (ns, bucket) in times.iter().zip(buckets) {
        assert_eq!(bucket, expected(*ns), "{ns} ns");
    }
}
