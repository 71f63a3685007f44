//! Checks the page's answers against its description of itself. It knows as much of JSON Schema as that description
//! uses, and refuses any other word.

use serde_json::Value;

use super::harness::{Harness, PATIENCE, Running, wait_until};
use super::page::open_page;
use super::page_actions::check;
use super::sockets::share_at_socket;

/// The page's description of itself.
pub struct Description(pub Value);

impl Description {
    /// Checks an answer: its path as the description writes it, its method, status, content type and body.
    pub fn check(&self, path: &str, method: &str, status: u16, kind: &str, body: &str) -> Result<(), String> {
        let responses = &self.0["paths"][path][method]["responses"];
        let kind = kind.split(';').next().unwrap_or_default();
        let content = &responses[status.to_string()]["content"][kind];
        if !content.is_object() {
            return Err(format!("{method} {path} answers {status} {kind}, which is not described"));
        }
        if kind != "application/json" {
            return Ok(());
        }
        let value = serde_json::from_str(body).map_err(|error| format!("{path}: {error}: {body}"))?;
        self.fits(&content["schema"], &value).map_err(|why| format!("{method} {path} {status}: {why} in {value}"))
    }

    fn fits(&self, schema: &Value, value: &Value) -> Result<(), String> {
        if let Value::Bool(is_fine) = schema {
            return if *is_fine { Ok(()) } else { Err(format!("nothing fits: {value}")) };
        }
        let words = schema.as_object().ok_or("a schema is an object")?;
        let known = words.get("properties").and_then(Value::as_object);
        let is_known = |name: &str| known.is_some_and(|known| known.contains_key(name));
        // Others may have more than is described; what is tested here is described completely.
        if let (Some(_), None, Some(object)) = (known, words.get("additionalProperties"), value.as_object())
            && let Some(name) = object.keys().find(|name| !is_known(name))
        {
            return Err(format!("'{name}' is not described"));
        }
        for (word, constraint) in words {
            let is_kept = match word.as_str() {
                "$ref" => {
                    let at =
                        constraint.as_str().and_then(|constraint| constraint.strip_prefix('#')).ok_or("a reference")?;
                    self.fits(self.0.pointer(at).ok_or_else(|| format!("no {at}"))?, value)?;
                    true
                }
                "anyOf" => {
                    let all = constraint.as_array().ok_or("anyOf")?;
                    let fits: Vec<_> = all.iter().map(|schema| self.fits(schema, value)).collect();
                    if fits.iter().all(Result::is_err) {
                        return Err(format!("none of {constraint}: {fits:?}"));
                    }
                    true
                }
                "oneOf" => {
                    let all = constraint.as_array().ok_or("oneOf")?;
                    all.iter().filter(|schema| self.fits(schema, value).is_ok()).count() == 1
                }
                "const" => constraint == value,
                "type" => match constraint {
                    Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
                    kind => is_of(kind, value),
                },
                "enum" => constraint.as_array().is_some_and(|all| all.contains(value)),
                "minimum" => value.as_f64().zip(constraint.as_f64()).is_none_or(|(value, least)| value >= least),
                "maximum" => value.as_f64().zip(constraint.as_f64()).is_none_or(|(value, most)| value <= most),
                "required" => constraint.as_array().into_iter().flatten().all(|name| {
                    value.as_object().is_none_or(|object| name.as_str().is_some_and(|name| object.contains_key(name)))
                }),
                "items" => {
                    value.as_array().into_iter().flatten().try_for_each(|item| self.fits(constraint, item))?;
                    true
                }
                "properties" => {
                    for (name, schema) in constraint.as_object().into_iter().flatten() {
                        if let Some(value) = value.get(name) {
                            self.fits(schema, value).map_err(|why| format!("{name}: {why}"))?;
                        }
                    }
                    true
                }
                "additionalProperties" => {
                    let further = value.as_object().into_iter().flatten().filter(|(name, _)| !is_known(name));
                    for (name, value) in further {
                        self.fits(constraint, value).map_err(|why| format!("{name}: {why}"))?;
                    }
                    true
                }
                "format" | "description" => true,
                other => return Err(format!("the schema says '{other}'")),
            };
            if !is_kept {
                return Err(format!("not {word} {constraint}: {value}"));
            }
        }
        Ok(())
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("null") => value.is_null(),
        _ => false,
    }
}

#[test]
fn an_answer_that_is_not_as_described_is_found() {
    let text = include_str!("page_schema_example.json");
    let description = Description(serde_json::from_str(text).unwrap());
    let check = |status, body| description.check("/x", "get", status, "application/json", body).is_ok();
    assert!(check(200, r#"{"name":"a","count":1,"of":[{"name":"b"}]}"#));
    assert!(check(200, r#"{"name":"a","open":{"kind":"a"},"named":{"x":1,"y":null}}"#));
    for wrong in [
        r#"{"count":1}"#,
        r#"{"name":1}"#,
        r#"{"name":"a","count":-1}"#,
        r#"{"name":"a","of":[{}]}"#,
        r#"{"name":"a","else":1}"#,
        r#"{"name":"a","count":10}"#,
        r#"{"name":"a","open":{"kind":"c"}}"#,
        r#"{"name":"a","open":{"kind":"a","else":1}}"#,
        r#"{"name":"a","named":{"x":"y"}}"#,
        r#"{"name":"a","named":{"x":0}}"#,
        "[]",
        "",
    ] {
        assert!(!check(200, wrong), "{wrong}");
    }
    assert!(!check(201, r#"{"name":"a"}"#), "a status that is not described");
}

#[test]
fn what_each_kind_of_process_says_of_its_devices_is_described_completely() {
    let harness = Harness::new();
    let image = harness.image("disk.img", 1 << 20);
    let (_share, path) = share_at_socket(&harness, &[&format!("disk:{},name=disk", image.display()), "zero"]);
    let _of_the_same_name = harness.share(&["zero"]);
    let config = harness.path("farbus.toml");
    let text = format!(
        "plain.listen = []\n[page]\nlisten = \"127.0.0.1:0\"\n[[share]]\nwhat = \"disk:/nothing\"\nname = \"lost\"\n\
         [[attach]]\ntarget = 'unix:{}/disk'\nvia = 'nbd'\nsocket = '{}'\n\
         [[attach]]\ntarget = 'unix:{}/none'\nvia = 'nbd'\n",
        path.display(),
        harness.path("nbd").display(),
        path.display()
    );
    std::fs::write(&config, text).unwrap();
    let _daemon = Running::start(harness.command(&["daemon", "--config", config.to_str().unwrap()]));
    let nbd = Running::start(harness.command(&["nbd", "memory:1M", "--listen", "127.0.0.1:0"]));
    nbd.wait_for_line("serving as nbd://127.0.0.1:");
    let page = open_page(&harness);
    let status = || page.get("/api/v1/status", "");
    // Among them one that is not shared and one that is not attached, each with its failure.
    wait_until(PATIENCE, "all devices are in the status", || {
        let body = status().body;
        [
            "attached",
            "in use",
            "available",
            "served",
            "failed",
            "\"failure\":{",
            "\"page\":{",
            "\"links\":{",
            "\"called\":\"zero@",
        ]
        .iter()
        .all(|word| body.contains(word))
    });
    for path in ["/api/v1/status", "/api/v1/devices", "/api/v1/shares", "/api/v1/attachments", "/api/v1/lab/devices"] {
        let reply = page.get(path, "");
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        check(&page, "get", path, &reply);
    }
}
