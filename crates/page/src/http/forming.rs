//! A form of the page that was posted without a script, from its body to the document that answers it.
//!
//! With a script the same form is sent as JSON, as a program does.

use farbus_control::failure::FailureReport;
use farbus_control::process::ProcessDevice;
use maud::Markup;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::api::actions::WrongParameter;
use crate::api::forms::{FIELDS_MAX, given, line};
use crate::api::refusal::HttpRefusal;
use crate::api::routes::{ACTIONS_AT, OPERATIONS_AT, RouteMatch};
use crate::known::operation::{DrawnOperation, OperationState};
use crate::known::status::CombinedStatus;
use crate::line::messages::PageQuestion;
use crate::view::PageView;
use crate::view::forms::{ActionForm, FormAnswer, hits, question, stop_hits};
use crate::view::pairs_in;

/// What is read of the answer to a change: what is wrong with it, or the operation that it began.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChangeAnswer {
    wrong: Option<WrongParameter>,
    failure: Option<FailureReport>,
    id: u64,
    state: Option<OperationState>,
    stopped_by: Option<String>,
    warnings: Option<String>,
}

/// A form that was posted.
pub struct PostedForm {
    /// Where it was posted to.
    at: String,
    found: RouteMatch,
    /// Its fields, as they were typed.
    fields: Vec<(String, String)>,
    /// The parameters of its action.
    given: Map<String, Value>,
    /// The view from which it came.
    back: String,
    line: String,
}

impl PostedForm {
    /// The form that was posted to this path with this body.
    pub fn of(path: &str, found: RouteMatch, body: &str) -> Self {
        let mut fields = pairs_in(body, FIELDS_MAX);
        // A form is sent with both, whatever it had.
        fields.iter_mut().for_each(|(_, value)| *value = value.replace("\r\n", "\n"));
        let value_of = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let back = value_of("back").filter(|back| {
            let (path, query) = back.split_once('?').unwrap_or((back, ""));
            PageView::at(path, Some(query)).is_some()
        });
        let back = back.unwrap_or_else(|| "/".to_owned());
        let given = found.action.map(|action| given(action, value_of)).unwrap_or_default();
        let line = match found.action {
            Some(action) => line(action, &given).0,
            None => String::new(),
        };
        Self { at: path.to_owned(), found, fields, given, back, line }
    }

