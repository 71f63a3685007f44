//! The JSON that programs read: every key that the previous release printed is printed by this version, with a value of
//! the same type.

use std::collections::BTreeMap;

use serde_json::Value;

use super::harness::{Harness, PATIENCE, has_fuse, wait_until};
use super::hosts::{Host, Previous, Release, This, end, has_previous, pair};

/// Keys and types of a JSON value, whatever its strings and numbers are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shape {
    /// Unknown: null, or an element of an empty list.
    Any,
    Bool,
    Number,
    Text,
    List(Box<Shape>),
    Object(BTreeMap<String, Shape>),
}

impl Shape {
    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Shape::Any,
            Value::Bool(_) => Shape::Bool,
            Value::Number(_) => Shape::Number,
            Value::String(_) => Shape::Text,
            Value::Array(all) => {
                Shape::List(Box::new(all.iter().map(Self::of).fold(Shape::Any, |all, one| all.with(one))))
            }
            Value::Object(all) => {
                Shape::Object(all.iter().map(|(key, value)| (key.clone(), Self::of(value))).collect())
            }
        }
    }

    /// Merges what two values of one place show.
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (Shape::Any, known) | (known, Shape::Any) => known,
            (Shape::List(one), Shape::List(other)) => Shape::List(Box::new(one.with(*other))),
            (Shape::Object(mut one), Shape::Object(other)) => {
                for (key, shape) in other {
                    let known = one.remove(&key).unwrap_or(Shape::Any);
                    one.insert(key, known.with(shape));
                }
                Shape::Object(one)
            }
            (one, _) => one,
        }
    }

    /// The first place at which `newer` lacks a key of this shape, or has another type.
    fn missing_in(&self, newer: &Self, location: &str) -> Option<String> {
        match (self, newer) {
            (Shape::Any, _) => None,
            (Shape::List(old), Shape::List(new)) => old.missing_in(new, &format!("{location}[]")),
            (Shape::Object(old), Shape::Object(new)) => old.iter().find_map(|(key, shape)| {
                let location = format!("{location}.{key}");
                match new.get(key) {
                    None => Some(format!("{location} is missing")),
                    Some(other) => shape.missing_in(other, &location),
                }
            }),
            (old, new) if old == new => None,
            (old, new) => Some(format!("{location} was {old:?} and is {new:?}")),
        }
    }
}

#[test]
fn missing_keys_and_other_types_are_found_and_additions_are_not() {
    let shape = |text: &str| Shape::of(&serde_json::from_str(text).unwrap());
    let old = shape(r#"[{"a":1,"b":[{"c":"x"}]},{"d":null}]"#);
    assert_eq!(old.missing_in(&shape(r#"[{"a":2,"b":[{"c":"y","e":1}],"d":{}}]"#), ""), None);
    assert_eq!(old.missing_in(&shape(r#"[{"a":2,"b":[{}],"d":1}]"#), "").unwrap(), "[].b[].c is missing");
    assert!(old.missing_in(&shape(r#"[{"a":"2","b":[{"c":"y"}],"d":1}]"#), "").unwrap().starts_with("[].a was Number"));
}

/// What `--json` prints in one and the same situation, by command.
fn printed(release: Release) -> Vec<(&'static str, Value)> {
    let harness = Harness::new();
    let (lab3, desk) = (Host::new(&harness, "lab3", release), Host::new(&harness, "desk", release));
    pair(&lab3, &desk);
    lab3.ok(&["allow", "desk", "all"]);
    let image = harness.image("image", 1 << 20);
    let disk = format!("disk:{}", image.display());
    let what = [&disk[..], "zero", "keyboard", "stream:pattern", "--reserve", "zero:bytes=64,period=8"];
    let (share, address) = lab3.share_secure(&what, "127.0.0.1:0");
    let mut all = vec![
        ("id", lab3.json(&["id", "--json"])),
        ("peers of the exporter", lab3.json(&["peers", "--json"])),
        ("list", desk.json(&["list", "lab3", "--address", &address, "--json"])),
        ("peers of the importer", desk.json(&["peers", "--json"])),
        ("status without users", lab3.json(&["status", "--json"])),
        ("share --list", lab3.json(&["share", "--list", "--json"])),
    ];
    if has_fuse() {
        let at = harness.path("at");
        let attach =
            desk.start(&["attach", "lab3/disk", "--via", "fuse", "--at", at.to_str().unwrap(), "--address", &address]);
        attach.wait_for_line("attached as");
        std::fs::read(at.join("disk.img")).unwrap();
        all.push(("status of the exporter", lab3.json(&["status", "--json"])));
        all.push(("status of the importer", desk.json(&["status", "--json"])));
        end(attach);
        wait_until(PATIENCE, "it is given back", || lab3.ok(&["status", "--json"]).contains("history"));
        all.push(("status after a user", lab3.json(&["status", "--json"])));
    }
    end(share);
    all
}

#[test]
fn every_key_that_the_previous_release_prints_is_still_printed() {
    if !has_previous() {
        return;
    }
    let (old, new) = (printed(Previous), printed(This));
    for ((command, old), (_, new)) in old.iter().zip(&new) {
        if let Some(what) = Shape::of(old).missing_in(&Shape::of(new), "") {
            panic!("{command}: {what}\nwas {old:#}\nis {new:#}");
        }
    }
}
