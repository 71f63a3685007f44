//! Command lines of all actions, for tests: here, and where the command reads them.

use serde_json::{Map, json};

use super::actions::{Action, At, CommandLine, Kind};
use super::table;

/// A text that the option of this parameter takes, hostile where it takes any.
fn valid(action: &Action, parameter: &str) -> &'static str {
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
                Kind::Text { .. } if parameter.name == "rate" => json!("100M"),
                Kind::Text { .. } if matches!(action.name, "lease-list" | "status-of") => json!("lab3"),
                Kind::Text { .. } if parameter.name == "uri" => json!("tcp:lab3:7"),
                Kind::Text { .. }
                    if matches!(action.name, "observe" | "console" | "picture")
                        || action.name.starts_with("lease-") =>
                {
                    json!("lab3/$(a);b'")
                }
                Kind::Text { .. } if matches!(parameter.at, At::Option(_)) => json!(valid(action, parameter.name)),
                Kind::Text { .. } => json!("-a;b'\n"),
                Kind::Texts { .. } if matches!(parameter.at, At::Option(_)) => {
                    json!([valid(action, parameter.name)])
                }
                Kind::Texts { .. } if action.name == "list" => json!(["lab3", "label:a=$(b);'"]),
                Kind::Texts { .. } if action.name == "label" => json!(["board=$(b);'", "place=a b"]),
                Kind::Texts { .. } if action.name == "lease" => json!(["lab3/$(a);b'"]),
                Kind::Texts { .. } => json!(["-a;b'\n", "$(b)"]),
                Kind::Span => json!("1h30m"),
                Kind::Words if action.name == "share" => json!("disk:/a b.img,ro"),
                Kind::Words => json!("block:/a b.img"),
                Kind::Path => json!("/a b"),
                Kind::Number { max, .. } => json!(max),
                Kind::Choice(words) => json!(words[words.len() - 1]),
                Kind::Switch => json!(true),
            };
            if parameter.is_required() {
                required.insert(parameter.name.to_owned(), value);
            } else {
                // Some exclude each other: each is added to those that have to be given.
                let mut given = required.clone();
                given.insert(parameter.name.to_owned(), value);
                let after = action.parameters.iter().filter(|other| matches!(other.at, At::Required(_)));
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
