//! `wholegrain plugin new`: a folder with a plug-in that compiles, its test, and a configuration to try it.

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use wholegrain_server::path_owners::check_above;

use crate::failure::Failure;

/// The longest name of a plug-in.
const NAME_BYTES_MAX: usize = 64;

const EXAMPLES: &str = "\
Examples:
  wholegrain plugin new chiller --lang c
  wholegrain plugin new chiller --lang python --dir ~/chiller
  wholegrain plugin new chiller --lang rust --sources ~/wholegrain";

/// Make a plug-in: a source of your own for the agent
#[derive(Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct PluginArgs {
    #[command(subcommand)]
    command: PluginCommands,
}

#[derive(Subcommand)]
enum PluginCommands {
    /// Make a folder with a plug-in that works, its test with a recorded input, and a README
    #[command(after_help = EXAMPLES)]
    New {
        /// The name of the source: letters a-z, digits and _
        #[arg(value_name = "NAME")]
        name: String,
        /// The language that it is written in
        #[arg(long, value_enum)]
        lang: Language,
        /// The folder, which must not exist [default: NAME]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// The folder of Wholegrain's source code, whose crates a plug-in in Rust uses
        #[arg(long, value_name = "DIR", required_if_eq("lang", "rust"))]
        sources: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    C,
    Rust,
    Python,
}

/// The files of a plug-in and the words of its README.
struct PluginTemplate {
    files: &'static [(&'static str, &'static str)],
    library: &'static str,
    build: &'static str,
    test: &'static str,
    installed: &'static str,
}

/// The files of every plug-in.
const COMMON: &[(&str, &str)] = &[
    ("recorded/loadavg", include_str!("plugin/recorded_loadavg.in")),
    ("agent.toml", include_str!("plugin/agent.toml.in")),
    ("README.md", include_str!("plugin/README.md.in")),
];

const C: PluginTemplate = PluginTemplate {
    files: &[
        ("@NAME@.c", include_str!("plugin/c_plugin.c.in")),
        ("test.c", include_str!("plugin/c_test.c.in")),
        ("Makefile", include_str!("plugin/c_Makefile.in")),
        ("wholegrain_source.h", include_str!("../../sources/abi/wholegrain_source.h")),
    ],
    library: "@NAME@.so",
    build: "make",
    test: "make test",
    installed: "`install -m 0644 @NAME@.so /usr/lib/wholegrain/plugins/`",
};

const RUST: PluginTemplate = PluginTemplate {
    files: &[
        ("Cargo.toml", include_str!("plugin/rust_Cargo.toml.in")),
        ("src/lib.rs", include_str!("plugin/rust_lib.rs.in")),
        ("tests/recorded.rs", include_str!("plugin/rust_recorded.rs.in")),
    ],
    library: "target/debug/lib@NAME@.so",
    build: "cargo build",
    test: "cargo test",
    installed: "`cargo build --release`, then `install -m 0644 target/release/lib@NAME@.so /usr/lib/wholegrain/plugins/@NAME@.so`",
};

const PYTHON: PluginTemplate = PluginTemplate {
    files: &[
        ("@NAME@.py", include_str!("plugin/python_plugin.py.in")),
        ("test_@NAME@.py", include_str!("plugin/python_test_plugin.py.in")),
        ("wholegrain_plugin.py", include_str!("plugin/python_wholegrain_plugin.py.in")),
    ],
    library: "@NAME@.py",
    build: "python3 -m py_compile @NAME@.py",
    test: "python3 -m unittest",
    installed: "`install -m 0644 @NAME@.py wholegrain_plugin.py /usr/lib/wholegrain/plugins/`",
};

pub fn run(args: &PluginArgs) -> Result<(), Failure> {
    let PluginCommands::New { name, lang, dir, sources } = &args.command;
    check_name(name)?;
    let template = match lang {
        Language::C => &C,
        Language::Rust => &RUST,
        Language::Python => &PYTHON,
    };
    let sources = match sources {
        Some(sources) => checked_sources(sources)?,
        None => PathBuf::new(),
    };
    let dir = dir.clone().unwrap_or_else(|| name.into());
    make(&dir, name, template, &sources)?;
    let (build, test) = (filled(template.build, name, template, &sources), template.test);
    let mut out = std::io::stdout();
    let text = format!(
        "made {}\n\nNext: cd {0}\n      umask 022\n      {build}\n      {test}\n      wholegrain-agent --config agent.toml --check\n",
        dir.display()
    );
    // A reader that has closed the pipe has seen enough.
    let _ = out.write_all(text.as_bytes());
    Ok(())
}

fn check_name(name: &str) -> Result<(), Failure> {
    let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins_well = name.starts_with(|c: char| c.is_ascii_lowercase());
    if begins_well && name.len() <= NAME_BYTES_MAX && name.chars().all(is_good) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "the name {name:?} must be 1 to {NAME_BYTES_MAX} of the characters a-z, 0-9 and _, and begin with a letter"
    )))
}

