//! Answers that are small as texts and large as trees.

use serde_json::json;
use wholegrain_sources::ReadProblem;

use super::hostile::config;
use super::service::{ServiceReply, TestService, link};
use super::started;

const GROUP: &str = "b/chassis/1/thermal";
const CPU: &str = "b/chassis/1/temperature/CPU";
const TOO_LARGE: &str = "more than 50000 values or 8 MiB as a tree";

/// An object whose list has so many small objects.
fn objects(count: usize) -> String {
    format!("{{\"Temperatures\":[{}0]}}", "{\"\":0},".repeat(count))
}

#[test]
fn a_resource_that_is_too_large_as_a_tree_is_refused() {
    let service = TestService::new();
    let mut running = started(&config(service.port, "body_bytes_max = \"8MiB\""));
    // 4 MB of text would be 360 MB as a tree, 168 kB still 17 MB.
    for count in [570_000, 24_000] {
        running.answer(GROUP, |values| values[CPU] == Some(41.0));
        let body = objects(count);
        service.hook(move |request| {
            let is_thermal = request.path.ends_with("/Thermal");
            is_thermal.then(|| ServiceReply::Page(200, String::new(), body.clone().into_bytes()))
        });
        running.wait_for_gaps(GROUP, ReadProblem::Os { what: TOO_LARGE, errno: libc::EBADMSG });
        service.unhook();
    }
    running.answer(GROUP, |values| values[CPU] == Some(41.0));
}

#[test]
fn a_service_root_that_is_too_large_as_a_tree_is_refused() {
    let service = TestService::new();
    service.hook(|request| {
        let is_root = request.path.trim_end_matches('/') == "/redfish/v1";
        is_root.then(|| ServiceReply::Page(200, String::new(), objects(24_000).into_bytes()))
    });
    let mut running = started(&config(service.port, ""));
    running.wait_for_note(TOO_LARGE);
    service.unhook();
    service.put("/redfish/v1", json!({ "Chassis": link("Chassis") }));
    running.answer(GROUP, |values| values[CPU] == Some(41.0));
}
