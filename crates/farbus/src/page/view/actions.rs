//! What can be done with a device, as the command lines that do it.

use serde_json::Value;

use super::super::shell::{NAME_BYTES_MAX, command};

/// Something that can be done, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// What it does, a few words.
    pub what: &'static str,
    /// The command line, for bash and zsh. Words in capitals are to be replaced.
    pub line: String,
}

/// All that its owner can do with a device, what is most likely wanted first. Empty for a device whose name is too long
/// for a command line.
pub fn actions(process: &Value, device: &Value) -> Vec<Action> {
    let text = |name: &str| device[name].as_str().filter(|text| !text.is_empty() && text.len() <= NAME_BYTES_MAX);
    let (Some(role), Some(state), Some(name)) = (process["role"].as_str(), device["state"].as_str(), text("name"))
    else {
        return Vec::new();
    };
    let act = |what, line| Action { what, line };
    let is_shared = matches!(state, "available" | "in use" | "moved away");
    let mut actions = Vec::new();
    match (role, is_shared) {
        ("share" | "daemon", true) => {
            if state == "in use" {
                actions.push(act("take it back from its user", command("release", &[name])));
            }
            if role == "daemon" {
                actions.push(act("stop sharing it", command("unshare", &[name])));
            }
            if state == "available" {
                actions.push(act("attach it here", command("attach", &[name])));
            }
            actions.push(act("let a paired host use it", command("allow", &["HOST", name])));
            if device["medium"].is_object() {
                actions.push(act("move its data to another medium", command("swap --to block:PATH", &[name])));
            }
            actions.push(act("say where it is", command("label", &[name, "place=TEXT"])));
        }
        // What a program has ends with the program, and what 'farbus nbd' serves with that.
        ("attach" | "daemon", false) => {
            // Two hosts may have devices of one name.
            let target = text("title").filter(|title| title.contains('/')).unwrap_or(name);
            if state == "held" {
                actions.push(act("let it continue here", command("resume", &[target])));
            }
            actions.push(act("detach it", command("detach", &[target])));
            actions.push(act("move it to another host", command("migrate --to HOST", &[target])));
            if device["medium"].is_object() {
                actions.push(act("move its disk to this machine", command("swap --to block:PATH", &[target])));
            }
            if device["modules"].as_array().is_some_and(|modules| !modules.is_empty()) {
                actions.push(act("stop what passes through its modules", command("module pause", &[target])));
                actions.push(act("let it pass again", command("module resume", &[target])));
            }
        }
        _ => {}
    }
    actions
}

/// The command line that the owner of a device most likely wants next; `None` if nothing is urgent.
pub fn first_action(process: &Value, device: &Value) -> Option<String> {
    let is_idle_share = process["role"] == "share" && device["state"] == "available";
    let first =
        actions(process, device).into_iter().next().filter(|_| !is_idle_share && device["state"] != "moved away");
    first.map(|action| action.line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn most_likely_action_comes_first() {
        let first = |role: &str, state: &str| {
            first_action(&json!({ "role": role }), &json!({ "name": "disk", "title": "lab3/disk", "state": state }))
        };
        assert_eq!(first("share", "in use").as_deref(), Some("farbus release disk"));
        assert_eq!(first("share", "available"), None);
        assert_eq!(first("daemon", "available").as_deref(), Some("farbus unshare disk"));
        assert_eq!(first("daemon", "attached").as_deref(), Some("farbus detach lab3/disk"));
        assert_eq!(first("attach", "held").as_deref(), Some("farbus resume lab3/disk"));
        assert_eq!(first("run", "attached"), None);
    }
}
