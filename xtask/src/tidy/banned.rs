//! Rules `banned`, `unsafe` and `errno`: names that a crate may not use.

use super::architecture::{ArchitectureRules, CrateKind, CrateRules};
use super::manifest::PackageManifest;
use super::source::{SourceFile, TokenKind, WrittenName};
use super::violation::Violation;
use std::collections::BTreeSet;

pub fn check(architecture: &ArchitectureRules, packages: &[PackageManifest], sources: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources {
        let package = packages.iter().find(|package| package.ships(&source.path));
        if let Some(rules) = package.and_then(|package| architecture.rules_of_package(&package.name)) {
            violations.extend(banned_names(architecture, rules, source));
            if source.path.starts_with(&architecture.errno.within) {
                violations.extend(errnos(architecture, source));
            }
        }
        violations.extend(unsafe_code(architecture, source));
    }
    violations
}

fn banned_names(architecture: &ArchitectureRules, rules: &CrateRules, source: &SourceFile) -> Vec<Violation> {
    let mut banned_names: Vec<(&String, &String)> = Vec::new();
    match rules.kind {
        CrateKind::Pure => banned_names.extend(architecture.banned.pure.iter().chain(&architecture.banned.library)),
        CrateKind::Outside => banned_names.extend(&architecture.banned.library),
        CrateKind::Binary => {}
    }
    let mut reported = BTreeSet::new();
    let mut violations = Vec::new();
    for name in source.names().into_iter().filter(|name| !source.is_test_line(name.line)) {
        if architecture.banned.except.iter().any(|fine| covers(fine, &name)) {
            continue;
        }
        let broken = banned_names.iter().find(|(banned, _)| covers(banned, &name));
        if let Some((banned, instead)) = broken
            && reported.insert((name.line, *instead))
        {
            let advice = format!("{} may not use {banned}: {instead}", rules.name);
            violations.push(Violation::new(&source.path, name.line, "banned", advice));
        }
    }
    violations
}

/// A rule that begins with a crate covers all below it; any other covers names in which it stands, whatever is before.
fn covers(banned: &str, name: &WrittenName) -> bool {
    let banned: Vec<&str> = banned.split("::").collect();
    if banned[0] == "std" {
        name.parts.get(..banned.len()).is_some_and(|beginning| beginning == banned)
    } else {
        name.parts.windows(banned.len()).any(|window| window == banned)
    }
}

fn unsafe_code(architecture: &ArchitectureRules, source: &SourceFile) -> Vec<Violation> {
    if is_under(source, &architecture.unsafe_code.under) {
        return Vec::new();
    }
    let found = source.tokens.iter().filter(|token| token.kind == TokenKind::Word("unsafe".to_owned()));
    found
        .map(|token| {
            let folders = architecture.unsafe_code.under.join(" and ");
            let advice = format!("unsafe lives under {folders} only: put a safe call there");
            Violation::new(&source.path, token.line, "unsafe", advice)
        })
        .collect()
}

fn is_under(source: &SourceFile, beginnings: &[String]) -> bool {
    beginnings.iter().any(|beginning| source.path.starts_with(beginning))
}

fn errnos(architecture: &ArchitectureRules, source: &SourceFile) -> Vec<Violation> {
    let settings = &architecture.errno;
    if is_under(source, &settings.under) {
        return Vec::new();
    }
    let typed_may_be_here = is_under(source, &settings.typed_under);
    let mut reported = BTreeSet::new();
    let mut violations = Vec::new();
    for (at, token) in source.tokens.iter().enumerate().filter(|(_, token)| !source.is_test_line(token.line)) {
        let TokenKind::Word(word) = &token.kind else { continue };
        let is_typed = TYPED_ERRNOS.contains(&word.as_str()) || (at >= 3 && is_word(source, at - 3, "Errno"));
        let is_errno = ERRNOS.contains(&word.as_str()) || TYPED_ERRNOS.contains(&word.as_str());
        if is_errno && !(is_typed && typed_may_be_here) && reported.insert(token.line) {
            let advice = format!(
                "{word}: the operating system's error numbers stay at the edges ({}): pass a typed status or error",
                settings.under.join(", ")
            );
            violations.push(Violation::new(&source.path, token.line, "errno", advice));
        }
    }
    violations
}

fn is_word(source: &SourceFile, at: usize, word: &str) -> bool {
    matches!(&source.tokens[at].kind, TokenKind::Word(there) if there == word)
}

/// What a system call's error is read through; `Errno::ENOENT` is typed as well.
const TYPED_ERRNOS: &[&str] = &["Errno", "from_raw_os_error", "raw_os_error"];

/// The error numbers that a USB stack or a file system answers with (errno(3)).
const ERRNOS: &[&str] = &[
    "EACCES",
    "EADDRINUSE",
    "EAGAIN",
    "EBADF",
    "EBADMSG",
    "EBUSY",
    "ECANCELED",
    "ECOMM",
    "ECONNABORTED",
    "ECONNREFUSED",
    "ECONNRESET",
    "EDEADLK",
    "EEXIST",
    "EFAULT",
    "EFBIG",
    "EHOSTUNREACH",
    "EILSEQ",
    "EINPROGRESS",
    "EINTR",
    "EINVAL",
    "EIO",
    "EISDIR",
    "ELOOP",
    "EMFILE",
    "EMSGSIZE",
    "ENAMETOOLONG",
    "ENETUNREACH",
    "ENFILE",
    "ENODATA",
    "ENODEV",
    "ENOENT",
    "ENOMEM",
    "ENOSPC",
    "ENOSR",
    "ENOSYS",
    "ENOTCONN",
    "ENOTDIR",
    "ENOTEMPTY",
    "ENOTSUP",
    "ENOTTY",
    "ENXIO",
    "EOPNOTSUPP",
    "EOVERFLOW",
    "EPERM",
    "EPIPE",
    "EPROTO",
    "ERANGE",
    "EREMOTEIO",
    "EROFS",
    "ESHUTDOWN",
    "ESPIPE",
    "ESRCH",
    "ESTALE",
    "ETIME",
    "ETIMEDOUT",
    "EWOULDBLOCK",
    "EXDEV",
];

