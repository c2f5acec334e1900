//! Colours, on terminals only. `NO_COLOR` (any value that is not empty) and `TERM=dumb` switch them off.

use std::io::IsTerminal;

/// Whether a stream has colours.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    on: bool,
}

pub fn on_stdout() -> Style {
    Style { on: std::io::stdout().is_terminal() && wanted() }
}

pub fn on_stderr() -> Style {
    Style { on: std::io::stderr().is_terminal() && wanted() }
}

fn wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

impl Style {
    pub const PLAIN: Style = Style { on: false };

    fn paint(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// The word that begins an error.
    pub fn error(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    pub fn head(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Text of less importance.
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_plain() {
        assert_eq!(Style::PLAIN.head("SENSOR"), "SENSOR");
        assert_eq!(Style { on: true }.error("x"), "\x1b[1;31mx\x1b[0m");
    }
}
