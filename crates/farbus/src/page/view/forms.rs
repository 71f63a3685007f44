//! Forms: each does an action by posting it, with and without a script, and shows the command line that does the same.
//!
//! A form is drawn out of the table of actions: what is known stands in hidden fields, what has to be said in fields,
//! what may be said in fields that can be unfolded.

use std::fmt::Write;

use farbus_io::trust::Scope;
use serde_json::{Map, Value};

use super::super::api::actions::{Action, HOSTS, Kind, Parameter, Wrong};
use super::super::api::forms;
use super::super::api::offers;
use super::super::api::routes::{FORMS_AT, OPERATIONS_AT};
use super::super::api::table;
use super::super::shell::command;
use super::super::status::Status;
use super::drawing::{Drawing, Piece};
use super::text::{escaped, escaped_whole};

/// Choices of one list.
const CHOICES_MAX: usize = 256;
/// Characters of a text of others in the question whether somebody is sure.
const HIT_CHARS_MAX: usize = 160;

/// Who looks at a view.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'r> {
    /// The address of the view: what does not stay there leads back to it.
    pub back: &'r str,
    /// What they may do.
    pub may: Scope,
}

/// A form of an action.
pub struct Form<'f> {
    /// What it does.
    pub action: &'static Action,
    /// The same, a few words.
    pub what: &'f str,
    /// Parameters that are known, and not typed.
    pub known: &'f Map<String, Value>,
    /// What was typed before, by the names of the parameters.
    pub typed: &'f [(String, String)],
    /// What was wrong with that.
    pub wrong: Option<&'f Wrong>,
    /// What is asked before it is done, if anything is: who loses something by it.
    pub hits: Option<String>,
    /// The address of the view that it is in.
    pub back: &'f str,
}

impl Form<'_> {
    fn id(&self) -> String {
        format!("do-{}", self.action.name)
    }

    fn value(&self, parameter: &Parameter) -> &str {
        let typed = self.typed.iter().find(|(name, _)| name == parameter.name);
        typed.map(|(_, text)| text.as_str()).unwrap_or_default()
    }

    /// The whole element. Its id is unique in a document that has one form of each action.
    pub fn draw(&self) -> String {
        let (id, name) = (self.id(), self.action.name);
        let given = match self.typed.is_empty() {
            true => self.known.clone(),
            false => forms::given(self.action, |name| {
                self.typed.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
            }),
        };
        let (line, _) = forms::line(self.action, &given);
        let mut out = format!("<form id=\"{id}\" class=\"do\" method=\"post\" action=\"{FORMS_AT}{name}\"");
        if let Some(hits) = &self.hits {
            let _ = write!(out, " data-hits=\"{}\"", escaped_whole(hits));
        }
        let _ = write!(out, ">\n<p class=\"what\">{}</p>{}", self.what, hidden("back", self.back));
        for (name, value) in self.known {
            out.push_str(&hidden(name, value.as_str().unwrap_or_default()));
        }
        let is_open = |parameter: &&Parameter| !self.known.contains_key(parameter.name);
        for parameter in self.action.parameters.iter().filter(is_open).filter(|parameter| parameter.is_required()) {
            out.push_str(&self.field(parameter));
        }
        let options: Vec<&Parameter> =
            self.action.parameters.iter().filter(is_open).filter(|parameter| !parameter.is_required()).collect();
        if !options.is_empty() {
            // What was typed, or is wrong, is seen.
            let is_used = |parameter: &&Parameter| {
                !self.value(parameter).is_empty()
                    || self.wrong.is_some_and(|wrong| wrong.parameter.as_deref() == Some(parameter.name))
            };
            let open = if options.iter().any(is_used) { " open" } else { "" };
            let _ = write!(
                out,
                "\n<details id=\"{id}-more\" aria-label=\"Options: {0}\"{open}><summary>Options: {0}</summary>",
                self.what
            );
            options.iter().for_each(|parameter| out.push_str(&self.field(parameter)));
            out.push_str("</details>");
        }
        let of_whole = self.wrong.filter(|wrong| {
            let is_field = |parameter: &Parameter| wrong.parameter.as_deref() == Some(parameter.name);
            !self.action.parameters.iter().any(is_field)
        });
        let _ = write!(
            out,
            "\n<p class=\"line\"><code tabindex=\"0\">{}</code> <button type=\"button\" class=\"copy\" \
             aria-label=\"Copy the command: {what}\">Copy</button> <button class=\"do\" data-action=\"{name}\" \
             aria-label=\"Do it: {what}\">Do it</button></p><p class=\"said wrong\">{}</p></form>",
            escaped_whole(&line),
            of_whole.map(|wrong| escaped_whole(&wrong.message)).unwrap_or_default(),
            what = self.what,
        );
        out
    }

    fn field(&self, parameter: &Parameter) -> String {
        let (id, name) = (format!("{}-{}", self.id(), parameter.name), parameter.name);
        let value = self.value(parameter);
        let message = self.wrong.filter(|wrong| wrong.parameter.as_deref() == Some(name));
        let invalid = if message.is_some() { " aria-invalid=\"true\"" } else { "" };
        let common = format!("id=\"{id}\" name=\"{name}\" aria-describedby=\"{id}-wrong\"{invalid}");
        let list = match (self.action.name, name, parameter.kind) {
            ("share", "what", _) => " list=\"shareable\"",
            ("attach", "target", _) => " list=\"targets\"",
            (_, _, HOSTS) => " list=\"hosts\"",
            _ => "",
        };
        let text = |more: &str| {
            format!(
                "<label for=\"{id}\">{}</label><input {common} value=\"{}\" autocapitalize=\"none\" autocomplete=\"off\" \
                 spellcheck=\"false\"{list}{more}>",
                escaped_whole(parameter.help),
                escaped_whole(value)
            )
        };
        let field = match parameter.kind {
            Kind::Text { .. } | Kind::Span | Kind::Words | Kind::Path => text(""),
            // The first line break in it is none of its text.
            Kind::Texts { .. } => format!(
                "<label for=\"{id}\">{} One on each line.</label><textarea {common} rows=\"1\" autocapitalize=\"none\" \
                 autocomplete=\"off\" spellcheck=\"false\" data-kind=\"lines\">\n{}</textarea>",
                escaped_whole(parameter.help),
                whole(value)
            ),
            // A field for numbers would lose a text that is none.
            Kind::Number { .. } => text(" inputmode=\"numeric\" data-kind=\"number\""),
            Kind::Choice(words) => {
                let mut options = "<option value=\"\">as the command chooses</option>".to_owned();
                for word in words {
                    let selected = if *word == value { " selected" } else { "" };
                    let _ = write!(options, "<option{selected}>{word}</option>");
                }
                format!(
                    "<label for=\"{id}\">{}</label><select {common}>{options}</select>",
                    escaped_whole(parameter.help)
                )
            }
            Kind::Switch => {
                let checked = if value.is_empty() { "" } else { " checked" };
                format!(
                    "<input type=\"checkbox\" {common}{checked}> <label for=\"{id}\">{}</label>",
                    escaped_whole(parameter.help)
                )
            }
        };
        let message = message.map(|wrong| escaped_whole(&wrong.message)).unwrap_or_default();
        format!("\n<div class=\"field\">{field}<span class=\"wrong\" id=\"{id}-wrong\">{message}</span></div>")
    }
}

