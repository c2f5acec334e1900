//! Who may have which rule: every limit, every permission.

use super::super::super::Accumulation;
use super::*;

#[track_caller]
fn refused(rules: &mut Rules, who: &CallerIdentity, raw: RawRule, expected: &str) {
    let before = rules.view();
    let text = match add(rules, who, raw.clone(), 0) {
        Err(refusal) => refusal.to_string(),
        Ok(done) => panic!("{raw:?} was done: {done:?}"),
    };
    assert!(text.contains(expected), "{raw:?}: {text}");
    assert_eq!(rules.view().len(), before.len(), "nothing has changed");
}

#[test]
fn what_makes_no_sense_is_refused_whoever_asks() {
    let mut rules = rules("");
    for (raw, expected) in [
        ("4711 perf/* 0s", "every: 0s is too short; 1ms is the shortest"),
        ("4711 perf/* 0ms", "every: 0s is too short"),
        ("4711 perf/* -1ms", "every: -1ms is negative; 1ms is the shortest"),
        ("4711 perf/* 999us", "every: 999us is too short; 1ms is the shortest"),
        ("4711 perf/* 5000d", "every: 5000d is too long; ten years"),
        ("4711 perf/* 10", "every: \"10\" is not a length of time (no unit)"),
        ("4711 perf/* NaNs", "every: \"NaNs\" is not a length of time"),
        ("4711 perf/* Off", "or `off`"),
        ("4711  1ms", "metrics: no pattern"),
        ("4711 perf/+ 1ms", "metrics: pattern \"perf/+\""),
        ("4711 perf//x 1ms", "has an empty level"),
        ("4711 perf/* 1ms 0s", "for: 0s is no time"),
        ("4711 perf/cycle 1ms", "metrics: \"perf/cycle\" matches no metric of the job; the nearest are perf/cycles"),
        ("4711 prf/* 1ms", "metrics: \"prf/*\" matches no metric of the job; the nearest are perf/*"),
        ("4711 cpu/*,xyzzy 1ms", "metrics: \"xyzzy\" matches no metric of the job; `wholegrain ctl job ID` lists"),
        ("4713 perf/* 1ms", "job \"4713\" does not run here; did you mean \"471"),
        ("zzz perf/* 1ms", "job \"zzz\" does not run here; `wholegrain ctl jobs` lists"),
    ] {
        refused(&mut rules, &root(), rule(raw), expected);
    }
    let long = "x".repeat(300);
    refused(&mut rules, &root(), rule(&format!("{long} perf/* 1ms")), "is longer than 256 bytes");
    refused(
        &mut rules,
        &root(),
        rule(&format!("4711 {} 1ms", vec!["perf/*"; 33].join(","))),
        "33 patterns; at most 32",
    );
    let mut empty = rule("4711 perf/* 1ms");
    empty.jobs = Some(String::new());
    refused(&mut rules, &root(), empty.clone(), "is not a job");
    empty.jobs = Some("4711\n".into());
    refused(&mut rules, &root(), empty, "holds a control character");
}

#[test]
fn windows() {
    let mut rules = rules("");
    for (every, window, quantiles, expected) in [
        ("10ms", "15ms", vec![], "a window of 15ms is not a multiple of the interval 10ms"),
        ("10ms", "5ms", vec![], "is not a multiple"),
        ("10ms", "0s", vec![], "is not a multiple"),
        ("1s", "5000d", vec![], "a window of 5000d is too long"),
        ("1ms", "4097ms", vec![0.5], "has 4097 samples; the limit of samples of a window with quantiles is 4096"),
        ("1ms", "1s", vec![0.0], "between 0 and 1"),
        ("1ms", "1s", vec![1.0], "between 0 and 1"),
        ("1ms", "1s", vec![f64::NAN], "between 0 and 1"),
        ("1ms", "1s", vec![0.9, 0.5], "ascending"),
        ("1ms", "1s", vec![0.5, 0.5], "ascending"),
        (
            "1ms",
            "1s",
            vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
            "9 quantiles; the limit of quantiles of a window is 8",
        ),
        ("off", "1s", vec![], "off leaves nothing to accumulate"),
    ] {
        let accumulate = Some(Accumulation { window: Interval::parse(window).unwrap(), quantiles });
        refused(&mut rules, &root(), RawRule { accumulate, ..rule(&format!("4711 perf/* {every}")) }, expected);
    }
    for (window, quantiles) in [("4096ms", vec![0.5, 0.99]), ("1h", vec![]), ("1ms", vec![])] {
        let accumulate = Some(Accumulation { window: Interval::parse(window).unwrap(), quantiles });
        add(&mut rules, &root(), RawRule { accumulate, ..rule("4711 perf/* 1ms") }, 0).unwrap();
    }
}

