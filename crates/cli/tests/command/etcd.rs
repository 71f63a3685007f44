//! Runs a real etcd (Debian's) of one or more members for a test.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::harness::{Harness, Outcome, PATIENCE, Running, finish, has, has_program, wait_until};
use super::network::ip;
use super::own_network;

/// A cluster, whose members a test may kill, stop and start again.
pub struct Etcd<'a> {
    harness: &'a Harness,
    ports: Vec<[u16; 2]>,
    options: Vec<String>,
    members: Vec<Option<Running>>,
    /// Where each member is a machine of its own.
    machines: Option<Machines>,
    /// The authority and how members are reached, if links are encrypted.
    tls: Option<Tls>,
}

/// Network namespaces of members: each has a cable to the test's, which forwards between them. Dropping removes them.
struct Machines(Vec<String>);

impl Machines {
    /// `None` where this machine does not permit it.
    fn lay(count: usize) -> Option<Self> {
        own_network::enter();
        let names = (0..count).map(|number| format!("farbus-{}-etcd-{number}", std::process::id()));
        let machines = Self(names.collect());
        let mut steps = Vec::new();
        for (number, name) in machines.0.iter().enumerate() {
            steps.extend([
                format!("netns add {name}"),
                format!("-n {name} link set lo up"),
                format!("link add etcd{number} type veth peer name cable netns {name}"),
                format!("addr add {NET}.{number}.1/24 dev etcd{number}"),
                format!("link set etcd{number} up"),
                format!("-n {name} addr add {NET}.{number}.2/24 dev cable"),
                format!("-n {name} link set cable up"),
                format!("-n {name} route add default via {NET}.{number}.1"),
            ]);
        }
        let forwards = || Command::new("sysctl").args(["-qw", "net.ipv4.ip_forward=1"]).status().ok();
        (steps.iter().all(|step| ip(step)) && forwards()?.success()).then_some(machines)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}

/// The networks of [`Machines`], but for the member's number.
const NET: &str = "10.112";

struct Tls {
    ca: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

/// Whether this machine has an etcd.
pub fn has_etcd() -> bool {
    has("etcd (etcd-server and etcd-client)", has_program("etcd") && has_program("etcdctl"))
}

impl<'a> Etcd<'a> {
    /// Starts so many members with these options, and waits until they serve.
    pub fn start(harness: &'a Harness, count: usize, options: &[&str]) -> Self {
        Self::launch(harness, count, options, None, None)
    }

    /// As [`Etcd::start`], each member in a network of its own, so that a test may part them; `None` where this machine
    /// does not permit it.
    pub fn start_apart(harness: &'a Harness, count: usize) -> Option<Self> {
        Some(Self::launch(harness, count, &[], None, Some(Machines::lay(count)?)))
    }

    /// Starts a member that serves encrypted links, with a certificate for 127.0.0.1 of an authority of its own.
    pub fn encrypted(harness: &'a Harness, options: &[&str]) -> Self {
        let [ca, certificate, key] = ["ca.pem", "etcd.pem", "etcd.key"].map(|name| harness.path(name));
        let issuer = authority();
        let own_key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        fs::write(&ca, issuer.pem()).unwrap();
        fs::write(&certificate, params.signed_by(&own_key, &issuer).unwrap().pem()).unwrap();
        fs::write(&key, own_key.serialize_pem()).unwrap();
        Self::launch(harness, 1, options, Some(Tls { ca, certificate, key }), None)
    }

