//! Which rule counts.

use super::super::rule::EVALUATIONS;
use super::super::{RULES_MAX, RuleJob, Rules};
use super::*;

const FIRST: u64 = RULES_MAX as u64 + 1;

#[test]
fn what_holds_without_a_configuration() {
    let rules = rules("");
    assert_eq!(setting(&rules, "1", 1, "cpu/usage", 0), "1: every 1s");
    assert_eq!(setting(&rules, "1", 1, "tasks/running", 0), "2: every 10s");
}

#[test]
fn the_last_match_wins() {
    let mut rules = rules(
        r#"
        rule = [
            { metrics = ["**"], every = "10s" },
            { metrics = ["perf/*", "memory/**"], every = "1s" },
            { metrics = ["/memory/usage"], every = "off" },
            { metrics = ["oom"], jobs = "47*", every = "5s" },
            { metrics = ["cpu/*"], jobs = "9*9", every = "100ms", accumulate = { window = "1s", quantiles = [0.5, 0.99] } },
        ]
        "#,
    );
    let check = |rules: &Rules, job, metric: &str, expected: String| {
        assert_eq!(setting(rules, job, 1000, metric, 0), expected, "{job} {metric}");
    };
    check(&rules, "1", "cpu/usage", "1: every 10s".into());
    check(&rules, "1", "perf/cycles", "2: every 1s".into());
    check(&rules, "1", "memory/usage", "3: off".into());
    check(&rules, "1", "x/memory/usage", "2: every 1s".into());
    check(&rules, "1", "memory/events/oom", "2: every 1s".into());
    check(&rules, "4711", "memory/events/oom", "4: every 5s".into());
    check(&rules, "99", "cpu/usage", "5: every 100ms in windows of 1s with quantiles [0.5, 0.99]".into());
    check(&rules, "9", "cpu/usage", "1: every 10s".into());
    // Those that people made count after those of the configuration, the later after the earlier.
    add(&mut rules, &root(), rule("4711 memory/usage 20ms"), 0).unwrap();
    check(&rules, "4711", "memory/usage", format!("{FIRST}: every 20ms"));
    check(&rules, "4712", "memory/usage", "3: off".into());
    add(&mut rules, &root(), rule("* memory/* 30ms"), 0).unwrap();
    check(&rules, "4711", "memory/usage", format!("{}: every 30ms", FIRST + 1));
    add(&mut rules, &root(), rule("47* usage,cycles 40ms"), 0).unwrap();
    check(&rules, "4711", "memory/usage", format!("{}: every 40ms", FIRST + 2));
    check(&rules, "4711", "memory/events/oom", "4: every 5s".into());
    check(&rules, "99", "memory/usage", format!("{}: every 30ms", FIRST + 1));
    rules.execute(&JobsCommand { who: root(), action: JobsAction::Remove(FIRST + 2) }, &jobs(), 0).unwrap();
    check(&rules, "4711", "memory/usage", format!("{}: every 30ms", FIRST + 1));
}

#[test]
fn no_rule_is_off() {
    let rules = rules("rule = [{ metrics = [\"perf/*\"], every = \"1s\" }]");
    assert_eq!(setting(&rules, "1", 1, "cpu/usage", 0), "0: off");
}

#[test]
fn a_job_is_found_by_each_of_its_ids() {
    let mut rules = rules("");
    let job = RuleJob { id: "ƒ2oLkTLb", level: "f2oLkTLb", also: Some("4711"), uid: None, user: None };
    let all = [(job, metrics())];
    for (name, every) in [("ƒ2oLkTLb", "2ms"), ("f2oLkTLb", "3ms"), ("4711", "4ms"), ("47*1", "5ms"), ("*TLb", "6ms")]
    {
        let command = JobsCommand { who: root(), action: JobsAction::Add(rule(&format!("{name} cpu/usage {every}"))) };
        let done = rules.execute(&command, &all, 0).unwrap();
        assert_eq!(done.jobs, ["ƒ2oLkTLb"], "{name}");
        assert_eq!(rules.of_job(&job, 0).resolve("cpu/usage").0.to_string(), format!("every {every}"));
    }
}

#[test]
fn a_users_rule_holds_for_their_jobs_only_whatever_comes() {
    let mut rules = rules("");
    add(&mut rules, &alice(), rule("47* perf/* 1ms 10m"), 0).unwrap();
    add(&mut rules, &bob(), rule("- perf/* 2ms 10m"), 0).unwrap();
    assert_eq!(setting(&rules, "4711", 1000, "perf/cycles", S), format!("{FIRST}: every 1ms"));
    assert_eq!(setting(&rules, "99", 1001, "perf/cycles", S), format!("{}: every 2ms", FIRST + 1));
    assert_eq!(setting(&rules, "4713", 1000, "perf/cycles", S), "1: every 1s", "a job that began later");
    assert_eq!(setting(&rules, "4711", 1001, "perf/cycles", S), "1: every 1s", "the id is another user's now");
    // What users may change has changed since.
    rules.configure(&config("limits = { metrics = [\"cpu/**\"] }"), S);
    assert_eq!(setting(&rules, "4711", 1000, "perf/cycles", S), "1: every 1s");
}

