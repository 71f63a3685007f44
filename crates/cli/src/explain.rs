//! `farbus explain`: what a message or an exit code means, and what to type.

mod catalogue;
mod matching;

use std::io::Read;

use farbus_control::failure::FailureKind;

use super::CommandFailure;
use super::output::{print_json, say};
use catalogue::Explanation;
use matching::MessageFit;

/// Explain a message or an exit code, and what to type.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  farbus explain 'its owner keeps this host out'\n  farbus explain 5\n  farbus explain swap\n  \
    farbus attach lab3/disk 2>&1 | farbus explain -\n  farbus explain         the subjects and the exit codes\n\n\
    Exit codes: 0 done, 2 usage, 4 no message is like that."
)]
pub struct Args {
    /// A message or some of its words, an exit code, or a subject; '-' reads the message from standard input.
    #[arg(value_name = "MESSAGE")]
    text: Vec<String>,
    /// Print JSON, for programs.
    #[arg(long)]
    pub json: bool,
}

/// The most explanations that are shown for a message.
const SHOWN_MAX: usize = 5;
/// The most that is read from standard input, in bytes.
const INPUT_MAX: u64 = 1 << 20;

/// Each exit code, the word before a message, and who has to act.
const EXIT_CODES: [(u8, &str, &str); 9] = [
    (0, "", "It is done."),
    (1, "", "This machine lacks something, and you have to act here. 'farbus doctor' shows what it lacks."),
    (2, "error", "The command line is wrong. 'farbus COMMAND --help' has its options."),
    (3, FailureKind::Refused.as_str(), "The owner of the other side, or the user of the device, has to act."),
    (4, FailureKind::Gone.as_str(), "It is not there, or not any more. 'farbus list HOST' shows what is."),
    (
        5,
        FailureKind::Network.as_str(),
        "The network failed, or the host is off. 'farbus status --links' shows the links.",
    ),
    (
        6,
        FailureKind::Device.as_str(),
        "The device failed, or its exporter broke the protocol. The exporter's log says more.",
    ),
    (130, "", "Ctrl-C ended the command before it had what it waited for."),
    (143, "", "SIGTERM ended the command before it had what it waited for."),
];

pub fn run(args: &Args) -> Result<(), CommandFailure> {
    let text = match args.text.as_slice() {
        [dash] if dash == "-" => read_input()?,
        words => words.join(" "),
    };
    let text = text.trim();
    let all = catalogue::all();
    if text.is_empty() {
        return list_subjects(&all, args.json);
    }
    if let Some(code) = EXIT_CODES.iter().find(|(code, word, _)| *word == text || code.to_string() == text) {
        return explain_exit_code(*code, args.json);
    }
    let of_subject: Vec<_> = all.iter().filter(|explanation| is_about(&explanation.subject, text)).collect();
    if !of_subject.is_empty() {
        return show(&of_subject, args.json);
    }
    let found = best(&all, text);
    if found.is_empty() {
        let next =
            "'farbus explain' lists the subjects; the message may be of the operating system, or of another program";
        return Err(CommandFailure::new(FailureKind::Gone, format!("no message of farbus is like '{text}'\n  {next}")));
    }
    show(&found, args.json)
}

fn read_input() -> Result<String, CommandFailure> {
    let mut bytes = Vec::new();
    let input = std::io::stdin().lock().take(INPUT_MAX).read_to_end(&mut bytes);
    input.map_err(|trouble| CommandFailure::local(format!("cannot read standard input: {trouble}")))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a subject, `Attach, In use`, or its last part is meant.
fn is_about(subject: &str, text: &str) -> bool {
    let text = text.to_lowercase();
    subject.to_lowercase().split(", ").any(|part| part == text || part.trim_start_matches("the ") == text)
        || subject.to_lowercase() == text
}

/// The explanations of each line that is a message, in the order of the lines; else those that fit the text best.
fn best<'a>(all: &'a [Explanation], text: &str) -> Vec<&'a Explanation> {
    let mut found: Vec<&Explanation> = Vec::new();
    for line in text.lines() {
        let of_line = best_of_line(all, line).into_iter().filter(|(fit, _)| matches!(fit, MessageFit::Whole(_)));
        for (_, explanation) in of_line {
            if !found.contains(&explanation) {
                found.push(explanation);
            }
        }
    }
    if found.is_empty() {
        found = best_of_line(all, text).into_iter().map(|(_, explanation)| explanation).collect();
    }
    found.truncate(SHOWN_MAX);
    found
}

