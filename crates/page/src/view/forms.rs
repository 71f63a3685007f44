//! Forms: each does an action by posting it, with and without a script, and shows the command line that does the same.
//!
//! A form is drawn out of the table of actions: what is known stands in hidden fields, what has to be said in fields,
//! what may be said in fields that can be unfolded.

use farbus_control::process::{ProcessDevice, ProcessStatus};
use farbus_io_net::trust::PageScope;
use maud::{Markup, html};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::actions::{ActionParameter, HOSTS, PageAction, ParameterType, WrongParameter};
use crate::api::forms;
use crate::api::offers;
use crate::api::routes::{FORMS_AT, OPERATIONS_AT};
use crate::api::table;
use crate::known::operation::DrawnOperation;
use crate::known::status::CombinedStatus;
use crate::shell::command;
use crate::view::drawing::{DrawingPiece, ViewDrawing};
use crate::view::text::{sent_back, table, theirs, whole};

/// Choices of one list.
const CHOICES_MAX: usize = 256;
/// Characters of a text of others in the question whether somebody is sure.
const HIT_CHARS_MAX: usize = 160;

/// A USB device of this machine, as it could be shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareableDevice {
    /// What `farbus share` takes.
    pub share_as: String,
    /// Manufacturer and product.
    pub title: String,
    /// `vendor:product`, hexadecimal, four digits each.
    pub ids: String,
    /// Why it cannot be shared, if it cannot.
    pub why_not: Option<String>,
}

/// Who looks at a view.
#[derive(Clone, Copy, Debug)]
pub struct ViewReader<'r> {
    /// The address of the view: what does not stay there leads back to it.
    pub back: &'r str,
    /// What they may do.
    pub may: PageScope,
}

/// A form of an action.
pub struct ActionForm<'f> {
    /// What it does.
    pub action: &'static PageAction,
    /// What it does, in a few words: the form's heading.
    pub what: &'f str,
    /// Parameters that are known, and not typed.
    pub known: &'f Map<String, Value>,
    /// What was typed before, by the names of the parameters.
    pub typed: &'f [(String, String)],
    /// What was wrong with that.
    pub wrong: Option<&'f WrongParameter>,
    /// What is asked before it is done, if anything is: who loses something by it.
    pub hits: Option<String>,
    /// The address of the view that it is in.
    pub back: &'f str,
}

