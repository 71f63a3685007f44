//! The one table of routes: what is where, by which method, and for whom.

use farbus_io_net::trust::PageScope;
use hyper::Method;

use crate::api::actions::{ACTIONS, PageAction};
use crate::api::table::{self, action};

/// Where actions are: their name follows.
pub const ACTIONS_AT: &str = "/api/v1/actions/";
/// Where operations are: their number follows.
pub const OPERATIONS_AT: &str = "/api/v1/operations/";
/// Where a browser of another machine posts its code.
pub const ENTER_AT: &str = "/api/v1/enter";
/// Where devices are shown: the number of their process follows.
const DEVICE_AT: &str = "/device/";
/// Where their latency is: the number of their process follows.
const LATENCY_AT: &str = "/api/v1/latency/";
/// Where forms of the page are posted to: the name of their action follows, or `stop/` and the number of an operation.
pub const FORMS_AT: &str = "/do/";
/// Where the page's script asks for the command line of a form: the name of its action follows.
pub const LINES_AT: &str = "/line/";
/// Where a browser that was let in signs out.
pub const LEAVE_AT: &str = "/leave";

/// What is at a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEndpoint {
    /// Says that the page runs.
    Health,
    /// Where a browser of another machine shows its code.
    EnterPage,
    /// The script of that.
    EnterScript,
    /// The style of the page on which a browser of another machine shows its code.
    EnterStyle,
    /// Takes the code.
    Enter,
    /// Revokes the token of the browser that asks, and takes its cookie away.
    Leave,
    /// Says whether the processes can be asked.
    Ready,
    /// The page's style.
    Style,
    /// The page's script.
    Script,
    /// The script that draws plots over time.
    Plots,
    /// The library that it draws with.
    Uplot,
    /// The style of that.
    UplotStyle,
    /// The page's icon.
    Icon,
    /// The page with all devices, for a browser.
    Page,
    /// The page with all hosts, for a browser.
    HostsPage,
    /// The forms that share a device, and attach one.
    New,
    /// Does what a form says; the name of its action is the last part of the path, or it ends an operation.
    Form,
    /// The command line of a form; the name of its action is the last part of the path.
    Line,
    /// What is reserved on the buses.
    Buses,
    /// The network of hosts.
    Network,
    /// A device; the number of its process is the last part of the path.
    Device,
    /// The part of a device's page with its latency over time; the number of its process is the last part but one.
    LatencyPart,
    /// How long a device's requests took in each of the last seconds; the number of its process is the last part.
    Latency,
    /// The part of the page that changes.
    Table,
    /// The events of the page's script.
    PageEvents,
    /// Figures for Prometheus.
    Metrics,
    /// What `farbus status --json` prints.
    Status,
    /// The hosts that are known.
    Hosts,
    /// The devices of all hosts, filtered, a page of them.
    LabDevices,
    /// Every device, with its process and what is offered for it.
    Devices,
    /// The devices that are shared here.
    Shares,
    /// The devices that are attached here.
    Attachments,
    /// The audit log's latest lines.
    Audit,
    /// The events, numbered.
    Events,
    /// The description of all routes.
    Description,
    /// The table of actions.
    Actions,
    /// Does an action; its name is the last part of the path.
    Action,
    /// The latest operations.
    Operations,
    /// One operation; its number is the last part of the path.
    Operation,
    /// Ends the command of an operation; its number is the last part but one.
    Stop,
    /// What an operation has recorded; its number is the last part but one.
    Recording,
    /// The latest of what an operation has recorded, as text; its number is the last part but one.
    RecordedText,
    /// The newest picture of a stream; the number of its operation is the last part but one.
    NewestPicture,
}

/// A path of the page, what is there and for whom.
#[derive(Clone, Copy, Debug)]
pub struct PageRoute {
    /// The path; `{name}` and `{id}` stand for a part.
    pub path: &'static str,
    /// What is there.
    pub endpoint: PageEndpoint,
    /// Who gets it; `None`: everybody of this machine. An action has a scope of its own.
    pub scope: Option<PageScope>,
    /// What it is, in a sentence.
    pub summary: &'static str,
}

const fn route(
    path: &'static str,
    endpoint: PageEndpoint,
    scope: Option<PageScope>,
    summary: &'static str,
) -> PageRoute {
    PageRoute { path, endpoint, scope, summary }
}

const READ: Option<PageScope> = Some(PageScope::Read);
const OBSERVE: Option<PageScope> = Some(PageScope::Observe);
const OWN: Option<PageScope> = Some(PageScope::Own);