#[test]
fn each_limit_names_itself_and_its_value() {
    let check = |limits: &str, raw: &str, expected: &str| {
        let mut rules = rules(&format!("limits = {{ {limits} }}"));
        refused(&mut rules, &alice(), rule(raw), expected);
    };
    check("interval_min = \"10ms\"", "4711 perf/* 9ms 1m", "every: 9ms is too short; the limit interval_min is 10ms");
    check("duration_max = \"10min\"", "4711 perf/* 1ms 601s", "for: 601s is too long; the limit duration_max is 10min");
    check("", "4711 perf/* 1ms", "for: a user's rule ends; say how long it holds; the limit duration_max is 1h");
    check("", "4711 perf/* 1ms 61min", "the limit duration_max is 1h");
    check(
        "metrics = [\"perf/**\", \"cpu/usage\"]",
        "4711 memory/usage 1ms 1m",
        "users may not change memory/usage; the limit metrics is perf/** cpu/usage",
    );
    check("metrics = [\"perf/**\"]", "4711 ** 1s 1m", "users may not change cpu/usage; the limit metrics is perf/**");
    check("metrics = []", "4711 perf/* 1s 1m", "the limit metrics is none");
    check(
        "readings_per_second_user = 2010",
        "4711 perf/* 1ms 1m",
        "metrics of your jobs would be read 2010 times a second in place of 12",
    );
    check(
        "rules_per_user = 0",
        "4711 perf/* 1ms 1m",
        "you have 0 rules; remove one or wait until one is over; the limit rules_per_user is 0",
    );
}

#[test]
fn readings_are_those_that_come_of_all_rules() {
    // Alice's two jobs: 6 metrics every second and one every 10 s each; bob's the same.
    let mut rules =
        rules("limits = { readings_per_second_user = 2500, readings_per_second_node = 3000, users_may_lower = true }");
    assert!((crate::jobs::rules::admission::load(&rules.table, None, &jobs(), 0).0 - 18.3).abs() < 1e-6);
    let done = add(&mut rules, &alice(), rule("4711 perf/* 1ms 1m"), 0).unwrap();
    assert!((done.readings_per_second - 2010.2).abs() < 1e-6, "of her own jobs: {done:?}");
    assert!((crate::jobs::rules::admission::load(&rules.table, None, &jobs(), 0).0 - 2016.3).abs() < 1e-6);
    assert_eq!((done.jobs, done.metrics), (vec!["4711".to_owned()], 2));
    // Again the same is no more: the last rule counts, and not both.
    add(&mut rules, &alice(), rule("4711 perf/* 1ms 1m"), 0).unwrap();
    refused(&mut rules, &alice(), rule("4712 cpu/usage 1ms 1m"), "the limit readings_per_second_user is 2500");
    // What is accumulated counts as often as it is read.
    let accumulate = Some(Accumulation { window: Interval::from_s(1), quantiles: vec![] });
    refused(&mut rules, &alice(), RawRule { accumulate, ..rule("4712 cpu/usage 1ms 1m") }, "readings_per_second_user");
    refused(
        &mut rules,
        &bob(),
        rule("99 memory/usage 1ms 1m"),
        "metrics of this node's jobs would be read too often; the limit",
    );
    refused(&mut rules, &root(), rule("99 memory/usage 1ms 1m"), "the limit readings_per_second_node is 3000");
    add(&mut rules, &bob(), rule("99 memory/usage 2ms 1m"), 0).unwrap();
    // Over or not, less is always allowed.
    rules.configure(
        &config("limits = { readings_per_second_user = 10, readings_per_second_node = 10, users_may_lower = true }"),
        0,
    );
    add(&mut rules, &alice(), rule("4711 perf/* 2ms 1m"), 0).unwrap();
    let done = add(&mut rules, &root(), rule("* ** off"), 0).unwrap();
    assert_eq!((done.readings_per_second, done.metrics), (0.0, 21));
    // What held it down cannot be removed when too much would come back.
    let remove = JobsCommand { who: root(), action: JobsAction::Remove(done.rule.unwrap()) };
    let refusal = rules.execute(&remove, &jobs(), 0).unwrap_err().to_string();
    assert!(refusal.contains("readings_per_second_node is 10"), "{refusal}");
    assert_eq!(crate::jobs::rules::admission::load(&rules.table, None, &jobs(), 0).0, 0.0);
}

