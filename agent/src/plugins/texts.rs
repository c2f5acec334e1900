//! Texts of a plug-in that have to live as long as the process: a group's problem is stored without a lock, by its address.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::sync::lock;

/// The most texts of one plug-in.
const TEXTS_MAX: usize = 1024;
/// Stands for further texts.
const TOO_MANY: &str = "the plug-in reports a problem; its texts differ too often to be kept";

/// Texts that are kept for ever, each once.
#[derive(Debug, Default)]
pub(super) struct LastingTexts(Mutex<HashSet<&'static str>>);

impl LastingTexts {
    /// The lasting text that equals `text`; `None` if there are too many.
    fn find(&self, text: &str) -> Option<&'static str> {
        let mut texts = lock(&self.0);
        if let Some(known) = texts.get(text) {
            return Some(known);
        }
        if texts.len() == TEXTS_MAX {
            return None;
        }
        let lasting: &'static str = Box::leak(text.into());
        texts.insert(lasting);
        Some(lasting)
    }

    /// A problem with this text.
    pub fn problem(&self, text: &str) -> &'static str {
        self.find(text).unwrap_or(TOO_MANY)
    }

    /// A name; `None` if there are too many.
    pub fn name(&self, name: &str) -> Option<&'static str> {
        self.find(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_bounded() {
        let texts = LastingTexts::default();
        let first = texts.problem("a");
        assert!(std::ptr::eq(first, texts.problem(&String::from_utf8_lossy(b"a"))));
        (0..2000).for_each(|number| _ = texts.problem(&number.to_string()));
        assert_eq!((texts.problem("1999"), texts.problem("a"), texts.name("1998")), (TOO_MANY, "a", None));
    }
}
