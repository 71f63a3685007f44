//! Asks what other hosts have, while somebody looks: this host's daemon for what it knows of the directory, twice a
//! second; and paired hosts and those nearby themselves, seldom, by a process of its own (`farbus page-hosts`), which
//! reads what they send.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use farbus_control::process::ProcessStatus;
use farbus_io_net::local::control_socket::{Answer, Question, ask_one};
use farbus_io_net::local::time_words::parse_time;
use farbus_io_net::trust::{HostFolder, PairedHostList, host_name};
use serde::Deserialize;
use serde_json::Value;
use tracing::debug;

use crate::known::lab::{DeviceReport, HOSTS_VERB, LabBudget, LabDevice, LabHost, LabInventory, Source, short};
use crate::rights::locking::lock;

/// How often hosts are asked while somebody looks, and how often those whose daemon follows the directory.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOK_EVERY_BESIDE_DIRECTORY: Duration = Duration::from_secs(60);
/// How soon hosts are asked again after an action changed something at them.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// Bytes that one look may bring.
const LOOK_BYTES_MAX: u64 = 32 << 20;
/// How long devices of a host stay that does not answer.
const STALE_S_MAX: u64 = 120;
/// A question about the directory takes this part of the time at most.
const DIRECTORY_SHARE: u32 = 4;

