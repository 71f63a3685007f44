//! Forms of the page: each is filled in and pressed in a real browser until its command has done what it says, with
//! and without a script, with the keyboard alone on a phone, and with hostile names.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::browser::{Browser, ENTER, MadeUp, PID, TAB, has_browser};
use super::durable::Nbd;
use super::harness::{Harness, PATIENCE, Running, Share, wait_until};
use super::page::{Page, open_page, page_of};
use super::page_accessible::{assert_accessible, assert_accessible_without_script};
use super::page_actions::{act, done, end_all, get};
use super::page_browser::{assert_complaints_of, assert_no_complaint, assert_runs_nothing, hostile_texts};
use super::trust::{Host, three};

const LIVE: &str = "document.querySelector('#live').textContent";

/// A page of this host in a browser of its own.
struct Looked {
    page: Page,
    browser: Browser,
}

impl Looked {
    fn new(harness: &Harness, page: Page) -> Self {
        let browser = Browser::start(harness, &[]);
        browser.resize(900, 1900);
        Self { page, browser }
    }

    /// Opens a view and waits until it is live.
    fn open(&self, path: &str) {
        self.browser.open(&format!("http://{}{path}", self.page.address));
        self.browser.wait_for(&format!("{LIVE} === 'live'"));
    }

    fn open_device(&self, pid: impl std::fmt::Display, name: &str) {
        self.open(&format!("/device/{pid}?name={name}"));
    }

    /// Puts a text into a field of a form, as typing does, and waits until the command line shows it.
    fn fill(&self, action: &str, field: &str, text: &str, line: &str) {
        self.browser.script(&format!(
            "const field = document.getElementById('do-{action}').elements.namedItem('{field}');\
             const folded = field.closest('details'); if (folded) {{ folded.open = true; }}\
             if (field.type === 'checkbox') {{ field.checked = true; }} else {{ field.value = {}; }}\
             field.dispatchEvent(new Event('input', {{ bubbles: true }}));",
            json!(text)
        ));
        self.browser.wait_for(&format!("document.querySelector('#do-{action} code').textContent === {}", json!(line)));
    }

    /// Presses the button of a form, and answers the question if there is one; waits until the page says what became of
    /// it, and returns that.
    fn press(&self, form: &str, asks: Option<&str>) -> String {
        let button = format!("document.querySelector('#{form} button.do')");
        self.browser.wait_for(&format!("{button} !== null"));
        let nothing = "document.querySelector('#live').textContent = ''";
        self.browser.script(&format!("{nothing}; {button}.focus(); {button}.click()"));
        if let Some(asks) = asks {
            self.browser.wait_for("document.getElementById('sure').open");
            let answer = self.browser.script("return document.getElementById('sure').textContent");
            assert!(answer.as_str().unwrap().contains(asks), "{asks}: {answer}");
            self.browser.script("document.getElementById('sure-yes').click()");
        }
        let is_over = ["done", "begun", "failed", "not begun"].map(|word| format!("{LIVE}.startsWith('{word}')"));
        self.browser.wait_for(&is_over.join(" || "));
        self.browser.script(&format!("return {LIVE}")).as_str().unwrap().to_owned()
    }
}

/// The first device with this name of a process of this role.
fn device(harness: &Harness, role: &str, name: &str) -> Value {
    let status = harness.json(&["status", "--json"]);
    let of_role = status.as_array().unwrap().iter().filter(|process| process["role"] == role);
    let mut devices = of_role.flat_map(|process| process["devices"].as_array().unwrap());
    devices.find(|device| device["name"] == name).cloned().unwrap_or_default()
}

