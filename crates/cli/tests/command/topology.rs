//! Links between hosts that their daemons bring up: each host of these tests is a daemon with a key, addresses and a
//! configuration of its own. `FARBUS_TOPOLOGIES` says how often each network is brought up (default 2).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use farbus::model::Payload;
use farbus_session::redir::usbredir::RedirStatus;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::harness::{Harness, Outcome, PATIENCE, Running, wait_until};
use super::redir::Guest;
use super::restart::Later;
use super::trust::Host;

const NAMES: [&str; 8] = ["h1", "h2", "h3", "h4", "h5", "h6", "h7", "h8"];
const RAW_OUT: u8 = 0x03;
const RAW_IN: u8 = 0x83;
/// The longest delay before a host starts, and before it is told to bring its links up.
const SLOWEST_MS: u64 = 1500;

/// Hosts that a plan can join.
struct Lab<'a> {
    harness: &'a Harness,
    hosts: Vec<Host<'a>>,
    /// The hosts' part of an address of the loopback.
    network: String,
    daemons: Vec<Option<Running>>,
}

/// A few numbers from a seed (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

impl<'a> Lab<'a> {
    /// `count` hosts, each paired with all others; the plan is given to them later.
    fn new(harness: &'a Harness, count: usize, plan: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id() as usize * 16 + COUNT.fetch_add(1, Ordering::Relaxed) as usize;
        let network = format!("127.{}.{}", 1 + number / 250 % 250, 1 + number % 250);
        let hosts: Vec<_> = NAMES[..count].iter().map(|&name| Host { harness, name }).collect();
        let lab = Self { harness, hosts, network, daemons: (0..count).map(|_| None).collect() };
        let keys: Vec<Value> =
            lab.hosts.iter().map(|host| host.json(&["id", "--json"])["fingerprint"].clone()).collect();
        fs::write(harness.path("plan.toml"), plan).unwrap();
        for (me, host) in lab.hosts.iter().enumerate() {
            let others = (0..count).filter(|&other| other != me);
            let peers = others.map(|other| {
                json!({"name": NAMES[other], "fingerprint": keys[other], "address": lab.at(other, 3241), "paired": "2026-01-01T00:00:00Z"})
            });
            let peers = json!({"peers": peers.collect::<Vec<_>>()});
            let file = harness.path(host.name).join("peers.json");
            fs::write(&file, serde_json::to_vec(&peers).unwrap()).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            lab.configure(me, "");
        }
        lab
    }

    fn at(&self, host: usize, port: u16) -> String {
        format!("{}.{}:{port}", self.network, host + 1)
    }

    fn configure(&self, host: usize, more: &str) -> String {
        let folder = self.harness.path(&format!("etc-{}", NAMES[host]));
        fs::create_dir_all(&folder).unwrap();
        let (plain, secure) = (self.at(host, 3240), self.at(host, 3241));
        let text = format!(
            "plain = {{listen = ['{plain}'], announce = false}}\nsecure = {{listen = ['{secure}'], announce = false}}\n\
             [topology]\nplan = 'plan.toml'\nvia = 'redir'\n{more}\n"
        );
        let file = folder.join("farbus.toml");
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }

    fn start(&mut self, host: usize) {
        let file = self.harness.path(&format!("etc-{}", NAMES[host])).join("farbus.toml");
        let daemon = self.hosts[host].start(&["daemon", "--config", file.to_str().unwrap()]);
        for _ in 0..2 {
            daemon.wait_for_line("listening on");
        }
        self.daemons[host] = Some(daemon);
    }

    fn kill(&mut self, host: usize) {
        self.daemons[host].take().expect("it runs").kill();
    }

    fn plan(&self) -> String {
        self.harness.path("plan.toml").to_str().unwrap().to_owned()
    }

    fn up(&self, host: usize) -> Outcome {
        up(&self.hosts[host], &self.plan())
    }

    fn status(&self, host: usize) -> Value {
        self.hosts[host].json(&["topology", "status", "--json"])
    }

    fn is_up(&self, host: usize) -> bool {
        self.status(host)["state"] == "up"
    }

