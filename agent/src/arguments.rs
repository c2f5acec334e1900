//! The arguments of the agent's command line.

use std::ffi::OsString;
use std::path::PathBuf;

use lexopt::prelude::{Long, Short};
use lexopt::{Arg, Error, ValueExt};
use wholegrain_model::LogLevel;
use wholegrain_model::suggest::nearest;

/// The text that `--help` prints.
pub const HELP: &str = "\
Samples this machine and sends the readings to a Wholegrain server

Usage: wholegrain-agent --config FILE [--check | --once] [OPTIONS]

Options:
  -c, --config FILE      The configuration file to read
      --check            Validate, list groups with sensors, interval, topic and estimated rates, and exit
      --once             Sample every group once, print it, and exit
      --format FORMAT    The format of --check and --once: text (default), or json for programs
      --log-level LEVEL  The lowest severity to log: error, warn, info, debug or trace; overrides log_level of the
                         configuration until the next reload
  -h, --help             Print help
  -V, --version          Print the version

Examples:
  wholegrain-agent --config /etc/wholegrain/agent.toml --check   validate, show the groups, topics and rates
  wholegrain-agent --config agent.toml --once --format json      read every sensor once
  wholegrain-agent --config agent.toml                           run until SIGTERM or SIGINT

Exit codes: 0 done, 1 failed, 2 arguments or configuration are wrong.
While it runs, `wholegrain ctl` controls it over its socket.
";

const OPTIONS: [&str; 7] = ["config", "check", "once", "format", "log-level", "help", "version"];

/// What the agent does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Action {
    #[default]
    Run,
    Check,
    Once,
    Help,
    Version,
}

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people to read.
    #[default]
    Text,
    /// For programs, as JSON.
    Json,
}

/// The parsed command line.
#[derive(Debug, Default, PartialEq)]
pub struct Arguments {
    pub config: PathBuf,
    pub action: Action,
    pub format: Format,
    pub log_level: Option<LogLevel>,
}

/// Parses the arguments after the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, Error> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let (mut parsed, mut config) = (Arguments::default(), None);
    while let Some(argument) = parser.next()? {
        match argument {
            Short('c') | Long("config") => config = Some(parser.value()?.into()),
            Long("check") => parsed.decide(Action::Check)?,
            Long("once") => parsed.decide(Action::Once)?,
            Long("format") => parsed.format = parser.value()?.parse_with(format)?,
            Long("log-level") => parsed.log_level = Some(parser.value()?.parse_with(str::parse::<LogLevel>)?),
            Short('h') | Long("help") => return Ok(Arguments { action: Action::Help, ..parsed }),
            Short('V') | Long("version") => return Ok(Arguments { action: Action::Version, ..parsed }),
            other => return Err(unexpected(other)),
        }
    }
    parsed.config = config.ok_or("--config FILE is missing")?;
    Ok(parsed)
}

impl Arguments {
    fn decide(&mut self, action: Action) -> Result<(), Error> {
        if !matches!(self.action, Action::Run) && self.action != action {
            return Err("--check and --once cannot be used together".into());
        }
        self.action = action;
        Ok(())
    }
}

fn format(name: &str) -> Result<Format, &'static str> {
    match name {
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        _ => Err("the formats are text and json"),
    }
}

fn unexpected(argument: Arg<'_>) -> Error {
    let suggestion = match argument {
        Long(name) => nearest(name, OPTIONS).map(|known| format!("; did you mean --{known}?")),
        _ => None,
    };
    format!("{}{}", argument.unexpected(), suggestion.unwrap_or_default()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Arguments, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_parsed() {
        let expected = Arguments { config: "a.toml".into(), ..Arguments::default() };
        assert_eq!(parsed("--config a.toml"), Ok(expected));
        let expected = Arguments {
            config: "a.toml".into(),
            action: Action::Once,
            format: Format::Json,
            log_level: Some(LogLevel::Debug),
        };
        assert_eq!(parsed("--once --format=json -c a.toml --log-level debug"), Ok(expected));
        assert_eq!(parsed("--help").map(|parsed| parsed.action), Ok(Action::Help));
        assert_eq!(parsed("-V").map(|parsed| parsed.action), Ok(Action::Version));
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (line, message) in [
            ("", "--config FILE is missing"),
            ("--config", "missing argument for option '--config'"),
            ("-c a --check --once", "--check and --once cannot be used together"),
            ("-c a --chek", "invalid option '--chek'; did you mean --check?"),
            ("-c a b", "unexpected argument \"b\""),
            ("-c a --format xml", "the formats are text and json"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(message), "{line}: {error}");
        }
        assert!(parsed("-c a --log-level loud").is_err());
    }
}
