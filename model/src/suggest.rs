//! "Did you mean …": the known name most similar to an unknown one.

/// The most similar of `known` to `wrong`, if it is similar enough for a typing error.
pub fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let (score, name) = known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(&wrong.to_lowercase(), &name.to_lowercase()), name))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    (score >= 0.75).then_some(name)
}

#[cfg(test)]
mod tests {
    #[test]
    fn near_and_far() {
        let known = ["interval", "include", "exclude", "offset"];
        assert_eq!(super::nearest("intervall", known), Some("interval"));
        assert_eq!(super::nearest("exlude", known), Some("exclude"));
        assert_eq!(super::nearest("zzz", known), None);
    }
}
