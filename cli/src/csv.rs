//! Fields of delimited lines.

/// Splits a line into its fields (RFC 4180; a field ends with its line). A field is a range of the line or, if it had quotes, of `scratch`.
pub struct Fields {
    delimiter: u8,
    ranges: Vec<(usize, usize, bool)>,
    scratch: Vec<u8>,
}

impl Fields {
    pub fn new(delimiter: u8) -> Self {
        Self { delimiter, ranges: Vec::new(), scratch: Vec::new() }
    }

    /// Finds the fields of a line.
    pub fn split(&mut self, line: &[u8]) -> Result<(), &'static str> {
        self.ranges.clear();
        self.scratch.clear();
        if memchr::memchr(b'"', line).is_some() {
            return self.split_quoted(line);
        }
        let mut start = 0;
        for at in memchr::memchr_iter(self.delimiter, line) {
            self.ranges.push((start, at, false));
            start = at + 1;
        }
        self.ranges.push((start, line.len(), false));
        Ok(())
    }

    fn split_quoted(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let mut at = 0;
        loop {
            let blanks = line[at..].iter().take_while(|b| **b == b' ' && self.delimiter != b' ').count();
            if line.get(at + blanks) == Some(&b'"') {
                let start = self.scratch.len();
                at += blanks + 1;
                loop {
                    let Some(length) = memchr::memchr(b'"', &line[at..]) else {
                        return Err("a quote that is not closed in its line");
                    };
                    self.scratch.extend_from_slice(&line[at..at + length]);
                    at += length + 1;
                    if line.get(at) != Some(&b'"') {
                        break;
                    }
                    self.scratch.push(b'"');
                    at += 1;
                }
                self.ranges.push((start, self.scratch.len(), true));
                at += line[at..].iter().take_while(|b| **b == b' ' && self.delimiter != b' ').count();
                match line.get(at) {
                    None => return Ok(()),
                    Some(byte) if *byte == self.delimiter => at += 1,
                    Some(_) => return Err("text after a closing quote"),
                }
            } else {
                let end = memchr::memchr(self.delimiter, &line[at..]).map_or(line.len(), |length| at + length);
                self.ranges.push((at, end, false));
                if end == line.len() {
                    return Ok(());
                }
                at = end + 1;
            }
        }
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn get<'a>(&'a self, line: &'a [u8], at: usize) -> &'a [u8] {
        match self.ranges.get(at) {
            None => b"",
            Some((start, end, true)) => &self.scratch[*start..*end],
            Some((start, end, false)) => &line[*start..*end],
        }
    }

    /// Splits a line into texts.
    pub fn texts(&mut self, line: &str) -> Result<Vec<String>, &'static str> {
        self.split(line.as_bytes())?;
        let text = |at| String::from_utf8_lossy(self.get(line.as_bytes(), at)).into_owned();
        Ok((0..self.len()).map(text).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, delimiter: u8, expected: Result<&[&str], &'static str>) {
        let found = Fields::new(delimiter).texts(line);
        let expected: Result<Vec<String>, _> = expected.map(|fields| fields.iter().map(|&f| f.to_owned()).collect());
        assert_eq!(found, expected, "{line}");
    }

    #[test]
    fn fields() {
        check("a,b,,c", b',', Ok(&["a", "b", "", "c"]));
        check("", b',', Ok(&[""]));
        check("a,", b',', Ok(&["a", ""]));
        check("\"a,b\",c", b',', Ok(&["a,b", "c"]));
        check("\"a\"\"b\"", b',', Ok(&["a\"b"]));
        check("x, \"y\" ,z", b',', Ok(&["x", "y", "z"]));
        check("\"a\",", b',', Ok(&["a", ""]));
        check("a;\"b;c\"", b';', Ok(&["a", "b;c"]));
        check("\"a,b", b',', Err("a quote that is not closed in its line"));
        check("\"a\"b,c", b',', Err("text after a closing quote"));
    }
}