fn end(pid: &Value) {
    let pid = Pid::from_raw(i32::try_from(pid.as_u64().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

/// A daemon that shares a keyboard called `k`.
fn daemon(harness: &Harness) -> Share {
    let path = harness.path("farbus.toml");
    let text = "[plain]\nlisten = ['127.0.0.1:0']\n[[share]]\nwhat = 'keyboard'\nname = 'k'\n";
    fs::write(&path, text).unwrap();
    Share::follow(Running::start(harness.command(&["daemon", "--config", path.to_str().unwrap()])))
}

#[test]
fn a_device_is_shared_with_the_keyboard_alone_on_a_phone() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let looked = Looked::new(&harness, open_page(&harness));
    let browser = &looked.browser;
    browser.resize(360, 800);
    looked.open("/new");
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        assert_accessible(browser, &format!("share and attach, {scheme}"));
    }
    let widest = browser.script("return document.documentElement.scrollWidth").as_u64().unwrap();
    assert!(widest <= 360, "{widest} pixels");
    // From the top of the document to the field.
    let at = || browser.script("return document.activeElement.id || document.activeElement.className");
    for _ in 0..20 {
        browser.press(&[TAB]);
        if at() == "do-share-what" {
            break;
        }
    }
    assert_eq!(at(), "do-share-what");
    let line = "document.querySelector('#do-share code').textContent";
    assert_eq!(browser.script(&format!("return {line}")), "farbus share block:/PATH");
    // What is wrong is said where it is typed, and where the keyboard is.
    browser.press(&["d", "i", "s", "k", ":", "a"]);
    browser.wait_for("document.querySelector('#do-share-what-wrong').textContent.includes(\"begins with '/'\")");
    browser.script("document.activeElement.select()");
    browser.press(&["z", "e", "r", "o"]);
    browser.wait_for(&format!("{line} === 'farbus share zero'"));
    browser.wait_for("document.querySelector('#do-share-what-wrong').textContent === ''");
    for stop in ["summary", "code", "copy", "do"] {
        browser.press(&[TAB]);
        let is = browser.script("return document.activeElement.className || document.activeElement.localName");
        assert_eq!(is, stop);
    }
    browser.press(&[ENTER]);
    browser.wait_for(&format!("['begun: farbus share zero', 'done: farbus share zero'].includes({LIVE})"));
    assert_eq!(at(), "do", "a button that was pressed keeps the keyboard's place");
    wait_until(PATIENCE, "it is shared", || device(&harness, "share", "zero")["state"] == "available");
    browser.keep_picture("form-share");
    assert_no_complaint(browser);
    end(&get(&looked.page, "/api/v1/operations/1")["pid"]);
}

#[test]
fn what_was_begun_and_fails_later_says_so_beside_the_title_and_at_its_form() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("a.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let looked = Looked::new(&harness, open_page(&harness));
    looked.open_device(share.process.id(), "disk");
    let (target, socket) = (share.target("disk"), harness.path("no-such-folder/nbd"));
    let line = format!("farbus attach {target} --via=nbd");
    looked.fill("attach", "via", "nbd", &line);
    looked.fill("attach", "socket", socket.to_str().unwrap(), &format!("{line} --socket={}", socket.display()));
    looked.press("do-attach", None);
    looked.browser.wait_for(&format!("{LIVE}.startsWith('failed: farbus attach')"));
    let why = "its folder does not exist";
    looked.browser.wait_for(&format!("document.querySelector('#do-attach .said').textContent.includes('{why}')"));
    let typed = looked.browser.script("return document.querySelector('#do-attach').elements.namedItem('socket').value");
    assert_eq!(typed, socket.to_str().unwrap(), "what was typed stays");
    assert_no_complaint(&looked.browser);
}

#[test]
fn a_disk_is_attached_with_options_and_taken_back_after_a_question_who_loses_it() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("a.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let looked = Looked::new(&harness, open_page(&harness));
    let browser = &looked.browser;
    looked.open_device(share.process.id(), "disk");
    let (target, socket) = (share.target("disk"), harness.path("it's nbd"));
    let line = format!("farbus attach {target} --via=nbd");
    looked.fill("attach", "via", "nbd", &line);
    let quoted = socket.to_str().unwrap().replace('\'', r"'\''");
    looked.fill("attach", "socket", socket.to_str().unwrap(), &format!("{line} --socket='{quoted}'"));
    browser.keep_picture("form-attach");
    assert_accessible(browser, "a device with a form that is filled in");
    assert!(looked.press("do-attach", None).starts_with("begun"));
    browser.wait_for("document.querySelector('#do-release') !== null");
    assert_eq!(device(&harness, "share", "disk")["state"], "in use");

    looked.fill("release", "reason", "it is mine; $(reboot)", "farbus release disk --reason='it is mine; $(reboot)'");
    // What changes elsewhere on the page takes nothing that was typed.
    harness.run(&["label", "disk", "place=rack 7"]);
    browser.wait_for("document.querySelector('#facts').textContent.includes('rack 7')");
    let typed = browser.script("return document.querySelector('#do-release-reason').value");
    assert_eq!(typed, "it is mine; $(reboot)");
    // Its user may write it: the command refuses, says what to type, and nothing that was typed is lost.
    let message = looked.press("do-release", Some("uses disk and loses it"));
    assert!(message.starts_with("failed: ") && message.contains("--force"), "{message}");
    let at = browser.script("return document.activeElement.matches('#do-release button.do')");
    assert_eq!(at, true, "the keyboard is where it was");
    looked.fill("release", "force", "", "farbus release disk --reason='it is mine; $(reboot)' --force");
    // One who is not sure leaves it.
    browser.script("document.querySelector('#do-release button.do').click()");
    browser.wait_for("document.getElementById('sure').open");
    browser.keep_picture("form-release-question");
    assert_accessible(browser, "a question whether it is meant");
    browser.script("document.getElementById('sure-no').click()");
    browser.wait_for("!document.getElementById('sure').open");
    assert_eq!(device(&harness, "share", "disk")["state"], "in use");
    assert!(looked.press("do-release", Some("farbus release disk")).starts_with("done"));
    wait_until(PATIENCE, "it is free", || device(&harness, "share", "disk")["state"] == "available");
    let history = device(&harness, "share", "disk")["history"][0].to_string();
    assert!(history.contains("it is mine; $(reboot)"), "{history}");
    assert_complaints_of(browser, "release", 1);
}

#[test]
fn an_attached_disk_is_paused_held_continued_and_detached_by_its_buttons() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("a.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let (target, socket) = (share.target("disk"), harness.path("nbd"));
    let words = ["attach", &target, "--via", "nbd", "--socket", socket.to_str().unwrap(), "--module", "pause"];
    let mut attached = Running::start(harness.command(&words));
    attached.wait_for_line("attached as");
    let looked = Looked::new(&harness, open_page(&harness));
    looked.open_device(attached.id(), "disk");
    for action in ["module-pause", "module-resume"] {
        let verb = action.replace('-', " ");
        assert_eq!(looked.press(&format!("do-{action}"), None), format!("done: farbus {verb} {target}"));
        looked.browser.keep_picture(&format!("form-{action}"));
    }
    // One that is held, with its client, goes on here.
    let client = Nbd::connect(&socket);
    assert_eq!(harness.run(&["hold", &target]).code, Some(0));
    looked.browser.wait_for("document.querySelector('#do-resume') !== null");
    assert_eq!(looked.press("do-resume", None), format!("done: farbus resume {target}"));
    looked.browser.keep_picture("form-resume");
    wait_until(PATIENCE, "it goes on", || device(&harness, "attach", "disk")["state"] == "attached");
    drop(client);
    looked.browser.keep_picture("form-detach");
    looked.press("do-detach", Some("Programs of this machine that use disk"));
    assert_eq!(attached.wait_for_end(PATIENCE), Some(0), "{}", attached.log());
    assert_no_complaint(&looked.browser);
}

#[test]
fn a_disk_is_swapped_to_where_the_form_says() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let (image, to) = (harness.image("old.img", 1 << 20), harness.path("new disk.img"));
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let looked = Looked::new(&harness, open_page(&harness));
    looked.open_device(share.process.id(), "disk");
    let medium = format!("block:{}", to.display());
    looked.fill("swap", "to", &medium, &format!("farbus swap disk --to='{medium}'"));
    assert!(looked.press("do-swap", None).starts_with("begun"));
    wait_until(PATIENCE, "it has moved", || device(&harness, "share", "disk")["medium"]["at"] == medium.as_str());
    looked.browser.wait_for("document.querySelector('#moves').textContent.includes('has ended')");
    looked.browser.keep_picture("form-swap");
    assert_no_complaint(&looked.browser);
}

