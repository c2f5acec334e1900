//! The packages: built, inspected, installed below a separate root, removed; the Debian ones are also run, upgraded and purged. Nothing outside of
//! that root is touched.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use wholegrain_testing::{Process, checkout, free_port, program, wait_until};

/// The upper bound of `systemd-analyze security` for each unit, in tenths; docs/operation.md has the same values.
const EXPOSURE_MAX: [(&str, u32); 2] = [("wholegrain-server", 11), ("wholegrain-agent", 21)];

#[track_caller]
fn good(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The four packages of a format from the built programs: client, server, agent, plug-ins.
fn build(out: &Path, format: &str) -> [PathBuf; 4] {
    let bin = program("wholegrain").parent().expect("a folder").to_owned();
    let mut build = Command::new(checkout().join("packaging/build"));
    let said = good(build.args(["--fast", "--format", format, "--bin"]).arg(bin).arg("--out").arg(out));
    let made: Vec<PathBuf> = said.lines().map(PathBuf::from).collect();
    made.try_into().unwrap_or_else(|made| panic!("four packages are expected: {made:?}"))
}

/// The same package in an older version, whose configuration has another comment.
fn older(package: &Path, dir: &Path) -> PathBuf {
    let tree = dir.join("older");
    good(Command::new("dpkg-deb").arg("-R").arg(package).arg(&tree));
    let control = tree.join("DEBIAN/control");
    let changed: String = read(&control)
        .lines()
        .map(|line| if line.starts_with("Version:") { "Version: 0.0.1\n".to_owned() } else { format!("{line}\n") })
        .collect();
    fs::write(&control, changed).expect("a control file");
    let config = tree.join("etc/wholegrain/server.toml");
    fs::write(&config, format!("# of the older version\n{}", read(&config))).expect("a configuration");
    let made = dir.join("older.deb");
    good(Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "-b"]).arg(&tree).arg(&made));
    made
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A root directory with dpkg's own files and two user lists only.
struct Root(tempfile::TempDir);

impl Root {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        for sub in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/log", "etc", "tmp"] {
            fs::create_dir_all(dir.path().join(sub)).expect("a folder");
        }
        fs::write(dir.path().join("var/lib/dpkg/status"), "").expect("a file");
        fs::write(dir.path().join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").expect("a file");
        fs::write(dir.path().join("etc/group"), "root:x:0:\n").expect("a file");
        Self(dir)
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.0.path().join(relative)
    }

    fn dpkg(&self, arguments: &[&str], package: &Path) -> Output {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.0.path().display())).args([
            "--force-script-chrootless",
            "--force-depends",
            "--force-confdef",
            "--force-confold",
        ]);
        let output = dpkg.args(arguments).arg(package).env("DEBIAN_FRONTEND", "noninteractive").output().expect("dpkg");
        assert!(output.status.success(), "{dpkg:?}: {}{}", text(&output.stdout), text(&output.stderr));
        output
    }

    fn owner(&self, relative: &str) -> (u32, u32, u32) {
        let meta = fs::metadata(self.path(relative)).unwrap_or_else(|e| panic!("{relative}: {e}"));
        (meta.uid(), meta.gid(), meta.mode() & 0o7777)
    }

    fn id(&self, user: &str) -> u32 {
        let passwd = read(&self.path("etc/passwd"));
        let line = passwd.lines().find_map(|line| line.strip_prefix(&format!("{user}:"))).expect("the user");
        line.split(':').nth(1).and_then(|id| id.parse().ok()).expect("a number")
    }

    /// Returns a command of a packaged program that runs as its unit's user.
    fn as_user(&self, user: &str, program: &str) -> Command {
        let id = self.id(user).to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(self.path(program));
        command
    }

    /// Writes a copy of the installed configuration for this root and free ports; returns its path.
    fn adapt(&self, file: &str, changes: &[(&str, &str)]) -> PathBuf {
        let root = self.0.path().display();
        let mut text = read(&self.path(&format!("etc/wholegrain/{file}")))
            .replace("\"/etc/", &format!("\"{root}/etc/"))
            .replace("\"/var/", &format!("\"{root}/var/"))
            .replace("\"/run/", &format!("\"{root}/run/"));
        for (from, to) in changes {
            assert!(text.contains(from), "{from:?} is not in {file}");
            text = text.replace(from, to);
        }
        let adapted = self.path(&format!("etc/wholegrain/adapted-{file}"));
        fs::write(&adapted, text).expect("a configuration");
        adapted
    }
}

