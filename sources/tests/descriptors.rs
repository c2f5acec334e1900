//! The bounds on descriptors of jobs. In a separate program, as the bounds are those of the process.

use std::fs;
use std::path::Path;

use wholegrain_model::config::Document;
use wholegrain_sources::descriptors::{self, Quota};
use wholegrain_sources::job::{JobCgroups, JobSource};
use wholegrain_sources::{Reader, Roots, Row, SOURCES};

fn cgroup(root: &Path) -> Box<dyn JobSource> {
    let roots = Roots { proc: root.join("proc"), sys: root.join("sys"), cgroup: root.join("cgroup") };
    let document = Document::new("test", "[sources.cgroup]\n");
    let section = document.root().child("sources").child("cgroup");
    let source = SOURCES.iter().find(|source| source.name == "cgroup").unwrap();
    source.jobs.unwrap()(&section, &roots.into()).unwrap()
}

/// Readers of all files of a user's job.
fn readers(source: &mut dyn JobSource, root: &Path, job: &str, uid: u32) -> Vec<(usize, Box<dyn Reader>)> {
    let dir = root.join("cgroup").join(job);
    fs::create_dir_all(&dir).unwrap();
    for (name, text) in [("memory.current", "1\n"), ("pids.current", "2\n"), ("cpu.stat", "usage_usec 3\n")] {
        fs::write(dir.join(name), text).unwrap();
    }
    let cgroups = JobCgroups { level: job.to_owned(), v2: Some(dir), uid: Some(uid), ..JobCgroups::default() };
    let sets = source.metric_sets(&cgroups, &mut |_| {});
    let open = |set: &wholegrain_sources::job::MetricSet| {
        let slots: Vec<Option<u32>> = (0..set.sensors.len()).map(|slot| Some(slot as u32)).collect();
        (set.sensors.len(), (set.open)(&slots))
    };
    sets.iter().map(open).collect()
}

/// The number of readers that give a value.
fn give(readers: &mut [(usize, Box<dyn Reader>)]) -> usize {
    let one = |(sensors, reader): &mut (usize, Box<dyn Reader>)| {
        let (mut values, mut gaps) = (vec![0; *sensors], vec![0; 1]);
        let mut row = Row::new(&mut values, &mut gaps);
        reader.read(&mut row);
        row.int(0).is_some()
    };
    readers.iter_mut().map(one).filter(|gives| *gives).count()
}

#[test]
fn what_is_over_the_bound_is_a_gap_and_no_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let mut source = cgroup(dir.path());
    let mut unbounded = readers(&mut *source, dir.path(), "a", 1000);
    assert_eq!((give(&mut unbounded), descriptors::held()), (3, 3));
    drop(unbounded);
    assert_eq!(descriptors::held(), 0);
    descriptors::set_bounds(5, 4);
    let mut first = readers(&mut *source, dir.path(), "a", 1000);
    let mut second = readers(&mut *source, dir.path(), "b", 1000);
    assert_eq!((give(&mut first), give(&mut second)), (3, 1), "one user has four");
    let mut other = readers(&mut *source, dir.path(), "c", 1001);
    assert_eq!((give(&mut other), descriptors::held()), (1, 5), "and all have five");
    assert!(descriptors::refused() > 0);
    drop(first);
    assert_eq!(
        (give(&mut second), give(&mut other)),
        (3, 2),
        "descriptors that another reader returned, at the next read"
    );
    drop((second, other));
    assert_eq!((descriptors::held(), Quota::of(Some(1000)).take().is_some()), (0, true));
    descriptors::set_bounds(usize::MAX, usize::MAX);
}
