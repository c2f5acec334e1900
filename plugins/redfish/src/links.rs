//! Links between resources. A service can name any address: only paths of the same service are followed.

use serde_json::Value;
use wholegrain_model::name::sanitize_level;

/// The longest link, in bytes.
const LINK_BYTES_MAX: usize = 1024;

/// The path of a link within the service, without its fragment. `None` for another host, and for what is no path of a service.
pub fn check_link<'a>(link: &'a str, base: &str) -> Option<&'a str> {
    let path = link.strip_prefix(base).unwrap_or(link);
    let path = path.split('#').next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_graphic() && !"\\\"<>^`{|}".contains(c);
    let is_safe = path.starts_with("/redfish/") && path.len() <= LINK_BYTES_MAX && path.chars().all(is_plain);
    let has_parent = path.split(['/', '?']).any(|level| level == "..");
    (is_safe && !has_parent).then_some(path)
}

/// The link of a reference: `{"Thermal": {"@odata.id": "…"}}`.
pub fn reference<'a>(resource: &'a Value, key: &str) -> Option<&'a str> {
    resource.get(key)?.get("@odata.id")?.as_str()
}

/// The name of a resource: the last level of its path, which is unique in its collection and does not change.
pub fn resource_level(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    sanitize_level(path.rsplit('/').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_within_the_service() {
        let base = "https://bmc:443";
        for (link, path) in [
            ("/redfish/v1/Chassis/1", Some("/redfish/v1/Chassis/1")),
            ("/redfish/v1/Chassis/1/Thermal#/Fans/0", Some("/redfish/v1/Chassis/1/Thermal")),
            ("https://bmc:443/redfish/v1/Chassis", Some("/redfish/v1/Chassis")),
            ("/redfish/v1/Chassis?$skip=50", Some("/redfish/v1/Chassis?$skip=50")),
            ("https://other/redfish/v1/Chassis", None),
            ("https://bmc:443@other/redfish/v1/", None),
            ("//other/redfish/v1/", None),
            ("/admin", None),
            ("/redfish/../admin", None),
            ("/redfish/v1/a b", None),
            ("/redfish/v1/\r\nX: y", None),
            ("", None),
        ] {
            assert_eq!(check_link(link, base), path, "{link}");
        }
        assert_eq!(check_link(&format!("/redfish/{}", "a".repeat(2000)), base), None);
        assert_eq!(resource_level("/redfish/v1/Chassis/1U/"), "1U");
        assert_eq!(resource_level("/redfish/v1/Systems/a(b)"), "a_b");
    }
}