#[test]
fn what_is_wrong_is_said_at_its_field_though_its_part_is_drawn_anew_before_and_after_the_answer() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("disk.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let looked = Looked::new(&harness, open_page(&harness));
    looked.open_device(share.process.id(), "disk");
    looked.browser.script(
        "window.drawAnew = () => { for (const list of document.querySelectorAll('[data-parts]')) {
             show(list, [...list.children].map((part) => [part.id, part.outerHTML]));
         } };
         const real = window.fetch;
         window.fetch = async (...asked) => {
             const answer = await real(...asked);
             if (asked[1]?.method === 'POST') { drawAnew(); }
             return answer;
         };",
    );
    let is_marked =
        || looked.browser.script("return document.querySelector('#do-swap-to[aria-invalid=\"true\"]') !== null");
    assert_eq!(is_marked(), false);
    assert!(looked.press("do-swap", None).contains("it is missing"));
    assert_eq!(is_marked(), true, "the form that was pressed is not the one that is shown");
    looked.browser.script("drawAnew()");
    assert_eq!(is_marked(), true);
}

#[test]
fn a_host_is_forbidden_and_allowed_and_a_disk_is_sent_to_another_host_by_forms() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let hosts = three(&harness);
    let [lab3, desk, _rack] = &hosts;
    let image = harness.image("disk.img", 1 << 20);
    let (share, address) = lab3.share(&[&format!("disk:{},name=disk", image.display())]);
    let open = |host: &Host<'_>| page_of(host.command(&["page", "--listen", "127.0.0.1:0"]));
    let looked = Looked::new(&harness, open(lab3));
    looked.open_device(share.id(), "disk");
    let choices = "return [...document.querySelectorAll('#hosts option')].map((choice) => choice.value)";
    assert_eq!(looked.browser.script(choices), json!(["desk", "rack"]));
    let may_use = || {
        let hosts = get(&looked.page, "/api/v1/hosts");
        let paired = hosts["paired"].as_array().unwrap();
        paired.iter().find(|host| host["name"] == "desk").unwrap()["may_use"].clone()
    };
    // A form without its host is not begun; the keyboard is where it is missing.
    assert!(looked.press("do-allow", None).contains("it is missing: Name of a paired host."));
    let at = looked.browser.script("return document.activeElement.id");
    assert_eq!(at, "do-allow-host");
    let invalid = looked.browser.script("return document.activeElement.getAttribute('aria-invalid')");
    assert_eq!(invalid, "true");
    lab3.ok(&["forbid", "desk", "all"]);
    for (action, left) in [("allow", json!(["disk"])), ("forbid", json!([]))] {
        let line = format!("farbus {action} desk disk");
        looked.fill(action, "host", "desk", &line);
        assert_eq!(looked.press(&format!("do-{action}"), None), format!("done: {line}"));
        looked.browser.keep_picture(&format!("form-{action}"));
        assert_eq!(may_use(), left);
    }
    lab3.ok(&["allow", "desk", "disk"]);
    assert_complaints_of(&looked.browser, "allow", 1);

    let socket = harness.path("desk.nbd");
    let words = ["attach", "lab3/disk", "--address", &address, "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let attached = desk.start(&words);
    attached.wait_for_line("attached");
    drop(looked);
    let looked = Looked::new(&harness, open(desk));
    looked.open_device(attached.id(), "disk");
    let shown = looked.browser.script("return document.querySelector('#do-migrate code').textContent");
    let target = shown.as_str().unwrap().strip_prefix("farbus migrate ").unwrap();
    let target = target.strip_suffix(" --to=HOST").unwrap().to_owned();
    looked.fill("migrate", "to", "rack", &format!("farbus migrate {target} --to=rack"));
    assert!(looked.press("do-migrate", None).starts_with("begun"));
    // It leaves, or waits for rack: its host says so on the page.
    looked.browser.wait_for("document.querySelector('#moves').textContent.includes('--to=rack')");
    looked.browser.keep_picture("form-migrate");
}

