//! Which actions a device's state offers, each with the command line that does the same.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::actions::action;

/// An action that is offered for a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Offer {
    /// The name of the action.
    pub action: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// The parameters that are known; the body of the request.
    pub parameters: Map<String, Value>,
    /// Parameters that have to be added: [`super::actions::Action::required`] without those known.
    pub missing: Vec<&'static str>,
    /// The command line that does the same; absent while a parameter is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// What is offered for a device of a process, the likeliest first.
pub fn of(process: &Value, device: &Value) -> Vec<Offer> {
    let text = |of: &'_ Value, name: &str| of[name].as_str().map(str::to_owned);
    let (role, state) = (text(process, "role").unwrap_or_default(), text(device, "state").unwrap_or_default());
    // What a program has ends with the program.
    let Some(name) = text(device, "name").filter(|_| role != "run") else { return Vec::new() };
    let is_shared = !device["bus_id"].is_null();
    let mut offers = Vec::new();
    let mut offer = |name: &str, given: Value| offers.extend(self::offer(name, given));
    if is_shared {
        if state == "in use" {
            offer("release", json!({ "device": name }));
        }
        if role == "daemon" {
            offer("unshare", json!({ "device": name }));
        }
        offer("allow", json!({ "device": name }));
        if device["medium"].is_object() {
            offer("swap", json!({ "device": name }));
        }
        return offers;
    }
    // Two hosts may have a device of one name.
    let target = text(device, "title").filter(|title| title.contains('/')).unwrap_or(name);
    match state.as_str() {
        "held" | "following" => offer("resume", json!({ "device": target })),
        "failed" => return offers,
        _ => {}
    }
    offer("detach", json!({ "device": target }));
    if state == "attached" {
        offer("migrate", json!({ "device": target }));
        offer("swap", json!({ "device": target }));
        let modules = device["modules"].as_array().into_iter().flatten();
        if modules.filter_map(|module| module.as_str()?.split(':').next()).any(|name| name == "pause") {
            offer("module-pause", json!({ "device": target }));
            offer("module-resume", json!({ "device": target }));
        }
    }
    offers
}

fn offer(name: &str, given: Value) -> Option<Offer> {
    let action = action(name)?;
    let Value::Object(parameters) = given else { return None };
    let missing: Vec<_> = action.required().into_iter().filter(|name| !parameters.contains_key(*name)).collect();
    // Others name devices: one with a name that no command takes is offered nothing.
    let command = match missing.is_empty() {
        true => Some(action.command(&parameters).ok()?.line()),
        false => None,
    };
    Some(Offer { action: action.name, summary: action.summary, parameters, missing, command })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(role: &str, device: Value) -> Vec<(&'static str, Option<String>)> {
        let offers = of(&json!({ "role": role }), &device);
        offers.into_iter().map(|offer| (offer.action, offer.command)).collect()
    }

    #[test]
    fn a_device_is_offered_what_its_state_permits_with_the_command_line() {
        let used = json!({ "name": "a b", "bus_id": "1-1", "state": "in use" });
        let offers = offered("share", used.clone());
        assert_eq!(offers[0], ("release", Some("farbus release 'a b'".to_owned())));
        assert!(!offers.iter().any(|(name, _)| *name == "unshare"), "its end is the end of the share");
        assert!(offered("daemon", used).iter().any(|(name, _)| *name == "unshare"));
        let attached = json!({ "name": "disk", "title": "lab3:3241/disk", "state": "attached" });
        let offers = offered("attach", attached.clone());
        assert_eq!(offers[0], ("detach", Some("farbus detach lab3:3241/disk".to_owned())));
        assert!(offers.iter().any(|(name, command)| *name == "migrate" && command.is_none()), "where to is missing");
        assert_eq!(offered("run", attached), []);
        let held = json!({ "name": "disk", "title": "lab3:3241/disk", "state": "held" });
        assert_eq!(offered("attach", held)[0].0, "resume");
    }
}
