//! The end of each help text: the notation of patterns, times and lengths, the examples, the exit codes.

use clap::Command;

use crate::failure::EXIT_CODES;

const PATTERNS: &str = "\
Patterns: * in a level of a sensor's path stands for any text, ** as a level for any number of levels. A pattern that does not begin \
with / matches at any depth: MemAvailable, 'cpu/*/user', '/lab/**/power'. Quote patterns, so that the shell does not expand them.";

const TIMES: &str = "\
Times: RFC 3339 (2026-01-31T12:00:00Z), a date (2026-01-31), a time of today (14:00), today, yesterday, 'yesterday 14:00', Unix seconds \
(@1769860800), now, or relative to now (-10m, -1w); --to +10m is relative to --from. Without a zone, times are UTC; a zone may follow \
('2026-01-31 13:00 Europe/Berlin', '14:00 Europe/Berlin'). A local time that a clock change skips or repeats is refused. A leap second, \
23:59:60 UTC at the end of a month, is the second after it.";

const LENGTHS: &str = "\
Lengths: a number and a unit, one of ns, us, ms, s, min (or m), h, d, w: 100ms, 10s, 1h30m.";

/// Completes the help of a command and of its subcommands: the notation of its arguments comes before the command's own text, the exit codes
/// after it.
pub fn complete(command: Command) -> Command {
    let takes = |kind: &str| {
        let mut names = command.get_arguments().filter_map(|argument| argument.get_value_names()).flatten();
        names.any(|name| name.ends_with(kind))
    };
    let notations = [("PATTERN", PATTERNS), ("TIME", TIMES), ("LENGTH", LENGTHS)];
    let mut sections: Vec<String> =
        notations.into_iter().filter(|(kind, _)| takes(kind)).map(|(_, text)| text.to_owned()).collect();
    sections.extend(command.get_after_help().map(ToString::to_string));
    if !sections.iter().any(|section| section.contains("Exit codes:")) {
        sections.push(EXIT_CODES.to_owned());
    }
    command.after_help(sections.join("\n\n")).mut_subcommands(complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_examples(command: &Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Exit codes:") && help.contains("Examples:"), "{path}: {help}");
        let leaf_name = path.trim();
        assert!(help.contains(leaf_name), "no example of {path}: {help}");
        command.get_subcommands().for_each(|command| check_examples(command, &path));
    }

    #[test]
    fn every_subcommand_has_examples_of_itself_and_exit_codes() {
        check_examples(&crate::command_line(), "");
    }
}