#[test]
fn what_a_daemon_shares_is_unshared_by_its_button_and_medium_and_session_by_programs() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let daemon = daemon(&harness);
    let image = harness.image("a.img", 1 << 20);
    let looked = Looked::new(&harness, open_page(&harness));
    looked.open_device(daemon.process.id(), "k");
    assert_eq!(looked.press("do-unshare", Some("Nobody uses k now.")), "done: farbus unshare k");
    looked.browser.wait_for("document.querySelector('#gone') !== null");
    looked.browser.keep_picture("form-unshare");
    assert_no_complaint(&looked.browser);
    assert_eq!(device(&harness, "daemon", "k"), Value::Null);

    // The same by a program, and what has no button.
    let (status, shared) =
        act(&looked.page, "share", &json!({ "what": format!("disk:{},name=disk", image.display()), "keep": true }));
    assert_eq!(status, 202, "{shared}");
    wait_until(PATIENCE, "it is shared", || device(&harness, "daemon", "disk")["state"] == "available");
    for action in ["eject", "insert", "unshare"] {
        let done = done(&looked.page, action, &json!({ "device": "disk" }));
        assert_eq!(done["command"], format!("farbus {action} disk"));
    }
    assert_eq!(device(&harness, "daemon", "disk"), Value::Null);
}