#[test]
fn rules_end_by_the_clock() {
    let mut rules = rules("");
    assert_eq!(rules.next_expiry(), None);
    let done = add(&mut rules, &alice(), rule("4711 perf/* 1ms 10s"), 5 * S).unwrap();
    assert_eq!(done.until.as_deref(), Some("1970-01-01T00:00:15Z"));
    add(&mut rules, &root(), rule("4711 cpu/* 1ms 3s"), 5 * S).unwrap();
    add(&mut rules, &root(), rule("4711 memory/* 1ms"), 5 * S).unwrap();
    assert_eq!(rules.next_expiry(), Some(8 * S));
    assert_eq!(rules.expire(8 * S - 1), 0);
    assert_eq!(setting(&rules, "4711", 1000, "cpu/usage", 8 * S - 1), format!("{}: every 1ms", FIRST + 1));
    assert_eq!(setting(&rules, "4711", 1000, "cpu/usage", 8 * S), "1: every 1s", "over, though nobody has looked yet");
    assert_eq!((rules.expire(8 * S), rules.next_expiry()), (1, Some(15 * S)));
    assert_eq!((rules.expire(1000 * S), rules.next_expiry()), (1, None));
    assert_eq!(setting(&rules, "4711", 1000, "perf/cycles", 1000 * S), "1: every 1s");
    assert_eq!(setting(&rules, "4711", 1000, "memory/usage", 1000 * S), format!("{}: every 1ms", FIRST + 2));
}

fn evaluations(run: impl FnOnce()) -> u64 {
    EVALUATIONS.set(0);
    run();
    EVALUATIONS.get()
}

#[test]
fn ten_thousand_rules_are_cheap() {
    // Each names another job.
    let named: String = (0..RULES_MAX)
        .map(|i| format!("[[jobs.rule]]\njobs = \"{i}\"\nmetrics = [\"perf/*\"]\nevery = \"1ms\"\n"))
        .collect();
    let named = rules(&named);
    let all = |rules: &Rules, job: &'static str| {
        let of_job = rules.of_job(&subject(job, 1000), 0);
        METRICS.iter().map(|(name, _)| of_job.resolve(name).1).collect::<Vec<_>>()
    };
    let count = evaluations(|| assert_eq!(all(&named, "4711"), [0, 0, 0, 0, 4712, 4712, 0]));
    assert!(count <= 1 + METRICS.len() as u64, "{count} patterns were matched");
    // All are for every job, with few different patterns, the last for what nothing else matches.
    let text: String = (0..RULES_MAX)
        .map(|i| {
            format!(
                "[[jobs.rule]]\nmetrics = [\"{}\"]\nevery = \"1ms\"\n",
                ["cpu/*", "perf/*", "**", "cpu/usage"][i % 4]
            )
        })
        .collect();
    let wide = rules(&text);
    let last = RULES_MAX as u64;
    let count = evaluations(|| {
        assert_eq!(all(&wide, "4711"), [last, last - 1, last - 1, last - 1, last - 1, last - 1, last - 1]);
    });
    assert!(count <= 3 + 3 * METRICS.len() as u64, "{count} patterns were matched");
    // One more is refused.
    let document = format!("[jobs]\n{}", "[[jobs.rule]]\nmetrics = [\"**\"]\nevery = \"1s\"\n".repeat(RULES_MAX + 1));
    let document = Document::new("agent.toml", &document);
    let error = JobsConfig::read(&document.root().child("jobs"), std::path::Path::new("/")).unwrap_err();
    assert!(error.to_string().contains("10001 rules; at most 10000"), "{error}");
}

#[test]
fn ten_thousand_rules_that_people_made() {
    let mut rules = rules("limits = { readings_per_second_node = 100000000 }");
    let one = [(subject("4711", 1000), metrics())];
    let put = |rules: &mut Rules, every: u64| {
        let command = JobsCommand { who: root(), action: JobsAction::Add(rule(&format!("4711 cpu/usage {every}ms"))) };
        rules.execute(&command, &one, 0)
    };
    put(&mut rules, 1).unwrap();
    let first = (**rules.table.get(FIRST).unwrap()).clone();
    for id in FIRST + 1..FIRST + RULES_MAX as u64 - 1 {
        rules.table.insert(super::super::Rule { id, ..first.clone() });
    }
    rules.next = FIRST + RULES_MAX as u64 - 1;
    let count = evaluations(|| assert_eq!(put(&mut rules, 7).unwrap().rule, Some(20_000)));
    assert!(count < 100, "{count} patterns were matched");
    let refusal = put(&mut rules, 1).unwrap_err().to_string();
    assert!(refusal.starts_with("there are too many rules"), "{refusal}");
    assert!(refusal.ends_with("the limit of rules at a time is 10000"), "{refusal}");
    let count = evaluations(|| assert_eq!(setting(&rules, "4711", 1000, "cpu/usage", 0), "20000: every 7ms"));
    assert!(count < 10, "{count} patterns were matched");
}
