//! A password from the terminal or from standard input; never from the command line.

use std::io::{self, BufRead, IsTerminal};
use std::mem::MaybeUninit;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;

/// The longest password, in bytes; MQTT itself allows 65 535.
const PASSWORD_BYTES_MAX: u64 = 1024;

/// Asks for the password of `user`, twice and without echo, on a terminal; else reads one line of standard input.
pub fn read(user: Option<&str>) -> Result<String, Failure> {
    let password = if io::stdin().is_terminal() { prompt(user)? } else { read_line(io::stdin().lock())? };
    check_password(&password)?;
    Ok(password)
}

fn check_password(password: &str) -> Result<(), Failure> {
    let wrong = match password {
        "" => "is empty",
        text if text.len() as u64 > PASSWORD_BYTES_MAX => "is longer than 1024 bytes",
        text if text.trim() != text => "begins or ends with a space, which an agent's password file cannot have",
        text if text.chars().any(char::is_control) => "has control characters",
        _ => return Ok(()),
    };
    Err(Failure::Usage(format!("the password {wrong}; choose another")))
}

/// One line without its end.
fn read_line(input: impl BufRead) -> Result<String, Failure> {
    let mut line = String::new();
    // Reads more than the limit, so that a longer password is refused and not cut.
    let read = input.take(PASSWORD_BYTES_MAX + 3).read_line(&mut line);
    read.map_err(|error| Failure::Failed(format!("cannot read the password: {error}")))?;
    let end = line.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    Ok(end.unwrap_or(&line).to_owned())
}

/// Reads the password twice from the terminal, without echo.
fn prompt(user: Option<&str>) -> Result<String, Failure> {
    let of_user = user.map_or(String::new(), |user| format!(" of {user}"));
    let echo_off = EchoOff::begin().map_err(|error| {
        Failure::Failed(format!("cannot switch off the terminal's echo: {error}; give the password on standard input"))
    })?;
    let line = |question: &str| -> Result<String, Failure> {
        eprint!("{question}: ");
        let line = read_line(io::stdin().lock());
        eprintln!();
        line
    };
    let first = line(&format!("Password{of_user}"))?;
    check_password(&first)?;
    let second = line("Repeat the password")?;
    drop(echo_off);
    if first != second { Err(Failure::Usage("the passwords differ; try again".into())) } else { Ok(first) }
}

/// Switches off the echo of the terminal of standard input until it is dropped. Holds the earlier settings.
struct EchoOff(libc::termios);

impl EchoOff {
    fn begin() -> io::Result<Self> {
        let mut before = MaybeUninit::<libc::termios>::uninit();
        // SAFETY: tcgetattr writes the whole structure when it succeeds.
        let before = unsafe {
            if libc::tcgetattr(libc::STDIN_FILENO, before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error());
            }
            before.assume_init()
        };
        let mut no_echo = before;
        no_echo.c_lflag &= !libc::ECHO;
        // A signal such as Ctrl-C must not leave the terminal without echo.
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT])?;
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                set(&before);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        });
        if !set(&no_echo) {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(before))
    }
}

impl Drop for EchoOff {
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
    }
}