/// All routes, those of browsers first.
pub const ROUTES: &[PageRoute] = &[
    route("/healthz", PageEndpoint::Health, None, "Whether the page runs."),
    route("/enter", PageEndpoint::EnterPage, None, "Where a browser of another machine shows its code."),
    route("/enter.js", PageEndpoint::EnterScript, None, "The script that shows it."),
    route("/enter.css", PageEndpoint::EnterStyle, None, "The style of that."),
    route(ENTER_AT, PageEndpoint::Enter, None, "Lets a browser of another machine in that shows a code."),
    route("/readyz", PageEndpoint::Ready, READ, "Whether the processes can be asked."),
    route("/page.css", PageEndpoint::Style, READ, "The page's style."),
    route("/page.js", PageEndpoint::Script, READ, "The page's script."),
    route("/plots.js", PageEndpoint::Plots, READ, "The script that draws plots over time."),
    route("/uplot-1.6.32.js", PageEndpoint::Uplot, READ, "The library that it draws with: uPlot, of this version."),
    route("/uplot-1.6.32.css", PageEndpoint::UplotStyle, READ, "The style of that."),
    route("/favicon.ico", PageEndpoint::Icon, READ, "The page's icon, PNG."),
    route("/", PageEndpoint::Page, READ, "The page, for a browser."),
    route("/hosts", PageEndpoint::HostsPage, READ, "Every host that is known, for a browser."),
    route("/new", PageEndpoint::New, READ, "What can be shared and attached, for a browser."),
    route("/buses", PageEndpoint::Buses, READ, "What is reserved on the buses, for a browser."),
    route("/network", PageEndpoint::Network, READ, "The network of hosts, for a browser."),
    route("/device/{id}", PageEndpoint::Device, READ, "A device of the process with this number, for a browser."),
    route("/device/{id}/latency", PageEndpoint::LatencyPart, READ, "The part of its page with its latency over time."),
    route("/devices", PageEndpoint::Table, READ, "The part of the page that changes."),
    route("/events", PageEndpoint::PageEvents, READ, "Events for the page's script."),
    route("/metrics", PageEndpoint::Metrics, READ, "Figures for Prometheus."),
    route("/api/v1/status", PageEndpoint::Status, READ, "What 'farbus status --json' prints."),
    route("/api/v1/hosts", PageEndpoint::Hosts, READ, "The hosts that are known, and what they may use."),
    route(
        "/api/v1/lab/devices",
        PageEndpoint::LabDevices,
        READ,
        "The devices of all hosts, filtered, a hundred at a time.",
    ),
    route("/api/v1/devices", PageEndpoint::Devices, READ, "Every device, its process, and the actions offered for it."),
    route("/api/v1/shares", PageEndpoint::Shares, READ, "The same, of the devices that are shared here."),
    route("/api/v1/attachments", PageEndpoint::Attachments, READ, "The same, of the devices that are attached here."),
    route(
        "/api/v1/latency/{id}",
        PageEndpoint::Latency,
        READ,
        "Latency of a device of this process, second by second.",
    ),
    route("/api/v1/events", PageEndpoint::Events, READ, "Events, numbered: status, happened, operation, missed."),
    route("/api/v1/audit", PageEndpoint::Audit, OWN, "The latest 200 lines of the audit log."),
    route("/api/v1/openapi.json", PageEndpoint::Description, READ, "This description, in OpenAPI 3.1."),
    route("/api/v1/actions", PageEndpoint::Actions, READ, "The table of actions."),
    route("/api/v1/actions/{name}", PageEndpoint::Action, OWN, "Does an action."),
    route("/api/v1/operations", PageEndpoint::Operations, READ, "The latest operations, the latest first."),
    route("/api/v1/operations/{id}", PageEndpoint::Operation, READ, "One operation."),
    // What its action needs is needed, too.
    route(
        "/api/v1/operations/{id}/stop",
        PageEndpoint::Stop,
        OBSERVE,
        "Ends the command of an operation, as Ctrl-C does.",
    ),
    route(
        "/api/v1/operations/{id}/recording",
        PageEndpoint::Recording,
        OBSERVE,
        "What 'observe' has recorded (pcapng).",
    ),
    route(
        "/api/v1/operations/{id}/text",
        PageEndpoint::RecordedText,
        OBSERVE,
        "The latest of it as text: keys as letters; of 'console', what was printed.",
    ),
    route(
        "/api/v1/operations/{id}/picture",
        PageEndpoint::NewestPicture,
        OBSERVE,
        "The newest picture that 'picture' shows.",
    ),
];

