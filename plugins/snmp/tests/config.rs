//! The configuration: the packaged example, and errors with their lines.

mod support;

use support::put_credentials;
use wholegrain_model::config::Document;
use wholegrain_plugin_snmp::SOURCE;
use wholegrain_sources::ConfigureContext;
use wholegrain_testkit::checkout::root;

fn configure(text: &str, folder: &std::path::Path) -> Result<(), String> {
    let section = Document::new("agent.toml", text).root().child("plugins").child("snmp");
    let context = ConfigureContext { config_dir: folder.to_owned(), ..ConfigureContext::default() };
    (SOURCE.configure)(&section, &context).map(drop).map_err(|error| error.to_string())
}

#[test]
fn the_packaged_example_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    put_credentials(folder.path(), "pdus", "community = \"x\"");
    let switches = "user = \"u\"\nauth = \"sha256\"\nauth_password = \"12345678\"\nprivacy = \"aes128\"\nprivacy_password = \"12345678\"";
    put_credentials(folder.path(), "switches", switches);
    let text = std::fs::read_to_string(root().join("packaging/plugins/snmp.toml")).unwrap();
    configure(&text, folder.path()).unwrap();
}

#[test]
fn errors_name_the_line_and_the_nearest_name() {
    let folder = tempfile::tempdir().unwrap();
    put_credentials(folder.path(), "short", "user = \"u\"\nauth = \"sha1\"\nauth_password = \"hidden1\"");
    put_credentials(folder.path(), "auth", "user = \"u\"\nauth = \"hidden-word\"\nauth_password = \"12345678\"");
    put_credentials(folder.path(), "alone", "user = \"u\"\nprivacy = \"des\"\nprivacy_password = \"12345678\"");
    put_credentials(folder.path(), "keys", "comunity = \"x\"");
    let check = |rest: &str, expected: &str| {
        let error = configure(&format!("[[plugins.snmp.device]]\nhosts = [\"a\"]\n{rest}"), folder.path()).unwrap_err();
        assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
        assert!(!error.contains("hidden"), "{error}");
    };
    check("", "agent.toml:2:1: nothing is read of these devices: give presets, or groups");
    check("presets = [\"port\"]", "agent.toml:3:1: unknown preset `port`; did you mean `ports`?");
    check("preset = [\"ports\"]", "agent.toml:3:1: unknown key `preset`; did you mean `presets`?");
    check("presets = [\"ports\"]\nversion = \"2\"", "agent.toml:4:1: unknown value");
    check("presets = [\"ports\"]\nversion = \"3\"", "agent.toml:4:1: version 3 needs credentials with a user");
    check("presets = [\"ports\"]\nmax_repetitions = 0", "agent.toml:4:1: max_repetitions is 0; expected 1 to 1000");
    let group = |rest: &str| format!("[[plugins.snmp.device.group]]\nname = \"g\"\n{rest}");
    check(&group("gett = []"), "agent.toml:5:1: unknown key `gett`; did you mean `get`?");
    check(
        &group("get = [\"sysUpTim\"]"),
        "agent.toml:3:23: group \"g\": unknown object `sysUpTim`; did you mean `sysUpTime`?",
    );
    check(&group("get = [\"ifHCInOctets\"]"), "agent.toml:3:23: group \"g\": IF-MIB::ifHCInOctets is a column");
    check(&group("get = [\"1.3.6.1.4.1.9.9.0\"]"), "agent.toml:3:23: group \"g\": 1.3.6.1.4.1.9.9.0 needs a name");
    let unit = "object = [{ oid = \"1.3.6.1.4.1.9\", name = \"x\", unit = \"no unit\" }]";
    check(&group(unit), "agent.toml:3:23: group \"g\": x: unit \"no unit\"");
    check(&group("get = []"), "agent.toml:3:23: group \"g\": is empty");
    let credentials = |name: &str| format!("presets = [\"ports\"]\ncredentials = \"{name}\"");
    check(&credentials("short"), "agent.toml:4:1: credentials \"short\": `auth_password` has less than 8 bytes");
    check(&credentials("auth"), "agent.toml:4:1: credentials \"auth\": `auth` is unknown; expected one of md5, sha1");
    check(&credentials("alone"), "agent.toml:4:1: credentials \"alone\": `privacy` needs `auth`");
    check(
        &credentials("keys"),
        "agent.toml:4:1: credentials \"keys\": unknown key `comunity`; did you mean `community`?",
    );
    check(&credentials("absent"), "agent.toml:4:1: cannot open");
}
