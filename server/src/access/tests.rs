use super::*;

fn path(text: &str) -> SensorPath {
    SensorPath::new(text).unwrap()
}

fn line(identity: &str, publish: &[&str], subscribe: &[&str]) -> AclLine {
    let owned = |filters: &[&str]| filters.iter().map(|&filter| filter.to_owned()).collect();
    AclLine { identity: identity.to_owned(), publish: owned(publish), subscribe: owned(subscribe) }
}

fn access(acl: Vec<AclLine>) -> Access {
    Access::new(&AccessConfig { acl, ..AccessConfig::default() }, [])
}

#[test]
fn by_default_an_agent_has_its_own_subtree_and_its_own_native_topics() {
    let access = access(Vec::new());
    for (topic, expected) in [
        ("/n1/cpu", true),
        ("/site/rack07/n1", true),
        ("/site/rack07/n1/cpu/0/user", true),
        ("site/n1/status", true),
        ("text/site/n1/cpu", true),
        ("/site/rack07/n2/cpu", false),
        ("/site/n11/cpu", false),
        ("elsewhere", false),
        ("text/site/n2/cpu", false),
        ("wholegrain/v1/batch/n1/g", true),
        ("wholegrain/v1/schema/n1/g", true),
        ("wholegrain/v1/batch/n2/g", false),
        ("wholegrain/v1/batch/n2/n1", false),
        ("wholegrain/v1/need/n1", false),
        ("wholegrain/v1/control/n1", false),
        ("wholegrain/v1/control/n2", false),
        ("wholegrain/v1/job/n1", true),
        ("wholegrain/v1/job/n2", false),
        ("wholegrain/v1/response/n1", true),
        ("wholegrain/v1/response/n2", false),
        ("wholegrain/v1/other/n1", false),
        ("$SYS/n1/x", false),
    ] {
        assert_eq!(access.may_publish("n1", topic).is_ok(), expected, "publish {topic}");
    }
    for (filter, expected) in [
        ("wholegrain/v1/need/n1", true),
        ("wholegrain/v1/need/+", false),
        ("wholegrain/v1/control/n1", true),
        ("wholegrain/v1/control/n2", false),
        ("wholegrain/v1/control/+", false),
        ("wholegrain/v1/response/n1", false),
        ("wholegrain/v1/batch/n1/#", true),
        ("wholegrain/v1/schema/n1/+", true),
        ("wholegrain/v1/batch/n2/#", false),
        ("wholegrain/v1/batch/n2/n1/#", false),
        ("wholegrain/v1/#", false),
        ("/site/n1/#", true),
        ("/site/n1", true),
        ("/site/n1/+/user", true),
        ("text/site/n1/#", true),
        ("$share/g/text/site/n1/#", true),
        ("$share/n1/#", false),
        ("text/#", false),
        ("/site/+/n1/#", false),
        ("#", false),
        ("+/n1/#", false),
        ("$SYS/#", false),
        ("$SYS/n1/#", false),
        ("$share/g/#", false),
    ] {
        assert_eq!(access.may_subscribe("n1", filter).is_ok(), expected, "subscribe {filter}");
    }
    for (prefix, expected) in [("/n1", true), ("/site/rack07/n1", true), ("/site", false), ("/site/n2", false)] {
        assert_eq!(access.may_publish_below("n1", &path(prefix)).is_ok(), expected, "{prefix}");
    }
    // Names that are parts of other names' topics.
    for name in ["v1", "batch", "text", "wholegrain", "site"] {
        for filter in ["wholegrain/v1/#", "wholegrain/#", "text/#", "#"] {
            assert!(access.may_subscribe(name, filter).is_err(), "{name} {filter}");
        }
    }
}