/// What the page's own documents ask for: no program needs it, and it is not described.
const OWN_ROUTES: &[PageRoute] = &[
    // What its action needs is needed, too.
    route("/do/{name}", PageEndpoint::Form, OBSERVE, "Does what a form says."),
    route("/line/{name}", PageEndpoint::Line, OBSERVE, "The command line of a form."),
    route(LEAVE_AT, PageEndpoint::Leave, READ, "Signs a browser out that was let in."),
];

/// A route that a path has, with what its variable part names.
#[derive(Clone, Copy, Debug)]
pub struct RouteMatch {
    /// The route that the path belongs to.
    pub route: &'static PageRoute,
    /// The action, if it is one.
    pub action: Option<&'static PageAction>,
    /// The number that the path has, of an operation or of a device's process; 0 if it has none.
    pub number: u64,
}

impl PageRoute {
    /// Whether it is there for browsers of other machines alone.
    pub fn is_for_others(&self) -> bool {
        let is_entry =
            matches!(self.endpoint, PageEndpoint::EnterPage | PageEndpoint::EnterScript | PageEndpoint::EnterStyle);
        is_entry || self.endpoint == PageEndpoint::Enter
    }

    /// Whether a browser posts a form there, without a script.
    pub fn is_form(&self) -> bool {
        matches!(self.endpoint, PageEndpoint::Form | PageEndpoint::Leave)
    }

    /// Whether it changes something: then it is asked for with POST, else with GET.
    pub fn is_change(&self) -> bool {
        self.is_form() || matches!(self.endpoint, PageEndpoint::Action | PageEndpoint::Stop | PageEndpoint::Enter)
    }

    /// The methods that it is asked for with.
    pub fn methods(&self) -> &'static str {
        if self.is_change() { "POST" } else { "GET, HEAD" }
    }

    /// Whether it takes this method.
    pub fn takes(&self, method: &Method) -> bool {
        if self.is_change() { method == Method::POST } else { method == Method::GET || method == Method::HEAD }
    }
}

/// The route of a path; `None`: nothing is there.
pub fn find(path: &str) -> Option<RouteMatch> {
    let of = |endpoint| ROUTES.iter().chain(OWN_ROUTES).find(|route| route.endpoint == endpoint);
    for (at, endpoint) in [(FORMS_AT, PageEndpoint::Form), (LINES_AT, PageEndpoint::Line)] {
        let Some(name) = path.strip_prefix(at) else { continue };
        let route = of(endpoint)?;
        return match name.strip_prefix("stop/").filter(|_| endpoint == PageEndpoint::Form) {
            Some(number) => Some(RouteMatch { route, action: None, number: number_in(number)? }),
            None => {
                let action = ACTIONS.iter().find(|action| action.name == name)?;
                Some(RouteMatch { route, action: Some(action), number: 0 })
            }
        };
    }
    if let Some(name) = path.strip_prefix(ACTIONS_AT) {
        let action = action(name)?;
        return Some(RouteMatch { route: of(PageEndpoint::Action)?, action: Some(action), number: 0 });
    }
    if let Some(rest) = path.strip_prefix(OPERATIONS_AT) {
        let (number, endpoint) = match rest.split_once('/') {
            Some((number, "stop")) => (number, PageEndpoint::Stop),
            Some((number, "recording")) => (number, PageEndpoint::Recording),
            Some((number, "text")) => (number, PageEndpoint::RecordedText),
            Some((number, "picture")) => (number, PageEndpoint::NewestPicture),
            Some(_) => return None,
            None => (rest, PageEndpoint::Operation),
        };
        return Some(RouteMatch { route: of(endpoint)?, action: None, number: number_in(number)? });
    }
    let of_process =
        |endpoint, process| Some(RouteMatch { route: of(endpoint)?, action: None, number: number_in(process)? });
    if let Some(process) = path.strip_prefix(DEVICE_AT) {
        return match process.split_once('/') {
            Some((process, "latency")) => of_process(PageEndpoint::LatencyPart, process),
            Some(_) => None,
            None => of_process(PageEndpoint::Device, process),
        };
    }
    if let Some(process) = path.strip_prefix(LATENCY_AT) {
        return of_process(PageEndpoint::Latency, process);
    }
    let route = ROUTES.iter().chain(OWN_ROUTES).find(|route| route.path == path)?;
    Some(RouteMatch { route, action: None, number: 0 })
}

