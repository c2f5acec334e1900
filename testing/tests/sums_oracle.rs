//! Sums over what was written by remote write are those that numpy makes of the same samples.

use std::path::Path;

use wholegrain_testing::{Site, python};
use wholegrain_testkit::Random;

#[test]
fn sums_of_remote_write_are_those_of_numpy() {
    let site = Site::new();
    let mut server = site.start_server();
    let url = format!("https://localhost:{}", site.http_port);
    let mut random = Random::seeded();
    for _ in 0..2 {
        let seed = random.below(1 << 32).to_string();
        let (token, ca) = (site.path("token"), site.path("ca.pem"));
        let printed = python("sums_oracle.py", &[Path::new(&url), &token, &ca, Path::new(&seed)]);
        let counts: Vec<u64> = printed.split_whitespace().map(|count| count.parse().expect("a count")).collect();
        assert!(counts.len() == 3 && counts[2] > 500, "series, samples, rows: {printed}");
    }
    assert!(server.stop().success());
}
