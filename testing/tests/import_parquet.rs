//! Parquet files as pandas, pyarrow and DuckDB write them by default, imported with the real command and server.

use std::path::Path;

use wholegrain_testing::{Site, python};

fn values(site: &Site, pattern: &str) -> Vec<String> {
    let answer = site.answer(&["query", pattern, "--from", "2026-01-31T11:00:00Z", "--to", "2026-02-01", "-f", "csv"]);
    answer.lines().skip(1).filter_map(|line| line.split(',').nth(2)).map(str::to_owned).collect()
}

#[test]
fn what_other_programs_write_by_default_is_imported() {
    let site = Site::new();
    python("write_parquet.py", &[site.dir()]);
    let server = site.start_server();
    let import = |name: &str| {
        let file = site.path(&format!("{name}.parquet"));
        let file = file.to_str().expect("a path in UTF-8");
        site.answer(&["import", "parquet", file, "--prefix", &format!("/import/{name}"), "--yes"]);
    };
    for name in ["pandas", "none", "snappy", "gzip", "lz4", "brotli", "zstd"] {
        import(name);
        let found = values(&site, &format!("/import/{name}/power"));
        assert_eq!(found, ["1.5", "2.5", "3.5", "4.5"], "{name}: {}", server.log());
    }
    import("categorical");
    assert_eq!(values(&site, "/import/categorical/a"), ["1", "3"]);
    assert_eq!(values(&site, "/import/categorical/b"), ["2", "4"]);
    import("duckdb");
    assert_eq!(values(&site, "/import/duckdb/amount"), ["1.1", "2.2", "3.3", "4.4"]);
    let large: Vec<f64> = values(&site, "/import/duckdb/large").iter().map(|value| value.parse().unwrap()).collect();
    assert_eq!(large, [0.0, 2048.0, 4096.0, 6144.0].map(|more| 2f64.powi(63) + more));
    assert_eq!(values(&site, "/import/duckdb/open"), ["1", "0", "1", "0"]);
    assert!(!Path::new(&site.path("duckdb.parquet.bad")).exists());
}
