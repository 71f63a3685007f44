//! Which explanation a printed message has.

use super::catalogue::Explanation;

/// Letters and signs that a message has to share with what was typed: fewer are in many messages.
const COMMON_MIN: usize = 6;

/// How well an explanation fits. The higher the better; only those of one kind are shown together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageFit {
    /// So many words of what was typed are in the message, in hundredths.
    Words(usize),
    /// What was typed is a part of the message.
    Part,
    /// The message, with its names and numbers, is in what was typed; how much of that is the message's own text.
    Whole(usize),
}

/// How well an explanation fits a text; `None` if not at all.
pub fn fit(explanation: &Explanation, text: &str) -> Option<MessageFit> {
    let text = normalized(text);
    explanation.messages.iter().filter_map(|message| fit_of_message(&normalized(message), &text)).max()
}

fn fit_of_message(message: &str, text: &str) -> Option<MessageFit> {
    if text.len() >= COMMON_MIN && message.contains(text) {
        return Some(MessageFit::Part);
    }
    if let Some(common) = own_text_within(message, text).filter(|common| *common >= COMMON_MIN) {
        return Some(MessageFit::Whole(common));
    }
    let typed: Vec<&str> = words(text).collect();
    let found = typed.iter().filter(|word| words(message).any(|other| other == **word)).count();
    (found * 2 > typed.len()).then(|| MessageFit::Words(found * 100 / typed.len()))
}

/// The length of a message's own text, if all of its parts are in this text in their order.
fn own_text_within(message: &str, text: &str) -> Option<usize> {
    let (mut rest, mut length) = (text, 0);
    for part in message.split('…').map(|part| part.trim_matches([' ', '\'', ':', ',', '.', ';'])) {
        rest = &rest[rest.find(part)? + part.len()..];
        length += part.len();
    }
    Some(length)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|sign: char| !sign.is_alphanumeric() && sign != '-' && sign != '_').filter(|word| word.len() > 2)
}

/// In lower case, with one space between words.
fn normalized(text: &str) -> String {
    text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use super::*;

    fn best(text: &str) -> (MessageFit, Explanation) {
        let all = catalogue::all().into_iter();
        let fits = all.filter_map(|explanation| Some((fit(&explanation, text)?, explanation)));
        fits.max_by_key(|(fit, _)| *fit).unwrap_or_else(|| panic!("nothing fits '{text}'"))
    }

    #[test]
    fn printed_message_is_found_with_its_names_and_numbers_in_it() {
        let (found, explanation) =
            best("farbus: refused: lab3:3241/disk is in use by desk since 12 s\n  one user at a time: …");
        assert!(matches!(found, MessageFit::Whole(_)), "{found:?}");
        assert_eq!(explanation.messages, ["… is in use by … since … s"]);
        let (_, explanation) = best("farbus: network: cannot connect to lab3:3240: Connection refused (os error 111)");
        assert!(explanation.messages[0].contains("Connection refused"), "{explanation:?}");
    }

    #[test]
    fn some_words_of_a_message_find_it_whatever_their_case() {
        let (found, explanation) = best("Keeps this host out");
        assert_eq!(found, MessageFit::Part);
        assert!(explanation.messages[0].starts_with("its owner keeps this host out"), "{explanation:?}");
    }

    #[test]
    fn words_in_another_order_find_what_has_most_of_them_and_strange_words_nothing() {
        let (found, explanation) = best("clock wrong certificate date");
        assert!(matches!(found, MessageFit::Words(_)), "{found:?}");
        assert!(explanation.messages[0].contains("certificate"), "{explanation:?}");
        let all = catalogue::all();
        assert!(all.iter().all(|explanation| fit(explanation, "xylophone quartet rehearsal").is_none()));
        assert!(all.iter().all(|explanation| fit(explanation, "").is_none()));
    }

    /// A message of the table, with something in place of each gap, finds its own row or one that says the same.
    #[test]
    fn every_message_finds_itself() {
        let all = catalogue::all();
        for explanation in &all {
            for message in &explanation.messages {
                let printed = message.replace('…', "x7");
                let own = fit(explanation, &printed);
                assert!(own.is_some() || message.len() < COMMON_MIN, "{message}: {own:?}");
            }
        }
    }
}
