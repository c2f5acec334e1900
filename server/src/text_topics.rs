//! Topics with readings as text: `text/` and the path of the sensor without its leading `/`.

/// The first level of these topics.
pub(crate) const ROOT: &str = "text";

/// The topic of a sensor's readings.
pub(crate) fn topic(path: &str) -> String {
    format!("{ROOT}/{}", path.strip_prefix('/').unwrap_or(path))
}

/// The sensor path, or filter of paths, of a topic under [`ROOT`].
pub(crate) fn path(topic: &str) -> Option<String> {
    topic.strip_prefix(ROOT).filter(|rest| rest.starts_with('/')).map(str::to_owned)
}
