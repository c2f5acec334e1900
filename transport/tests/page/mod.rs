//! The examples of FORMAT.md.

/// The bytes of the block that begins with ```` ```hex name ````; what stands behind `|` in a line is for people.
pub fn example(name: &str) -> Vec<u8> {
    let page = include_str!("../../FORMAT.md");
    let marker = format!("```hex {name}\n");
    let (_, rest) = page.split_once(&marker).unwrap_or_else(|| panic!("FORMAT.md has no example {name:?}"));
    let (block, _) = rest.split_once("```").unwrap();
    block
        .lines()
        .flat_map(|line| line.split_once('|').map_or(line, |(hex, _)| hex).split_whitespace())
        .map(|byte| u8::from_str_radix(byte, 16).unwrap_or_else(|_| panic!("{byte:?} in the example {name:?}")))
        .collect()
}