#[test]
fn lines_grant_more() {
    let access = access(vec![
        line("grafana", &[], &["#"]),
        line("chiller", &["/site/cooling/#"], &["/site/+/power/#", "text/site/#"]),
        line("*", &["/lab/%i/#"], &["news/+", "/lab/%i/#"]),
        line("watcher", &[], &["$SYS/#"]),
    ]);
    for (who, filter, expected) in [
        ("grafana", "#", true),
        ("grafana", "$share/g/#", true),
        ("grafana", "$SYS/#", false),
        ("watcher", "$SYS/broker/+", true),
        ("chiller", "/site/a/power/#", true),
        ("chiller", "text/site/a/#", true),
        ("chiller", "/site/#", false),
        ("n1", "news/a", true),
        ("n1", "news/+", true),
        ("n1", "news/#", false),
        ("n1", "/lab/n1/x", true),
        ("n1", "/lab/n2/x", false),
        ("anonymous", "news/a", true),
    ] {
        assert_eq!(access.may_subscribe(who, filter).is_ok(), expected, "{who} {filter}");
    }
    assert!(access.may_publish("chiller", "/site/cooling/pump/flow").is_ok());
    assert!(access.may_publish("chiller", "/site/power/x").is_err());
    assert!(access.may_publish_below("chiller", &path("/site/cooling")).is_ok());
    assert!(access.may_publish_below("chiller", &path("/site")).is_err());
    access.replace(&AccessConfig::default());
    assert!(access.may_subscribe("grafana", "#").is_err(), "rules can be taken away");
}

#[test]
fn anonymous_clients_use_free_topics_until_a_line_restricts_them() {
    let config = AccessConfig { anonymous: true, ..AccessConfig::default() };
    let open = Access::new(&config, []);
    let who = Identity { name: "c1", anonymous: true };
    for topic in ["a/b", "/site/x", "wholegrain/v1/batch/c1/g"] {
        assert!(open.may_publish(who, topic).is_ok(), "{topic}");
    }
    for topic in ["$SYS/a", "wholegrain/v1/batch/n1/g", "wholegrain/v1/need/c1"] {
        assert!(open.may_publish(who, topic).is_err(), "{topic}");
    }
    for (filter, expected) in [("#", true), ("+/+", true), ("$SYS/#", false), ("$share/g/#", true)] {
        assert_eq!(open.may_subscribe(who, filter).is_ok(), expected, "{filter}");
    }
    let narrow = AccessConfig { acl: vec![line("anonymous", &["in/c-%i"], &["out/#"])], ..config };
    open.replace(&narrow);
    assert!(open.may_publish(who, "in/c-c1").is_ok() && open.may_subscribe(who, "out/+").is_ok());
    assert!(open.may_publish(who, "a/b").is_err() && open.may_publish(who, "/c1/x").is_err());
    assert!(open.may_subscribe(who, "#").is_err() && open.may_subscribe(who, "/c1/#").is_err());
    assert!(open.may_publish("anonymous", "in/c-anonymous").is_err(), "a certificate of that name is not anonymous");
}

#[test]
fn a_prefix_belongs_to_its_first_agent() {
    let grants = AccessConfig { acl: vec![line("heir", &["/site/n1/#"], &[])], ..AccessConfig::default() };
    let known = [(path("/site/n9"), "n9")];
    let access = Access::new(&grants, known.iter().map(|(prefix, name)| (prefix, *name)));
    access.claim("n1", &path("/site/n1")).unwrap();
    access.claim("n1", &path("/site/n1")).unwrap();
    let why = access.claim("cpu", &path("/site/n1/cpu")).unwrap_err();
    assert!(why.contains("\"n1\"") && why.contains("/site/n1 ") && why.contains("[[mqtt.acl]]"), "{why}");
    assert!(access.claim("site", &path("/site")).unwrap_err().contains("belongs to"), "above what others have");
    assert!(access.may_publish("cpu", "/site/n1/cpu/0").unwrap_err().contains("\"n1\""));
    assert!(access.may_subscribe("cpu", "/site/n1/cpu/#").is_err());
    assert!(access.may_subscribe("site", "/site/#").is_err(), "others' sensors are below");
    assert!(access.may_publish_below("n9", &path("/site/n9/x")).is_ok());
    assert!(access.may_publish_below("x", &path("/site/n9/x")).is_err(), "known from the store");
    // An explicit grant overrides, and takes nothing away.
    access.claim("heir", &path("/site/n1")).unwrap();
    access.claim("n1", &path("/site/n1")).unwrap();
    assert_eq!(access.prefixes_owned(), 2);
}