    /// Starts all hosts and brings their links up, each after a delay of its own.
    fn bring_up(&mut self, seed: u64) {
        let mut dice = Dice(seed | 1 << 40);
        for host in 0..self.hosts.len() {
            // waits: hosts start in an order that the seed chooses; each order has to do
            thread::sleep(Duration::from_millis(dice.below(SLOWEST_MS / 4)));
            self.start(host);
        }
        let late: Vec<_> = self.hosts.iter().map(|_| Duration::from_millis(dice.below(SLOWEST_MS))).collect();
        let (hosts, plan) = (&self.hosts, &self.plan());
        let outcomes: Vec<Outcome> = thread::scope(|scope| {
            let begun = hosts.iter().zip(late).map(|(host, late)| {
                scope.spawn(move || {
                    // waits: hosts start in an order that the seed chooses; each order has to do
                    thread::sleep(late);
                    up(host, plan)
                })
            });
            let begun: Vec<_> = begun.collect();
            begun.into_iter().map(|up| up.join().unwrap()).collect()
        });
        for (host, outcome) in outcomes.iter().enumerate() {
            assert_eq!(outcome.code, Some(0), "seed {seed}, {}: {outcome:?}\n{}", NAMES[host], self.log(host));
        }
    }

    fn log(&self, host: usize) -> String {
        self.daemons[host].as_ref().map(Running::log).unwrap_or_default()
    }

    /// The socket where programs of this host find their end of the link to another.
    fn socket(&self, host: usize, other: usize) -> PathBuf {
        let status = self.status(host);
        let links = status["links"].as_array().unwrap();
        let link = links.iter().find(|link| link["to"] == NAMES[other]);
        link.unwrap_or_else(|| panic!("no link: {status}"))["at"].as_str().unwrap().into()
    }

    /// Every link of the plan, as the hosts report it: which hosts are joined, and how.
    fn links(&self) -> Vec<(usize, usize, String)> {
        let mut all = Vec::new();
        for host in 0..self.hosts.len() {
            for link in self.status(host)["links"].as_array().unwrap() {
                let other = NAMES.iter().position(|name| link["to"] == *name).unwrap();
                all.push((host, other, link["role"].as_str().unwrap().to_owned()));
            }
        }
        all
    }

    /// Sends bytes over a link both ways, and checks every byte.
    fn talk_over(&self, a: usize, b: usize, round: u8) {
        let [mut one, mut other] = [(a, b), (b, a)].map(|(host, other)| Guest::connect(&self.socket(host, other)));
        one.configure();
        other.configure();
        let bytes = |from: usize| -> Vec<u8> { (0..20_000).map(|at| (at * 7 + from * 31) as u8 ^ round).collect() };
        for (from, sender, receiver) in [(a, 0, 1), (b, 1, 0)] {
            let ends = [&mut one, &mut other];
            let given = ends[sender].bulk(10, RAW_OUT, 20_000, bytes(from).into());
            assert_eq!((given.outcome, given.length), (RedirStatus::Success, 20_000));
            let read = ends[receiver].bulk(11, RAW_IN, 32_768, Payload::Empty);
            assert_eq!((read.outcome, read.payload.into_vec()), (RedirStatus::Success, bytes(from)), "{a} to {b}");
        }
    }
}

fn up(host: &Host<'_>, plan: &str) -> Outcome {
    host.run(&["topology", "up", plan, "--wait", "100"])
}

fn rounds() -> u64 {
    std::env::var("FARBUS_TOPOLOGIES").ok().and_then(|message| message.parse().ok()).unwrap_or(2)
}

/// Brings a network up, and sends bytes over each link, both ways.
fn comes_up(network: &str, hosts: usize, debug_links: usize, bridges: usize) {
    for seed in 0..rounds() {
        let harness = Harness::new();
        let mut lab = Lab::new(&harness, hosts, &format!("network = '{network}'\nhosts = {:?}", &NAMES[..hosts]));
        lab.bring_up(seed * 7919 + 1);
        let links = lab.links();
        let of_role = |role: &str| links.iter().filter(|link| link.2 == role).count();
        let seen = (of_role("debug target"), of_role("debug host"), of_role("bridge"));
        assert_eq!(seen, (debug_links, debug_links, 2 * bridges), "{links:?}");
        // A host has one debug port only.
        let lends = |host: usize| links.iter().filter(|link| link.0 == host && link.2 == "debug target").count();
        assert!((0..hosts).all(|host| lends(host) <= 1), "{links:?}");
        for (a, b, _) in links.iter().filter(|(a, b, _)| a < b) {
            lab.talk_over(*a, *b, seed as u8);
        }
    }
}

#[test]
fn a_ring_of_four_daemons_comes_up_and_every_link_carries() {
    comes_up("ring", 4, 4, 0);
}

#[test]
fn a_cube_of_eight_daemons_comes_up_with_its_four_bridges_and_every_link_carries() {
    comes_up("hypercube", 8, 8, 4);
}

