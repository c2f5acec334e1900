//! `wholegrain auth`: passwords of agents, as an alternative to certificates.

use std::io::{self, BufRead, IsTerminal, Write};
use std::mem::MaybeUninit;

use clap::{Args, Subcommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{EXIT_CODES, Failure};

/// The longest password, in bytes; MQTT itself allows 65 535.
const PASSWORD_BYTES_MAX: u64 = 1024;

const EXAMPLES: &str = "\
Examples:
  wholegrain auth hash --user node0042 >> /etc/wholegrain/passwords";

const HASH_EXAMPLES: &str = "\
The password is asked for on the terminal and not shown, or is one line of standard input; it never stands on the command line, \
where others could see it. The server reads the file that [mqtt] password_file of server.toml names when it starts. The agent \
has user and password_file, with the password itself in the first line, in its [mqtt].

Examples:
  wholegrain auth hash --user node0042 >> /etc/wholegrain/passwords
  openssl rand -base64 24 | tee password | wholegrain auth hash --user node0042";

/// Make passwords for agents that have no certificate
#[derive(Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"), arg_required_else_help = true)]
pub struct AuthArgs {
    #[command(subcommand)]
    command: AuthCommand,
}

#[derive(Subcommand)]
enum AuthCommand {
    Hash(HashArgs),
}

/// Read a password and print its hash, for the server's password file
#[derive(Args)]
#[command(after_help = format!("{HASH_EXAMPLES}\n\n{EXIT_CODES}"))]
struct HashArgs {
    /// Print a whole line of the password file, NAME:HASH; the user is the agent's name [default: the hash alone]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

/// Runs the subcommand.
pub fn run(args: &AuthArgs) -> Result<(), Failure> {
    let AuthCommand::Hash(args) = &args.command;
    let user = args.user.as_deref();
    if let Some(user) = user {
        check_user(user)?;
    }
    let password = if io::stdin().is_terminal() { ask(user)? } else { read_line(io::stdin().lock())? };
    check_password(&password)?;
    let hash = wholegrain_server::broker::auth::hash_password(&password).map_err(Failure::Failed)?;
    let line = user.map_or_else(|| format!("{hash}\n"), |user| format!("{user}:{hash}\n"));
    io::stdout().write_all(line.as_bytes()).map_err(Failure::writing("standard output"))
}

/// The server takes only names that can be an agent's, and the file's first `:` ends the name.
fn check_user(user: &str) -> Result<(), Failure> {
    let reason = match wholegrain_model::name::check_relative(user) {
        Err(error) => error.to_string(),
        Ok(()) if user.contains(['/', ':']) => "one level of a sensor path without `/` and `:` is wanted".to_owned(),
        Ok(()) if user.starts_with('#') => "a line that begins with # is a remark".to_owned(),
        Ok(()) => return Ok(()),
    };
    Err(Failure::Usage(format!("--user {user:?} cannot be an agent's name: {reason}")))
}

fn check_password(password: &str) -> Result<(), Failure> {
    let wrong = match password {
        "" => "is empty",
        text if text.len() as u64 > PASSWORD_BYTES_MAX => "is longer than 1024 bytes",
        text if text.trim() != text => "begins or ends with a space, which an agent's password file cannot say",
        text if text.chars().any(char::is_control) => "has control characters",
        _ => return Ok(()),
    };
    Err(Failure::Usage(format!("the password {wrong}; choose another")))
}

/// One line without its end.
fn read_line(input: impl BufRead) -> Result<String, Failure> {
    let mut line = String::new();
    // More than the longest, so that a longer one is refused and not cut.
    let read = input.take(PASSWORD_BYTES_MAX + 3).read_line(&mut line);
    read.map_err(|error| Failure::Usage(format!("cannot read the password: {error}")))?;
    let end = line.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    Ok(end.unwrap_or(&line).to_owned())
}

/// Asks twice on the terminal, without echo.
fn ask(user: Option<&str>) -> Result<String, Failure> {
    let whose = user.map_or(String::new(), |user| format!(" of {user}"));
    let silence = Silence::begin().map_err(|error| {
        Failure::Failed(format!("cannot switch off the terminal's echo: {error}; send the password on standard input"))
    })?;
    let line = |question: &str| -> Result<String, Failure> {
        eprint!("{question}: ");
        let line = read_line(io::stdin().lock());
        eprintln!();
        line
    };
    let first = line(&format!("Password{whose}"))?;
    check_password(&first)?;
    let second = line("The same again")?;
    drop(silence);
    if first != second { Err(Failure::Usage("the two are not the same; try again".into())) } else { Ok(first) }
}

/// While it lives, the terminal of standard input shows nothing of what is typed.
struct Silence(libc::termios);

impl Silence {
    fn begin() -> io::Result<Self> {
        let mut before = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: tcgetattr writes the whole structure when it succeeds.
        let before = unsafe {
            if libc::tcgetattr(libc::STDIN_FILENO, before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            before.assume_init()
        };
        let mut silent = before;
        silent.c_lflag &= !libc::ECHO;
        // A signal, such as Ctrl-C, must not leave the terminal mute.
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                set(&before);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
        if !set(&silent) {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        set(&self.0);
    }
}

fn set(termios: &libc::termios) -> bool {
    // SAFETY: tcsetattr only reads the structure, which tcgetattr has filled.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, termios) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lose_their_end_and_nothing_else() {
        for (input, expected) in [("a b\n", "a b"), ("a\r\nb\n", "a"), ("a", "a"), ("", ""), (" a\n", " a")] {
            assert_eq!(read_line(input.as_bytes()).unwrap(), expected);
        }
        let long = "x".repeat(2000);
        assert!(check_password(&read_line(long.as_bytes()).unwrap()).is_err(), "refused, not cut");
    }

    #[test]
    fn what_could_not_be_typed_into_the_files_is_refused() {
        for password in ["", " a", "a\t", "a\u{7}b"] {
            assert!(check_password(password).is_err(), "{password:?}");
        }
        check_password("correct horse: bättery").unwrap();
        for user in ["", "a/b", "a:b", "a b", "#a"] {
            assert!(check_user(user).is_err(), "{user:?}");
        }
        check_user("node-0042.rack7").unwrap();
    }
}