#[test]
fn without_a_script_a_form_asks_again_says_what_is_wrong_and_does_it() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let image = harness.image("a.img", 1 << 20);
    let share = harness.share(&[&format!("disk:{},name=disk", image.display())]);
    let socket = harness.path("nbd");
    let words = ["attach", &share.target("disk"), "--via", "nbd", "--socket", socket.to_str().unwrap()];
    let attached = Running::start(harness.command(&words));
    attached.wait_for_line("attached as");
    let page = open_page(&harness);
    let browser = Browser::start(&harness, &[]);
    browser.resize(360, 800);
    browser.devtools("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    let url = format!("http://{}", page.address);
    let outcome = |part: &str| {
        wait_until(PATIENCE, part, || {
            let answer = browser.script("return document.querySelector('#outcome')?.textContent ?? ''");
            answer.as_str().unwrap().contains(part)
        });
    };
    browser.open(&format!("{url}/device/{}?name=disk", share.process.id()));
    let options = browser.script("return document.querySelector('#do-release-more').open = true");
    assert_eq!(options, true);
    browser.script(
        "const form = document.querySelector('#do-release'); form.elements.namedItem('reason').value = 'it\\'s mine';\
         form.elements.namedItem('keep_out').value = 'long'; form.elements.namedItem('force').checked = true;\
         form.querySelector('button.do').click()",
    );
    outcome("It was not begun");
    let seen = browser.script(
        "const form = document.querySelector('#do-release');\
         return [form.querySelector('#do-release-keep_out-wrong').textContent, form.elements.namedItem('reason').value, \
         form.elements.namedItem('keep_out').value, form.elements.namedItem('force').checked]",
    );
    assert_eq!(seen, json!(["a whole number from 0 to 86400", "it's mine", "long", true]));
    assert_accessible_without_script(&browser, "a form that was wrong");
    browser.keep_picture("form-without-script-wrong");
    browser.script(
        "const form = document.querySelector('#do-release'); form.elements.namedItem('keep_out').value = '';\
         form.querySelector('button.do').click()",
    );
    outcome("uses disk and loses it");
    let line = browser.script("return document.querySelector('main code').textContent");
    assert_eq!(line, r"farbus release disk --reason='it'\''s mine' --force");
    assert_eq!(device(&harness, "share", "disk")["state"], "in use", "it was asked about");
    assert_accessible_without_script(&browser, "a question without a script");
    browser.keep_picture("form-without-script-question");
    browser.script("document.querySelector('#sure-form button').click()");
    outcome("It is done.");
    browser.keep_picture("form-without-script-done");
    wait_until(PATIENCE, "it is free", || device(&harness, "share", "disk")["state"] == "available");
    let back = browser.script("return document.querySelector('main a').getAttribute('href')");
    assert_eq!(back, format!("/device/{}?name=disk", share.process.id()));
    let complaints = browser.complaints();
    assert!(complaints.len() == 1 && complaints[0].contains("/do/release - Failed to load"), "{complaints:?}");
}

