//! Lists of hosts with ranges: `pdu[01-40].mgmt`, `r[1-4]n[1,3,5-9]`, `10.0.0.[1-20]:1161`.

/// The most hosts of one source.
pub const HOSTS_MAX: usize = 100_000;
/// The longest name of a host, in bytes (RFC 1035, section 2.3.4).
const HOST_BYTES_MAX: usize = 253;
/// The most ranges in one name.
const RANGES_MAX: usize = 8;

/// A host of a list, after its ranges are expanded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeviceHost {
    /// The whole text, such as `pdu07.mgmt` or `10.0.0.7:1161`.
    pub text: String,
    /// The name or address without a port.
    pub name: String,
    /// The port after the name, if one is given.
    pub port: Option<u16>,
    /// The text that each range gave, from left to right: `07`.
    pub captures: Vec<String>,
}

/// Why a name with ranges was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("host {text:?}: {reason}")]
pub struct HostsError {
    text: String,
    reason: String,
}

/// A part of a name: text, or the values of a range.
enum Part {
    Text(String),
    Values(Vec<String>),
}

/// Expands one name. At most `most` hosts are allowed.
pub fn expand(text: &str, most: usize) -> Result<Vec<DeviceHost>, HostsError> {
    let refuse = |reason: String| HostsError { text: text.chars().take(80).collect(), reason };
    if text.len() > HOST_BYTES_MAX {
        return Err(refuse(format!("is {} bytes long; at most {HOST_BYTES_MAX} are allowed", text.len())));
    }
    let parts = split(text, most).map_err(refuse)?;
    let count = parts.iter().try_fold(1usize, |count, part| match part {
        Part::Text(_) => Some(count),
        Part::Values(values) => count.checked_mul(values.len()),
    });
    let Some(count) = count.filter(|count| *count <= most) else {
        return Err(refuse(format!("gives more than {most} hosts")));
    };
    (0..count).map(|index| host(&parts, count, index).map_err(refuse)).collect()
}

/// The host with number `index` of `count`: the last range changes first.
fn host(parts: &[Part], count: usize, index: usize) -> Result<DeviceHost, String> {
    let (mut text, mut captures, mut left) = (String::new(), Vec::new(), count);
    for part in parts {
        match part {
            Part::Text(part) => text.push_str(part),
            Part::Values(values) => {
                left /= values.len();
                let value = &values[index / left % values.len()];
                text.push_str(value);
                captures.push(value.clone());
            }
        }
    }
    let (name, port) = match text.split_once(':') {
        Some((name, port)) if !port.contains(':') => {
            let port = port.parse().ok().filter(|port| *port > 0);
            (name, Some(port.ok_or("has a `:` without a port from 1 to 65535 after it")?))
        }
        _ => (text.as_str(), None),
    };
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
    if let Some(bad) = name.chars().find(|c| !is_good(*c)) {
        return Err(format!("has the character {bad:?}; a name of a host has letters, digits, `-`, `_` and `.`"));
    }
    if name.is_empty() {
        return Err("has no name".to_owned());
    }
    let name = name.to_owned();
    Ok(DeviceHost { text, name, port, captures })
}

fn split(text: &str, most: usize) -> Result<Vec<Part>, String> {
    let (mut parts, mut rest, mut ranges) = (Vec::new(), text, 0);
    while let Some(open) = rest.find('[') {
        parts.push(Part::Text(rest[..open].to_owned()));
        let Some(close) = rest[open..].find(']').map(|at| open + at) else {
            return Err("has `[` without `]`".to_owned());
        };
        ranges += 1;
        if ranges > RANGES_MAX {
            return Err(format!("has more than {RANGES_MAX} ranges"));
        }
        parts.push(Part::Values(values(&rest[open + 1..close], most)?));
        rest = &rest[close + 1..];
    }
    if rest.contains(']') {
        return Err("has `]` without `[`".to_owned());
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

/// The values of a list such as `1,3,05-09`, each once.
fn values(list: &str, most: usize) -> Result<Vec<String>, String> {
    let mut values: Vec<String> = Vec::new();
    for item in list.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (from, to) = (number(first, item)?, number(last, item)?);
        if to < from {
            return Err(format!("the range {item:?} ends before it begins"));
        }
        if to - from >= most as u64 || values.len() as u64 + (to - from) >= most as u64 {
            return Err(format!("gives more than {most} hosts"));
        }
        // `01-40` has two digits throughout, `8-12` as many as the number needs.
        let width = if first.starts_with('0') { first.len() } else { 1 };
        values.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    let mut sorted: Vec<&String> = values.iter().collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("the list {list:?} has {} twice", pair[0])),
        None => Ok(values),
    }
}

fn number(digits: &str, item: &str) -> Result<u64, String> {
    let is_number = !digits.is_empty() && digits.len() <= 9 && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse() {
        Ok(number) if is_number => Ok(number),
        _ => Err(format!("{item:?} in brackets is not a number or a range such as 01-40 (an IPv6 address has none)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let hosts = expand(text, 100).unwrap();
        assert_eq!(hosts.iter().map(|host| host.text.as_str()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn ranges_are_expanded() {
        check("pdu", &["pdu"]);
        check("pdu[01-03].mgmt", &["pdu01.mgmt", "pdu02.mgmt", "pdu03.mgmt"]);
        check("n[8-11]", &["n8", "n9", "n10", "n11"]);
        check("n[098-101]", &["n098", "n099", "n100", "n101"]);
        check("n[1,3,5-7]", &["n1", "n3", "n5", "n6", "n7"]);
        check("r[1-2]n[05,7]", &["r1n05", "r1n7", "r2n05", "r2n7"]);
        let host = expand("r2n[05]:161", 1).unwrap().remove(0);
        let expected = ("r2n05", Some(161), vec!["05".to_owned()]);
        assert_eq!((host.name.as_str(), host.port, host.captures), expected);
        assert_eq!(expand("fe80::1", 1).unwrap()[0].port, None);
        assert_eq!(expand("n[000001-100000]", HOSTS_MAX).unwrap().len(), 100_000);
    }

    #[test]
    fn refused() {
        for (text, part) in [
            ("n[1-3", "without `]`"),
            ("n1-3]", "without `[`"),
            ("n[3-1]", "ends before it begins"),
            ("n[]", "is not a number"),
            ("n[a-b]", "is not a number"),
            ("n[1-101]", "more than 100 hosts"),
            ("n[0-99][0-99]", "more than 100 hosts"),
            ("n[1-999999999]", "more than 100 hosts"),
            ("n[1-9999999999]", "is not a number"),
            ("n[1,1]", "has 1 twice"),
            ("n[1][1][1][1][1][1][1][1][1]", "more than 8 ranges"),
            ("a b", "the character ' '"),
            ("a/b", "the character '/'"),
            ("", "no name"),
            ("a:0", "without a port"),
            ("a:66000", "without a port"),
        ] {
            let error = expand(text, 100).expect_err(text).to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