const LINE: &str = "network = 'line'\nhosts = ['h1', 'h2', 'h3']";

#[test]
fn lost_host_is_reported_and_its_links_return_with_it() {
    let harness = Harness::new();
    let mut lab = Lab::new(&harness, 3, LINE);
    lab.bring_up(1);
    lab.talk_over(0, 1, 1);
    lab.kill(1);
    wait_until(PATIENCE, "its neighbour misses it", || !lab.is_up(0) && !lab.is_up(2));
    let neighbour_line = || {
        let text = lab.hosts[0].ok(&["topology", "status"]);
        text.contains("h2: ").then_some(text)
    };
    wait_until(PATIENCE, "it is said whom it misses", || neighbour_line().is_some());
    // A second attempt that cannot succeed says so and does not hang.
    let vain = lab.hosts[0].run(&["topology", "up", "--wait", "1"]);
    assert!(vain.code == Some(3) && vain.stderr.contains("h2"), "{vain:?}");
    lab.start(1);
    wait_until(PATIENCE, "all links again", || (0..3).all(|host| lab.is_up(host)));
    for (a, b) in [(0, 1), (1, 2)] {
        lab.talk_over(a, b, 2);
    }
    // A repeated `up` changes nothing.
    let before = lab.status(0);
    assert_eq!(lab.up(0).code, Some(0));
    assert_eq!(lab.status(0)["links"][0]["at"], before["links"][0]["at"]);
    lab.talk_over(0, 1, 3);
}

#[test]
fn host_that_was_silent_is_reported_and_its_links_continue_unchanged() {
    let harness = Harness::new();
    let mut lab = Lab::new(&harness, 3, LINE);
    lab.bring_up(4);
    let [mut one, mut other] = [(0, 1), (1, 0)].map(|(host, other)| Guest::connect(&lab.socket(host, other)));
    one.configure();
    other.configure();
    let given = one.bulk(20, RAW_OUT, 700, vec![1; 700].into());
    assert_eq!(given.length, 700);
    let daemon = lab.daemons[1].as_ref().unwrap();
    daemon.signal(Signal::STOP);
    wait_until(PATIENCE, "its neighbours miss it", || !lab.is_up(0) && !lab.is_up(2));
    daemon.signal(Signal::CONT);
    wait_until(PATIENCE, "all links again", || (0..3).all(|host| lab.is_up(host)));
    // The same guests are connected, and the bytes under way arrive.
    let read = other.bulk(40, RAW_IN, 4096, Payload::Empty);
    assert_eq!(read.payload.into_vec(), vec![1; 700], "{}", lab.log(1));
    let back = other.bulk(41, RAW_OUT, 9, vec![2; 9].into());
    assert_eq!((back.length, one.bulk(21, RAW_IN, 512, Payload::Empty).payload.into_vec()), (9, vec![2; 9]));
}

#[test]
fn ring_is_completed_after_its_leader_died_during_bring_up() {
    let harness = Harness::new();
    let mut lab = Lab::new(&harness, 4, "network = 'ring'\nhosts = ['h1', 'h2', 'h3', 'h4']");
    for host in [0, 1, 3] {
        lab.start(host);
        let begun = lab.hosts[host].json(&["topology", "up", &lab.plan(), "--wait", "0", "--json"]);
        assert_eq!((&begun["state"], &begun["is_leader"]), (&json!("coming"), &json!(host == 0)), "{begun}");
    }
    wait_until(PATIENCE, "the leader begins", || lab.status(0)["is_enabled"] == true);
    // No other host has continued: a host waits for its turn.
    assert!([1, 3].iter().all(|&host| lab.status(host)["waits_for"] != json!([])));
    lab.kill(0);
    let vain = lab.hosts[1].run(&["topology", "up", "--wait", "1"]);
    assert!(vain.code == Some(3) && vain.stderr.contains("no link yet to"), "{vain:?}");
    lab.start(2);
    lab.hosts[2].ok(&["topology", "up", &lab.plan(), "--wait", "0"]);
    lab.start(0);
    wait_until(PATIENCE, "all links", || (0..4).all(|host| lab.is_up(host)));
    for host in 0..4 {
        lab.talk_over(host, (host + 1) % 4, 5);
    }
}

