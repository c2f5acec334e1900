//! The example, and settings that are refused with their line.

use wholegrain_testkit::checkout::root;

use super::configure_in;
use super::sessions::credentials;

/// The error of a configuration.
fn error(folder: &std::path::Path, keys: &str) -> String {
    let text = format!("[[plugins.redfish.device]]\nhosts = [\"bmc\"]\n{keys}\n");
    configure_in(folder, &text).err().map_or_else(|| panic!("accepted: {keys}"), |error| error.to_string())
}

#[test]
fn mistakes_are_named_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    credentials(folder.path(), "user = \"a\"\npassword = \"b\"\n");
    std::fs::write(folder.path().join("empty.pem"), "no certificate").unwrap();
    for (keys, part) in [
        ("", "https needs ca = "),
        ("ca = \"absent.pem\"", "agent.toml:3:1: cannot read "),
        ("ca = \"empty.pem\"", "agent.toml:3:1: has no certificate in PEM"),
        ("ca = \"empty.pem\"\ninsecure = true", "ca is not used with insecure = true"),
        ("scheme = \"http\"\ncredentials = \"bmc\"", "http sends the password readable"),
        ("insecure = true\nsubsystems = []", "agent.toml:4:1: subsystems is empty"),
        (
            "insecure = true\nsubsystems = [\"thermals\"]",
            "agent.toml:4:15: unknown value `thermals`; did you mean `thermal`?",
        ),
        ("insecure = true\nintervals = { thermal = \"1us\" }", "is shorter than"),
        ("insecure = true\nintervals = { thermals = \"1s\" }", "thermals"),
        ("insecure = true\nresources_max = 0", "agent.toml:4:1: resources_max is 0; expected 1 to 10000"),
        ("insecure = true\nsensors_max = 100000", "expected 1 to 20000"),
        ("insecure = true\npoll_timeout = \"1s\"", "expected timeout (10s) to 10min"),
        ("insecure = true\nrediscover = \"1ms\"", "expected 1s or more"),
        ("insecure = true\nbody_bytes_max = \"1TiB\"", "expected 1B to 256MiB"),
        ("insecure = true\nevents = \"push\"", "unknown value `push`"),
        ("insecure = true\nauthentification = \"basic\"", "did you mean `authentication`"),
    ] {
        let error = error(folder.path(), keys);
        assert!(error.contains(part), "{keys}: {error}");
    }
    let many = "[[plugins.redfish.device]]\nhosts = [\"bmc[1-300]\"]\ninsecure = true\nevents = \"sse\"\n";
    let error = configure_in(folder.path(), many).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("events of more than 256 controllers"), "{error}");
}

#[test]
fn the_example_and_the_readme_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    credentials(folder.path(), "user = \"a\"\npassword = \"b\"\n");
    std::fs::copy(folder.path().join("credentials/bmc"), folder.path().join("credentials/bmcs")).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["bmc".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(folder.path().join("bmc-ca.pem"), certificate.pem()).unwrap();
    let example = std::fs::read_to_string(root().join("packaging/plugins/redfish.toml")).unwrap();
    // As it is, and with each setting that a comment shows.
    let is_setting = |line: &str| {
        line.strip_prefix("# ").is_some_and(|rest| {
            rest.starts_with('[') || rest.split(" = ").next().is_some_and(|key| key != rest && !key.contains(' '))
        })
    };
    let lines = example.lines().map(|line| if is_setting(line) { &line[2..] } else { line });
    let full = lines.collect::<Vec<_>>().join("\n");
    assert_ne!(full, example);
    let readme = std::fs::read_to_string(root().join("plugins/redfish/README.md")).unwrap();
    let blocks = readme.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<&str> = blocks.collect();
    assert!(!blocks.is_empty());
    for text in [example.as_str(), full.as_str()].into_iter().chain(blocks) {
        configure_in(folder.path(), text).map(drop).unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
}