#[test]
fn a_pattern_that_chooses_what_can_be_read_less_often_is_taken_and_says_so() {
    let mut rules = rules("");
    let done = add(&mut rules, &alice(), rule("4711 ** 1ms 1m"), 0).unwrap();
    assert!(
        done.done.ends_with("1 of 7 metrics only as often as they can be read, such as tasks/running every 100ms"),
        "{done:?}"
    );
    assert!(
        (done.readings_per_second - (6000.0 + 10.0 + 6.1)).abs() < 1e-6,
        "counted as often as it is read: {done:?}"
    );
    let (setting, _) = rules.of_job(&subject("4711", 1000), 0).resolve("tasks/running");
    assert_eq!(setting.at_most_every(Interval::from_ms(100)).to_string(), "every 100ms");
}

#[test]
fn what_can_be_boosted_is_boosted_and_the_rest_is_named() {
    let mut rules = rules("");
    for (raw, metrics, note) in [
        // One pattern of two chooses nothing that can be read so often; and the only one.
        (
            "4711 cpu/*,tasks/running 10ms 1m",
            3,
            "1 of 3 metrics only as often as they can be read, such as tasks/running every 100ms",
        ),
        (
            "4711 tasks/* 10ms 1m",
            1,
            "1 of 1 metrics only as often as they can be read, such as tasks/running every 100ms",
        ),
    ] {
        let done = add(&mut rules, &alice(), rule(raw), 0).unwrap();
        assert_eq!((done.metrics, done.notes), (metrics, vec![note.to_owned()]), "{raw}");
        assert!(done.done.ends_with(note), "{}", done.done);
        let (setting, _) = rules.of_job(&subject("4711", 1000), 0).resolve("tasks/running");
        assert_eq!(setting.at_most_every(Interval::from_ms(100)).to_string(), "every 100ms", "{raw}");
    }
    assert_eq!(setting(&rules, "4711", 1000, "cpu/usage", 0), "10001: every 10ms");
    assert_eq!(add(&mut rules, &alice(), rule("4711 cpu/* 10ms 1m"), 0).unwrap().notes, [""; 0]);
}