impl ActionForm<'_> {
    fn id(&self) -> String {
        format!("do-{}", self.action.name)
    }

    fn value(&self, parameter: &ActionParameter) -> &str {
        let typed = self.typed.iter().find(|(name, _)| name == parameter.name);
        typed.map(|(_, text)| text.as_str()).unwrap_or_default()
    }

    /// The whole element. Its id is unique in a document that has one form of each action.
    pub fn draw(&self) -> Markup {
        let (id, name) = (self.id(), self.action.name);
        let given = match self.typed.is_empty() {
            true => self.known.clone(),
            false => forms::given(self.action, |name| {
                self.typed.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
            }),
        };
        let (line, _) = forms::line(self.action, &given);
        let open = self.action.parameters.iter().filter(|parameter| !self.known.contains_key(parameter.name));
        let (required, options): (Vec<_>, Vec<_>) = open.partition(|parameter| parameter.is_required());
        let mut groups: Vec<&str> = Vec::new();
        for group in options.iter().filter_map(|parameter| parameter.group) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        let is_wrong = |parameter: &ActionParameter| self.wrong_of(parameter).is_some();
        // What was typed, or is wrong, is seen.
        let is_used = |parameter: &&ActionParameter| !self.value(parameter).is_empty() || is_wrong(parameter);
        let of_whole = self.wrong.filter(|_| !self.action.parameters.iter().any(is_wrong));
        html! {
            form id=(id) class="do" method="post" action={ (FORMS_AT) (name) }
                data-hits=[self.hits.as_deref().map(whole)]
            {
                p class="what" { (self.what) }
                (hidden("back", self.back))
                @for (name, value) in self.known { (hidden(name, value.as_str().unwrap_or_default())) }
                @for parameter in required { (self.field(parameter)) }
                @if !options.is_empty() {
                    details id={ (id) "-more" } aria-label={ "Options: " (self.what) } open[options.iter().any(is_used)] {
                        summary { "Options: " (self.what) }
                        @for parameter in options.iter().filter(|parameter| parameter.group.is_none()) {
                            (self.field(parameter))
                        }
                        @for group in groups {
                            fieldset {
                                legend { (group) }
                                @for parameter in options.iter().filter(|parameter| parameter.group == Some(group)) {
                                    (self.field(parameter))
                                }
                            }
                        }
                    }
                }
                p class="line" {
                    code tabindex="0" { (whole(&line)) } " "
                    button type="button" class="copy" aria-label={ "Copy the command: " (self.what) } { "Copy" } " "
                    button class="do" data-action=(name) aria-label={ "Do it: " (self.what) } { "Do it" }
                }
                p class="said wrong" { @if let Some(wrong) = of_whole { (whole(&wrong.message)) } }
            }
        }
    }

    fn wrong_of(&self, parameter: &ActionParameter) -> Option<&WrongParameter> {
        self.wrong.filter(|wrong| wrong.parameter.as_deref() == Some(parameter.name))
    }

    fn field(&self, parameter: &ActionParameter) -> Markup {
        let (id, name) = (format!("{}-{}", self.id(), parameter.name), parameter.name);
        let (value, help) = (self.value(parameter), whole(parameter.help));
        let message = self.wrong_of(parameter);
        let (wrong_id, invalid) = (format!("{id}-wrong"), message.map(|_| "true"));
        let list = match (self.action.name, name, parameter.kind) {
            ("share", "what", _) => Some("shareable"),
            ("attach", "target", _) => Some("targets"),
            (_, _, HOSTS) => Some("hosts"),
            _ => None,
        };
        let is_number = matches!(parameter.kind, ParameterType::Number { .. });
        html! {
            div class="field" {
                @match parameter.kind {
                    ParameterType::Text { .. } | ParameterType::Span | ParameterType::Words | ParameterType::Path | ParameterType::Number { .. } => {
                        label for=(id) { (help) }
                        // A field for numbers would lose a text that is none.
                        input id=(id) name=(name) aria-describedby=(wrong_id) aria-invalid=[invalid] value=(whole(value))
                            autocapitalize="none" autocomplete="off" spellcheck="false" list=[list]
                            inputmode=[is_number.then_some("numeric")] data-kind=[is_number.then_some("number")];
                    }
                    // The first line break in it is none of its text.
                    ParameterType::Texts { .. } => {
                        label for=(id) { (help) " One on each line." }
                        textarea id=(id) name=(name) aria-describedby=(wrong_id) aria-invalid=[invalid] rows="1"
                            autocapitalize="none" autocomplete="off" spellcheck="false" data-kind="lines"
                        { "\n" (sent_back(value)) }
                    }
                    ParameterType::Choice(words) => {
                        label for=(id) { (help) }
                        select id=(id) name=(name) aria-describedby=(wrong_id) aria-invalid=[invalid] {
                            option value="" { "as the command chooses" }
                            @for word in words { option selected[*word == value] { (word) } }
                        }
                    }
                    ParameterType::Switch => {
                        input type="checkbox" id=(id) name=(name) aria-describedby=(wrong_id) aria-invalid=[invalid]
                            checked[!value.is_empty()];
                        " " label for=(id) { (help) }
                    }
                }
                span class="wrong" id=(wrong_id) { @if let Some(wrong) = message { (whole(&wrong.message)) } }
            }
        }
    }
}

fn hidden(name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(whole(name)) value=(sent_back(value)); }
}

/// Who loses something by an action, as a question to the one who asks for it; `None`: nobody does.
pub fn hits(action: &str, device: Option<&ProcessDevice>) -> Option<String> {
    let short = |text: &str| text.chars().take(HIT_CHARS_MAX).collect::<String>();
    let name = device.map(ProcessDevice::name).filter(|name| !name.is_empty());
    let name = short(name.unwrap_or("the device"));
    let user = device.and_then(ProcessDevice::user).map(short);
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
            let at = device.and_then(ProcessDevice::attached).map(|attached| attached.at.as_str());
            let at = at.filter(|at| !at.is_empty()).map(|at| format!(" at {}", short(at))).unwrap_or_default();
            Some(format!("Programs of this machine that use {name}{at} lose it."))
        }
        _ => None,
    }
}

