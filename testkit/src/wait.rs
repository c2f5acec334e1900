use std::time::{Duration, Instant};

/// How long a condition may take: far longer than on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// The pause between two tests of a condition.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `condition` holds; panics after [`DEADLINE`] and names `what` was expected.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Waits until `attempt` returns a value; panics after [`DEADLINE`] and names `what` was expected.
#[track_caller]
pub fn wait_for<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < DEADLINE, "not within {} s: {what}", DEADLINE.as_secs());
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_tested_until_it_holds() {
        let mut left = 3;
        wait_until("three attempts", || {
            left -= 1;
            left == 0
        });
        assert_eq!(wait_for("a value", || Some(7)), 7);
    }
}