    fn launch(
        harness: &'a Harness,
        count: usize,
        options: &[&str],
        tls: Option<Tls>,
        machines: Option<Machines>,
    ) -> Self {
        // All are taken at once, so that no two are the same.
        let taken: Vec<TcpListener> = (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = taken.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
        drop(taken);
        let ports = ports.chunks(2).map(|pair| [pair[0], pair[1]]).collect();
        let options = options.iter().map(|&word| word.to_owned()).collect();
        let members = (0..count).map(|_| None).collect();
        let mut etcd = Self { harness, ports, options, members, machines, tls };
        (0..count).for_each(|number| etcd.begin(number));
        etcd.wait();
        etcd
    }

    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// The address of a member.
    fn host(&self, number: usize) -> String {
        if self.machines.is_some() { format!("{NET}.{number}.2") } else { "127.0.0.1".to_owned() }
    }

    fn begin(&mut self, number: usize) {
        let peer = |number: usize| format!("http://{}:{}", self.host(number), self.ports[number][1]);
        let cluster: Vec<String> = (0..self.ports.len()).map(|other| format!("m{other}={}", peer(other))).collect();
        let client = self.endpoint(number);
        let mut command = match &self.machines {
            Some(Machines(names)) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{}", names[number])).arg("etcd");
                command
            }
            None => Command::new("etcd"),
        };
        command.args(["--name", &format!("m{number}"), "--data-dir"]).arg(self.harness.path(&format!("etcd-{number}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer(number), "--initial-advertise-peer-urls", &peer(number)]);
        command
            .args(["--initial-cluster", &cluster.join(","), "--logger", "zap", "--log-level", "warn"])
            .args(&self.options);
        if let Some(Tls { certificate, key, .. }) = &self.tls {
            command.arg("--cert-file").arg(certificate).arg("--key-file").arg(key);
        }
        self.members[number] = Some(Running::start(command));
    }

    /// Waits until a key can be read by a majority.
    pub fn wait(&self) {
        wait_until(PATIENCE, "etcd serves", || self.try_ctl(&["get", "nothing"]).is_some());
    }

    /// Where clients reach a member.
    fn endpoint(&self, number: usize) -> String {
        format!("{}://{}:{}", self.scheme(), self.host(number), self.ports[number][0])
    }

    /// As `directory` of a configuration has it, without the scheme and the user.
    pub fn members(&self) -> String {
        let member = |(number, [port, _]): (usize, &[u16; 2])| format!("{}:{port}", self.host(number));
        self.ports.iter().enumerate().map(member).collect::<Vec<_>>().join(",")
    }

    /// Whether its members can be parted.
    pub fn is_apart(&self) -> bool {
        self.machines.is_some()
    }

    /// A member and the others do not reach each other, without a word, until this is undone. Clients reach all.
    pub fn part(&self, number: usize, is_parted: bool) {
        let Some(Machines(names)) = &self.machines else { unreachable!("its members are not apart") };
        let verb = if is_parted { "add" } else { "del" };
        for other in (0..names.len()).filter(|other| *other != number) {
            assert!(ip(&format!("-n {} route {verb} blackhole {NET}.{other}.0/24", names[number])));
        }
    }

    /// The cable of a member is pulled, or put in again: neither the others nor clients reach it.
    pub fn unplug(&self, number: usize, is_unplugged: bool) {
        let verb = if is_unplugged { "down" } else { "up" };
        assert!(self.is_apart() && ip(&format!("link set etcd{number} {verb}")));
    }

    /// A line of a configuration.
    pub fn line(&self) -> String {
        format!("directory = 'etcd://{}'", self.members())
    }

    /// The file with the authority's certificate.
    pub fn ca(&self) -> &Path {
        &self.tls.as_ref().unwrap().ca
    }

    pub fn kill(&mut self, number: usize) {
        self.members[number].take().unwrap().kill();
    }

    /// Starts a member again that was killed.
    pub fn restart(&mut self, number: usize) {
        self.begin(number);
    }

    pub fn signal(&self, number: usize, signal: Signal) {
        self.members[number].as_ref().unwrap().signal(signal);
    }

    /// Runs etcdctl, which has to succeed; returns what it printed.
    /// What etcdctl prints. It may take long to do what it is told where the machine is busy: deleting 66,560 keys took
    /// 4 s.
    pub fn ctl(&self, words: &[&str]) -> String {
        let outcome = self.run_ctl("60s", words);
        assert_eq!(outcome.code, Some(0), "etcdctl {words:?} fails: {outcome:?}");
        outcome.stdout
    }

    /// What etcdctl prints, or nothing where it is refused or not answered soon.
    pub fn try_ctl(&self, words: &[&str]) -> Option<String> {
        let outcome = self.run_ctl("3s", words);
        (outcome.code == Some(0)).then_some(outcome.stdout)
    }

    fn run_ctl(&self, within: &str, words: &[&str]) -> Outcome {
        let mut command = Command::new("etcdctl");
        let endpoints: Vec<String> = (0..self.ports.len()).map(|number| self.endpoint(number)).collect();
        command.env("ETCDCTL_API", "3").args(["--endpoints", &endpoints.join(","), "--command-timeout", within]);
        if let Some(Tls { ca, .. }) = &self.tls {
            command.arg("--cacert").arg(ca);
        }
        command.args(words);
        finish(command, Duration::from_secs(90))
    }

    /// Writes so many keys of made-up hosts, which come before those of real ones.
    pub fn flood(&self, count: usize) {
        let name = |number: usize| -> String {
            format!("{number:06}").bytes().map(|digit| char::from(b'a' + digit - b'0')).collect()
        };
        self.put_many(
            (0..count).map(|number| (format!("/farbus/1/aaaa{}{}", name(number), "a".repeat(42)), "{}".into())),
        );
    }

    /// Writes keys, dozens in one request to the gateway for JSON.
    pub fn put_many(&self, keys: impl Iterator<Item = (String, String)>) {
        use base64::Engine as _;
        use std::io::{Read as _, Write as _};
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let address = self.members();
        let mut stream = std::net::TcpStream::connect(address.split(',').next().unwrap()).unwrap();
        let put = |(key, value): &(String, String)| {
            format!(r#"{{"requestPut":{{"key":"{}","value":"{}"}}}}"#, base64(key), base64(value))
        };
        for some in keys.collect::<Vec<_>>().chunks(100) {
            let puts: Vec<String> = some.iter().map(put).collect();
            let body = format!(r#"{{"success":[{}]}}"#, puts.join(","));
            let head = format!("POST /v3/kv/txn HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
            let mut answer = Vec::new();
            let is_whole = |answer: &[u8]| {
                let text = String::from_utf8_lossy(answer);
                text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
                    let length = head
                        .lines()
                        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                    length.map_or_else(
                        || body.ends_with("\r\n0\r\n\r\n") || body.ends_with("0\r\n\r\n"),
                        |length: usize| body.len() >= length,
                    )
                })
            };
            while !is_whole(&answer) {
                let mut bytes = [0; 16 << 10];
                let count = stream.read(&mut bytes).unwrap();
                assert!(count > 0, "etcd closed the connection");
                answer.extend_from_slice(&bytes[..count]);
            }
            assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        }
    }

    /// The keys of farbus that are there.
    pub fn keys(&self) -> Vec<String> {
        let text = self.ctl(&["get", "--prefix", "/farbus/1/", "--keys-only"]);
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// The present revision.
    pub fn revision(&self) -> u64 {
        let text = self.ctl(&["get", "nothing", "--write-out", "json"]);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value["header"]["revision"].as_u64().unwrap()
    }
}

/// Makes a certificate authority with a new key, which signs certificates for this test alone.
pub fn authority() -> rcgen::CertifiedIssuer<'static, rcgen::KeyPair> {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap()
}