fn is_root() -> bool {
    // SAFETY: a plain system call without arguments.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn packages_are_installed_run_upgraded_removed_and_purged() {
    assert!(is_root(), "dpkg installs as root only, below a folder of this test's own too; run the tests as root");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let [client, server, agent, plugins] = build(dir.path(), "deb");
    let root = Root::new();
    root.dpkg(&["-i"], &client);
    check_client(&root);
    root.dpkg(&["-i"], &older(&server, dir.path()));
    check_installed(&root);
    runs(&root, &server, &agent);
    check_plugins(&root, &plugins);

    // Upgrade: the administrator's changes stay, the new file is beside them.
    let config = root.path("etc/wholegrain/server.toml");
    fs::write(&config, read(&config) + "# mine\n").expect("a configuration");
    let key = read(&root.path("etc/wholegrain/server.key"));
    root.dpkg(&["-i"], &server);
    assert!(read(&config).starts_with("# of the older version") && read(&config).ends_with("# mine\n"));
    assert!(!read(&root.path("etc/wholegrain/server.toml.dpkg-dist")).contains("older version"));
    assert_eq!(read(&root.path("etc/wholegrain/server.key")), key, "certificates are made once");
    assert!(root.path("var/lib/wholegrain/store").is_dir());

    // Removal: configuration and data stay.
    root.dpkg(&["-r"], Path::new("wholegrain-server"));
    assert!(!root.path("usr/lib/systemd/system/wholegrain-server.service").exists());
    assert!(
        config.exists()
            && root.path("etc/wholegrain/ca.key").exists()
            && root.path("var/lib/wholegrain/store").is_dir()
    );

    // Purge: nothing of the server remains, and nothing of the agent is touched. A revocation has its own file.
    fs::write(root.path("etc/wholegrain/revoked"), "name node\n").expect("a file");
    root.dpkg(&["-P"], Path::new("wholegrain-server"));
    fs::remove_file(root.path("etc/wholegrain/adapted-server.toml")).expect("our own file");
    let left: Vec<String> = fs::read_dir(root.path("etc/wholegrain"))
        .expect("the agent's folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| !name.contains("agent") && !name.starts_with("node"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!root.path("var/lib/wholegrain").exists() && root.path("var/lib/wholegrain-agent").is_dir());
    for file in ["adapted-agent.toml", "node.pem", "node.key", "node-ca.pem"] {
        fs::remove_file(root.path(&format!("etc/wholegrain/{file}"))).expect("our own file");
    }
    root.dpkg(&["-P"], Path::new("wholegrain-agent"));
    assert!(!root.path("etc/wholegrain").exists() && !root.path("var/lib/wholegrain-agent").exists());
    for user in ["wholegrain", "wholegrain-agent"] {
        let named = |file: &str| read(&root.path(file)).lines().any(|line| line.starts_with(&format!("{user}:")));
        assert!(!named("etc/passwd") && !named("etc/group"), "{user} stays");
    }
    root.dpkg(&["-P"], Path::new("wholegrain-client"));
    let left =
        good(Command::new("find").arg(root.path("")).args(["-iname", "*wholegrain*", "-not", "-path", "*/tmp/*"]));
    let ours = |path: &&str| !path.contains("/var/lib/dpkg/") && !path.contains("/var/log/");
    assert!(left.lines().filter(ours).count() == 0, "{left}");
}

/// The command line alone: no service, no user, no configuration.
fn check_client(root: &Root) {
    let said = good(Command::new(root.path("usr/bin/wholegrain")).arg("--version"));
    assert!(said.contains(env!("CARGO_PKG_VERSION")), "{said}");
    for file in [
        "usr/share/man/man1/wholegrain.1.gz",
        "usr/share/man/man1/wholegrain-query.1.gz",
        "usr/share/man/man1/wholegrain-doctor.1.gz",
        "usr/share/bash-completion/completions/wholegrain",
        "usr/share/zsh/vendor-completions/_wholegrain",
        "usr/share/fish/vendor_completions.d/wholegrain.fish",
    ] {
        assert!(root.path(file).is_file(), "{file}");
    }
    for nothing in ["usr/lib/systemd", "etc/systemd", "etc/wholegrain", "usr/lib/sysusers.d", "var/lib/wholegrain"] {
        assert!(!root.path(nothing).exists(), "{nothing}");
    }
    assert_eq!(read(&root.path("etc/passwd")).lines().count(), 1);
}

fn check_installed(root: &Root) {
    let id = root.id("wholegrain");
    assert!(id > 0 && id < 1000, "{id} is no system user");
    for (file, expected) in [
        ("usr/bin/wholegrain", (0, 0, 0o755)),
        ("etc/wholegrain/server.toml", (0, 0, 0o644)),
        ("etc/wholegrain/ca.pem", (0, 0, 0o644)),
        ("etc/wholegrain/ca.key", (0, 0, 0o600)),
        ("etc/wholegrain/server.key", (0, id, 0o640)),
        ("etc/wholegrain/tokens", (0, id, 0o640)),
        ("etc/wholegrain/token", (0, 0, 0o600)),
        ("var/lib/wholegrain", (id, id, 0o750)),
    ] {
        assert_eq!(root.owner(file), expected, "{file}");
    }
    for file in [
        "usr/lib/systemd/system/wholegrain-server.service",
        "usr/share/doc/wholegrain-server/copyright",
        "usr/share/doc/wholegrain-server/changelog.gz",
    ] {
        assert!(root.path(file).is_file(), "{file}");
    }
    let enabled = root.path("etc/systemd/system/multi-user.target.wants/wholegrain-server.service");
    assert!(fs::symlink_metadata(enabled).is_ok(), "the service is not enabled");
}

/// Server and agent with the installed configurations, each as its own user; a reading reaches the server.
fn runs(root: &Root, server_package: &Path, agent_package: &Path) {
    assert!(server_package.exists());
    root.dpkg(&["-i"], agent_package);
    let (mqtt, http) = (free_port().to_string(), free_port().to_string());
    let config = root.adapt(
        "server.toml",
        &[("[::]:8883", &format!("127.0.0.1:{mqtt}")), ("[::]:8443", &format!("127.0.0.1:{http}"))],
    );
    let mut command = root.as_user("wholegrain", "usr/bin/wholegrain");
    let mut server = Process::start(command.arg("server").arg("--config").arg(&config), &root.path("tmp/server.log"));

    let client = root.path("etc/wholegrain/client.toml");
    let wholegrain = |arguments: &[&str]| {
        let mut command = Command::new(root.path("usr/bin/wholegrain"));
        command.args(arguments).env("WHOLEGRAIN_CLIENT", root.path("tmp/client.toml")).output().expect("wholegrain")
    };
    let adapted = read(&client)
        .replace("8443", &http)
        .replace("\"token\"", "\"../etc/wholegrain/token\"")
        .replace("\"ca.pem\"", "\"../etc/wholegrain/ca.pem\"");
    fs::write(root.path("tmp/client.toml"), adapted).expect("a configuration");
    wait_until("the installed server answers", || {
        assert!(server.runs(), "{}", server.log());
        matches!(wholegrain(&["sensors"]).status.code(), Some(0 | 1))
    });

    let etc = root.path("etc/wholegrain");
    good(Command::new(root.path("usr/bin/wholegrain")).args(["ca", "agent", "node", "--dir"]).arg(&etc));
    for (from, to) in [("agents/node.pem", "node.pem"), ("agents/node.key", "node.key"), ("ca.pem", "node-ca.pem")] {
        fs::copy(etc.join(from), etc.join(to)).expect("a copy");
    }
    let id = root.id("wholegrain-agent");
    std::os::unix::fs::chown(etc.join("node.key"), Some(0), Some(id)).expect("an owner");
    fs::set_permissions(etc.join("node.key"), fs::Permissions::from_mode(0o640)).expect("a mode");
    fs::create_dir_all(root.path("run/wholegrain")).expect("a folder");
    std::os::unix::fs::chown(root.path("run/wholegrain"), Some(id), Some(id)).expect("an owner");
    let transport = format!(
        "[mqtt]\nurl = \"mqtts://localhost:{mqtt}\"\nca = \"node-ca.pem\"\ncert = \"node.pem\"\nkey = \"node.key\"\n[spool]\ndir = \"{}\"\n[cache]",
        root.path("var/lib/wholegrain-agent/spool").display()
    );
    let config = root.adapt("agent.toml", &[("# name = \"node0042\"", "name = \"node\""), ("[cache]", &transport)]);
    let mut command = root.as_user("wholegrain-agent", "usr/bin/wholegrain-agent");
    let mut agent = Process::start(command.arg("--config").arg(&config), &root.path("tmp/agent.log"));
    wait_until("a reading of the installed agent", || {
        assert!(agent.runs(), "{}", agent.log());
        wholegrain(&["query", "/node/meminfo/MemAvailable", "--from", "-1m"]).status.code() == Some(0)
    });
    // `ctl` on a node needs only this package.
    let socket = root.path("run/wholegrain/agent.sock");
    let status = good(Command::new(root.path("usr/bin/wholegrain")).args(["ctl", "status", "--socket"]).arg(socket));
    assert!(status.contains("node"), "{status}");
    assert_eq!((agent.stop().code(), server.stop().code()), (Some(0), Some(0)));
    assert!(root.path("var/lib/wholegrain/store").is_dir());
}

/// All plug-ins are there with an example and a page, and the installed agent loads them.
fn check_plugins(root: &Root, package: &Path) {
    root.dpkg(&["-i"], package);
    let folder = root.path("usr/lib/wholegrain/plugins");
    let doc = root.path("usr/share/doc/wholegrain-plugins");
    let names: Vec<String> = fs::read_dir(checkout().join("plugins"))
        .expect("the plug-ins")
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| read(&entry.path().join("Cargo.toml")).contains("cdylib"))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in &names {
        assert_eq!(root.owner(&format!("usr/lib/wholegrain/plugins/{name}.so")), (0, 0, 0o644));
        assert!(
            doc.join(format!("examples/{name}.toml")).is_file() && doc.join(format!("{name}.md")).is_file(),
            "{name}"
        );
    }
    assert_eq!(fs::read_dir(&folder).expect("the folder").count(), names.len());

    // One page of an exporter that does not exist: the plug-in is loaded, configured and polls.
    let config = root.path("tmp/plugins.toml");
    let settings = format!(
        "prefix = \"/centre\"\nname = \"hall\"\n[plugins]\ndir = \"{}\"\n[plugins.scrape]\nfirst_answers = \"100ms\"\n\
         [[plugins.scrape.device]]\nhosts = [\"127.0.0.1:{}\"]\n",
        folder.display(),
        free_port()
    );
    fs::write(&config, settings).expect("a configuration");
    let mut check = root.as_user("wholegrain-agent", "usr/bin/wholegrain-agent");
    let said = check.arg("--config").arg(&config).arg("--check").output().expect("the agent");
    let said = format!("{}{}", text(&said.stdout), text(&said.stderr));
    assert!(said.contains("the device has not answered yet"), "{said}");
    root.dpkg(&["-r"], Path::new("wholegrain-plugins"));
    assert!(!folder.exists());
}