/// Seconds since 1970.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A time that was written by another host, seconds since 1970.
fn time(text: &str) -> Option<u64> {
    // A fraction of a second is not needed, and a span from now on is no time.
    let text = text.split_once('.').map_or(text.to_owned(), |(whole, _)| format!("{whole}Z"));
    let time = Some(text).filter(|text| !text.starts_with('+')).and_then(|text| parse_time(&text).ok())?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// A host as the process tells of it that asks them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HostReport {
    own: Option<OwnHostReport>,
    host: String,
    key: Option<String>,
    address: Option<String>,
    farbus: Option<String>,
    is_paired: bool,
    is_found: bool,
    devices: Option<Vec<DeviceReport>>,
    failure: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OwnHostReport {
    key: Option<String>,
}

/// A host that answered, or was found.
#[derive(Clone, Debug, Default)]
struct SurveyedHost {
    key: Option<String>,
    name: String,
    address: Option<String>,
    farbus: Option<String>,
    is_paired: bool,
    is_found: bool,
    devices: Option<Vec<LabDevice>>,
    heard_s: Option<u64>,
    failure: Option<String>,
    /// The look that it was in.
    look: u64,
}

/// What the looks have brought.
#[derive(Debug, Default)]
struct HostSurvey {
    /// Greater with each change.
    changes: u64,
    looks: u64,
    own_key: Option<String>,
    looked_s: Option<u64>,
    /// Devices for which there was no room in this look.
    left_out: usize,
    hosts: BTreeMap<String, SurveyedHost>,
}

/// What the daemon said of the directory.
#[derive(Debug, Default)]
struct DirectoryPoll {
    version: Option<String>,
    own_key: Option<String>,
    trouble: Option<String>,
    heard_s: Option<u64>,
    hosts: Vec<DirectoryHost>,
    devices: BTreeMap<String, Vec<LabDevice>>,
    left_out: usize,
    /// When it may be asked again.
    next: Option<Instant>,
}

/// What a daemon answers to the question for the directory. A record that is none of farbus's is passed over, and
/// spoils no other.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DirectoryReport {
    version: Option<String>,
    own_key: Option<String>,
    /// How long ago it was heard, seconds.
    heard_s: Option<u64>,
    trouble: Option<DirectoryFailureReport>,
    known_hosts: Option<Vec<Value>>,
    known_devices: Option<Vec<Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DirectoryFailureReport {
    message: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DirectoryHost {
    key: String,
    name: String,
    farbus: String,
}

/// What is known of a paired host here.
#[derive(Clone, Debug, PartialEq)]
struct PairedHostRecord {
    name: String,
    key: String,
    address: Option<String>,
    paired: String,
    may_use: Vec<String>,
}

/// What decides whether all has to be put together anew.
type LabCacheKey = (u64, Option<String>, Option<String>, Vec<PairedHostRecord>);

/// Gathers what is known of other hosts.
#[derive(Debug)]
pub struct LabGatherer {
    seen: Arc<Mutex<HostSurvey>>,
    demand: SyncSender<Duration>,
    directory: Option<DirectoryPoll>,
    mark: Option<LabCacheKey>,
    lab: Arc<LabInventory>,
}

impl LabGatherer {
    /// Starts the thread that looks when it is told to. It ends with the gatherer.
    ///
    /// # Errors
    /// There can be no further thread.
    pub fn start() -> io::Result<Self> {
        let seen = Arc::<Mutex<HostSurvey>>::default();
        let (demand, demanded) = sync_channel::<Duration>(1);
        let to = Arc::clone(&seen);
        let look = move || {
            let mut ended: Option<Instant> = None;
            while let Ok(pause) = demanded.recv() {
                if ended.is_some_and(|ended| ended.elapsed() < pause) {
                    continue;
                }
                if let Err(error) = look(&to) {
                    debug!(%error, "other hosts are not asked");
                }
                ended = Some(Instant::now());
            }
        };
        thread::Builder::new().name("page-hosts".into()).spawn(look)?;
        Ok(Self { seen, demand, directory: None, mark: None, lab: Arc::default() })
    }

    /// What was known last.
    pub fn lab(&self) -> &Arc<LabInventory> {
        &self.lab
    }

    /// What is known now, by the present status of this user's processes. It asks the daemon, and has hosts asked if
    /// that is due; `is_done` says that something was done here since.
    pub fn update(&mut self, processes: &[ProcessStatus], is_done: bool) -> Arc<LabInventory> {
        let has_directory =
            |process: &&ProcessStatus| process.of_daemon.as_ref().is_some_and(|of| of.directory.is_some());
        let daemon = processes.iter().find(has_directory);
        match daemon.map(|daemon| daemon.pid) {
            Some(pid) => {
                let mut directory = self.directory.take().unwrap_or_default();
                directory.ask(pid);
                self.directory = Some(directory);
            }
            None => self.directory = None,
        }
        let is_by_directory = self.directory.as_ref().is_some_and(|directory| directory.trouble.is_none());
        let usual = if is_by_directory { LOOK_EVERY_BESIDE_DIRECTORY } else { LOOK_EVERY };
        // If it is full, the thread is about to look.
        let _ = self.demand.try_send(if is_done { LOOK_AFTER } else { usual });
        let paired = paired();
        let seen = lock(&self.seen);
        let of_directory = self.directory.as_ref();
        let mark = (
            seen.changes,
            of_directory.and_then(|directory| directory.version.clone()),
            of_directory.and_then(|directory| directory.trouble.clone()),
            paired,
        );
        if self.mark.as_ref() != Some(&mark) {
            let mut lab = gathered(&seen, of_directory, &mark.3);
            lab.version = self.lab.version + 1;
            (self.lab, self.mark) = (Arc::new(lab), Some(mark));
        }
        Arc::clone(&self.lab)
    }
}

/// The paired hosts, by the owner's list. One that cannot be read is empty: `farbus doctor` says why.
fn paired() -> Vec<PairedHostRecord> {
    let Ok(peers) = HostFolder::of_user().and_then(|folder| PairedHostList::load(&folder)) else { return Vec::new() };
    let paired = peers.iter().map(|peer| PairedHostRecord {
        name: peer.name.clone(),
        key: peer.fingerprint.to_string(),
        address: peer.address.clone(),
        paired: peer.paired.clone(),
        may_use: peer.allow.words().map(str::to_owned).collect(),
    });
    paired.collect()
}

/// Has all hosts asked, and keeps what each answers as soon as it does.
fn look(seen: &Mutex<HostSurvey>) -> io::Result<()> {
    // The program that runs, even if another one was installed meanwhile.
    let mut command = Command::new("/proc/self/exe");
    command.arg(HOSTS_VERB).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let number = {
        let mut seen = lock(seen);
        seen.looks += 1;
        seen.looks
    };
    let stdout = child.stdout.take().map(|stdout| BufReader::new(stdout.take(LOOK_BYTES_MAX)));
    for line in stdout.into_iter().flat_map(|stdout| stdout.split(b'\n').map_while(Result::ok)) {
        match serde_json::from_slice::<HostReport>(&line) {
            Ok(report) => lock(seen).take(report, number, now_s()),
            Err(error) => debug!(%error, "a host is told of in other words"),
        }
    }
    // It ends by itself, unless it has more to say than is kept.
    let _ = child.kill();
    let _ = child.wait();
    lock(seen).end(number, now_s());
    Ok(())
}

impl HostSurvey {
    fn take(&mut self, report: HostReport, look: u64, now_s: u64) {
        self.changes += 1;
        if let Some(own) = report.own {
            // A look begins with it.
            (self.own_key, self.left_out) = (own.key, 0);
            return;
        }
        let name = short(&report.host);
        let id = report.key.clone().unwrap_or_else(|| format!("{name}/{:?}", report.address));
        let mut room = LabBudget::default();
        let others = self.hosts.iter().filter(|(known, _)| **known != id);
        for device in others.flat_map(|(_, host)| host.devices.iter().flatten()) {
            // What is kept already has room.
            let _ = room.takes(device);
        }
        let known = self.hosts.entry(id).or_default();
        let is_heard = report.is_found || report.devices.is_some();
        *known = SurveyedHost {
            key: report.key.map(|key| short(&key)),
            name,
            address: report.address.map(|address| short(&address)).or(known.address.take()),
            farbus: report.farbus.map(|farbus| short(&farbus)).or(known.farbus.take()),
            is_paired: report.is_paired,
            is_found: report.is_found || (known.look == look && known.is_found),
            failure: report.failure.as_deref().map(short).or(known.failure.take().filter(|_| report.devices.is_none())),
            devices: match report.devices {
                Some(devices) => {
                    let kept = devices.into_iter().filter_map(|report| report.kept(now_s, time));
                    let kept: (Vec<_>, Vec<_>) = kept.partition(|device| room.takes(device));
                    self.left_out += kept.1.len();
                    Some(kept.0)
                }
                None => known.devices.take(),
            },
            heard_s: if is_heard { Some(now_s) } else { known.heard_s },
            look,
        };
    }

    /// Forgets hosts that are neither there nor paired any more, and devices of those that do not answer for long.
    fn end(&mut self, look: u64, now_s: u64) {
        self.changes += 1;
        self.looked_s = Some(now_s);
        self.hosts.retain(|_, host| host.look + 1 >= look);
        for host in self.hosts.values_mut() {
            if host.heard_s.is_none_or(|heard_s| heard_s + STALE_S_MAX < now_s) {
                host.devices = None;
            }
        }
    }
}

impl DirectoryPoll {
    /// Asks the daemon what has changed, unless the last question was long a moment ago.
    fn ask(&mut self, pid: u32) {
        let begun = Instant::now();
        if self.next.is_some_and(|next| begun < next) {
            return;
        }
        let question = Question::Directory { query: None, known: self.version.clone() };
        if let Ok(Answer::Ok(answer)) = ask_one(pid, &question, &[]) {
            self.take(serde_json::from_value(answer).unwrap_or_default(), now_s());
        }
        self.next = Some(Instant::now() + begun.elapsed() * DIRECTORY_SHARE);
    }

    fn take(&mut self, report: DirectoryReport, now_s: u64) {
        let some = |text: Option<String>| text.map(|text| short(&text));
        self.own_key = some(report.own_key);
        self.trouble = report.trouble.map(|trouble| short(&trouble.message));
        self.heard_s = report.heard_s.map(|ago_s| now_s.saturating_sub(ago_s));
        let (Some(hosts), Some(devices)) = (report.known_hosts, report.known_devices) else {
            // They are as they were.
            return;
        };
        let version = some(report.version);
        // A daemon of an earlier release says no version: what it says counts as new each time.
        self.version = Some(version.unwrap_or_else(|| format!("{:?}", Instant::now())));
        let host = |answer| serde_json::from_value::<DirectoryHost>(answer).ok();
        self.hosts = hosts.into_iter().filter_map(host).collect();
        (self.devices, self.left_out) = (BTreeMap::new(), 0);
        let mut room = LabBudget::default();
        for device in devices {
            let report = serde_json::from_value::<DeviceReport>(device).ok();
            let key = report.as_ref().map(|report| report.host_key.clone()).unwrap_or_default();
            match report.and_then(|report| report.kept(now_s, time)).filter(|device| room.takes(device)) {
                Some(device) => self.devices.entry(key).or_default().push(device),
                None => self.left_out += 1,
            }
        }
    }
}

/// The name of a host that is not paired: its own word, with its key, so that it looks like no paired host.
fn name_of(name: &str, key: &str) -> String {
    let name: String = short(name).chars().map(|c| if c.is_whitespace() || c == '/' { '-' } else { c }).collect();
    format!("{name}({})", key.get(..8).unwrap_or(key))
}

/// All that is known, put together.
fn gathered(seen: &HostSurvey, directory: Option<&DirectoryPoll>, paired: &[PairedHostRecord]) -> LabInventory {
    let mut hosts: BTreeMap<String, LabHost> = BTreeMap::new();
    for PairedHostRecord { name, key, address, paired, may_use } in paired {
        let host = LabHost {
            name: name.clone(),
            key: Some(key.clone()),
            address: address.clone(),
            paired: Some(paired.clone()),
            may_use: may_use.clone(),
            called: Some(name.clone()),
            ..LabHost::default()
        };
        hosts.insert(key.clone(), host);
    }
    let own_key = directory.and_then(|directory| directory.own_key.clone()).or(seen.own_key.clone());
    let mut left_out = seen.left_out;
    for DirectoryHost { key, name, farbus } in directory.iter().flat_map(|directory| &directory.hosts) {
        if Some(key) == own_key.as_ref() {
            continue;
        }
        let host = hosts.entry(key.clone()).or_insert_with(|| LabHost {
            name: name_of(name, key),
            key: Some(short(key)),
            ..LabHost::default()
        });
        host.is_in_directory = true;
        host.farbus = Some(short(farbus)).filter(|farbus| !farbus.is_empty());
        if let Some(directory) = directory {
            host.heard_s = directory.heard_s;
            host.from = Source::Directory;
            host.devices = directory.devices.get(key).cloned().unwrap_or_default();
        }
    }
    left_out += directory.map_or(0, |directory| directory.left_out);
    let is_in_trouble = directory.is_some_and(|directory| directory.trouble.is_some());
    for (id, looked) in &seen.hosts {
        if looked.is_paired && !hosts.contains_key(id) {
            // It is not paired any more.
            continue;
        }
        let host = hosts.entry(id.clone()).or_insert_with(|| LabHost {
            name: looked.name.clone(),
            key: looked.key.clone(),
            ..LabHost::default()
        });
        host.is_found = looked.is_found;
        host.address = looked.address.clone().or(host.address.take());
        host.farbus = looked.farbus.clone().or(host.farbus.take());
        host.failure.clone_from(&looked.failure);
        if host.called.is_none() && looked.devices.is_some() {
            // Anybody may announce any name, so a command says whom it means by the address.
            host.called.clone_from(&looked.address);
        }
        let Some(devices) = &looked.devices else { continue };
        if host.from == Source::Directory && !is_in_trouble {
            // The directory is followed as it changes; the host says more of each, and was asked a while ago.
            let mut by_name: BTreeMap<&str, &LabDevice> = devices.iter().map(|it| (it.name.as_str(), it)).collect();
            for device in &mut host.devices {
                if let Some(by_name) = by_name.remove(device.name.as_str()) {
                    device.add(by_name.clone());
                }
            }
            host.devices.extend(by_name.into_values().cloned());
        } else {
            (host.devices, host.from, host.heard_s) = (devices.clone(), Source::Host, looked.heard_s);
        }
    }
    for (id, looked) in &seen.hosts {
        if let Some(host) = hosts.get_mut(id) {
            host.heard_s = host.heard_s.max(looked.heard_s);
        }
    }
    let trouble = directory.and_then(|directory| directory.trouble.clone());
    let (own_name, hosts) = (host_name(), hosts.into_values().collect());
    let mut lab =
        LabInventory { version: 0, mark: 0, own_name, own_key, hosts, left_out, trouble, looked_s: seen.looked_s };
    lab.settle();
    lab
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn host_report(value: Value) -> HostReport {
        serde_json::from_value(value).unwrap()
    }

    fn paired(name: &str, key: &str) -> PairedHostRecord {
        let (name, key) = (name.to_owned(), key.to_owned());
        PairedHostRecord { name, key, address: None, paired: "2026-11-01".into(), may_use: vec!["all".into()] }
    }

    #[test]
    fn the_directory_says_what_changes_and_the_host_itself_what_else_is_known() {
        let mut seen = HostSurvey::default();
        seen.take(
            host_report(json!({
                "host": "lab3", "key": "k3", "is_paired": true,
                "devices": [
                    { "name": "board", "state": "in use", "user": "desk", "reason": "nightly", "used_s": 60,
                      "booked": [{ "host": "rack", "from": "a", "until": "b" }] },
                    { "name": "mine", "state": "available" },
                ],
            })),
            1,
            1000,
        );
        let mut directory = DirectoryPoll::default();
        let answer = |answer| serde_json::from_value(answer).unwrap();
        directory.take(
            answer(json!({
                "version": "7", "own_key": "own", "heard_s": 3,
                "known_hosts": [{ "key": "k3", "name": "whatever" }, { "key": "liar0000", "name": "lab3" }, { "key": "own" }],
                "known_devices": [
                    { "host_key": "k3", "name": "board", "state": "in use", "user": "desk" },
                    { "host_key": "liar0000", "name": "board", "state": "available" },
                    { "host_key": "own", "name": "ours", "state": "available" },
                    { "host_key": 7 },
                ],
            })),
            1000,
        );
        let lab = gathered(&seen, Some(&directory), &[paired("lab3", "k3")]);
        let names: Vec<_> = lab.hosts.iter().map(|host| (host.name.as_str(), host.called.as_deref())).collect();
        assert_eq!(names, [("lab3", Some("lab3")), ("lab3(liar0000)", None)], "an unpaired host cannot be used");
        let lab3 = &lab.hosts[0];
        assert_eq!((lab3.from, lab3.heard_s, lab3.devices.len()), (Source::Directory, Some(1000), 2));
        let board = &lab3.devices[0];
        assert_eq!((board.reason.as_deref(), board.since_s, board.booked.len()), (Some("nightly"), Some(940), 1));
        let away = json!({ "version": "7", "own_key": "own", "heard_s": 1, "trouble": { "message": "away" } });
        directory.take(answer(away), 1050);
        assert_eq!(directory.hosts.len(), 3, "an answer without hosts changes none");
        let lab = gathered(&seen, Some(&directory), &[paired("lab3", "k3")]);
        assert_eq!((lab.hosts[0].from, lab.trouble.as_deref()), (Source::Host, Some("away")));
    }

    #[test]
    fn a_host_that_does_not_answer_keeps_its_devices_for_a_while_and_says_so() {
        let mut seen = HostSurvey::default();
        let answer = json!({ "host": "lab3", "key": "k3", "is_paired": true, "devices": [{ "name": "a" }] });
        seen.take(host_report(answer), 1, 1000);
        seen.end(1, 1000);
        let silence = || host_report(json!({ "host": "lab3", "key": "k3", "is_paired": true, "failure": "no answer" }));
        seen.take(silence(), 2, 1060);
        seen.end(2, 1060);
        let lab = gathered(&seen, None, &[paired("lab3", "k3")]);
        let lab3 = &lab.hosts[0];
        assert_eq!((lab3.devices.len(), lab3.heard_s, lab3.failure.as_deref()), (1, Some(1000), Some("no answer")));
        seen.take(silence(), 3, 1130);
        seen.end(3, 1130);
        assert_eq!(gathered(&seen, None, &[paired("lab3", "k3")]).hosts[0].devices.len(), 0);
        assert!(gathered(&seen, None, &[]).hosts.is_empty(), "one that is not paired any more is no host");
    }

    #[test]
    fn a_host_nearby_is_used_by_its_address_and_forgotten_when_it_is_gone() {
        let mut seen = HostSurvey::default();
        let found =
            || json!({ "host": "lab9", "address": "10.0.0.9:3240", "is_found": true, "devices": [{ "name": "a" }] });
        seen.take(host_report(found()), 1, 1000);
        seen.end(1, 1000);
        let lab = gathered(&seen, None, &[]);
        assert_eq!(lab.hosts[0].target(&lab.hosts[0].devices[0]).as_deref(), Some("10.0.0.9:3240/a"));
        seen.end(2, 1010);
        assert_eq!(gathered(&seen, None, &[]).hosts.len(), 1, "one announcement may be lost");
        seen.end(3, 1020);
        assert!(gathered(&seen, None, &[]).hosts.is_empty());
    }
}
