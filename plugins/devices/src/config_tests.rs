use std::os::unix::fs::PermissionsExt;

use wholegrain_model::config::Document;

use super::*;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Own {
    walks: Option<u32>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Keys {
    version: Option<String>,
    url: Option<String>,
    group: Vec<KeysGroup>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct KeysGroup {
    name: String,
    oids: Vec<String>,
}

fn read_text(text: &str) -> Result<DevicesConfig<Own, Keys>, ConfigError> {
    read_in(text, std::path::Path::new("/nowhere"))
}

fn read_in(text: &str, folder: &std::path::Path) -> Result<DevicesConfig<Own, Keys>, ConfigError> {
    let section = Document::new("agent.toml", text).root().child("plugins").child("snmp");
    let context = ConfigureContext { config_dir: folder.to_owned(), ..ConfigureContext::default() };
    super::read(&section, &context)
}

#[track_caller]
fn refused(text: &str, expected: &str) {
    let error = read_text(text).expect_err(text).to_string();
    assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
}

const EXAMPLE: &str = r#"
[plugins.snmp]
interval = "20s"
walks = 3
[plugins.snmp.template.any]
version = "2c"
timeout = "2s"
parameters = { row = "a" }
[[plugins.snmp.template.any.group]]
name = "system"
oids = ["1.3.6.1"]
[[plugins.snmp.template.any.group]]
name = "ports"
oids = ["1.3.6.2"]
[plugins.snmp.template.pdu]
extends = "any"
path = "{row}/{rack}/{short}"
interval = "5s"
[[plugins.snmp.template.pdu.group]]
name = "ports"
oids = ["1.3.6.3"]
[[plugins.snmp.device]]
hosts = ["pdu[01-40].mgmt", "ups.mgmt"]
template = "pdu"
parameters = { rack = "r7" }
[[plugins.snmp.device]]
hosts = ["sw1:1161"]
version = "1"
url = "http://{host}/{{x}}"
"#;

#[test]
fn templates_are_inherited_and_lists_are_expanded() {
    let config = read_text(EXAMPLE).unwrap();
    assert_eq!((config.own.walks, config.devices.len()), (Some(3), 42));
    let first = &config.devices[0];
    assert_eq!((first.host.text.as_str(), first.path.as_str()), ("pdu01.mgmt", "a/r7/pdu01"));
    assert_eq!((first.timing.interval, first.timing.timeout), (Interval::from_s(5), Interval::from_s(2)));
    assert_eq!(first.protocol.version.as_deref(), Some("2c"));
    let groups: Vec<(&str, &str)> =
        first.protocol.group.iter().map(|group| (group.name.as_str(), group.oids[0].as_str())).collect();
    assert_eq!(groups, [("system", "1.3.6.1"), ("ports", "1.3.6.3")]);
    assert!(Arc::ptr_eq(&first.protocol, &config.devices[40].protocol), "what is equal is shared");
    let last = &config.devices[41];
    assert_eq!((last.path.as_str(), last.port, last.timing.interval), ("sw1:1161", Some(1161), Interval::from_s(20)));
    assert_eq!(last.protocol.url.as_deref(), Some("http://sw1:1161/{x}"));
}

#[test]
fn errors_name_the_line_and_the_nearest_key() {
    refused("[plugins.snmp]\nintervall = \"1s\"", "agent.toml:2:1: unknown key `intervall`; did you mean `interval`?");
    refused("[plugins.snmp]\nwalk = 1", "agent.toml:2:1: unknown key `walk`; did you mean `walks`?");
    refused(
        "[plugins.snmp.template.a]\nverson = \"1\"",
        "agent.toml:2:1: unknown key `verson`; did you mean `version`?",
    );
    refused("[plugins.snmp.template.a]\nhosts = [\"a\"]", "agent.toml:2:1: a template has no hosts");
    refused(
        "[[plugins.snmp.template.a.group]]\nnme = \"a\"",
        "agent.toml:2:1: unknown key `nme`; did you mean `name`?",
    );
    let device = |rest: &str| format!("[[plugins.snmp.device]]\n{rest}");
    refused(&device("version = \"1\""), "agent.toml:2:1: hosts is missing");
    refused(&device("hosts = [\"n[1-3\"]"), "agent.toml:2:1: host \"n[1-3\": has `[` without `]`");
    refused(&device("hosts = [\"n[1-100001]\"]"), "agent.toml:2:1: host \"n[1-100001]\": gives more than 100000 hosts");
    refused(&device("host = [\"a\"]"), "agent.toml:2:1: unknown key `host`; did you mean `hosts`?");
    refused(&device("hosts = [\"a\"]\ntemplate = \"b\""), "agent.toml:3:1: unknown template `b`");
    refused(&device("hosts = [\"a\"]\nextends = \"b\""), "agent.toml:3:1: a list of devices has no `extends`");
    refused(&device("hosts = [\"a\"]\npath = \"{rak}\""), "agent.toml:3:1: \"{rak}\": unknown parameter `rak`");
    refused(&device("hosts = [\"a\"]\npath = \"a//b\""), "agent.toml:3:1: sensor name \"a//b\" has an empty level");
    refused(&device("hosts = [\"a\", \"a\"]"), "agent.toml:2:1: a is listed twice");
    let secret = "agent.toml:3:1: `community` is a secret: write credentials = \"NAME\" here";
    refused(&device("hosts = [\"a\"]\ncommunity = \"x\""), secret);
    refused("[plugins.snmp]\ntoken = \"x\"", "agent.toml:2:1: `token` is a secret");
    refused(&device("hosts = [\"a\"]\ntemplate = \"pud\""), "agent.toml:3:1: unknown template `pud`; there is none");
    refused(&device("hosts = [\"a[1-2]\"]\npath = \"x\""), "agent.toml:3:1: a2 and a1 have the same path x");
    refused(&device("hosts = [\"a\"]\ntimeout = \"2min\""), "agent.toml:3:1: timeout 2min; expected 1ms to 1min");
    refused(&device("hosts = [\"a\"]\nretries = 11"), "agent.toml:3:1: retries is 11; at most 10");
    refused(&device("hosts = [\"a\"]\nstale_after = \"1s\""), "agent.toml:3:1: stale_after is shorter");
    refused(&device("hosts = [\"a\"]\nversion = 1"), "agent.toml:3:11: invalid type: integer `1`");
    refused(
        "[plugins.snmp.template.a]\nextends = \"b\"\n[plugins.snmp.template.b]\nextends = \"a\"",
        "agent.toml:2:1: template a extends itself",
    );
    refused("[plugins.snmp.template.a]\nextends = \"x\"", "agent.toml:2:1: unknown template `x`");
    refused("[plugins.snmp]\nin_flight = 0", "agent.toml:2:1: in_flight is 0; expected 1 to 10000");
}

#[test]
fn credentials_are_read_once_from_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let credentials = folder.path().join("credentials");
    std::fs::create_dir(&credentials).unwrap();
    std::fs::write(credentials.join("pdus"), "community = \"x\"").unwrap();
    let text = "[[plugins.snmp.device]]\nhosts = [\"a\", \"b\"]\ncredentials = \"pdus\"\n";
    let set_mode = |mode| {
        std::fs::set_permissions(&credentials, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::set_permissions(credentials.join("pdus"), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set_mode(0o644);
    let error = read_in(text, folder.path()).unwrap_err().to_string();
    assert!(error.starts_with("agent.toml:3:1: ") && error.ends_with("chmod 0600"), "{error}");
    set_mode(0o600);
    let config = read_in(text, folder.path()).unwrap();
    let [a, b] = &config.devices[..] else { panic!("two devices") };
    assert!(Arc::ptr_eq(a.credentials.as_ref().unwrap(), b.credentials.as_ref().unwrap()));
}

#[test]
fn ten_thousand_devices_are_read() {
    let text = "[[plugins.snmp.device]]\nhosts = [\"r[1-100]n[1-100]\"]\nversion = \"1\"\n";
    let config = read_text(text).unwrap();
    assert_eq!(config.devices.len(), 10_000);
    assert_eq!(config.devices[9_999].path, "r100n100");
}