#[test]
fn links_stay_up_while_daemons_are_restarted_and_what_is_down_stays_down() {
    let harness = Harness::new();
    let mut lab = Lab::new(&harness, 3, LINE);
    lab.bring_up(2);
    let [mut one, mut other] = [(0, 1), (1, 0)].map(|(host, other)| Guest::connect(&lab.socket(host, other)));
    one.configure();
    other.configure();
    let mut later = Vec::new();
    for round in 0..2u8 {
        for host in 0..2 {
            later.push(Later::of(&lab.hosts[host].json(&["daemon", "restart", "--json"])));
            // The same guests are still connected, as if there had been no restart.
            let given = one.bulk(u64::from(round) + 20, RAW_OUT, 3000, vec![round; 3000].into());
            assert_eq!(given.length, 3000, "{}", lab.log(host));
            let read = other.bulk(u64::from(round) + 40, RAW_IN, 4096, Payload::Empty);
            assert_eq!(read.payload.into_vec(), vec![round; 3000], "{}", lab.log(host));
        }
    }
    wait_until(PATIENCE, "all know it", || (0..3).all(|host| lab.is_up(host)));
    drop((one, other));
    let down = lab.hosts[2].json(&["topology", "down", "--json"]);
    assert_eq!((&down["state"], down["links"].as_array().unwrap().len()), (&json!("down"), 0));
    later.push(Later::of(&lab.hosts[2].json(&["daemon", "restart", "--json"])));
    assert_eq!(lab.status(2)["state"], "down");
    wait_until(PATIENCE, "its neighbour hears it", || !lab.is_up(1));
    assert_eq!(lab.up(2).code, Some(0));
    wait_until(PATIENCE, "all links again", || (0..3).all(|host| lab.is_up(host)));
    lab.talk_over(1, 2, 9);
}

#[test]
fn link_end_belongs_to_its_host_and_a_host_with_another_plan_gets_none() {
    let harness = Harness::new();
    let mut lab = Lab::new(&harness, 3, LINE);
    // A device that the first host shares for the second is not for the third, though that one may use everything else.
    let file = harness.path("h2").join("peers.json");
    let allowed = fs::read_to_string(&file).unwrap().replace("\"paired\"", "\"allow\":[\"*\"],\"paired\"");
    fs::write(&file, allowed).unwrap();
    lab.bring_up(3);
    let listed = |host: usize, at: &str| lab.hosts[host].ok(&["list", at, "--json"]);
    assert!(listed(0, "h2").contains("link-h2-h1-b") && !listed(0, "h2").contains("link-h2-h1-a"));
    assert!(!listed(2, "h2").contains("link-h2-h1"), "{}", listed(2, "h2"));
    assert!(!listed(1, &lab.at(1, 3240)).contains("link-h2-h1-b"), "nor a program's of the host that shares it");
    let refused = lab.hosts[2].run(&["attach", "h2/link-h2-h1-b", "--via", "redir", "--socket", "x.sock"]);
    assert!(matches!(refused.code, Some(3 | 4)), "{refused:?}");

    fs::write(harness.path("other.toml"), "network = 'star'\nhosts = ['h1', 'h2', 'h3']\nwithout_debug = ['h3']")
        .unwrap();
    let other = harness.path("other.toml");
    let astray = lab.hosts[2].run(&["topology", "up", other.to_str().unwrap(), "--wait", "2"]);
    assert_eq!(astray.code, Some(3), "{astray:?}");
    let complains = || lab.status(1)["links"].to_string().contains("another plan") || !lab.is_up(1);
    wait_until(PATIENCE, "its neighbour says so", complains);
    assert_eq!(lab.up(2).code, Some(0));
    wait_until(PATIENCE, "one plan again", || (0..3).all(|host| lab.is_up(host)));

    // A plan without this host, and a daemon that has no plan.
    fs::write(&other, "network = 'line'\nhosts = ['x', 'y']").unwrap();
    let stranger = lab.hosts[0].run(&["topology", "up", other.to_str().unwrap()]);
    assert!(stranger.code == Some(1) && stranger.stderr.contains("no host is called 'h1'"), "{stranger:?}");
    lab.daemons[0].take().unwrap().signal(Signal::TERM);
    let nobody = || lab.hosts[0].run(&["topology", "status"]).code == Some(4);
    wait_until(PATIENCE, "nobody is left to be asked", nobody);
    let file = lab.configure(0, "").replace("farbus.toml", "plain.toml");
    fs::write(&file, format!("plain.listen = ['{}']", lab.at(0, 3240))).unwrap();
    let plain = lab.hosts[0].start(&["daemon", "--config", &file]);
    plain.wait_for_line("listening on");
    let none = lab.hosts[0].run(&["topology", "up"]);
    assert!(none.code == Some(3) && none.stderr.contains("[topology]"), "{none:?}");
}