#[test]
fn users_do_not_have_less_kept_than_administrators_ask_for() {
    let lines = r#"
        rule = [
            { metrics = ["**"], every = "1s" },
            { metrics = ["perf/*"], every = "off" },
            { metrics = ["memory/usage"], every = "100ms", accumulate = { window = "10s", quantiles = [0.5] } },
        ]
    "#;
    let mut strict = rules(lines);
    let why = |of: &str| format!("than the administrators' rules ask for: {of}; the limit users_may_lower is false");
    refused(&mut strict, &alice(), rule("4711 cpu/usage off 1m"), &why("cpu/usage every 1s (rule 1)"));
    refused(&mut strict, &alice(), rule("4711 cpu/usage 2s 1m"), &why("cpu/usage every 1s (rule 1)"));
    let windows = |window: u64, quantiles: &[f64], text: &str| {
        let accumulate = Some(Accumulation { window: Interval::from_s(window), quantiles: quantiles.to_vec() });
        RawRule { accumulate, ..rule(text) }
    };
    refused(&mut strict, &alice(), windows(1, &[], "4711 cpu/usage 1s 1m"), &why("cpu/usage every 1s (rule 1)"));
    let asked = why("memory/usage every 100ms in windows of 10s with quantiles [0.5] (rule 3)");
    for less in [
        rule("4711 memory/usage off 1m"),
        rule("4711 memory/usage 1s 1m"),
        rule("4711 memory/usage 1ms 1m"),
        windows(20, &[0.5], "4711 memory/usage 100ms 1m"),
        windows(10, &[0.9], "4711 memory/usage 100ms 1m"),
    ] {
        refused(&mut strict, &alice(), less, &asked);
    }
    for no_less in [
        windows(5, &[0.5, 0.9], "4711 memory/usage 50ms 1m"),
        rule("4711 perf/* 5s 1m"),
        rule("4711 perf/* off 1m"),
        rule("4711 cpu/usage 1s 1m"),
    ] {
        assert_eq!(add(&mut strict, &alice(), no_less, 0).unwrap().notes, [""; 0]);
    }
    // Of a pattern that chooses both, what would be lowered stays and is named.
    let done = add(&mut strict, &alice(), rule("4711 ** 5s 1m"), 0).unwrap();
    let note = "5 of 7 metrics stay as the administrators' rules ask, such as cpu/usage every 1s (rule 1)";
    assert_eq!(done.notes, [note]);
    assert_eq!(setting(&strict, "4711", 1000, "cpu/usage", 0), "1: every 1s");
    assert_eq!(setting(&strict, "4711", 1000, "perf/cycles", 0), format!("{}: every 5s", done.rule.unwrap()));
    // Administrators may, and a site can let users.
    add(&mut strict, &root(), rule("4712 cpu/usage off"), 0).unwrap();
    let mut open = rules(&format!("{lines}\nlimits = {{ users_may_lower = true }}"));
    add(&mut open, &alice(), rule("4711 ** off 1m"), 0).unwrap();
    assert_eq!(setting(&open, "4711", 1000, "cpu/usage", 0), "10001: off");
    // What was allowed when it was made counts no more when the limit has changed.
    open.configure(&config(lines), 0);
    assert_eq!(setting(&open, "4711", 1000, "cpu/usage", 0), "1: every 1s");
}

#[test]
fn users_name_their_own_jobs_only() {
    let mut rules = rules("");
    refused(&mut rules, &alice(), rule("99 perf/* 1s 1m"), "job \"99\" does not run here; `wholegrain ctl jobs` lists");
    refused(&mut rules, &bob(), rule("4711 perf/* off 1m"), "job \"4711\" does not run here");
    // Bob's job is as if it were not there.
    refused(&mut rules, &alice(), rule("9* perf/* 1s 1m"), "job \"9*\" does not run here");
    assert_eq!(add(&mut rules, &alice(), rule("* perf/* 1s 1m"), 0).unwrap().jobs, ["4711", "4712"]);
    assert_eq!(setting(&rules, "99", 1001, "perf/cycles", 0), "1: every 1s");
    refused(&mut rules, &alice(), rule("5* perf/* 1s 1m"), "job \"5*\" does not run here");
    refused(&mut rules, &alice(), rule("98 perf/* 1s 1m"), "`wholegrain ctl jobs` lists those that do");
    let nobody = CallerIdentity { name: "uid 5".into(), role: Role::User, uid: Some(5), user: None, pid: None };
    refused(&mut rules, &nobody, rule("- perf/* 1s 1m"), "no job of uid 5 runs here");
    let stranger = CallerIdentity { uid: None, ..nobody };
    refused(&mut rules, &stranger, rule("4711 perf/* 1s 1m"), "no job of uid 5 runs here");
    let support = CallerIdentity { role: Role::Support, ..root() };
    refused(&mut rules, &support, rule("4711 perf/* 1s 1m"), "the role support reads everything and changes nothing");
    assert_eq!(add(&mut rules, &alice(), rule("47* perf/* 1s 1m"), 0).unwrap().jobs, ["4711", "4712"]);
    assert_eq!(add(&mut rules, &alice(), rule("- perf/* 1s 1m"), 0).unwrap().jobs, ["4711", "4712"]);
    assert_eq!(add(&mut rules, &bob(), rule("- perf/* 500ms 1m"), 0).unwrap().jobs, ["99"]);
    assert_eq!(add(&mut rules, &root(), rule("99 perf/* 1s"), 0).unwrap().jobs, ["99"]);
}

