//! `cargo xtask size`: what the release program consists of, by section and by crate.
//!
//! Sections come from `readelf`, functions and data from `nm`. After link-time optimization a function that was inlined
//! counts for the crate that it was inlined into, and a generic function for the crate that defined it.

use crate::{cargo, dist};
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Args)]
#[command(after_help = "Examples:
  cargo xtask size                               the release program, built if need be
  cargo xtask size --top 100                     more crates and functions
  cargo xtask size --program target/debug/xtask  any program with symbols")]
pub struct SizeArgs {
    /// A program that has its symbols
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// How many crates, and how many functions, are listed
    #[arg(long, value_name = "COUNT", default_value_t = 30)]
    top: usize,
}

/// What sections are for, by their names' beginnings; the first that fits.
const KINDS: [(&str, &str); 9] = [
    (".text", "code"),
    (".rodata", "constants"),
    (".eh_frame", "unwinding"),
    (".gcc_except_table", "unwinding"),
    (".rela", "relocations"),
    (".data.rel.ro", "relocated constants"),
    (".debug", "debug information"),
    (".symtab", "symbols"),
    (".strtab", "symbols"),
];
/// Functions in C and assembly, by their names' beginnings: they have no crate in their names.
const FOREIGN: [(&str, &str); 13] = [
    ("ZSTD", "zstd (C)"),
    ("HUF_", "zstd (C)"),
    ("FSE_", "zstd (C)"),
    ("HIST_", "zstd (C)"),
    ("XXH", "zstd (C)"),
    ("ERR_getErrorString", "zstd (C)"),
    ("POOL_", "zstd (C)"),
    ("COVER_", "zstd (C)"),
    ("ZDICT", "zstd (C)"),
    ("divsufsort", "zstd (C)"),
    ("ring_core_", "ring (C and assembly)"),
    ("fiat_", "ring (C and assembly)"),
    ("p256_", "ring (C and assembly)"),
];
/// Crates that come with the compiler.
const STANDARD: [&str; 9] =
    ["std", "core", "alloc", "gimli", "addr2line", "miniz_oxide", "rustc_demangle", "hashbrown", "object"];

pub fn run(arguments: &SizeArgs) -> Result<(), String> {
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => dist::unstripped()?,
    };
    let sections = parse_sections(&tool("readelf", &["--section-headers", "--wide"], &program)?);
    let symbols = parse_symbols(&tool("nm", &["--print-size", "--radix=d", "--demangle"], &program)?);
    if sections.is_empty() || symbols.is_empty() {
        return Err(format!("{} has no symbols: give --program one that is not stripped", program.display()));
    }
    print!("{}", report(&sections, &symbols, arguments.top));
    Ok(())
}

/// What a tool prints of a file.
fn tool(name: &str, arguments: &[&str], file: &Path) -> Result<String, String> {
    let mut command = Command::new(name);
    command.args(arguments).arg(file);
    Ok(String::from_utf8_lossy(&cargo::output(command)?).into_owned())
}

fn report(sections: &[(String, u64)], symbols: &[Symbol], top: usize) -> String {
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, bytes) in sections {
        let kind = KINDS.iter().find(|(start, _)| name.starts_with(start)).map_or("everything else", |(_, kind)| kind);
        *kinds.entry(kind).or_default() += bytes;
    }
    let mut crates: BTreeMap<String, u64> = BTreeMap::new();
    for symbol in symbols {
        *crates.entry(crate_of(&symbol.name)).or_default() += symbol.bytes;
    }
    let mut functions: Vec<(String, u64)> = symbols.iter().map(|symbol| (symbol.name.clone(), symbol.bytes)).collect();
    functions.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    let owned = |(name, bytes): (&str, u64)| (name.to_owned(), bytes);
    [
        table("sections", kinds.into_iter().map(owned).collect(), usize::MAX),
        table("functions and data, by crate", crates.into_iter().collect(), top),
        table("largest functions and data", functions, top),
    ]
    .join("\n")
}

/// Largest first, with each one's part of the whole.
fn table(title: &str, mut rows: Vec<(String, u64)>, top: usize) -> String {
    rows.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    let total: u64 = rows.iter().map(|(_, bytes)| bytes).sum();
    let line = |bytes: u64, name: &str| {
        // In tenths of a percent.
        let part = bytes * 1000 / total.max(1);
        format!("{bytes:>12} {:>4}.{} %  {name}\n", part / 10, part % 10)
    };
    let mut text = format!("{title}\n");
    rows.iter().take(top).for_each(|(name, bytes)| text += &line(*bytes, name));
    if rows.len() > top {
        let rest = rows[top..].iter().map(|(_, bytes)| bytes).sum();
        text += &line(rest, &format!("{} others", rows.len() - top));
    }
    text + &line(total, "all")
}

/// A function or constant.
#[derive(Debug, PartialEq, Eq)]
struct Symbol {
    name: String,
    bytes: u64,
}