/// The absolute path of Wholegrain's source code.
fn checked_sources(sources: &Path) -> Result<PathBuf, Failure> {
    let is_there = sources.join("sources/abi/Cargo.toml").is_file();
    let absolute = sources.canonicalize().ok().filter(|_| is_there);
    absolute.ok_or_else(|| {
        let shown = sources.display();
        Failure::Usage(format!("--sources {shown}: there is no source code of Wholegrain, with sources/abi/Cargo.toml"))
    })
}

/// A template with its words.
fn filled(text: &str, name: &str, template: &PluginTemplate, sources: &Path) -> String {
    let text = text.replace("@LIBRARY@", template.library).replace("@FILES@", template.installed);
    let text = text.replace("@BUILD@", template.build).replace("@TEST@", template.test);
    text.replace("@NAME@", name).replace("@SOURCES@", &sources.to_string_lossy())
}

fn make(dir: &Path, name: &str, template: &PluginTemplate, sources: &Path) -> Result<(), Failure> {
    let failed =
        |path: &Path, error: std::io::Error| Failure::Failed(format!("cannot make {}: {error}", path.display()));
    // Its code will run with the agent's rights: nobody else may exchange the folder, or put files into it while it is made.
    check_above(&std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())).map_err(Failure::Usage)?;
    // Whatever the umask: the agent's user has to read them, and no other user may ever write to them.
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    let make_folder = |path: &Path| fs::DirBuilder::new().mode(0o755).create(path).and_then(|()| set(path, 0o755));
    make_folder(dir).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            Failure::Usage(format!("{} exists already; name another folder with --dir", dir.display()))
        }
        _ => failed(dir, error),
    })?;
    for (file, text) in template.files.iter().chain(COMMON) {
        let path = dir.join(file.replace("@NAME@", name));
        let folder = path.parent().unwrap_or(dir);
        let text = filled(text, name, template, sources);
        if !folder.exists() {
            make_folder(folder).map_err(|error| failed(folder, error))?;
        }
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.and_then(|()| set(&path, 0o644)).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_template_is_filled_in() {
        let parent = tempfile::tempdir().unwrap();
        for (name, template) in [("one", &C), ("two", &RUST), ("three", &PYTHON)] {
            let dir = parent.path().join(name);
            make(&dir, name, template, Path::new("/src/wholegrain")).ok().unwrap();
            for (file, _) in template.files.iter().chain(COMMON) {
                let text = fs::read_to_string(dir.join(file.replace("@NAME@", name))).unwrap();
                assert!(!text.contains('@') || text.contains("$@"), "{file}: {text}");
            }
            assert!(make(&dir, name, template, Path::new("")).is_err(), "it exists");
        }
    }

    #[test]
    fn no_folder_is_made_where_everybody_could_exchange_it() {
        use std::os::unix::fs::MetadataExt;
        let parent = tempfile::tempdir().unwrap();
        let set = |mode| fs::set_permissions(parent.path(), fs::Permissions::from_mode(mode)).unwrap();
        set(0o777);
        let refused = make(&parent.path().join("a"), "a", &C, Path::new(""));
        assert!(matches!(refused, Err(Failure::Usage(_))) && !parent.path().join("a").exists());
        set(0o1777);
        let dir = parent.path().join("a");
        make(&dir, "a", &PYTHON, Path::new("")).ok().unwrap();
        for path in [dir.clone(), dir.join("recorded"), dir.join("a.py")] {
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o022, 0, "{}", path.display());
        }
    }

    #[test]
    fn names() {
        for (name, good) in [("a", true), ("pdu_2", true), ("2a", false), ("", false), ("a-b", false), ("../a", false)]
        {
            assert_eq!(check_name(name).is_ok(), good, "{name}");
        }
    }
}
