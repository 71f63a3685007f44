//! What programs do through the page's API besides what its buttons do: find, lease, label, look up, and be refused.

use serde_json::{Value, json};

use super::harness::{Harness, PATIENCE, wait_until};
use super::page::{Page, open_page, page_of};
use super::page_actions::{act, done, ended, get, post};
use super::trust::three;

/// Does an action that takes seconds; returns what its command printed.
fn answer(page: &Page, action: &str, given: &Value) -> Value {
    done(page, action, given)["answer"].clone()
}

#[test]
fn programs_label_find_lease_and_look_up_devices_through_the_page() {
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, rack] = &hosts;
    let (_share, address) = lab3.share(&["zero"]);
    let [at_lab3, at_desk, at_rack] =
        [lab3, desk, rack].map(|host| page_of(host.command(&["page", "--listen", "127.0.0.1:0"])));

    let words = json!({ "device": "zero", "words": ["board=imx8", "place=rack 2, top"] });
    answer(&at_lab3, "label", &words);
    for page in [&at_desk, &at_rack] {
        let listed = answer(page, "list", &json!({ "words": ["lab3"], "address": address }));
        assert!(listed.to_string().contains("rack 2, top"), "{listed}");
    }
    let found = answer(&at_desk, "list", &json!({ "words": ["lab3", "label:board=imx8"] }));
    assert!(found.to_string().contains("zero"), "{found}");
    let found = answer(&at_desk, "list", &json!({ "words": ["lab3", "label:board=none"] }));
    assert!(!found.to_string().contains("zero"), "{found}");

    let leased = ended(&at_desk, &act(&at_desk, "lease", &json!({ "targets": ["lab3/zero"], "for": "2h" })));
    assert_eq!((&leased["state"], &leased["answer"]["state"]), (&json!("done"), &json!("held")), "{leased}");
    assert_eq!(leased["command"], "farbus lease lab3/zero --for=2h");
    let again = json!({ "targets": ["lab3/zero"], "no_wait": true });
    let refused = ended(&at_rack, &act(&at_rack, "lease", &again));
    assert_eq!((&refused["state"], &refused["failure"]["attribute"]), (&json!("failed"), &json!("refused")));
    let all = answer(&at_rack, "lease-list", &json!({ "host": "lab3" }));
    assert_eq!((&all[0]["host"], &all[0]["is_yours"]), (&json!("desk"), &json!(false)), "{all}");
    // One that waits is ended as Ctrl-C ends it; another gets the device.
    let waits = |page: &Page| act(page, "lease", &json!({ "targets": ["lab3/zero"], "for": "1m" }));
    let waiting = waits(&at_rack);
    let queue = || shared(&at_lab3)["waiting"].as_array().map_or(0, Vec::len);
    wait_until(PATIENCE, "it waits", || queue() == 1);
    let stop = format!("{}/stop", waiting.1["at"].as_str().unwrap());
    let headers = format!(
        "Origin: http://{}\r\nSec-Fetch-Site: same-origin\r\nContent-Type: application/json\r\n",
        at_rack.address
    );
    assert_eq!(post(&at_rack, &stop, &headers, "{}").status, 202);
    wait_until(PATIENCE, "nobody waits", || queue() == 0);
    let waiting = waits(&at_rack);
    answer(&at_desk, "lease-release", &json!({ "device": "lab3/zero" }));
    assert_eq!(ended(&at_rack, &waiting)["state"], "done");
    answer(&at_rack, "lease-give", &json!({ "device": "lab3/zero", "to": "desk" }));
    answer(&at_desk, "lease-extend", &json!({ "device": "lab3/zero", "for": "3h" }));
    answer(&at_desk, "lease-release", &json!({ "device": "lab3/zero" }));

    let status = answer(&at_desk, "status-of", &json!({ "host": "lab3" }));
    assert!(status.to_string().contains("zero"), "{status}");
    assert_eq!(answer(&at_lab3, "id", &json!({}))["name"], "lab3");
    let known = answer(&at_lab3, "identity-list", &json!({}));
    assert!(known.to_string().contains("zero"), "{known}");
    let lines = answer(&at_lab3, "audit-find", &json!({ "lines": 1000, "host": "desk" }));
    let lines = lines.as_array().unwrap();
    assert!(lines.len() > 1 && lines.iter().all(|line| line["peer"] == "desk"), "{lines:?}");
    answer(&at_lab3, "unpair", &json!({ "host": "desk" }));
    let (status, gone) = act(&at_lab3, "unpair", &json!({ "host": "desk" }));
    assert_eq!((status, &gone["failure"]["attribute"]), (404, &json!("gone")), "{gone}");
}

/// The one device that this page's host shares.
fn shared(page: &Page) -> Value {
    get(page, "/api/v1/shares")["devices"][0]["device"].clone()
}

#[test]
fn what_needs_no_other_host_is_answered_and_what_makes_trust_is_no_action() {
    let harness = Harness::new();
    let page = open_page(&harness);
    let modules = answer(&page, "module-list", &json!({}));
    assert!(modules.to_string().contains("pause"), "{modules}");
    assert!(answer(&page, "module-show", &json!({ "module": "pause" })).to_string().contains("pause"));
    assert!(answer(&page, "doctor", &json!({})).to_string().contains("vhci"));
    assert!(answer(&page, "plan-bandwidth", &json!({ "speed": "high", "kind": "bulk" })).to_string().contains("bulk"));
    let tokens = answer(&page, "page-token-list", &json!({}));
    assert!(tokens.to_string().len() < 100, "none: {tokens}");
    let made = harness.run(&["page", "token", "create", "--scope", "read", "--name", "grafana"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    answer(&page, "page-token-revoke", &json!({ "token": "grafana" }));
    answer(&page, "shareable", &json!({}));
    for (action, given) in [("unpair", json!({ "host": "nobody" })), ("hold", json!({ "device": "none" }))] {
        let (status, failed) = act(&page, action, &given);
        assert_eq!((status, &failed["state"]), (404, &json!("failed")), "{action}: {failed}");
    }
    let (status, refused) = act(&page, "lease", &json!({ "targets": ["lab3/x"], "for": "an hour" }));
    assert_eq!((status, &refused["wrong"]["parameter"]), (400, &json!("for")), "{refused}");
    let described = get(&page, "/api/v1/actions");
    for never in ["pair", "type", "run", "shell", "pipe", "invite", "page-token-create", "page-invite"] {
        let is_there = described["actions"].as_array().unwrap().iter().any(|action| action["name"] == never);
        assert!(!is_there, "{never}");
    }
}