/// A form that attaches a device of another host, in a row whose element has the id `key`; the command line alone for
/// those who may not.
pub fn attach_here(offer: &offers::Offer, key: &str, reader: ViewReader<'_>) -> Markup {
    let may = table::action(offer.action).is_some_and(|action| reader.may >= action.scope);
    let target = offer.parameters["target"].as_str().unwrap_or_default();
    html! {
        @if may {
            form id={ (key) "-attach" } class="do" method="post" action={ (FORMS_AT) (offer.action) } {
                (hidden("back", reader.back))
                @for (name, value) in &offer.parameters { (hidden(name, value.as_str().unwrap_or_default())) }
                p class="line" {
                    code { (whole(&offer.line)) } " "
                    button class="do" data-action=(offer.action) aria-label={ "Attach here: " (whole(target)) } {
                        "Attach here"
                    }
                }
                p class="said wrong" {}
            }
        } @else {
            code { (whole(&offer.line)) }
        }
    }
}

/// A form that ends an operation; empty for those who may not. `line` is the command line that does the same.
pub fn stop(operation: &DrawnOperation, line: &str, reader: ViewReader<'_>) -> Markup {
    let id = operation.id;
    let needs = table::action(&operation.action).map_or(PageScope::Own, |action| action.scope);
    html! {
        @if reader.may >= needs {
            form id={ "stop-" (id) } class="do" method="post" action={ (FORMS_AT) "stop/" (id) }
                data-at={ (OPERATIONS_AT) (id) "/stop" } data-hits=(whole(&stop_hits(Some(operation))))
            {
                (hidden("back", reader.back))
                p class="line" {
                    span { "end it" } " " code tabindex="0" { (whole(line)) } " "
                    button class="do" aria-label={ "End it: operation " (id) } { "End it" }
                }
                p class="said wrong" {}
            }
        }
    }
}

/// What ends with an operation.
pub fn stop_hits(operation: Option<&DrawnOperation>) -> String {
    let short = |text: Option<&String>| text.into_iter().flat_map(|text| text.chars()).take(HIT_CHARS_MAX).collect();
    let (by, command): (String, String) =
        (short(operation.map(|one| &one.by)), short(operation.map(|one| &one.command)));
    format!("This ends what {by} has begun: {command}")
}

/// What can be done with a device: a form for each action that its reader may do, and the command line of the others.
pub fn commands(process: &ProcessStatus, device: &ProcessDevice, reader: ViewReader<'_>) -> Markup {
    let offers = offers::of(process, device);
    let drawn = |offer: &offers::Offer| {
        let action = table::action(offer.action)?;
        Some(match reader.may >= action.scope {
            true => ActionForm {
                action,
                what: offer.what,
                known: &offer.parameters,
                typed: &[],
                wrong: None,
                hits: hits(action.name, Some(device)),
                back: reader.back,
            }
            .draw(),
            false => to_type(offer.what, &offer.line),
        })
    };
    // What can be allowed is shared here.
    let named = Some(device.name()).filter(|_| offers.iter().any(|offer| offer.action == "allow"));
    let label = named.map(|name| to_type("say where it is", &command("label", &[name, "place=TEXT"])));
    let all: Vec<Markup> = offers.iter().filter_map(drawn).chain(label).collect();
    html! { @if !all.is_empty() { ul class="commands" { @for one in all { li { (one) } } } } }
}

/// A command line that can be copied.
fn to_type(what: &str, line: &str) -> Markup {
    html! {
        p class="what" { (what) }
        p class="line" {
            code tabindex="0" { (whole(line)) } " "
            button type="button" class="copy" aria-label={ "Copy the command: " (what) } { "Copy" }
        }
    }
}

/// A list that fields offer to choose from: values, each with what it means.
fn choices<'c>(id: &str, all: impl Iterator<Item = (&'c str, String)>) -> Markup {
    html! {
        datalist id=(id) {
            @for (value, what) in all.take(CHOICES_MAX) { option value=(whole(value)) { (whole(&what)) } }
        }
    }
}

