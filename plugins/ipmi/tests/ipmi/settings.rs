//! The configuration: the packaged example, and errors with their lines.

use wholegrain_model::config::Document;
use wholegrain_plugin_ipmi::SOURCE;
use wholegrain_sources::ConfigureContext;
use wholegrain_testkit::checkout::root;

use crate::sampled::put_credentials;

fn configure(text: &str, folder: &std::path::Path) -> Result<(), String> {
    let section = Document::new("agent.toml", text).root().child("plugins").child("ipmi");
    let context = ConfigureContext { config_dir: folder.to_owned(), ..ConfigureContext::default() };
    (SOURCE.configure)(&section, &context).map(drop).map_err(|error| error.to_string())
}

#[test]
fn the_packaged_example_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    put_credentials(folder.path(), "bmcs", "user = \"monitor\"\npassword = \"x\"");
    let text = std::fs::read_to_string(root().join("packaging/plugins/ipmi.toml")).unwrap();
    configure(&text, folder.path()).unwrap();
}

#[test]
fn errors_name_the_line_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    put_credentials(folder.path(), "good", "user = \"u\"\npassword = \"p\"");
    put_credentials(folder.path(), "none", "user = \"u\"");
    put_credentials(folder.path(), "long", "user = \"u\"\npassword = \"hidden-hidden-hidden-h\"");
    put_credentials(folder.path(), "user", "user = \"hidden-hidden-hid\"\npassword = \"p\"");
    put_credentials(folder.path(), "keys", "usr = \"u\"\npassword = \"p\"");
    let check = |rest: &str, expected: &str| {
        let error = configure(&format!("[[plugins.ipmi.device]]\nhosts = [\"a\"]\n{rest}"), folder.path()).unwrap_err();
        assert!(error.starts_with(expected), "{error:?} does not begin with {expected:?}");
        assert!(!error.contains("hidden"), "{error}");
    };
    check("", "agent.toml:2:1: credentials is missing; it names a file with user and password");
    let good = |rest: &str| format!("credentials = \"good\"\n{rest}");
    check(&good("groups = [\"sensor\"]"), "agent.toml:4:1: unknown group `sensor`; did you mean `sensors`?");
    check(&good("groups = []"), "agent.toml:4:1: groups is empty");
    check(&good("privilege = \"root\""), "agent.toml:4:1: unknown value `root`");
    check(&good("cipher_suites = [0]"), "agent.toml:4:1: cipher suite 0; expected 17 or 3");
    check(&good("cipher_suites = []"), "agent.toml:4:1: expected one or both");
    check(&good("session = \"stay\""), "agent.toml:4:1: unknown value `stay`");
    check(&good("sesion = \"keep\""), "agent.toml:4:1: unknown key `sesion`; did you mean `session`?");
    check("credentials = \"none\"", "agent.toml:3:1: the credentials \"none\" have no `password`");
    check("credentials = \"long\"", "agent.toml:3:1: credentials \"long\": `password` has more than 20 bytes");
    check("credentials = \"user\"", "agent.toml:3:1: credentials \"user\": `user` has more than 16 bytes");
    check("credentials = \"keys\"", "agent.toml:3:1: credentials \"keys\": unknown key `usr`; did you mean `user`?");
    let error = configure("[plugins.ipmi.local]\npath = \"a//b\"\n", folder.path()).unwrap_err();
    assert!(error.starts_with("agent.toml:2:1: "), "{error}");
}
