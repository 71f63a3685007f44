//! Command lines of all actions, for tests: here, and where the command reads them.

use serde_json::{Map, json};

use super::actions::{ArgumentPosition, CommandLine, PageAction, ParameterType};
use super::table;

/// A text that the option of this parameter takes, hostile where it takes any.
fn valid(action: &PageAction, parameter: &str) -> &'static str {
    match parameter {
        "listen" | "secure" | "address" => "127.0.0.1:7",
        "module" | "allow_module" => "null",
        "reserve" if action.name == "share" => "disk:bytes=512,period=8",
        "reserve" => "bytes=512,period=8",
        "rate" => "100M",
        "from" => "+90m",
        "socket_group" => "0",
        _ => "-a;b'\n",
    }
}

/// Each action with all of its parameters, and with as few as it takes; all of them hostile.
pub fn examples() -> Vec<CommandLine> {
    let mut all = Vec::new();
    for action in table::all() {
        let mut required = Map::new();
        for parameter in action.parameters {
            let value = match parameter.kind {
                ParameterType::Text { .. } if parameter.name == "rate" => json!("100M"),
                ParameterType::Text { .. } if matches!(action.name, "lease-list" | "status-of") => json!("lab3"),
                ParameterType::Text { .. } if parameter.name == "uri" => json!("tcp:lab3:7"),
                ParameterType::Text { .. }
                    if matches!(action.name, "observe" | "console" | "picture")
                        || action.name.starts_with("lease-") =>
                {
                    json!("lab3/$(a);b'")
                }
                ParameterType::Text { .. } if matches!(parameter.at, ArgumentPosition::Option(_)) => {
                    json!(valid(action, parameter.name))
                }
                ParameterType::Text { .. } => json!("-a;b'\n"),
                ParameterType::Texts { .. } if matches!(parameter.at, ArgumentPosition::Option(_)) => {
                    json!([valid(action, parameter.name)])
                }
                ParameterType::Texts { .. } if action.name == "list" => json!(["lab3", "label:a=$(b);'"]),
                ParameterType::Texts { .. } if action.name == "label" => json!(["board=$(b);'", "place=a b"]),
                ParameterType::Texts { .. } if action.name == "lease" => json!(["lab3/$(a);b'"]),
                ParameterType::Texts { .. } => json!(["-a;b'\n", "$(b)"]),
                ParameterType::Span => json!("1h30m"),
                ParameterType::Words if action.name == "share" => json!("disk:/a b.img,ro"),
                ParameterType::Words => json!("block:/a b.img"),
                ParameterType::Path => json!("/a b"),
                ParameterType::Number { max, .. } => json!(max),
                ParameterType::Choice(words) => json!(words[words.len() - 1]),
                ParameterType::Switch => json!(true),
            };
            if parameter.is_required() {
                required.insert(parameter.name.to_owned(), value);
            } else {
                // Some exclude each other: each is added to those that have to be given.
                let mut given = required.clone();
                given.insert(parameter.name.to_owned(), value);
                let after = action.parameters.iter().filter(|other| matches!(other.at, ArgumentPosition::Required(_)));
                after.for_each(|other| {
                    given.entry(other.name.to_owned()).or_insert(json!("block:/x"));
                });
                match parameter.name {
                    "socket_mode" | "socket_group" => _ = given.insert("socket".to_owned(), json!("/a b")),
                    "address" if action.name == "list" => _ = given.insert("words".to_owned(), json!(["lab3"])),
                    _ => {}
                }
                all.push(action.command(&given).unwrap());
            }
        }
        all.push(action.command(&required).unwrap());
    }
    all
}
