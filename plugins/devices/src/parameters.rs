//! Parameters in names and settings: `{rack}` stands for the value of `rack`; `{{` and `}}` for braces.

use std::collections::BTreeMap;

use wholegrain_model::config::unknown;

/// The values of a device's parameters, by name.
pub type Parameters = BTreeMap<String, String>;

/// Replaces each `{name}` in `text`.
pub fn substitute(text: &str, parameters: &Parameters) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        let Some((name, after)) = rest.split_once('}').filter(|_| brace == "{") else {
            return Err(format!("{text:?} has a single `{brace}`; write {{name}}, or `{brace}{brace}` for a brace"));
        };
        let Some(value) = parameters.get(name) else {
            let known: Vec<&str> = parameters.keys().map(String::as_str).collect();
            return Err(format!("{text:?}: {}; give it in `parameters`", unknown("parameter", name, &known)));
        };
        out.push_str(value);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether a text has parameters or braces to replace.
pub fn has_parameters(value: &toml::Value) -> bool {
    match value {
        toml::Value::String(text) => text.contains(['{', '}']),
        toml::Value::Array(values) => values.iter().any(has_parameters),
        toml::Value::Table(table) => table.values().any(has_parameters),
        _ => false,
    }
}

/// Replaces the parameters in all texts of a value.
pub fn substitute_value(value: &mut toml::Value, parameters: &Parameters) -> Result<(), String> {
    match value {
        toml::Value::String(text) => *text = substitute(text, parameters)?,
        toml::Value::Array(values) => {
            values.iter_mut().try_for_each(|value| substitute_value(value, parameters))?;
        }
        toml::Value::Table(table) => {
            table.iter_mut().try_for_each(|(_, value)| substitute_value(value, parameters))?;
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_substituted() {
        let parameters: Parameters =
            [("rack", "r7"), ("host", "pdu1")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let check = |text: &str, expected: &str| assert_eq!(substitute(text, &parameters).unwrap(), expected);
        check("plain", "plain");
        check("{rack}/{host}/x", "r7/pdu1/x");
        check("{{rack}}", "{rack}");
        for (text, part) in [
            ("{rak}", "unknown parameter `rak`; did you mean `rack`?"),
            ("{rack", "a single `{`"),
            ("rack}", "a single `}`"),
        ] {
            let error = substitute(text, &parameters).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