/// What the route of an endpoint needs; `None`: nothing, or there is none.
pub fn scope_of(endpoint: PageEndpoint) -> Option<PageScope> {
    ROUTES.iter().chain(OWN_ROUTES).find(|route| route.endpoint == endpoint).and_then(|route| route.scope)
}

/// A number in digits alone.
fn number_in(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

impl RouteMatch {
    /// Who gets it; `None`: everybody of this machine.
    pub fn scope(&self) -> Option<PageScope> {
        self.action.map_or(self.route.scope, |action| Some(action.scope))
    }
}

/// Every path that there is, with its route: an action has one of its own.
pub fn all() -> impl Iterator<Item = (String, RouteMatch)> {
    ROUTES.iter().flat_map(|route| match route.endpoint {
        PageEndpoint::Action => {
            let of = move |action: &'static PageAction| {
                (format!("{ACTIONS_AT}{}", action.name), RouteMatch { route, action: Some(action), number: 0 })
            };
            table::all().map(of).collect::<Vec<_>>()
        }
        _ => vec![(route.path.to_owned(), RouteMatch { route, action: None, number: 0 })],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_found_by_its_path_and_nothing_else_is() {
        for (path, found) in all() {
            let route_match = find(&path.replace("{id}", "7")).unwrap_or_else(|| panic!("{path}"));
            assert_eq!(route_match.route.endpoint, found.route.endpoint, "{path}");
            assert_eq!(route_match.action.map(|action| action.name), found.action.map(|action| action.name));
            assert_eq!(route_match.number == 7, path.contains("{id}"));
        }
        for path in [
            "/healthz/",
            "/api/v1/actions/",
            "/api/v1/actions/reboot",
            "/api/v1/actions/release/",
            "/api/v1/actions/{name}",
            "/api/v1/operations/",
            "/api/v1/operations/-1",
            "/api/v1/operations/+1",
            "/api/v1/operations/99999999999999999999",
            "/api/v1/operations/1/stop/stop",
            "/device/7/history",
            "/do/",
            "/do/reboot",
            // Programs do it, and the page has no form of it.
            "/do/label",
            "/do/stop",
            "/do/stop/x",
            "/do/{name}",
            "/line/stop/7",
            "/device/7/latency/",
            "/api/v1/latency/x",
            "",
        ] {
            assert!(find(path).is_none(), "{path}");
        }
    }

    #[test]
    fn forms_of_the_page_are_posted_and_need_what_their_action_needs() {
        for action in ACTIONS {
            let form = find(&format!("{FORMS_AT}{}", action.name)).unwrap();
            assert!(form.route.is_form() && form.route.takes(&Method::POST) && !form.route.takes(&Method::GET));
            let line = find(&format!("{LINES_AT}{}", action.name)).unwrap();
            assert!(line.route.takes(&Method::GET) && !line.route.takes(&Method::POST));
            assert_eq!((form.scope(), line.scope()), (Some(action.scope), Some(action.scope)), "{}", action.name);
        }
        let stop = find("/do/stop/7").unwrap();
        assert_eq!((stop.number, stop.scope(), stop.route.is_change()), (7, Some(PageScope::Observe), true));
        let leave = find(LEAVE_AT).unwrap();
        assert!(leave.route.is_form() && leave.scope() == Some(PageScope::Read) && !leave.route.takes(&Method::GET));
    }

    #[test]
    fn no_route_that_changes_something_takes_get_and_none_is_for_everybody() {
        for (path, found) in all() {
            let is_change = found.route.is_change();
            let may_be = path.contains("/actions/") || path.ends_with("/stop") || path == ENTER_AT;
            assert_eq!(is_change, may_be, "{path}");
            assert_eq!(found.route.takes(&Method::POST), is_change, "{path}");
            assert_eq!(found.route.takes(&Method::GET), !is_change, "{path}");
            let may_observe = ["/actions/observe", "/actions/console", "/actions/picture", "/stop"]
                .iter()
                .any(|end| path.ends_with(end));
            let needed = if may_observe { PageScope::Observe } else { PageScope::Own };
            assert!(!is_change || found.scope() == Some(needed) || path == ENTER_AT, "{path}");
            assert!(found.scope().is_some() || path == "/healthz" || found.route.is_for_others(), "{path}");
        }
    }
}
