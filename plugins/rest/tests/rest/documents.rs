//! Settings with mistakes, and the examples of the documents.

use super::{configure_in, write_credentials};

const DEVICE: &str = "[[plugins.rest.device]]\nhosts = [\"h\"]\npath = \"d\"\n";
const URL: &str = "[[plugins.rest.device.url]]\nname = \"u\"\nuri = \"/\"\n";
const VALUE: &str = "value = [{ name = \"a\", path = \"$.a\" }]\n";

#[test]
fn settings_with_mistakes() {
    let url = |keys: &str| format!("{DEVICE}{URL}{keys}");
    let value = |keys: &str| url(&format!("value = [{{ name = \"a\", {keys} }}]"));
    let table = |keys: &str| url(&format!("table = [{{ name = \"t\", {keys} }}]"));
    for (text, expected) in [
        (DEVICE.to_owned(), "0 addresses of a device"),
        (format!("{DEVICE}colour = 1\n{URL}{VALUE}"), "unknown key `colour`"),
        (format!("{DEVICE}scheme = \"https\"\n{URL}{VALUE}"), "https needs ca = \"ca.pem\""),
        (format!("{DEVICE}ca = \"none.pem\"\n{URL}{VALUE}"), "cannot read none.pem"),
        (format!("{DEVICE}body_bytes_max = \"1GiB\"\n{URL}{VALUE}"), "expected 1B to 256MiB"),
        (format!("{DEVICE}redirects = 9\n{URL}{VALUE}"), "redirects is 9; at most 5"),
        (format!("{DEVICE}secret_headers = {{ X-Key = \"k\" }}\n{URL}{VALUE}"), "X-Key needs credentials"),
        (format!("{DEVICE}{URL}{VALUE}{URL}{VALUE}"), "two addresses of a device have the name \"u\""),
        (
            format!("{DEVICE}{URL}{VALUE}{}{VALUE}", URL.replace("\"u\"", "\"w\"")),
            "two values of a device have the name \"a\"",
        ),
        (url(""), "nothing is read of its answers"),
        (url(&format!("{VALUE}colour = 1")), "unknown key `colour`"),
        (url(&format!("{VALUE}interval = \"0s\"")), "interval 0s is shorter"),
        (url(&format!("{VALUE}url = \"http://h/\"")), "leave uri out"),
        (url(VALUE).replace("\"/\"", "\"x\""), "uri \"x\" does not begin with /"),
        (url(VALUE).replace("uri = \"/\"", "url = \"ftp://h\""), "begins with neither http:// nor https://"),
        (url(VALUE).replace("\"/\"", "\"/a b\""), "is no address"),
        (url(&format!("{VALUE}method = \"PUT\"")), "unknown value `PUT`"),
        (url(&format!("{VALUE}method = \"GET\"\nbody = \"x\"")), "a GET has no body"),
        (url(&format!("{VALUE}headers = {{ Authorization = \"x\" }}")), "the header Authorization is a secret"),
        (url(&format!("{VALUE}headers = {{ Host = \"x\" }}")), "is written by the client itself"),
        (url(&format!("{VALUE}csv = {{ delimiter = \";\" }}")), "csv is for format"),
        (url(&format!("{VALUE}format = \"csv\"\ncsv = {{ delimiter = \"a\" }}")), "the delimiter 'a' is not one"),
        (url(&format!("{VALUE}format = \"csv\"\ncsv = {{ decimal = \",\" }}")), "not the delimiter"),
        (url(&format!("{VALUE}format = \"yaml\"")), "unknown value `yaml`"),
        (url(&format!("{VALUE}time = \"$.\"")), "is no JSONPath"),
        (url(&format!("{VALUE}time = \"$.t\"\ntime_zone = \"Mars\"")), "time_zone \"Mars\" is unknown"),
        (url(&format!("{VALUE}series_max = 0")), "series_max is 0; expected 1 to 65532"),
        (value("path = \"$.a\", unit = \"parsecs?\""), "unit \"parsecs?\""),
        (value("path = \"$.a\", scale = 0.0"), "scale not 0"),
        (value("path = \"$.a\", min = 2, max = 1"), "min is more than max"),
        (value("path = \"$.a\", type = \"int\", offset = 1.0"), "has no offset"),
        (value("path = \"$.a\", type = \"int\", states = { on = 0.5 }"), "does not fit the type"),
        (value("path = \"$.a[\""), "is no JSONPath (RFC 9535)"),
        (value("path = \"$..a..b\""), "its time has no bound"),
        (url("value = [{ name = \"a b\", path = \"$.a\" }]"), "value \"a b\""),
        (url("value = [{ name = \"rest/a\", path = \"$.a\" }]"), "names below rest/"),
        (table("rows = \"$.a[*]\""), "table \"t\": has no column"),
        (table("rows = \"../a\", column = [{ name = \"a\", path = \"a\" }]"), "rows begin at the root"),
        (
            url(
                "format = \"xml\"\ntable = [{ name = \"t\", rows = \"/a\", column = [{ name = \"a\", path = \"a\" }] }]",
            ),
            "index is missing",
        ),
        (
            format!(
                "{}{}",
                table("rows = \"$\", column = [{ name = \"a\", path = \"a\" }]"),
                format!("\n{DEVICE}{URL}{VALUE}").replace("\"d\"", "\"d/x\"")
            ),
            "the path d/x is below that of d",
        ),
    ] {
        let error = configure_in("".as_ref(), &text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("agent.toml:") && error.contains(expected), "{text}: {error:?}");
    }
}

#[test]
fn the_examples_of_the_documents_are_valid() {
    let readme = include_str!("../../README.md");
    let mut blocks: Vec<String> = readme
        .split("```toml\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(blocks.len(), 4);
    blocks.push(include_str!("../../../../packaging/plugins/rest.toml").to_owned());
    let folder = tempfile::tempdir().unwrap();
    write_credentials(folder.path(), &[("plant", "user = \"a\"\npassword = \"b\"\n")]);
    for block in blocks {
        if let Err(error) = configure_in(folder.path(), &block) {
            panic!("{error} in\n{block}");
        }
    }
}