#[test]
fn removing() {
    let mut rules = rules("");
    let mut made = |who: &CallerIdentity, text: &str| add(&mut rules, who, rule(text), 0).unwrap().rule.unwrap();
    let (hers, his, roots) =
        (made(&alice(), "4711 perf/* 1s 1m"), made(&bob(), "99 perf/* 1s 1m"), made(&root(), "4711 cpu/* 1s"));
    let other = made(&alice(), "4711 cpu/* 1s 1m");
    let mut run =
        |who: &CallerIdentity, action| match rules.execute(&JobsCommand { who: who.clone(), action }, &jobs(), 0) {
            Ok(done) => done.done,
            Err(refusal) => format!("{}: {refusal}", refusal.status()),
        };
    let support = CallerIdentity { role: Role::Support, ..root() };
    for (who, id, expected) in [
        (&alice(), his, "404: there is no rule 10002; "),
        (&alice(), roots, "403: rule 10003 is an administrator's; users remove their own rules only"),
        (&alice(), 1, "403: rule 1 is the configuration's"),
        (&root(), 2, "403: rule 2 is the configuration's"),
        (&bob(), hers, "404: there is no rule 10001"),
        (&support, hers, "403: the role support"),
        (&alice(), 77_777, "404: there is no rule 77777"),
        (&alice(), hers, "rule 10001 is removed"),
        (&alice(), hers, "404: there is no rule 10001"),
        (&root(), his, "rule 10002 is removed"),
    ] {
        let text = run(who, JobsAction::Remove(id));
        assert!(text.starts_with(expected), "{text}");
    }
    assert!(run(&bob(), JobsAction::End("4711".into())).starts_with("404: there is no rule of yours for job \"4711\""));
    assert_eq!(run(&alice(), JobsAction::End("4711".into())), format!("rule {other} is removed"));
    assert_eq!(run(&root(), JobsAction::End("4711".into())), format!("rule {roots} is removed"));
    assert_eq!(rules.view().len(), 2, "the configuration's are left");
}

#[test]
fn a_trial_changes_nothing() {
    let mut rules = rules("limits = { rules_per_user = 2 }");
    let mut command =
        |raw: &str| rules.execute(&JobsCommand { who: alice(), action: JobsAction::Try(rule(raw)) }, &jobs(), 0);
    let done = command("4711 perf/* 1ms 1m").unwrap();
    assert!(
        done.done.starts_with("it could be done: rule 10001: perf/* of 4711 every 1ms until 1970-01-01T00:01:00Z"),
        "{done:?}"
    );
    assert_eq!((done.rule, done.metrics), (None, 2));
    assert!((done.readings_per_second - 2010.2).abs() < 1e-6);
    assert!(command("99 perf/* 1ms 1m").is_err());
    assert!((crate::jobs::rules::admission::load(&rules.table, None, &jobs(), 0).0 - 18.3).abs() < 1e-6);
    assert_eq!(rules.view().len(), 2);
    for _ in 0..2 {
        add(&mut rules, &alice(), rule("4711 perf/* 1s 1m"), 0).unwrap();
    }
    refused(
        &mut rules,
        &alice(),
        rule("4711 perf/* 1s 1m"),
        "you have 2 rules; remove one or wait until one is over; the limit rules_per_user is 2",
    );
    add(&mut rules, &bob(), rule("99 perf/* 1s 1m"), 0).unwrap();
    rules.expire(60 * S);
    add(&mut rules, &alice(), rule("4711 perf/* 1s 1m"), 60 * S).unwrap();
}

