//! Jobs that come and go, and files with any content.

use std::collections::BTreeMap;

use wholegrain_model::config::Document;
use wholegrain_model::pattern::Filter;

use super::*;
use crate::keyed::checks::check_any_input;
use crate::reader::{Reading, Row};

struct Server {
    source: Box<dyn Source>,
    folder: tempfile::TempDir,
}

impl Server {
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots {
            proc: folder.path().join("proc"),
            sys: folder.path().join("sys"),
            cgroup: folder.path().join("cgroup"),
        };
        let section = Document::new("agent.toml", config).root().child("sources").child("lustre");
        Self { source: configure(&section, &roots.into()).unwrap(), folder }
    }

    fn write_jobs(&self, jobs: &[(&str, i64)]) {
        let target = self.folder.path().join("proc/fs/lustre/obdfilter/x-OST0000");
        std::fs::create_dir_all(&target).unwrap();
        let jobs = jobs.iter().map(|(id, bytes)| {
            let counts = format!("{{ samples: 1, unit: bytes, min: 1, max: 1, sum: {bytes}, sumsq: 1 }}");
            format!("- job_id:          {id}\n  snapshot_time:   1\n  read_bytes:      {counts}\n")
        });
        std::fs::write(target.join("job_stats"), format!("job_stats:\n{}", jobs.collect::<String>())).unwrap();
    }

    fn discover(&mut self) -> GroupPlan {
        let mut groups = self.source.discover(&mut |text| panic!("{text}"));
        assert_eq!(groups.len(), 1);
        groups.remove(0)
    }
}

fn read(group: &mut GroupPlan) -> (BTreeMap<String, Option<i64>>, Reading) {
    let count = group.sensors.len();
    let (mut values, mut gaps) = (vec![0; count], vec![0; count.div_ceil(64)]);
    let mut row = Row::new(&mut values, &mut gaps);
    let reading = group.reader.read(&mut row);
    let name = |name: &str| name.strip_prefix("lustre/jobs/x-OST0000/").unwrap().to_owned();
    (group.sensors.iter().enumerate().map(|(index, sensor)| (name(&sensor.name), row.int(index))).collect(), reading)
}

#[test]
fn sensors_come_and_go_with_the_job_and_are_bounded() {
    let mut server = Server::new("[sources.lustre]\njobs_max = 2\njob_ids.exclude = [\"*.0\"]\n");
    server.write_jobs(&[("1", 10), ("cp.0", 1), ("2", 20)]);
    let mut group = server.discover();
    let (values, reading) = read(&mut group);
    assert_eq!((values["1/read_bytes/sum"], values["2/read_bytes/sum"], values.len()), (Some(10), Some(20), 5));
    assert_eq!(reading, Reading::COMPLETE);

    server.write_jobs(&[("3", 30), ("1", 11), ("2", 20), ("4", 40)]);
    let (values, reading) = read(&mut group);
    assert_eq!((values["1/read_bytes/sum"], values["jobs_left_out"]), (Some(11), Some(2)));
    assert_eq!(reading, Reading::COMPLETE, "a full target asks for no discovery");
    let mut group = server.discover();
    assert_eq!(read(&mut group).0["2/read_bytes/sum"], Some(20), "jobs keep their sensors");

    server.write_jobs(&[("3", 30), ("2", 21), ("4", 40)]);
    let (values, reading) = read(&mut group);
    assert_eq!((values["1/read_bytes/sum"], values["2/read_bytes/sum"]), (None, Some(21)));
    assert!(reading.layout_changed);
    let mut group = server.discover();
    let (values, reading) = read(&mut group);
    assert_eq!((values["3/read_bytes/sum"], values["2/read_bytes/sum"]), (Some(30), Some(21)));
    assert_eq!((values["jobs_left_out"], values.len(), reading), (Some(1), 5, Reading::COMPLETE));

    server.write_jobs(&[]);
    assert!(read(&mut group).1.layout_changed);
    assert_eq!(read(&mut server.discover()).0.len(), 1);
    server.write_jobs(&[("5", 1)]);
    let mut group = server.discover();
    server.write_jobs(&[("5", 1), ("6", 1)]);
    assert!(read(&mut group).1.layout_changed, "a place is free");
}

#[test]
fn two_ids_of_one_name_are_named() {
    let mut server = Server::new("");
    server.write_jobs(&[("a/b", 1), ("a_b", 2)]);
    let mut reports = Vec::new();
    let mut groups = server.source.discover(&mut |text| reports.push(text));
    assert_eq!(read(&mut groups[0]).0["a_b/read_bytes/sum"], Some(1));
    assert_eq!(
        reports[0],
        "lustre/jobs/x-OST0000/a_b/read_bytes/samples: left out, as another object has this name already"
    );
}

/// A file of the fixtures.
macro_rules! fixture {
    ($path:literal) => {
        include_bytes!(concat!("../../fixtures/handmade/", $path))
    };
}

#[test]
fn any_input() {
    let folder = || "f".to_owned();
    for text in [
        fixture!("sys/kernel/debug/lustre/llite/scratch-ffff9c5e00aa0000/stats").as_slice(),
        fixture!("proc/fs/lustre/ost/OSS/ost_io/stats"),
    ] {
        check_any_input(text, || Box::new(SampleStats { folder: folder() }));
    }
    check_any_input(b"123\n", || Box::new(OneNumber { folder: folder(), number: stats::NumberKind::Size }));
    check_any_input(fixture!("proc/fs/lustre/obdfilter/scratch-OST0003/brw_stats"), || {
        Box::new(BrwStats { folder: folder() })
    });
    let jobs = fixture!("proc/fs/lustre/obdfilter/scratch-OST0003/job_stats");
    let bounded = |ids| BoundedObjects::new(ids, &Filter::default(), 10, None);
    check_any_input(jobs, || Box::new(JobStats { folder: folder(), jobs: bounded(jobs::ids(jobs)) }));
    check_any_input(fixture!("sys/kernel/debug/lnet/stats"), || Box::new(LnetStats));
    let nis = fixture!("sys/kernel/debug/lnet/nis").as_slice();
    let peers = fixture!("sys/kernel/debug/lnet/peers").as_slice();
    for (table, text) in [(lnet::TableKind::Interfaces, nis), (lnet::TableKind::Peers, peers)] {
        check_any_input(text, || Box::new(LnetTable { table, nids: bounded(lnet::nids(text)) }));
    }
}