fn hidden(name: &str, value: &str) -> String {
    format!("<input type=\"hidden\" name=\"{}\" value=\"{}\">", escaped_whole(name), whole(value))
}

/// A value that is sent back as it is: a character that is not seen stays, as its number.
fn whole(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '&' | '<' | '>' | '"' | '\'' => out.push_str(&escaped_whole(c.encode_utf8(&mut [0; 4]))),
            // HTML has no way to write these two, and a browser sends the second as two characters.
            '\0' | '\r' => out.push('\u{fffd}'),
            c if super::super::shell::is_deceptive(c) => {
                let _ = write!(out, "&#{};", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// Who loses something by an action, as a question to the one who asks for it; `None`: nobody does.
pub fn hits(action: &str, device: &Value) -> Option<String> {
    let short = |text: &str| text.chars().take(HIT_CHARS_MAX).collect::<String>();
    let name = short(device["name"].as_str().unwrap_or("the device"));
    let user = device["user"].as_str().filter(|user| !user.is_empty()).map(short);
    match action {
        "release" => Some(match user {
            Some(user) => format!("{user} uses {name} and loses it."),
            None => format!("Nobody is known to use {name} now; who does loses it."),
        }),
        "unshare" => Some(match user {
            Some(user) => format!("{user} uses {name}. Nobody can use it any more, until it is shared again."),
            None => format!("Nobody uses {name} now. Nobody can use it any more, until it is shared again."),
        }),
        "detach" => {
            let at = device["at"].as_str().map(|at| format!(" at {}", short(at))).unwrap_or_default();
            Some(format!("Programs of this machine that use {name}{at} lose it."))
        }
        _ => None,
    }
}

/// A form that attaches a device of another host, in a row whose element has the id `key`; the command line alone for
/// those who may not.
pub fn attach_here(offer: &offers::Offer, key: &str, reader: Reader<'_>) -> String {
    let line = escaped_whole(&offer.line);
    let may = table::action(offer.action).is_some_and(|action| reader.may >= action.scope);
    if !may {
        return format!("<code>{line}</code>");
    }
    let known = offer.parameters.iter().map(|(name, value)| hidden(name, value.as_str().unwrap_or_default()));
    format!(
        "<form id=\"{key}-attach\" class=\"do\" method=\"post\" action=\"{FORMS_AT}{action}\">{}{}<p class=\"line\">\
         <code>{line}</code> <button class=\"do\" data-action=\"{action}\" aria-label=\"Attach here: {}\">Attach here\
         </button></p><p class=\"said wrong\"></p></form>",
        hidden("back", reader.back),
        known.collect::<String>(),
        escaped_whole(offer.parameters["target"].as_str().unwrap_or_default()),
        action = offer.action,
    )
}

/// A form that ends an operation; empty for those who may not. `line` is the command line that does the same.
pub fn stop(operation: &Value, line: &str, reader: Reader<'_>) -> String {
    let id = operation["id"].as_u64().unwrap_or_default();
    let needs = operation["action"].as_str().and_then(table::action).map_or(Scope::Own, |action| action.scope);
    if reader.may < needs {
        return String::new();
    }
    let hits = escaped_whole(&stop_hits(operation));
    format!(
        "<form id=\"stop-{id}\" class=\"do\" method=\"post\" action=\"{FORMS_AT}stop/{id}\" \
         data-at=\"{OPERATIONS_AT}{id}/stop\" data-hits=\"{hits}\">{}<p class=\"line\"><span>end it</span> \
         <code tabindex=\"0\">{}</code> <button class=\"do\" aria-label=\"End it: operation {id}\">End it</button></p>\
         <p class=\"said wrong\"></p></form>",
        hidden("back", reader.back),
        escaped_whole(line),
    )
}

/// What ends with an operation.
pub fn stop_hits(operation: &Value) -> String {
    let text =
        |name: &str| operation[name].as_str().unwrap_or_default().chars().take(HIT_CHARS_MAX).collect::<String>();
    format!("This ends what {} has begun: {}", text("by"), text("command"))
}

/// What can be done with a device: a form for each action that its reader may do, and the command line of the others.
pub fn commands(process: &Value, device: &Value, reader: Reader<'_>) -> String {
    let mut content = String::new();
    let offers = offers::of(process, device);
    for offer in &offers {
        let Some(action) = table::action(offer.action) else { continue };
        let drawn = match reader.may >= action.scope {
            true => Form {
                action,
                what: offer.what,
                known: &offer.parameters,
                typed: &[],
                wrong: None,
                hits: hits(action.name, device),
                back: reader.back,
            }
            .draw(),
            false => to_type(offer.what, &offer.line),
        };
        let _ = writeln!(content, "<li>{drawn}</li>");
    }
    // What can be allowed is shared here.
    if let Some(name) = device["name"].as_str().filter(|_| offers.iter().any(|offer| offer.action == "allow")) {
        let line = command("label", &[name, "place=TEXT"]);
        let _ = writeln!(content, "<li>{}</li>", to_type("say where it is", &line));
    }
    if content.is_empty() { content } else { format!("<ul class=\"commands\">\n{content}</ul>\n") }
}

/// A command line that can be copied.
fn to_type(what: &str, line: &str) -> String {
    format!(
        "<p class=\"what\">{what}</p><p class=\"line\"><code tabindex=\"0\">{}</code> <button type=\"button\" \
         class=\"copy\" aria-label=\"Copy the command: {what}\">Copy</button></p>",
        escaped_whole(line)
    )
}

/// A list that fields offer to choose from: values, each with what it means.
fn choices<'c>(id: &str, all: impl Iterator<Item = (&'c str, String)>) -> String {
    let mut out = format!("<datalist id=\"{id}\">");
    for (value, what) in all.take(CHOICES_MAX) {
        let _ = write!(out, "<option value=\"{}\">{}</option>", escaped_whole(value), escaped_whole(&what));
    }
    out.push_str("</datalist>\n");
    out
}

/// The list of paired hosts, which fields for a host offer.
pub fn hosts(hosts: &[String]) -> String {
    choices("hosts", hosts.iter().map(|host| (host.as_str(), String::new())))
}

/// Things that can be shared on every machine, with what they are.
const OF_EVERY_MACHINE: [(&str, &str); 6] = [
    ("disk:/PATH", "a file or block device"),
    ("memory:64M", "a disk in memory"),
    ("keyboard", "a keyboard that types what 'farbus type' tells it"),
    ("serial", "a serial port that returns what is sent to it"),
    ("zero", "source and sink, for tests"),
    ("stream:pattern", "frames of a test picture"),
];

/// The view with the forms that share a device and attach one. `known` are the hosts and the USB devices that can be
/// chosen.
pub fn new(status: &Status, known: Option<(&[String], &[Value])>, may: Scope) -> Drawing {
    let title = "Share and attach".to_owned();
    let mut html = format!("<h1>{title}</h1>\n");
    let Some((hosts, shareable)) = known.filter(|_| may >= Scope::Own) else {
        html.push_str(
            "<p>To share and attach devices here a browser needs the scope <code>own</code>: \
             <code>farbus page invite --scope own</code></p>\n",
        );
        return Drawing { title, is_there: true, pieces: vec![Piece::Fixed(html)] };
    };
    let none = Map::new();
    let form = |name: &str, what| {
        table::action(name).map_or_else(String::new, |action| {
            Form { action, what, known: &none, typed: &[], wrong: None, hits: None, back: "/new" }.draw()
        })
    };
    let _ = writeln!(html, "<section id=\"share\"><h2>Share</h2>\n{}", form("share", "share a device of this machine"));
    html.push_str(&plugged_in(shareable));
    let _ = writeln!(
        html,
        "</section>\n<section id=\"attach\"><h2>Attach</h2>\n{}</section>",
        form("attach", "use a device of another host, or of another process, here")
    );
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let usb = shareable.iter().filter(|found| found["why_not"].is_null());
    let usb = usb.filter_map(|found| Some((found["share_as"].as_str()?, text(&found["title"]))));
    let every = OF_EVERY_MACHINE.iter().map(|(value, what)| (*value, (*what).to_owned()));
    html.push_str(&choices("shareable", usb.chain(every)));
    html.push_str(&targets(status, hosts));
    Drawing { title, is_there: true, pieces: vec![Piece::Fixed(html)] }
}

/// The devices that can be attached, as far as they are known here: those that this user's processes share, and the
/// hosts that have others.
fn targets(status: &Status, hosts: &[String]) -> String {
    let offered: Vec<(String, String)> = status
        .devices()
        .flat_map(|(process, device)| {
            let title = device["title"].as_str().unwrap_or_default().to_owned();
            let offers = offers::of(process, device).into_iter().filter(|offer| offer.action == "attach");
            offers.filter_map(move |offer| Some((offer.parameters["target"].as_str()?.to_owned(), title.clone())))
        })
        .take(CHOICES_MAX)
        .collect();
    let hosts: Vec<String> = hosts.iter().map(|host| format!("{host}/")).collect();
    let of_hosts = hosts.iter().map(|host| (host.as_str(), "a device of this host".to_owned()));
    choices("targets", offered.iter().map(|(target, title)| (target.as_str(), title.clone())).chain(of_hosts))
}

/// The USB devices of this machine, with what prevents that one is shared.
fn plugged_in(shareable: &[Value]) -> String {
    let rows: Vec<Vec<String>> = shareable
        .iter()
        .take(CHOICES_MAX)
        .map(|found| {
            let text = |name: &str| escaped(found[name].as_str().unwrap_or_default());
            let verdict = found["why_not"].as_str().map_or("yes".to_owned(), |why| format!("no: {}", escaped(why)));
            vec![text("share_as"), text("title"), text("ids"), verdict]
        })
        .collect();
    super::text::table("USB devices that are plugged in", &["Share as", "Device", "Ids", "Can be shared"], &rows)
}

/// What a form was answered with, without a script.
pub struct Answered<'a> {
    /// What it is about, as a heading.
    pub what: &'a str,
    /// What became of it, a sentence; whether that is a failure.
    pub outcome: (&'a str, bool),
    /// The command line.
    pub line: &'a str,
    /// The form again, or the question whether it is meant.
    pub form: String,
    /// The view from which it came.
    pub back: &'a str,
}

impl Answered<'_> {
    /// What the document's main part has.
    pub fn draw(&self) -> String {
        let (outcome, has_failed) = self.outcome;
        let role = if has_failed { "alert" } else { "status" };
        let form = if self.form.is_empty() { String::new() } else { format!("<section>{}</section>\n", self.form) };
        format!(
            "<h1>{}</h1>\n<p id=\"outcome\" role=\"{role}\">{}</p>\n<p>The command line: <code tabindex=\"0\">{}</code></p>\n\
             {form}<p><a href=\"{}\">Back</a></p>\n",
            escaped_whole(self.what),
            escaped_whole(outcome),
            escaped_whole(self.line),
            escaped_whole(self.back)
        )
    }
}

/// The question whether what was asked for is meant: the same again, with a second button.
pub fn question(at: &str, pairs: &[(String, String)]) -> String {
    let again: String =
        pairs.iter().filter(|(name, _)| name != "sure").map(|(name, value)| hidden(name, value)).collect();
    format!(
        "<form id=\"sure-form\" method=\"post\" action=\"{}\">{again}{}<p><button>Do it</button></p></form>",
        escaped_whole(at),
        hidden("sure", "yes")
    )
}