/// The list of paired hosts, which fields for a host offer.
pub fn hosts(hosts: &[String]) -> Markup {
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
pub fn new(status: &CombinedStatus, known: Option<(&[String], &[ShareableDevice])>, may: PageScope) -> ViewDrawing {
    let title = "Share and attach".to_owned();
    let drawn = |content: Markup| {
        let html = html! { h1 { (title) } (content) };
        ViewDrawing { title: title.clone(), is_there: true, pieces: vec![DrawingPiece::Fixed(html.into_string())] }
    };
    let Some((hosts, shareable)) = known.filter(|_| may >= PageScope::Own) else {
        return drawn(html! {
            p {
                "To share and attach devices here a browser needs the scope " code { "own" } ": "
                code { "farbus page invite --scope own" }
            }
        });
    };
    let none = Map::new();
    let form = |name: &str, what| {
        let action = table::action(name)?;
        Some(ActionForm { action, what, known: &none, typed: &[], wrong: None, hits: None, back: "/new" }.draw())
    };
    let usb = shareable.iter().filter(|found| found.why_not.is_none());
    let usb = usb.map(|found| (found.share_as.as_str(), found.title.clone()));
    let every = OF_EVERY_MACHINE.iter().map(|(value, what)| (*value, (*what).to_owned()));
    drawn(html! {
        section id="share" {
            h2 { "Share" }
            (form("share", "share a device of this machine").unwrap_or_default())
            (plugged_in(shareable))
        }
        section id="attach" {
            h2 { "Attach" }
            (form("attach", "use a device of another host, or of another process, here").unwrap_or_default())
        }
        (choices("shareable", usb.chain(every)))
        (targets(status, hosts))
    })
}

/// The devices that can be attached, as far as they are known here: those that this user's processes share, and the
/// hosts that have others.
fn targets(status: &CombinedStatus, hosts: &[String]) -> Markup {
    let offered: Vec<(String, String)> = status
        .devices()
        .flat_map(|(process, device)| {
            let title = device.title().to_owned();
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
fn plugged_in(shareable: &[ShareableDevice]) -> Markup {
    let rows: Vec<Vec<Markup>> = shareable
        .iter()
        .take(CHOICES_MAX)
        .map(|ShareableDevice { share_as, title, ids, why_not }| {
            let verdict = html! { @if let Some(why) = why_not { "no: " (theirs(why)) } @else { "yes" } };
            vec![theirs(share_as), theirs(title), theirs(ids), verdict]
        })
        .collect();
    table("USB devices that are plugged in", &["Share as", "Device", "Ids", "Can be shared"], &rows)
}

/// What a form was answered with, without a script.
pub struct FormAnswer<'a> {
    /// What it is about, as a heading.
    pub what: &'a str,
    /// What became of it, a sentence; whether that is a failure.
    pub outcome: (&'a str, bool),
    /// The command line.
    pub line: &'a str,
    /// The form again, or the question whether it is meant.
    pub form: Markup,
    /// The view from which it came.
    pub back: &'a str,
}

impl FormAnswer<'_> {
    /// What the document's main part has.
    pub fn draw(&self) -> Markup {
        let (outcome, has_failed) = self.outcome;
        html! {
            h1 { (whole(self.what)) }
            p id="outcome" role=(if has_failed { "alert" } else { "status" }) { (whole(outcome)) }
            p { "The command line: " code tabindex="0" { (whole(self.line)) } }
            @if !self.form.0.is_empty() { section { (self.form) } }
            p { a href=(whole(self.back)) { "Back" } }
        }
    }
}

/// The question whether what was asked for is meant: the same again, with a second button.
pub fn question(at: &str, pairs: &[(String, String)]) -> Markup {
    html! {
        form id="sure-form" method="post" action=(whole(at)) {
            @for (name, value) in pairs.iter().filter(|(name, _)| name != "sure") { (hidden(name, value)) }
            (hidden("sure", "yes"))
            p { button { "Do it" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::table;

    /// How many options a form shows without groups.
    const UNGROUPED_MAX: usize = 8;

    #[test]
    fn options_of_an_action_with_many_are_shown_in_groups_and_each_of_them_once() {
        let known = Map::new();
        for action in table::all() {
            let form = ActionForm { action, what: "x", known: &known, typed: &[], wrong: None, hits: None, back: "/" };
            let html = form.draw().into_string();
            let options: Vec<_> = action.parameters.iter().filter(|parameter| !parameter.is_required()).collect();
            for parameter in &options {
                let field = format!("name=\"{}\"", parameter.name);
                assert_eq!(html.matches(&field).count(), 1, "{} {field}", action.name);
            }
            let ungrouped = options.iter().filter(|parameter| parameter.group.is_none()).count();
            assert!(ungrouped == 0 || options.len() <= UNGROUPED_MAX, "{} has {} options", action.name, options.len());
            let legends = html.matches("<legend>").count();
            assert_eq!(legends == 0, ungrouped == options.len(), "{}: {html}", action.name);
        }
    }
}
