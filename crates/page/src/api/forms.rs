//! Forms of the page: what one sends, as the parameters of its action, and the command line that does the same.
//!
//! A form is drawn out of the table of actions (`view/forms.rs`), so each parameter has a field. Its text becomes a
//! parameter here and nowhere else, with and without a script.

use serde_json::{Map, Value, json};

use crate::api::actions::{ArgumentPosition, CommandLifetime, PageAction, ParameterType, WrongParameter};

/// Fields of a form that are read; an action has fewer.
pub const FIELDS_MAX: usize = 64;
/// What is shown behind the command line of a recording, whose command prints what it records, and of pictures.
const INTO_FILE: &str = " > FILE.pcapng";
const INTO_PICTURE: &str = " > FILE.png";

/// The parameters of an action, as its form sends them: an empty field is one that is not given, and a number that is
/// none stays a text, which the action refuses.
pub fn given(action: &PageAction, value_of: impl Fn(&str) -> Option<String>) -> Map<String, Value> {
    let parameters = action.parameters.iter().filter_map(|parameter| {
        let text = value_of(parameter.name).filter(|text| !text.is_empty())?;
        let value = match parameter.kind {
            // A browser sends a box that is ticked, and no other.
            ParameterType::Switch => json!(true),
            ParameterType::Number { .. } => {
                text.trim().parse::<u64>().map_or_else(|_| json!(text), |number| json!(number))
            }
            // One on each line.
            ParameterType::Texts { .. } => {
                let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
                json!(lines.collect::<Vec<_>>())
            }
            ParameterType::Text { .. }
            | ParameterType::Span
            | ParameterType::Words
            | ParameterType::Path
            | ParameterType::Choice(_) => json!(text),
        };
        Some((parameter.name.to_owned(), value))
    });
    parameters.collect()
}

/// The command line with these parameters, to be shown: words in capitals stand for what is missing or wrong. Also the
/// first parameter that is wrong, if one is; a missing one is not.
pub fn line(action: &'static PageAction, given: &Map<String, Value>) -> (String, Option<WrongParameter>) {
    let mut filled = given.clone();
    for parameter in action.parameters.iter().filter(|parameter| parameter.is_required()) {
        let is_missing = filled.get(parameter.name).is_none_or(Value::is_null);
        if is_missing {
            filled.insert(parameter.name.to_owned(), parameter.placeholder());
        }
    }
    let mut wrong = None;
    // Each round takes one parameter out that is wrong.
    for _ in 0..=action.parameters.len() {
        let why = match action.command(&filled) {
            Ok(command) => {
                let end = match action.runs {
                    CommandLifetime::Recording => INTO_FILE,
                    CommandLifetime::Picture => INTO_PICTURE,
                    _ => "",
                };
                return (command.line() + end, wrong);
            }
            Err(why) => why,
        };
        let Some(parameter) = action.parameters.iter().find(|known| Some(known.name) == why.parameter.as_deref())
        else {
            wrong = wrong.or(Some(why));
            break;
        };
        match parameter.at {
            ArgumentPosition::Option(_) | ArgumentPosition::WordIf => filled.remove(parameter.name),
            ArgumentPosition::Word | ArgumentPosition::Required(_) => {
                filled.insert(parameter.name.to_owned(), parameter.placeholder())
            }
        };
        wrong = wrong.or(Some(why));
    }
    (String::new(), wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::table::{action, all};

    fn sent<'a>(name: &str, fields: &'a [(&'a str, &'a str)]) -> (&'static PageAction, Map<String, Value>) {
        let action = action(name).unwrap();
        let value_of = |name: &str| fields.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        (action, given(action, value_of))
    }

    #[test]
    fn a_form_sends_the_parameters_of_its_action_and_its_line_is_that_of_the_command() {
        let fields = [("device", "a b"), ("reason", "it's mine"), ("keep_out", "60"), ("force", "on"), ("back", "/")];
        let (release, given) = sent("release", &fields);
        assert_eq!(
            Value::Object(given.clone()),
            json!({ "device": "a b", "reason": "it's mine", "keep_out": 60, "force": true })
        );
        assert_eq!(line(release, &given), (release.command(&given).unwrap().line(), None));
        let (_, given) = sent("release", &[("device", "disk"), ("reason", ""), ("keep_out", "")]);
        assert_eq!(Value::Object(given), json!({ "device": "disk" }), "what is empty is not given");
        let (_, given) = sent("attach", &[("target", "lab3/disk"), ("module", "delay:ms=5\n\nnull \n")]);
        assert_eq!(Value::Object(given), json!({ "target": "lab3/disk", "module": ["delay:ms=5", "null"] }));
        let (observe, given) = sent("observe", &[("target", "lab3/keyboard")]);
        assert_eq!(line(observe, &given).0, "farbus observe --pcapng lab3/keyboard > FILE.pcapng");
    }

    #[test]
    fn what_is_missing_or_wrong_has_a_word_in_capitals_in_the_line_and_what_is_wrong_is_named() {
        let of = |name: &str, fields: &[(&str, &str)]| {
            let (action, given) = sent(name, fields);
            let (line, wrong) = line(action, &given);
            (line, wrong.and_then(|wrong| wrong.parameter))
        };
        let wrong = |parameter: &str| Some(parameter.to_owned());
        assert_eq!(of("migrate", &[("device", "lab3/disk")]), ("farbus migrate lab3/disk --to=HOST".into(), None));
        assert_eq!(of("attach", &[]), ("farbus attach HOST/DEVICE".into(), None));
        assert_eq!(of("share", &[("what", "disk:a")]), ("farbus share block:/PATH".into(), wrong("what")));
        let fields = [("device", "disk"), ("keep_out", "1e9"), ("reason", "x\0")];
        assert_eq!(of("release", &fields), ("farbus release disk".into(), wrong("reason")));
        // Whatever is sent, there is a line.
        for action in all() {
            for text in ["", "\0", "-1", "x", "--force", "$(reboot)", "disk:a"] {
                let given = given(action, |_| Some(text.to_owned()));
                assert!(line(action, &given).0.starts_with("farbus "), "{} {text:?}", action.name);
            }
        }
    }
}