#[test]
fn hostile_names_in_forms_are_values_and_nothing_else() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let looked = Looked::new(&harness, open_page(&harness));
    let device = |text: &str| {
        json!({
            "name": text, "title": text, "state": "in use", "user": text, "bus_id": text, "is_observable": true,
            "medium": { "at": text },
        })
    };
    let texts = hostile_texts();
    let _made_up = MadeUp::start(&harness, texts.iter().map(|text| device(text)).collect());
    let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let url = format!("http://{}", looked.page.address);
    let mut pressed = 0;
    for text in texts.iter().filter(|text| !text.contains('\0')) {
        looked.open_device(PID, &encoded(text));
        let value =
            looked.browser.script("return document.querySelector('#do-release').elements.namedItem('device').value");
        assert_eq!(value, *text);
        // The question has its text, and the command is about that device: there is none such, which it says.
        let message = looked.press("do-release", Some("farbus release"));
        assert!(message.starts_with("failed: ") && message.contains("is shared or attached here"), "{text}: {message}");
        assert_complaints_of(&looked.browser, "release", 1);
        assert_runs_nothing(&looked.browser, &url);
        pressed += 1;
    }
    assert!(pressed >= 9, "{pressed}");
    let operations = get(&looked.page, "/api/v1/operations")["operations"].clone();
    let subjects: Vec<&Value> = operations.as_array().unwrap().iter().map(|operation| &operation["subject"]).collect();
    let expected: Vec<&&str> = texts.iter().rev().filter(|text| !text.contains('\0')).collect();
    assert_eq!(json!(subjects), json!(expected));
}

#[test]
fn a_recording_is_shown_at_the_process_and_device_that_it_is_of() {
    let harness = Harness::new();
    let shares = [(); 2].map(|()| harness.share(&["keyboard", "--observable"]));
    let page = open_page(&harness);
    let (status, begun) = act(&page, "observe", &json!({ "target": shares[1].target("keyboard") }));
    assert_eq!(status, 202, "{begun}");
    let second = shares[1].process.id();
    wait_until(PATIENCE, "it is known what it is about", || {
        get(&page, "/api/v1/operations/1")["on"] == json!({ "pid": second, "name": "keyboard" })
    });
    let shows = |share: &Share| {
        let reply = page.get(&format!("/device/{}?name=keyboard", share.process.id()), "");
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.body.contains("id=\"recording-1\"")
    };
    wait_until(PATIENCE, "it is shown there", || shows(&shares[1]));
    assert!(!shows(&shares[0]), "the other keyboard is not recorded");
    end_all(&page);
}

#[test]
fn tabs_that_are_not_seen_keep_no_connection_and_more_than_six_are_live_when_seen() {
    if !has_browser() {
        return;
    }
    let harness = Harness::new();
    let looked = Looked::new(&harness, open_page(&harness));
    let notes_when_hidden = "document.addEventListener('visibilitychange', () => { \
        if (document.hidden) { window.whenHidden = [events]; } })";
    let open = || {
        looked.open("/");
        looked.browser.script(notes_when_hidden);
    };
    open();
    // More than a browser has connections to one page.
    for _ in 0..7 {
        looked.browser.new_tab();
        open();
    }
    let tabs = looked.browser.tabs();
    assert_eq!(tabs.len(), 8);
    for tab in &tabs[..7] {
        looked.browser.show_tab(tab);
        looked.browser.wait_for(&format!("{LIVE} === 'live'"));
        assert_eq!(looked.browser.script("return window.whenHidden"), json!([null]), "it kept no stream");
    }
    let _share = harness.share(&["keyboard"]);
    looked.browser.wait_for("document.querySelector('main').textContent.includes('keyboard')");
    assert_eq!(looked.browser.script("return document.visibilityState"), "visible");
}