#[test]
fn packages_follow_debian_policy() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for package in build(dir.path(), "deb") {
        let field = |name: &str| good(Command::new("dpkg-deb").arg("-f").arg(&package).arg(name)).trim().to_owned();
        assert_eq!(field("Version"), env!("CARGO_PKG_VERSION"));
        let same = format!("wholegrain-client (= {})", env!("CARGO_PKG_VERSION"));
        let agent = format!("wholegrain-agent (= {})", env!("CARGO_PKG_VERSION"));
        let wanted = match field("Package").as_str() {
            "wholegrain-client" => vec!["libc6 (>= 2."],
            "wholegrain-server" => vec![same.as_str()],
            "wholegrain-plugins" => vec!["libc6 (>= 2.", agent.as_str()],
            _ => vec!["libc6 (>= 2.", same.as_str()],
        };
        wanted.iter().for_each(|part| assert!(field("Depends").contains(part), "{}", field("Depends")));
        let listing = good(Command::new("dpkg-deb").arg("-c").arg(&package));
        for line in listing.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (mode, owner, path) = (fields[0], fields[1], fields[5]);
            assert_eq!(owner, "root/root", "{line}");
            assert!(&mode[5..6] != "w" && &mode[8..9] != "w" && !mode.contains('s'), "{line}");
            let known = [
                "./usr/bin/",
                "./usr/lib/systemd/system/",
                "./usr/lib/sysusers.d/",
                "./usr/lib/wholegrain/hooks/",
                "./usr/lib/wholegrain/plugins/",
                "./usr/lib/wholegrain/programs/",
                "./usr/share/",
                "./etc/wholegrain/",
            ];
            assert!(path.ends_with('/') || known.iter().any(|known| path.starts_with(known)), "{line}");
        }
        let tree = dir.path().join("tree");
        good(Command::new("dpkg-deb").arg("-R").arg(&package).arg(&tree));
        let has_service = matches!(field("Package").as_str(), "wholegrain-server" | "wholegrain-agent");
        for script in ["postinst", "prerm", "postrm"] {
            if !has_service {
                assert!(
                    !tree.join("DEBIAN").join(script).exists(),
                    "{}: nothing to do at its installation",
                    field("Package")
                );
                continue;
            }
            good(Command::new("sh").arg("-n").arg(tree.join("DEBIAN").join(script)));
            assert!(read(&tree.join("DEBIAN").join(script)).contains("set -e\n"), "{script}");
        }
        for file in fs::read_to_string(tree.join("DEBIAN/conffiles")).unwrap_or_default().lines() {
            assert!(tree.join(file.trim_start_matches('/')).is_file(), "{file}");
        }
        good(Command::new("md5sum").args(["--quiet", "-c", "DEBIAN/md5sums"]).current_dir(&tree));
        fs::remove_dir_all(tree).expect("our own folder");
    }
}

