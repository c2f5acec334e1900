//! The source files of the checkout, for tests of the source text.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the checkout's root").to_owned()
}

/// All files that git tracks or would track, relative to the root.
pub fn files() -> Vec<String> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(root()).output().expect("git ls-files");
    assert!(output.status.success(), "git ls-files failed: this test needs a git checkout");
    let paths = String::from_utf8(output.stdout).expect("file names in UTF-8");
    paths.lines().filter(|path| root().join(path).is_file()).map(str::to_owned).collect()
}

/// The files of the modules that a file declares for tests only (`#[cfg(test)] mod name;`).
pub fn test_modules(file: &str, text: &str) -> Vec<String> {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    let folder = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        other => format!("{folder}/{}", other.trim_end_matches(".rs")),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declarations = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    declarations
        .filter_map(|pair| pair[1].rsplit_once("mod ")?.1.strip_suffix(';'))
        .map(|module| format!("{folder}/{module}.rs"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_paths_from_the_root() {
        assert!(files().iter().any(|file| file == "testkit/src/checkout.rs"));
    }

    #[test]
    fn modules_for_tests_are_found() {
        let text = "#[cfg(test)]\nmod tests;\nmod other;\n#[cfg(test)]\npub(crate) mod reference;\n";
        assert_eq!(test_modules("a/src/lib.rs", text), ["a/src/tests.rs", "a/src/reference.rs"]);
        assert_eq!(test_modules("a/src/b.rs", text), ["a/src/b/tests.rs", "a/src/b/reference.rs"]);
    }
}