/// The explanations that fit a line best: of a whole message those whose own text is longest, else those with most
/// words.
fn best_of_line<'a>(all: &'a [Explanation], line: &str) -> Vec<(MessageFit, &'a Explanation)> {
    let mut fits: Vec<_> =
        all.iter().filter_map(|explanation| Some((matching::fit(explanation, line)?, explanation))).collect();
    fits.sort_by_key(|(fit, _)| std::cmp::Reverse(*fit));
    let Some((first, _)) = fits.first().copied() else { return Vec::new() };
    let is_as_good = |fit: MessageFit| match (first, fit) {
        // A long message often has a short one in it, which says less.
        (MessageFit::Whole(most), MessageFit::Whole(length)) => length * 2 > most,
        (MessageFit::Part, MessageFit::Part) => true,
        (MessageFit::Words(most), MessageFit::Words(share)) => share * 4 >= most * 3,
        _ => false,
    };
    fits.retain(|(fit, _)| is_as_good(*fit));
    fits
}

fn show(found: &[&Explanation], as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return print_json(&found);
    }
    for (at, explanation) in found.iter().enumerate() {
        if at > 0 {
            say("");
        }
        for message in &explanation.messages {
            say(message);
        }
        let printed_in = explanation.printed_in.trim_matches(['(', ')']);
        let exit_code = match explanation.exit_code.as_str() {
            "" => String::new(),
            code => format!("exit code {code}"),
        };
        let lines = [
            ("about", explanation.subject.as_str()),
            ("where", printed_in),
            ("means", &explanation.meaning),
            ("", &exit_code),
            ("type", &explanation.next),
        ];
        for (head, line) in lines.into_iter().filter(|(_, line)| !line.is_empty()) {
            say(format!("  {head:<6}{line}"));
        }
    }
    Ok(())
}

fn explain_exit_code((code, word, meaning): (u8, &str, &str), as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return print_json(&serde_json::json!({ "exit_code": code, "word": word, "meaning": meaning }));
    }
    let word = if word.is_empty() { String::new() } else { format!(" ({word})") };
    say(format!("exit code {code}{word}: {meaning}"));
    Ok(())
}

fn list_subjects(all: &[Explanation], as_json: bool) -> Result<(), CommandFailure> {
    let mut subjects: Vec<&str> = all.iter().map(|explanation| explanation.subject.as_str()).collect();
    subjects.dedup();
    if as_json {
        let codes = EXIT_CODES
            .map(|(code, word, meaning)| serde_json::json!({ "exit_code": code, "word": word, "meaning": meaning }));
        return print_json(&serde_json::json!({ "subjects": subjects, "exit_codes": codes }));
    }
    say("Subjects (farbus explain SUBJECT):");
    for subject in subjects {
        say(format!("  {subject}"));
    }
    say("\nExit codes, and the word before a message:");
    for (code, word, meaning) in EXIT_CODES {
        say(format!("  {code:<4} {word:<8} {meaning}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_is_known_by_either_of_its_parts_without_its_article() {
        for (subject, text) in [
            ("Attach, In use", "in use"),
            ("Attach, In use", "Attach"),
            ("Attach, In use", "attach, in use"),
            ("The daemon, Its file", "daemon"),
        ] {
            assert!(is_about(subject, text), "{subject}: {text}");
        }
        assert!(!is_about("Attach, In use", "use"));
    }

    #[test]
    fn every_kind_of_failure_has_its_exit_code_explained() {
        use FailureKind::{Device, Gone, Local, Network, Refused};
        for kind in [Local, Refused, Gone, Network, Device] {
            let (_, word, _) = EXIT_CODES.iter().find(|(code, ..)| *code == kind.exit_code()).unwrap();
            assert!(*word == kind.as_str() || kind == Local, "{kind:?}: {word}");
        }
    }
}