#[cfg(test)]
mod tests {
    use crate::tidy::fixtures::{complaints, workspace_with};

    fn said_of(path: &str, text: &str) -> Vec<String> {
        complaints(&workspace_with(&[(path, text)]))
    }

    #[test]
    fn every_banned_name_is_found_in_a_pure_crate() {
        for (text, name) in [
            ("use std::time::Instant;\n", "std::time::Instant"),
            ("use std::time::{Duration, Instant};\n", "std::time::Instant"),
            ("fn f() { let _ = time::Instant::now(); }\n", "Instant::now"),
            ("fn f() -> std::time::SystemTime { g() }\n", "SystemTime"),
            ("use std::{io, net};\n", "std::net"),
            ("use std::net::*;\n", "std::net"),
            ("fn f() { std::fs::remove_file(\"x\").ok(); }\n", "std::fs"),
            ("fn f() { std::thread::spawn(|| ()); }\n", "std::thread"),
            ("fn f() { std::process::exit(1) }\n", "std::process"),
            ("fn f() { println!(\"x\"); }\n", "println!"),
            ("fn f() { std::println!(\"x\"); }\n", "println!"),
            ("use std::sync::mpsc;\nfn f() { mpsc::channel::<u8>(); }\n", "mpsc::channel"),
            ("fn f() -> anyhow::Result<()> { Ok(()) }\n", "anyhow"),
            ("fn f() { log(format!(\"{:?}\", std::thread::current())); }\n", "std::thread"),
        ] {
            let messages = said_of("crates/wire/src/a.rs", text);
            assert_eq!(messages.len(), 1, "{text}: {messages:#?}");
            assert!(messages[0].contains(&format!("banned: wire may not use {name}: ")), "{}", messages[0]);
        }
    }

    #[test]
    fn bounded_queues_durations_and_namesakes_are_fine() {
        for text in [
            "use std::sync::mpsc;\nfn f() { mpsc::sync_channel::<u8>(4); }\n",
            "use std::time::Duration;\n",
            "use farbus_model::Instant;\nfn f(now: Instant) {}\n",
            "fn f() -> bool { std::thread::panicking() }\n",
            "fn f() { self.net.fs(); }\n",
            "/// See std::net::TcpStream and println!.\nfn f() {}\n",
        ] {
            assert_eq!(said_of("crates/wire/src/a.rs", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn tests_and_crates_with_an_outside_may() {
        let test = "#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert_eq!(said_of("crates/wire/src/a.rs", test), [""; 0]);
        assert_eq!(said_of("crates/wire/tests/a.rs", "use std::fs;\n"), [""; 0]);
        assert_eq!(said_of("crates/io-net/src/a.rs", "use std::fs;\n"), [""; 0]);
    }

    #[test]
    fn anyhow_is_for_binaries() {
        let text = "use anyhow::Result;\n";
        let messages = said_of("crates/io-net/src/a.rs", text);
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("banned: io-net may not use anyhow"), "{}", messages[0]);
        let main = "mod a;\nfn main() {}\n";
        let tree = workspace_with(&[("crates/farbus/src/main.rs", main), ("crates/farbus/src/a.rs", text)]);
        assert_eq!(complaints(&tree), [""; 0]);
    }

    #[test]
    fn unsafe_has_its_folders() {
        for text in ["fn f() { unsafe { g() } }\n", "unsafe fn f() {}\n", "fn f() { m!(unsafe { g() }); }\n"] {
            let messages = said_of("crates/io-net/src/a.rs", text);
            assert_eq!(messages.len(), 1, "{messages:#?}");
            assert!(messages[0].starts_with("crates/io-net/src/a.rs:1: unsafe: "), "{}", messages[0]);
        }
        let root = super::super::fixtures::lib("mod sys;\n");
        let tree = workspace_with(&[
            ("crates/io-net/src/lib.rs", &root),
            ("crates/io-net/src/sys/mod.rs", "pub fn f() { unsafe { g() } }\n"),
        ]);
        assert_eq!(complaints(&tree), [""; 0]);
        assert_eq!(said_of("crates/io-net/src/a.rs", "#![deny(unsafe_code)]\n"), [""; 0]);
    }

    #[test]
    fn errno_stays_at_the_edges() {
        let messages = said_of("crates/session/src/a.rs", "fn f(x: i32) -> bool { matches!(x, EPIPE | ENOENT) }\n");
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("errno: EPIPE: "), "{}", messages[0]);
        let messages = said_of("crates/session/src/a.rs", "fn f(e: std::io::Error) { e.raw_os_error(); }\n");
        assert_eq!(messages.len(), 1, "{messages:#?}");
        let messages = said_of(
            "crates/io-net/src/a.rs",
            "fn f(e: Errno) -> bool {\n    e == Errno::INTR || e == Errno::EPERM ||\n    e.0 == EINTR\n}\n",
        );
        assert_eq!(messages.len(), 1, "{messages:#?}");
        assert!(messages[0].contains("a.rs:3: errno: EINTR: "), "{}", messages[0]);
        let tree = workspace_with(&[
            ("crates/wire/src/lib.rs", &super::super::fixtures::lib("mod usbip;\n")),
            ("crates/wire/src/usbip/mod.rs", "pub const EPIPE: i32 = 32;\n"),
        ]);
        assert_eq!(complaints(&tree), [""; 0]);
    }
}