/// ` [ 1] .interp PROGBITS 00000000000002e0 0002e0 00001c 00 A 0 0 1`. Sections that take no space in the file are left
/// out.
fn parse_sections(printed: &str) -> Vec<(String, u64)> {
    let parse = |line: &str| {
        let (number, rest) = line.trim_start().strip_prefix('[')?.split_once(']')?;
        number.trim().parse::<u32>().ok()?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let (name, kind, size) = (fields.first()?, fields.get(1)?, fields.get(4)?);
        let bytes = u64::from_str_radix(size, 16).ok()?;
        (name.starts_with('.') && *kind != "NOBITS").then(|| ((*name).to_owned(), bytes))
    };
    printed.lines().filter_map(parse).collect()
}

/// `ADDRESS SIZE TYPE NAME`; one that has several names counts once.
fn parse_symbols(printed: &str) -> Vec<Symbol> {
    let mut at: BTreeMap<&str, Symbol> = BTreeMap::new();
    for line in printed.lines() {
        let mut fields = line.splitn(4, ' ');
        let (Some(address), Some(size), Some(kind), Some(name)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        // What is zero at the start takes no space in the file.
        if let Ok(bytes) = size.parse::<u64>()
            && bytes > 0
            && !kind.eq_ignore_ascii_case("b")
        {
            at.entry(address).or_insert_with(|| Symbol { name: name.to_owned(), bytes });
        }
    }
    at.into_values().collect()
}

/// The crate in a demangled name: `<a::B as c::D>::e` is of `a`, `<u8 as c::D>::e` of `c`,
/// `core::ptr::drop_in_place<a::B>` of `a`.
fn crate_of(name: &str) -> String {
    if !name.contains("::") {
        let foreign = FOREIGN.iter().find(|(start, _)| name.starts_with(start));
        return foreign.map_or("no crate in its name", |(_, library)| library).to_owned();
    }
    let name = name.strip_prefix("core::ptr::drop_in_place").unwrap_or(name);
    let first = |text: &str| {
        let text = text.trim_start_matches(|c: char| !c.is_alphabetic() && c != '_');
        let text = ["mut ", "const ", "dyn "].iter().fold(text, |text, word| text.strip_prefix(word).unwrap_or(text));
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        (rest.starts_with("::") && !word.is_empty()).then(|| word.to_owned())
    };
    let found = first(name).or_else(|| name.split_once(" as ").and_then(|(_, behind)| first(behind)));
    match found {
        Some(found) if STANDARD.contains(&found.as_str()) => "std".to_owned(),
        Some(found) => found,
        None => "std".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_read_with_their_sizes() {
        let printed = "Section Headers:\n  [Nr] Name  Type  Address  Off  Size  ES\n  [ 0]      NULL  0000000000000000 000000 000000 00      0   0  0\n  \
             [16] .text  PROGBITS  0000000000345340 344340 d66209 00  AX  0   0 64\n  [31] .bss  NOBITS  00 10f5ec8 00021c 00  WA  0   0  8\n";
        assert_eq!(parse_sections(printed), [(".text".to_owned(), 0xd6_6209)]);
    }

    #[test]
    fn a_function_with_two_names_counts_once_and_zeros_do_not() {
        let printed = "0000000000000010 0000000000000004 T a::b\n0000000000000010 0000000000000004 T a::c\n\
             0000000000000020 0000000000000100 b a::ZEROS\n                 U malloc\n0000000000000030 0000000000000000 T empty\n";
        assert_eq!(parse_symbols(printed), [Symbol { name: "a::b".into(), bytes: 4 }]);
    }

    #[test]
    fn the_crate_is_found_in_a_name() {
        for (name, expected) in [
            ("farbus_io_linux::engine::Engine::run", "farbus_io_linux"),
            ("<farbus_wire::Reject as core::fmt::Display>::fmt", "farbus_wire"),
            ("<&mut farbus_wire::Reject as core::fmt::Display>::fmt", "farbus_wire"),
            ("<u8 as serde_json::ser::Number>::write", "serde_json"),
            ("core::ptr::drop_in_place<alloc::vec::Vec<u8>>", "std"),
            ("core::ptr::drop_in_place<tokio::net::TcpStream>", "tokio"),
            ("<alloc::vec::Vec<T> as core::clone::Clone>::clone", "std"),
            ("<T as core::any::Any>::type_id", "std"),
            ("ZSTD_compressBlock_fast", "zstd (C)"),
            ("main", "no crate in its name"),
        ] {
            assert_eq!(crate_of(name), expected, "{name}");
        }
    }

    #[test]
    fn the_report_adds_up_and_names_the_rest() {
        let symbols: Vec<Symbol> = [("a::x", 600), ("b::y", 300), ("c::z", 100)]
            .map(|(name, bytes)| Symbol { name: name.into(), bytes })
            .into();
        let text = report(&[(".text".into(), 1000), (".text.hot".into(), 24), (".comment".into(), 1)], &symbols, 1);
        assert!(text.contains("        1024   99.9 %  code\n"), "{text}");
        assert!(
            text.contains("         600   60.0 %  a\n         400   40.0 %  2 others\n        1000  100.0 %  all\n"),
            "{text}"
        );
    }
}