#[test]
fn a_user_asks_so_often_a_minute_and_others_are_not_held_up() {
    let mut rules = rules("limits = { changes_per_minute = 3 }");
    for _ in 0..3 {
        add(&mut rules, &alice(), rule("4711 perf/* 1s 1m"), 0).unwrap();
    }
    refused(
        &mut rules,
        &alice(),
        rule("4711 perf/* 1s 1m"),
        "wait for the next one; the limit changes_per_minute is 3",
    );
    // Rules end without waiting: one, and all of a job; and what is refused takes nothing away.
    for action in [JobsAction::Remove(10_001), JobsAction::Remove(10_001), JobsAction::End("4711".into())] {
        let result = rules.execute(&JobsCommand { who: alice(), action: action.clone() }, &jobs(), 0);
        assert!(!matches!(result, Err(JobsRefusal::Limit { .. })), "{action:?}: {result:?}");
    }
    assert_eq!(rules.view().len(), 2, "the configuration's are left");
    add(&mut rules, &bob(), rule("99 perf/* 1s 1m"), 0).unwrap();
    (0..100).for_each(|_| drop(add(&mut rules, &root(), rule("99 perf/* 1s 1m"), 0).unwrap()));
    add(&mut rules, &alice(), rule("4711 perf/* 1s 1m"), 60 * S).unwrap();
}

#[test]
fn a_configuration_with_stricter_limits_ends_what_it_forbids() {
    let mut rules = rules("");
    add(&mut rules, &alice(), rule("4711 perf/* 1ms 1m"), 0).unwrap();
    add(&mut rules, &alice(), rule("4711 cpu/* 1s 1h"), 0).unwrap();
    add(&mut rules, &root(), rule("4711 memory/* 1ms 10h"), 0).unwrap();
    let problems = rules.configure(&config("limits = { interval_min = \"5ms\", duration_max = \"10m\" }"), S);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("every 1ms is shorter than the limit interval_min, 5ms"), "{problems:?}");
    assert!(problems[1].contains("longer than the limit duration_max, 10min"), "{problems:?}");
    assert_eq!(rules.view().last().unwrap().metrics, ["memory/*"], "administrators' stay");
    // Its own rules change with it.
    rules.configure(&config("rule = [{ metrics = [\"**\"], every = \"7s\" }]"), S);
    assert_eq!(setting(&rules, "4711", 1000, "cpu/usage", S), "1: every 7s");
    assert_eq!(setting(&rules, "4711", 1000, "memory/usage", S), "10003: every 1ms");
}

#[test]
fn a_configuration_is_checked() {
    for (text, expected) in [
        ("rule = [{ metrics = [\"**\"], every = \"1us\" }]", "rule 1: every: 1us is too short"),
        (
            "rule = [{ metrics = [\"**\"], every = \"1s\", for = \"1h\" }]",
            "rule 1: a rule of the configuration holds always",
        ),
        ("rule = [{ metrics = [\"**\"], evry = \"1s\" }]", "did you mean `every`?"),
        ("limits = { interval_min = \"0s\" }", "interval_min is 0s"),
        ("limits = { duration_max = \"0s\" }", "duration_max is 0s"),
        ("limits = { readings_per_second_node = 0 }", "nothing could be read"),
        ("limits = { intervalmin = \"1s\" }", "did you mean `interval_min`?"),
    ] {
        let text = format!("[jobs]\n{text}");
        let document = Document::new("agent.toml", &text);
        let error =
            JobsConfig::read(&document.root().child("jobs"), std::path::Path::new("/")).unwrap_err().to_string();
        assert!(error.starts_with("agent.toml:2:") && error.contains(expected), "{text}: {error}");
    }
}
