//! The header and the Rust types have the same layout, as a C compiler says.

use std::mem::{align_of, offset_of};
use std::path::Path;
use std::process::Command;

use wholegrain_plugin::abi::*;

/// Lines `struct field offset` and `struct - size`, from the types of this crate.
macro_rules! layout {
    ($($name:literal $type:ident { $($field:ident)* })*) => {
        fn rust_layout() -> Vec<String> {
            vec![$(
                format!("{} size {}", $name, size_of::<$type>()),
                format!("{} align {}", $name, align_of::<$type>()),
                $(format!("{} {} {}", $name, stringify!($field), offset_of!($type, $field)),)*
            )*]
        }

        fn c_program() -> String {
            let mut lines = String::new();
            $(
                lines += &format!("  printf(\"{0} size %zu\\n\", sizeof({0}));\n", $name);
                lines += &format!("  printf(\"{0} align %zu\\n\", _Alignof({0}));\n", $name);
                $(lines += &format!("  printf(\"{0} {1} %zu\\n\", offsetof({0}, {1}));\n", $name, stringify!($field));)*
            )*
            lines
        }
    };
}

layout! {
    "wholegrain_text" PluginText { data length }
    "wholegrain_settings" PluginSettings { size host table file config_dir proc sys cgroup fail }
    "wholegrain_sensor" PluginSensor { size name unit description kind value_type scale wraps_at }
    "wholegrain_group" PluginGroup { size name reader interval_ns offset_ns free_running blocking }
    "wholegrain_discovery" PluginDiscovery { size host add_group add_sensor report keep }
    "wholegrain_sample" PluginSample { size host values gaps sensors taken_at flags problem }
    "wholegrain_source" PluginDescriptor {
        size abi flags name summary version configure discover read free_reader free_source
    }
}

fn compiled(compiler: &str, standard: &str, text: &str) -> std::path::PathBuf {
    let dir = tempfile::tempdir().unwrap().keep();
    let (source, program) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&source, text).unwrap();
    let status = Command::new(compiler)
        .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(env!("CARGO_MANIFEST_DIR"))
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(status.success(), "{compiler} refuses the header");
    program
}

#[test]
fn the_layout_is_the_same_in_c_and_in_rust() {
    let constants = "  printf(\"constants %u %u %u %u %u %u %u %u %lld\\n\", WHOLEGRAIN_SOURCE_ABI, WHOLEGRAIN_CONCURRENT, \
         WHOLEGRAIN_GAUGE, WHOLEGRAIN_COUNTER, WHOLEGRAIN_INT, WHOLEGRAIN_FLOAT, WHOLEGRAIN_UNCHANGED, \
         WHOLEGRAIN_LAYOUT_CHANGED, (long long)WHOLEGRAIN_NOW);\n";
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"wholegrain_source.h\"\nint main(void) {{\n{}{constants}  return 0;\n}}\n",
        c_program()
    );
    let program = compiled("cc", "-std=c11", &text);
    let output = Command::new(&program).output().unwrap();
    std::fs::remove_dir_all(program.parent().unwrap()).unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut expected = rust_layout();
    expected.push(format!("constants {ABI_VERSION} {CONCURRENT} 0 1 0 1 {UNCHANGED} {LAYOUT_CHANGED} {NOW}"));
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
}

/// The comments `/* 16 */` before or after a field in the header are its offset.
#[test]
fn the_offsets_in_the_comments_of_the_header_are_right() {
    let header = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("wholegrain_source.h")).unwrap();
    let number_of = |comment: &str| {
        let comment = comment.trim_start();
        let digits: String = comment.chars().take_while(char::is_ascii_digit).collect();
        let is_offset =
            comment[digits.len()..].starts_with([':', ' ']) && !comment[digits.len()..].starts_with(" bytes");
        digits.parse::<usize>().ok().filter(|_| is_offset)
    };
    let documented: Vec<usize> =
        header.match_indices("/*").filter_map(|(at, _)| number_of(&header[at + 2..])).collect();
    let layout = rust_layout();
    let is_offset =
        |line: &&String| !line.contains(" align ") && (!line.contains(" size ") || line.ends_with(" size 0"));
    let offsets = layout.iter().filter(is_offset);
    let offsets: Vec<usize> = offsets.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    assert_eq!(documented, offsets);
    for line in layout.iter().filter(|line| line.contains(" size ") && !line.ends_with(" size 0")) {
        let size = format!(" {} bytes", line.rsplit(' ').next().unwrap());
        assert!(header.contains(&size), "{line} is in no comment");
    }
}

#[test]
fn a_plug_in_in_cpp_can_include_it() {
    let text = "#include \"wholegrain_source.h\"\nint main() { wholegrain_sensor sensor = {}; return sensor.kind == \
                WHOLEGRAIN_GAUGE ? 0 : 1; }\n";
    let program = compiled("c++", "-std=c++17", text);
    assert!(Command::new(&program).status().unwrap().success());
    std::fs::remove_dir_all(program.parent().unwrap()).unwrap();
}