#[test]
fn packages_for_enterprise_linux_have_dependencies_and_are_installed_and_removed() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let packages = build(dir.path(), "rpm");
    let ask = |package: &Path, what: &[&str]| good(Command::new("rpm").arg("-qp").args(what).arg(package));
    for (package, name) in packages.iter().zip(["client", "server", "agent", "plugins"]) {
        let said = ask(package, &["--qf", "%{NAME} %{VERSION} %{LICENSE}"]);
        assert_eq!(said, format!("wholegrain-{name} {} Apache-2.0", env!("CARGO_PKG_VERSION")));
        let has_service = matches!(name, "server" | "agent");
        let base = if name == "plugins" { "agent" } else { "client" };
        let same = format!("wholegrain-{base} = {}-1", env!("CARGO_PKG_VERSION"));
        let needs = ask(package, &["-R"]);
        assert_eq!(needs.lines().any(|line| line == same), name != "client", "{needs}");
        assert_eq!(needs.contains("libc.so.6"), name != "server", "{needs}");
        let scripts = ask(package, &["--scripts"]);
        assert_eq!(scripts.is_empty(), !has_service, "{scripts}");
        if has_service {
            assert!(
                scripts.contains("useradd -r") && scripts.contains(&format!("preset wholegrain-{name}.service")),
                "{scripts}"
            );
            assert_eq!(ask(package, &["-c"]).trim(), format!("/etc/wholegrain/{name}.toml"));
        }
        let owners = ask(package, &["--qf", "[%{FILEMODES:perms} %{FILEUSERNAME} %{FILENAMES}\n]"]);
        let strange = |line: &&str| !line.contains(" root ") || &line[8..9] == "w" || &line[5..6] == "w";
        assert_eq!(owners.lines().find(strange), None);
        let shell = dir.path().join("scripts");
        fs::write(&shell, ask(package, &["--qf", "%{PREIN}\n%{POSTIN}\n%{PREUN}\n%{POSTUN}\n"])).expect("a file");
        good(Command::new("sh").arg("-n").arg(shell));
    }
    let root = tempfile::tempdir().expect("a temporary folder");
    let rpm = |arguments: &[&str], packages: &[&Path]| {
        let mut rpm = Command::new("rpm");
        rpm.arg("--root").arg(root.path()).args(arguments).args(packages);
        good(&mut rpm)
    };
    rpm(&["--initdb"], &[]);
    // This root has no shell for the scripts.
    let all: Vec<&Path> = packages.iter().map(PathBuf::as_path).collect();
    rpm(&["-i", "--nodeps", "--noscripts"], &all);
    let said = good(Command::new(root.path().join("usr/bin/wholegrain")).arg("--version"));
    assert!(said.contains(env!("CARGO_PKG_VERSION")), "{said}");
    good(Command::new(root.path().join("usr/bin/wholegrain-agent")).arg("--version"));
    for file in ["etc/wholegrain/server.toml", "usr/lib/systemd/system/wholegrain-agent.service"] {
        assert!(root.path().join(file).is_file(), "{file}");
    }
    let names = ["wholegrain-plugins", "wholegrain-agent", "wholegrain-server", "wholegrain-client"];
    rpm(&["-e", "--noscripts"], &names.map(Path::new));
    let left = good(Command::new("find").arg(root.path()).args(["-iname", "*wholegrain*"]));
    assert_eq!(left, "");
}