    /// What the document that answers it is about.
    pub fn title(&self) -> &'static str {
        self.found.action.map_or("End the command of an operation", |action| action.summary.trim_end_matches('.'))
    }

    /// What the process with the rights is asked to do.
    pub fn question(&self) -> PageQuestion {
        let path = match self.found.action {
            Some(action) => format!("{ACTIONS_AT}{}", action.name),
            None => format!("{OPERATIONS_AT}{}/stop", self.found.number),
        };
        PageQuestion::Change { path, given: self.given.clone() }
    }

    /// The answer if nothing is to be done yet: something is wrong, or it has to be asked whether it is meant. The
    /// status, and what the document has.
    pub fn before(&self, status: &CombinedStatus) -> Option<(u16, Markup)> {
        if let Some(wrong) = self.found.action.and_then(|action| action.command(&self.given).err()) {
            return Some((400, self.again(&wrong)));
        }
        let is_sure = self.fields.iter().any(|(name, value)| name == "sure" && value == "yes");
        let hit = match self.found.action {
            Some(action) => hits(action.name, self.device_in(status)),
            None => {
                let is_it = |operation: &&DrawnOperation| operation.id == self.found.number;
                Some(stop_hits(status.operations.iter().find(is_it)))
            }
        };
        let hit = hit.filter(|_| !is_sure)?;
        Some((200, self.drawn((&hit, false), question(&self.at, &self.fields))))
    }

    /// The device whose page the form is on.
    fn device_in<'s>(&self, status: &'s CombinedStatus) -> Option<&'s ProcessDevice> {
        let (path, query) = self.back.split_once('?').unwrap_or((&self.back, ""));
        PageView::at(path, Some(query))?.device()?.device_in(status)
    }

    /// The answer when it was done, begun or has failed: the status, and what the document has.
    pub fn after(&self, status: u16, body: &Value) -> (u16, Markup) {
        let change_answer = ChangeAnswer::deserialize(body).unwrap_or_else(|error| ChangeAnswer {
            wrong: Some(WrongParameter { parameter: None, message: format!("its answer cannot be read: {error}") }),
            ..ChangeAnswer::default()
        });
        let failed = change_answer.failure.map(|failure| WrongParameter { parameter: None, message: failure.message });
        if let Some(wrong) = change_answer.wrong.or(failed) {
            return (status, self.again(&wrong));
        }
        let id = change_answer.id;
        let outcome = match (change_answer.state, change_answer.stopped_by) {
            (_, Some(_)) => format!("Operation {id} was asked to end."),
            (Some(OperationState::Running), _) => format!("It was begun: operation {id}."),
            _ => "It is done.".to_owned(),
        };
        let warnings = change_answer.warnings.map(|warnings| format!(" It warned: {warnings}"));
        (status, self.drawn((&(outcome + &warnings.unwrap_or_default()), false), Markup::default()))
    }

    /// The answer when it was not begun.
    pub fn refused(&self, refusal: &HttpRefusal) -> (u16, Markup) {
        let wrong = WrongParameter { parameter: None, message: refusal.why.to_string() };
        (refusal.status.as_u16(), self.again(&wrong))
    }

    /// The form again, with what was typed and what is wrong with it.
    fn again(&self, wrong: &WrongParameter) -> Markup {
        let form = self.found.action.map_or_else(Markup::default, |action| {
            ActionForm {
                action,
                what: self.title(),
                known: &Map::new(),
                typed: &self.fields,
                wrong: wrong.parameter.is_some().then_some(wrong),
                hits: None,
                back: &self.back,
            }
            .draw()
        });
        let outcome = match &wrong.parameter {
            Some(_) => "It was not begun: see below what is wrong.".to_owned(),
            None => format!("It was not done: {}", wrong.message),
        };
        self.drawn((&outcome, true), form)
    }

    fn drawn(&self, outcome: (&str, bool), form: Markup) -> Markup {
        FormAnswer { what: self.title(), outcome, line: &self.line, form, back: &self.back }.draw()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::routes::find;
    use crate::known::status::tests::status;

    fn sent(path: &str, body: &str) -> PostedForm {
        PostedForm::of(path, find(path).unwrap(), body)
    }

    fn code_and_text((status, html): (u16, Markup)) -> (u16, String) {
        (status, html.into_string())
    }

    fn lab() -> CombinedStatus {
        status(json!([{ "pid": 7, "role": "share", "devices": [
            { "name": "disk", "bus_id": "1-1", "state": "in use", "user": "desk <b> (10.0.0.3:1)" },
        ] }]))
    }

    #[test]
    fn what_is_wrong_stands_at_its_field_and_nothing_typed_is_lost() {
        let form = sent("/do/release", "device=disk&reason=it%27s+%22mine%22&keep_out=1e9&force=on&back=%2Fnew");
        let (code, html) = code_and_text(form.before(&lab()).unwrap());
        assert_eq!(code, 400);
        assert!(html.contains("id=\"do-release-keep_out-wrong\">a whole number from 0 to 86400<"), "{html}");
        assert!(
            html.contains("name=\"keep_out\" aria-describedby=\"do-release-keep_out-wrong\" aria-invalid"),
            "{html}"
        );
        for kept in
            ["value=\"it&#39;s &quot;mine&quot;\"", "value=\"1e9\"", "value=\"disk\"", " checked>", "<a href=\"/new\""]
        {
            assert!(html.contains(kept), "{kept}: {html}");
        }
        assert!(html.contains(" open><summary>"), "{html}");
        let missing = code_and_text(sent("/do/migrate", "device=lab3%2Fdisk&to=").before(&lab()).unwrap()).1;
        assert!(missing.contains("id=\"do-migrate-to-wrong\">it is missing: Name or key"), "{missing}");
        // What its command refuses is said, and the form is there again.
        let failed = json!({ "id": 1, "state": "failed", "failure": { "message": "no host <i>" } });
        let (code, html) = code_and_text(sent("/do/allow", "device=disk&host=lab9").after(404, &failed));
        assert!(code == 404 && html.contains("It was not done: no host &lt;i&gt;"), "{html}");
        assert!(html.contains("value=\"lab9\"") && html.contains("farbus allow lab9 disk"), "{html}");
    }

    #[test]
    fn what_takes_something_from_somebody_is_asked_about_first_and_says_from_whom() {
        let back = "back=%2Fdevice%2F7%3Fname%3Ddisk";
        let form = sent("/do/release", &format!("device=disk&force=on&{back}"));
        let (code, html) = code_and_text(form.before(&lab()).unwrap());
        assert_eq!(code, 200);
        assert!(html.contains("desk &lt;b&gt; (10.0.0.3:1) uses disk and loses it."), "{html}");
        assert!(html.contains("farbus release disk --force") && html.contains("name=\"sure\" value=\"yes\""), "{html}");
        assert!(html.contains("name=\"force\" value=\"on\""), "all that was typed is sent again: {html}");
        let sure = sent("/do/release", &format!("device=disk&{back}&sure=yes"));
        assert!(sure.before(&lab()).is_none());
        let PageQuestion::Change { path, given } = sure.question() else { panic!("a change") };
        assert_eq!((path.as_str(), Value::Object(given)), ("/api/v1/actions/release", json!({ "device": "disk" })));
        for path in ["/do/unshare", "/do/detach"] {
            assert!(sent(path, "device=disk").before(&lab()).is_some_and(|(code, _)| code == 200), "{path}");
        }
        assert!(sent("/do/attach", "target=disk").before(&lab()).is_none(), "nobody loses anything");
        let stop = sent("/do/stop/3", "");
        assert!(code_and_text(stop.before(&lab()).unwrap()).1.contains("This ends what"));
        let PageQuestion::Change { path, .. } = stop.question() else { panic!("a change") };
        assert_eq!(path, "/api/v1/operations/3/stop");
    }

    #[test]
    fn hostile_fields_add_no_element_and_lead_nowhere_else() {
        let evil = "%3Cscript%3E%22%27%26%E2%80%AE%0D%0A";
        let names = ["device", "reason", "keep_out", "back", "sure", "x"];
        let body = |value: &str| names.map(|name| format!("{name}={value}")).join("&");
        let count = |html: &str| ['<', '>', '"'].map(|sign| html.matches(sign).count());
        for path in ["/do/release", "/do/detach", "/do/stop/3"] {
            let of = |value: &str| code_and_text(sent(path, &body(value)).before(&lab()).unwrap()).1;
            let (hostile, plain) = (of(evil), of("abc"));
            assert_eq!(count(&hostile), count(&plain), "{hostile}");
            assert!(!hostile.contains("<script") && !hostile.contains('\u{202e}'), "{hostile}");
        }
        for back in ["https%3A%2F%2Fevil.example%2F", "%2F%2Fevil.example", "javascript%3Aalert(1)", "%2Fleave", ""] {
            assert_eq!(sent("/do/attach", &format!("target=x&back={back}")).back, "/", "{back}");
        }
        let many: String = (0..1000).map(|n| format!("f{n}=x&")).collect();
        assert_eq!(sent("/do/attach", &many).fields.len(), FIELDS_MAX);
    }
}
