//! Where a redirect leads, and whether it is the same host.

use ureq::http::Uri;

/// The longest address that is followed, in bytes.
const URL_BYTES_MAX: usize = 8192;

/// The address of a `Location` header in an answer from `base` (RFC 3986, section 5.2, for http and https). `None` for what is no address.
pub fn target(base: &str, location: &str) -> Option<String> {
    let location = location.split('#').next().unwrap_or_default().trim();
    let base: Uri = base.parse().ok()?;
    let (scheme, authority) = (base.scheme_str()?, base.authority()?.as_str());
    let url = if location.starts_with("http://") || location.starts_with("https://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.starts_with('?') {
        format!("{scheme}://{authority}{}{location}", base.path())
    } else if location.is_empty() || location.split(['/', '?']).next().is_some_and(|first| first.contains(':')) {
        return None;
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let is_good = url.len() <= URL_BYTES_MAX
        && url.parse::<Uri>().is_ok_and(|url| {
            // A user and a password in it would become a header of the request.
            url.authority().is_some_and(|to| !to.as_str().contains('@') || to.as_str() == authority)
        });
    is_good.then_some(url)
}

/// Whether two addresses have the same scheme, host and port.
pub fn is_same_origin(one: &str, other: &str) -> bool {
    let origin = |url: &str| {
        let url: Uri = url.parse().ok()?;
        let usual = if url.scheme_str() == Some("https") { 443 } else { 80 };
        Some((url.scheme_str()?.to_owned(), url.host()?.to_ascii_lowercase(), url.port_u16().unwrap_or(usual)))
    };
    origin(one).is_some_and(|one| origin(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_redirects() {
        for (location, expected) in [
            ("/b?c=1", Some("http://h:81/b?c=1")),
            ("b", Some("http://h:81/x/b")),
            ("b:c", None),
            ("?q", Some("http://h:81/x/y?q")),
            ("//other/b", Some("http://other/b")),
            ("https://h/b#part", Some("https://h/b")),
            ("ftp://h/b", None),
            ("javascript:alert(1)", None),
            ("", None),
            ("http://", None),
            ("http://user:password@other/", None),
            ("//user@other/", None),
            ("/a@b", Some("http://h:81/a@b")),
            ("http://a b/", None),
        ] {
            assert_eq!(target("http://h:81/x/y?z", location).as_deref(), expected, "{location}");
        }
        assert_eq!(target("http://h", &format!("/{}", "a".repeat(URL_BYTES_MAX))), None);
    }

    #[test]
    fn origins() {
        assert!(is_same_origin("http://H/a", "http://h:80/b"));
        for other in ["https://h/a", "http://h:81/a", "http://h2/a", "http://h.evil/a", "http://h@evil/a", "nothing"] {
            assert!(!is_same_origin("http://h/a", other), "{other}");
        }
    }
}