#[test]
fn everything_has_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("python/pyproject.toml", format!("version = \"{version}\"")),
        ("runtime/python/pyproject.toml", format!("version = \"{version}\"")),
        ("python/wholegrain/__init__.py", format!("__version__ = \"{version}\"")),
    ] {
        assert!(read(&checkout().join(file)).lines().any(|found| found == line), "{file} has no line {line}");
    }
    for program in ["wholegrain", "wholegrain-agent"] {
        let said = good(Command::new(wholegrain_testing::program(program)).arg("--version"));
        assert_eq!(said.trim(), format!("{program} {version}"));
    }
}

#[test]
fn units_are_valid_and_as_exposed_as_documented() {
    let documents = read(&checkout().join("docs/operation.md"));
    for (unit, exposure) in EXPOSURE_MAX {
        let file = checkout().join(format!("packaging/{unit}.service"));
        let threshold = exposure.to_string();
        let said = good(
            Command::new("systemd-analyze")
                .args(["security", "--offline=true", "--no-pager", "--threshold", &threshold])
                .arg(&file),
        );
        let stated = format!("| `{unit}.service` | {}.{} |", exposure / 10, exposure % 10);
        assert!(documents.contains(&stated), "docs/operation.md does not say {stated}: {said}");
        // A copy with existing programs: the unit's program is not installed on this machine.
        let dir = tempfile::tempdir().expect("a temporary folder");
        let copy = dir.path().join(format!("{unit}.service"));
        fs::write(&copy, read(&file).replace("/usr/bin/wholegrain", "/bin/true ")).expect("a unit");
        let output =
            Command::new("systemd-analyze").args(["verify", "--man=no", "--recursive-errors=no"]).arg(&copy).output();
        let output = output.expect("systemd-analyze");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}

#[test]
fn the_agents_manual_names_every_option() {
    let manual = read(&checkout().join("packaging/wholegrain-agent.1")).replace('\\', "");
    let help = good(Command::new(program("wholegrain-agent")).arg("--help"));
    let options: Vec<&str> = help
        .split_whitespace()
        .filter(|word| word.starts_with("--"))
        .map(|word| word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()))
        .collect();
    assert!(options.len() > 5, "{help}");
    options.iter().for_each(|option| assert!(manual.contains(option), "{option}"));
}
