//! The daemon's configuration: TOML, parsed as a whole before any of it takes effect. An error says where it is and
//! what is allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use farbus::broker::BrokerPolicy;
use farbus::common::listen_words::{everywhere, listen_address, listen_place, place_said};
use farbus::common::networks::IpNetwork;
use farbus::common::socket_access::{SocketAccess, SocketMode};
use farbus::common::socket_place::SocketLocation;
use farbus::devices::follow::{FOLLOWS_ANY, FollowPolicy, FollowWord};
use farbus::devices::identities::naming::{check_name, split_name};
use farbus::devices::reservation::{ReservationRequest, together};
use farbus::devices::selection::{NamingRule, ShareSelection};
use farbus::exporter::access::local_users::LocalUser;
use farbus::exporter::session::threads::GRACE_MAX;
use farbus::exporter::sources::what::{DeviceSpec, UsbSpec};
use farbus::exporter::state::lease_limits::{LeaseLimit, PEER_LEASES_MAX};
use farbus::exporter::state::note_book::ConfiguredNotes;
use farbus::frontend::hold::{check_for_disk, limit_of};
use farbus::frontend::{AttachRequest, FrontEndChoice};
use farbus::importer::client::{DeviceTarget, HOLD};
use farbus::importer::discovery::local_shares;
use farbus::importer::disk::DiskMode;
use farbus::link::modules::program::ModuleProgram;
use farbus_io_net::link::host_address::{DEFAULT_PORT, SECURE_PORT};
use farbus_io_net::link::silence_limit_of;
use farbus_io_net::local::time_words::parse_span;
use farbus_io_net::trust::DeviceNotes;
use farbus_model::budget::{DEVICES_MAX, MemoryBudget};
use farbus_model::limits::LANES_MAX;
use farbus_modules::{ModuleCatalogue, ModuleFileSink, ModuleFiles, ModuleSpec, PipelineRecipe};
use farbus_session::reserve::ReservationTerms;
use farbus_session::rules::{SharingRule, WildcardPattern, id_from};
use serde::Deserialize;
use toml::Spanned;
use tracing::warn;

use super::directory::settings::{EtcdCredentials as DirectoryFiles, EtcdSettings as DirectorySettings};
use super::page::{PageTable, WantedPage};
use super::spec::{DaemonShare, SpannedError};
use super::topology_plan::{HostPlan, TopologyConfig, TopologyTable, joined_from, plan_path};

/// A configuration file, parsed and checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Where plain USB/IP is served.
    pub listen: Vec<SocketLocation>,
    /// Whether `listen` is the default. Then passed sockets of the loopback are served as well.
    pub is_default_listen: bool,
    /// Users of this machine that are served at TCP ports besides the owner and root.
    pub local_users: Vec<LocalUser>,
    /// The file mode of the Unix sockets in `listen`.
    pub socket_mode: SocketMode,
    /// How long a peer of plain USB/IP may be silent, if that is configured.
    pub plain_silence: Option<Duration>,
    /// Networks that may connect in addition to this machine.
    pub allow: Vec<IpNetwork>,
    /// Networks among these whose hosts may reserve with high criticality.
    pub reserve_high: Vec<IpNetwork>,
    /// Where paired hosts are served.
    pub secure: Vec<SocketAddr>,
    /// Whether plain addresses off the loopback are announced to hosts nearby.
    pub announce: bool,
    /// Whether the addresses for paired hosts are announced.
    pub announce_secure: bool,
    /// Whether a host that may use a device may observe it while another host uses it.
    pub observable: bool,
    /// How much memory peers may make this process hold.
    pub budget: MemoryBudget,
    /// How many devices one host may have here, and for how long.
    pub lease_limit: LeaseLimit,
    /// How long a device that was handed over waits for its successor at most, if that is configured.
    pub hold: Option<Duration>,
    /// Modules that importers may ask for, in addition to those that need nothing of this host.
    pub allow_modules: Vec<ModuleSpec>,
    /// Shared devices, each with a unique name.
    pub shares: Vec<DaemonShare>,
    /// What is said of devices.
    pub notes: ConfiguredNotes,
    /// Rules for real devices.
    pub rules: Vec<NamingRule>,
    /// Devices of other machines that are kept attached here.
    pub attachments: Vec<AttachRequest>,
    /// The links between this host and others.
    pub joined: Option<TopologyConfig>,
    /// The directory of all sites.
    pub directory: Option<DirectorySettings>,
    /// The page, if there is to be one.
    pub page: Option<WantedPage>,
}

/// What is wrong with a file, and where.
#[derive(Debug)]
pub struct ConfigError {
    file: PathBuf,
    /// Line, column, and the line itself.
    location: Option<(usize, usize, String)>,
    message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        match &self.location {
            Some((line, column, text)) => write!(f, ":{line}:{column}: {}\n  {line} | {text}", self.message),
            None => write!(f, ": {}", self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// The file as its TOML is structured.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ConfigFile {
    observable: bool,
    peer_memory: Option<Spanned<u64>>,
    peer_devices: Option<Spanned<u64>>,
    peer_leases: Option<Spanned<u64>>,
    lease_span: Option<Spanned<String>>,
    preempt_notice: Option<Spanned<String>>,
    hold: Option<Spanned<u64>>,
    allow_modules: Vec<Spanned<String>>,
    plain: PlainTable,
    secure: Option<SecureTable>,
    share: Vec<ShareTable>,
    usb: Vec<UsbTable>,
    attach: Vec<AttachTable>,
    topology: Option<TopologyTable>,
    directory: Option<Spanned<toml::Value>>,
    page: Option<PageTable>,
    /// The texts of the files that `directory` names, appended by the process that can read them.
    directory_files: Option<DirectoryFiles>,
    /// The text of the plan that `topology` names, appended by the process that can read the file.
    topology_plan: Option<PlanTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanTable {
    text: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PlainTable {
    listen: Option<Vec<Spanned<String>>>,
    socket_mode: Option<Spanned<String>>,
    local_users: Vec<Spanned<String>>,
    allow: Vec<Spanned<String>>,
    reserve_high: Vec<Spanned<String>>,
    silence: Option<Spanned<u64>>,
    announce: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SecureTable {
    listen: Option<Vec<Spanned<String>>>,
    announce: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShareTable {
    what: Spanned<String>,
    follow: Option<Spanned<FollowTable>>,
    name: Option<Spanned<String>>,
    #[serde(default)]
    reserve: Vec<Spanned<String>>,
    labels: Option<Spanned<BTreeMap<String, String>>>,
    place: Option<Spanned<String>>,
    comment: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsbTable {
    share: Option<bool>,
    name: Option<Spanned<String>>,
    labels: Option<Spanned<BTreeMap<String, String>>>,
    place: Option<Spanned<String>>,
    comment: Option<Spanned<String>>,
    class: Option<Spanned<String>>,
    vendor: Option<Spanned<String>>,
    product: Option<Spanned<String>>,
    serial: Option<String>,
    port: Option<String>,
    follow: Option<Spanned<FollowTable>>,
}

/// `"port"`, or a list of makes.
#[derive(Deserialize)]
#[serde(untagged)]
enum FollowTable {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachTable {
    target: Spanned<String>,
    via: Option<Spanned<String>>,
    at: Option<Spanned<PathBuf>>,
    socket: Option<Spanned<PathBuf>>,
    socket_mode: Option<Spanned<String>>,
    socket_group: Option<Spanned<String>>,
    listen: Option<Spanned<String>>,
    #[serde(default)]
    allow: Vec<Spanned<String>>,
    mode: Option<Spanned<String>>,
    cache: Option<Spanned<String>>,
    grace: Option<Spanned<u64>>,
    hold: Option<Spanned<u64>>,
    links: Option<Spanned<u64>>,
    over: Option<Spanned<String>>,
    ahead: Option<Spanned<String>>,
    #[serde(default)]
    modules: Vec<Spanned<String>>,
    #[serde(default)]
    reserve: Vec<Spanned<String>>,
    reason: Option<String>,
    follow: Option<Spanned<FollowTable>>,
}

impl DaemonConfig {
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let fail = |place, message| ConfigError { file: path.to_owned(), location: place, message };
        let text = fs::read_to_string(path).map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => {
                    "\n  name another with --config FILE; what stands in it: farbus daemon --help"
                }
                _ => "",
            };
            fail(None, format!("{error}{hint}"))
        })?;
        Self::parse_file(path, &Self::complete(path, text).map_err(|error| fail(None, error.to_string()))?)
    }

    /// Appends to the text of a configuration what a confined process may not read: the files of the directory, and the
    /// plan of links between hosts if that file exists.
    ///
    /// # Errors
    /// A file of the directory cannot be read, or the plan exists and cannot be read.
    pub fn complete(path: &Path, mut text: String) -> io::Result<String> {
        // An invalid text is reported by the process that parses all of it.
        let Ok(ConfigFile { topology, directory, .. }) = toml::from_str(&text) else { return Ok(text) };
        if let Some(value) = directory
            && let Some(files) = DirectorySettings::read_files(path, value.get_ref())?
        {
            text = format!("{text}\n[directory_files]\n{}", toml::to_string(&files).map_err(io::Error::other)?);
        }
        let Some(topology) = topology else { return Ok(text) };
        let plan = plan_path(path, topology.plan());
        match fs::read_to_string(&plan) {
            Ok(plan) => Ok(Self::with_plan(&text, &plan)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(text),
            Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", plan.display()))),
        }
    }

    /// Appends a plan to a configuration's text. Lines and columns of the text stay the same.
    pub fn with_plan(text: &str, plan: &str) -> String {
        format!("{text}\n[topology_plan]\ntext = {}\n", toml::Value::String(plan.to_owned()))
    }

    /// Parses the text of the file `path`.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse_file(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let fail = |place, message| ConfigError { file: path.to_owned(), location: place, message };
        Self::parse(text).map_err(|(span, message)| fail(span.map(|span| place_of(text, span.start)), message))
    }

    /// The selectors and rules of real devices to share. A share that selects a device itself comes before the rules.
    pub fn wanted(&self) -> ShareSelection {
        let mut wanted = ShareSelection::by_rules(&self.rules);
        for shared in &self.shares {
            if let DeviceSpec::Usb(UsbSpec { selector, follow }) = &shared.what {
                match shared.is_named {
                    true => wanted.add(selector.clone(), Some(shared.name.clone()), follow.clone()),
                    false => wanted.add_unnamed(selector.clone(), shared.name.clone(), follow.clone()),
                }
            }
        }
        wanted
    }

    /// The broker policy that this configuration grants.
    pub fn broker_policy(&self) -> BrokerPolicy {
        let images = self.shares.iter().flat_map(|shared| shared.what.images());
        let forced =
            self.shares.iter().filter(|shared| shared.what.is_forced()).flat_map(|shared| shared.what.images());
        let forced_images = forced.map(|(path, _)| path.to_owned()).collect();
        let neighbours = self.part().into_iter().flat_map(|part| &part.links).map(|link| link.address.clone());
        let mut broker_policy = BrokerPolicy {
            forced_images,
            images: images.map(|(path, read_only)| (path.to_owned(), read_only)).collect(),
            frames: self.shares.iter().filter_map(|shared| shared.what.frames()).map(Path::to_owned).collect(),
            hosts: self.all_attachments().map(|attach| attach.target.address.clone()).chain(neighbours).collect(),
            listen: self
                .listen
                .iter()
                .cloned()
                .chain(self.secure.iter().copied().map(SocketLocation::Address))
                .collect(),
            socket_mode: self.socket_mode,
            local_users: self.local_users.iter().map(ToString::to_string).collect(),
            wanted: self.wanted(),
            attached: self.all_attachments().map(|attach| attach.target.to_string()).collect(),
            schedules: true,
            directory: self.directory.iter().flat_map(|directory| directory.members.clone()).collect(),
            page: self.page.iter().flat_map(WantedPage::arguments).collect(),
            ..BrokerPolicy::default()
        };
        // Every front end that may be chosen is allowed what it needs.
        broker_policy.allow_for(self.all_attachments().flat_map(|attach| attach.via.named().needs(attach)));
        broker_policy
    }

    /// This host's part of the plan, if there is a plan.
    pub fn part(&self) -> Option<&HostPlan> {
        self.joined.as_ref()?.part.as_ref()
    }

    /// The attachments of the configuration and those for links between hosts.
    pub fn all_attachments(&self) -> impl Iterator<Item = &AttachRequest> {
        let links = self.part().into_iter().flat_map(|part| &part.links);
        self.attachments.iter().chain(links.map(|link| &link.attach))
    }

    /// Parses a configuration.
    pub fn parse(text: &str) -> Result<Self, SpannedError> {
        let file: ConfigFile = toml::from_str(text).map_err(|error| (error.span(), error.message().to_owned()))?;
        let announce = file.plain.announce.unwrap_or(true);
        let socket_mode = file.plain.socket_mode.as_ref().map(parsed).transpose()?.unwrap_or_default();
        let plain_silence = file.plain.silence.as_ref().map(silence_from).transpose()?;
        let reserve_high = file.plain.reserve_high.iter().map(parsed).collect::<Result<Vec<IpNetwork>, _>>()?;
        let local_users = file.plain.local_users.iter().map(parsed).collect::<Result<_, _>>()?;
        let is_default_listen = file.plain.listen.is_none();
        let (listen, allow) = plain_from(file.plain)?;
        let announce_secure = file.secure.as_ref().is_some_and(|secure| secure.announce.unwrap_or(true));
        let secure = file.secure.map(|secure| secure_from(secure, &listen)).transpose()?.unwrap_or_default();
        let mut names = BTreeSet::new();
        let mut notes = ConfiguredNotes::default();
        let shares = file.share.into_iter().map(|mut table| {
            let entry_notes = notes_from(table.labels.take(), table.place.take(), table.comment.take())?;
            let shared = share_from(table, &mut names)?;
            let names = match &shared.what {
                DeviceSpec::Usb(_) if !shared.is_named => vec![],
                DeviceSpec::Bridge(_) => vec![format!("{}-a", shared.name), format!("{}-b", shared.name)],
                _ => vec![shared.name.clone()],
            };
            add_notes(&mut notes.by_name, entry_notes, names)?;
            Ok(shared)
        });
        let shares = shares.collect::<Result<_, SpannedError>>()?;
        let rules = file.usb.into_iter().map(|mut table| {
            let entry_notes = notes_from(table.labels.take(), table.place.take(), table.comment.take())?;
            let rule = rule_from(table, &mut names)?;
            let named = rule.name.iter().filter(|_| !rule.rule.is_refusal).cloned().collect();
            add_notes(&mut notes.by_rule, entry_notes, named)?;
            Ok(rule)
        });
        let rules = rules.collect::<Result<_, SpannedError>>()?;
        let mut targets = BTreeSet::new();
        let mut sockets = BTreeSet::new();
        let attachments = file.attach.into_iter().map(|table| {
            let span = table.target.span();
            let attach = attach_from(table)?;
            if !targets.insert(attach.target.to_string()) {
                return Err((Some(span), format!("{} is attached twice", attach.target)));
            }
            if let Some(path) =
                attach.location.as_ref().and_then(SocketLocation::path).filter(|path| !sockets.insert((*path).clone()))
            {
                let message = format!("another device is found at {}: 'socket = ' names another place", path.display());
                return Err((Some(span), message));
            }
            Ok(attach)
        });
        let attachments = attachments.collect::<Result<_, _>>()?;
        let allow_modules = file.allow_modules.iter().map(module_from).collect::<Result<_, _>>()?;
        let observable = file.observable;
        let budget = file.peer_memory.map_or(Ok(MemoryBudget::DEFAULT), budget_from)?;
        let budget = file.peer_devices.map_or(Ok(budget), |count| devices_from(budget, &count))?;
        let spans = [file.lease_span.as_ref(), file.preempt_notice.as_ref()];
        let lease_limit = lease_limit_from(file.peer_leases.as_ref(), spans)?;
        let hold = file.hold.as_ref().map(hold_from).transpose()?;
        let plan = file.topology_plan.map(|plan| plan.text);
        let joined = file.topology.map(|table| joined_from(table, &listen, plan.as_deref())).transpose()?;
        let part = joined.as_ref().and_then(|joined| joined.part.as_ref());
        if let Some(link) = part.and_then(|part| part.links.iter().find(|link| names.contains(&link.device))) {
            return Err((
                None,
                format!("'{}' is the name of a link between hosts: share it under another", link.device),
            ));
        }
        let page = file.page.as_ref().map(WantedPage::from_config).transpose()?;
        let files = file.directory_files;
        let directory = file.directory.map(|value| DirectorySettings::from_config(value, files)).transpose()?;
        Ok(Self {
            listen,
            is_default_listen,
            local_users,
            socket_mode,
            plain_silence,
            allow,
            reserve_high,
            secure,
            announce,
            announce_secure,
            observable,
            budget,
            lease_limit,
            hold,
            allow_modules,
            shares,
            notes,
            rules,
            attachments,
            joined,
            directory,
            page,
        })
    }
}

/// Line and column, counted from 1, and the text of the line.
fn place_of(text: &str, at: usize) -> (usize, usize, String) {
    let before = &text[..text.floor_char_boundary(at.min(text.len()))];
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = text[start..].lines().next().unwrap_or_default();
    (before.matches('\n').count() + 1, before[start..].chars().count() + 1, line.to_owned())
}

fn plain_from(plain: PlainTable) -> Result<(Vec<SocketLocation>, Vec<IpNetwork>), SpannedError> {
    let allow = plain.allow.iter().map(parsed).collect::<Result<Vec<IpNetwork>, _>>()?;
    let Some(words) = plain.listen else { return Ok((vec![local_shares::place_of_daemon()], allow)) };
    let mut listen = Vec::new();
    for word in words {
        let location = parsed_place(word.get_ref(), Some(word.span()))?;
        if !location.is_local() && allow.is_empty() {
            let message = format!(
                "{location} is not this machine alone, and plain USB/IP has no password and no encryption: say who may \
                 connect, such as allow = [\"192.0.2.0/24\"]"
            );
            return Err((Some(word.span()), message));
        }
        if is_one(&location) && listen.contains(&location) {
            return Err((Some(word.span()), format!("{location} is listened at already")));
        }
        listen.push(location);
    }
    Ok((listen, allow))
}

/// Whether it names one port; port 0 takes a free one each time.
fn is_one(place: &SocketLocation) -> bool {
    !matches!(place, SocketLocation::Address(address) if address.port() == 0)
}

/// Addresses for paired hosts: all, unless the table names some.
fn secure_from(secure: SecureTable, plain: &[SocketLocation]) -> Result<Vec<SocketAddr>, SpannedError> {
    let Some(words) = secure.listen else { return Ok(everywhere(SECURE_PORT)[..1].to_vec()) };
    let mut listen = Vec::new();
    for word in words {
        let address = listen_address(word.get_ref(), SECURE_PORT);
        let address = address.map_err(|failure| (Some(word.span()), failure.to_string()))?;
        let location = SocketLocation::Address(address);
        if is_one(&location) && (plain.contains(&location) || listen.contains(&address)) {
            return Err((Some(word.span()), format!("{address} is listened at already")));
        }
        listen.push(address);
    }
    Ok(listen)
}

fn parsed_place(text: &str, span: Option<Range<usize>>) -> Result<SocketLocation, SpannedError> {
    listen_place(text, DEFAULT_PORT).map_err(|failure| (span, failure.to_string()))
}

fn share_from(table: ShareTable, names: &mut BTreeSet<String>) -> Result<DaemonShare, SpannedError> {
    if split_name(table.what.get_ref()).is_ok_and(|(_, name)| name.is_some()) {
        let message = "its name stands beside it here: name = \"NAME\"";
        return Err((Some(table.what.span()), message.into()));
    }
    let what: DeviceSpec = parsed(&table.what)?;
    let follow = follow_from(table.follow.as_ref())?;
    let what = what.following(&follow).map_err(|why| (table.follow.as_ref().map(Spanned::span), why))?;
    let is_named = table.name.is_some();
    let name = match &table.name {
        Some(name) => checked_name(name, names)?,
        None => free_name(what.kind(), names),
    };
    names.insert(name.clone());
    let reservation = reservation_from(&table.reserve)?;
    if let (Some(word), DeviceSpec::Usb(_)) = (table.reserve.first(), &what) {
        let message = "a real device may be several, and come and go: the host that attaches it says 'reserve'";
        return Err((Some(word.span()), message.into()));
    }
    Ok(DaemonShare { name, is_named, what, reservation })
}

/// What is said of a device, and where the first of it stands.
type SpannedNotes = Option<(DeviceNotes, Range<usize>)>;

fn notes_from(
    labels: Option<Spanned<BTreeMap<String, String>>>,
    place: Option<Spanned<String>>,
    comment: Option<Spanned<String>>,
) -> Result<SpannedNotes, SpannedError> {
    let spans =
        [labels.as_ref().map(Spanned::span), place.as_ref().map(Spanned::span), comment.as_ref().map(Spanned::span)];
    let Some(span) = spans.into_iter().flatten().next() else { return Ok(None) };
    let text = |text: Option<Spanned<String>>| text.map(Spanned::into_inner);
    let labels = labels.map(Spanned::into_inner).unwrap_or_default();
    let notes = DeviceNotes { labels, place: text(place), comment: text(comment) };
    match notes.check() {
        Ok(()) => Ok(Some((notes, span))),
        Err(message) => Err((Some(span), message)),
    }
}

/// Adds what is said of the devices of these names; there are none if farbus names the device, or never shares it.
fn add_notes(
    all: &mut BTreeMap<String, DeviceNotes>,
    given: SpannedNotes,
    names: Vec<String>,
) -> Result<(), SpannedError> {
    let Some((notes, span)) = given else { return Ok(()) };
    if names.is_empty() {
        let message = "labels belong to a device that is shared under a name: name = \"NAME\"";
        return Err((Some(span), message.to_owned()));
    }
    all.extend(names.into_iter().map(|name| (name, notes.clone())));
    Ok(())
}

/// The first unused name of `kind`, `kind2`, `kind3`, …
fn free_name(kind: &str, names: &BTreeSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{kind}{number}"));
    let mut all = std::iter::once(kind.to_owned()).chain(numbered);
    all.find(|name| !names.contains(name)).expect("numbers do not end")
}

fn checked_name(name: &Spanned<String>, names: &BTreeSet<String>) -> Result<String, SpannedError> {
    let text = name.get_ref();
    check_name(text).map_err(|message| (Some(name.span()), message))?;
    match names.contains(text) {
        true => Err((Some(name.span()), format!("'{text}' is the name of another device already"))),
        false => Ok(text.clone()),
    }
}

/// What is followed; [`FollowPolicy::any`] is warned of.
fn follow_from(table: Option<&Spanned<FollowTable>>) -> Result<FollowPolicy, SpannedError> {
    let Some(value) = table else { return Ok(FollowPolicy::default()) };
    let words = match value.get_ref() {
        FollowTable::One(word) => std::slice::from_ref(word),
        FollowTable::Many(words) => words.as_slice(),
    };
    let follow: Result<FollowPolicy, String> = words.iter().map(|word| word.parse::<FollowWord>()).collect();
    let follow = follow.map_err(|why| (Some(value.span()), why))?;
    if follow.is_any() {
        warn!("follow = \"port\": {FOLLOWS_ANY}");
    }
    Ok(follow)
}

fn rule_from(table: UsbTable, names: &mut BTreeSet<String>) -> Result<NamingRule, SpannedError> {
    let id = |word: &Spanned<String>| id_from(word.get_ref()).map_err(|message| (Some(word.span()), message));
    let rule = SharingRule {
        is_refusal: table.share == Some(false),
        class: table.class.as_ref().map(parsed).transpose()?,
        vendor: table.vendor.as_ref().map(id).transpose()?,
        product: table.product.as_ref().map(id).transpose()?,
        serial: table.serial.as_deref().map(WildcardPattern::new),
        port: table.port.as_deref().map(WildcardPattern::new),
    };
    if let Some(class) = table.class.as_ref().filter(|class| class.get_ref() == "hub" && !rule.is_refusal) {
        // Not an error: a daemon of an earlier release started with such a rule.
        warn!(
            class = class.get_ref(),
            "a rule of [[usb]] matches nothing: hubs are never shared, only what is behind them"
        );
    }
    let name = table.name.as_ref().map(|name| checked_name(name, names)).transpose()?;
    names.extend(name.clone());
    let follow = follow_from(table.follow.as_ref())?;
    if let Some(span) = table.follow.as_ref().map(Spanned::span).filter(|_| rule.port.is_none()) {
        let message = "'follow' goes with a rule that names a port: port = \"1-1.4\"";
        return Err((Some(span), message.to_owned()));
    }
    Ok(NamingRule { rule, name, follow })
}

fn attach_from(table: AttachTable) -> Result<AttachRequest, SpannedError> {
    let target = parsed(&table.target)?;
    let via: FrontEndChoice = table.via.as_ref().map(parsed).transpose()?.unwrap_or_default();
    let front_end = via.named();
    if let Some(at) = table.at.as_ref().filter(|_| !front_end.has_path()) {
        let message = match front_end.protocol() {
            Some(_) => "'at' goes with via = \"fuse\" and \"pty\": here say 'socket'",
            None => "'at' goes with via = \"fuse\" and \"pty\": the kernel names its devices itself",
        };
        return Err((Some(at.span()), message.into()));
    }
    let access = attach_access_from(&table)?;
    let allowed = table.allow.iter().map(parsed).collect::<Result<Vec<IpNetwork>, _>>()?;
    let allow_span = table.allow.first().map(Spanned::span);
    let location = attach_place_from(via, table.socket, table.listen, &target)?;
    let mode = table.mode.as_ref().map(parsed).transpose()?.unwrap_or_default();
    let for_disks = || FrontEndChoice::for_disks(|name| format!("\"{name}\""));
    if let Some(word) = table.mode.as_ref().filter(|_| mode == DiskMode::Read && !front_end.is_for_disks()) {
        let message = format!("mode = \"read\" goes with via = {}: a USB device has one user", for_disks());
        return Err((Some(word.span()), message));
    }
    let cache = table.cache.as_ref().map(parsed).transpose()?.unwrap_or_default();
    if let Some(word) = table.cache.as_ref().filter(|_| !front_end.is_for_disks()) {
        let message = format!("'cache' goes with via = {}: of a USB device nothing is kept", for_disks());
        return Err((Some(word.span()), message));
    }
    let grace = table.grace.map(grace_from).transpose()?;
    let hold = table.hold.as_ref().map_or(Ok(HOLD), hold_from)?;
    if front_end.is_for_disks() {
        check_for_disk(hold).map_err(|message| (table.hold.as_ref().map(Spanned::span), message))?;
    }
    let links = table.links.map_or(Ok(1), links_from)?;
    let over = table.over.as_ref().map(parsed).transpose()?.unwrap_or_default();
    let ahead = table.ahead.as_ref().map(parsed).transpose()?.unwrap_or_default();
    let modules = table.modules.iter().map(module_from).collect::<Result<_, _>>()?;
    let at = table.at.map(Spanned::into_inner);
    let follow = follow_from(table.follow.as_ref())?;
    if let Some(word) = table.follow.as_ref().filter(|_| front_end.is_for_disks()) {
        return Err((
            Some(word.span()),
            "'follow' goes with via = \"kernel\" or \"redir\": disks are never followed".into(),
        ));
    }
    let reservation = reservation_from(&table.reserve)?;
    if let Some(word) = table.reserve.first().filter(|_| mode == DiskMode::Read) {
        let message = "'reserve' is for a device's only user: leave mode = \"read\" out";
        return Err((Some(word.span()), message.into()));
    }
    let reason = table.reason;
    let is_handed_over = false;
    let request = AttachRequest {
        target,
        via,
        at,
        location,
        access,
        allowed,
        is_handed_over,
        mode,
        cache,
        grace,
        hold,
        links,
        over,
        ahead,
        reservation,
        modules,
        reason,
        follow,
    };
    request.check_allowed(front_end).map_err(|message| (allow_span, message))?;
    Ok(request)
}

/// The reservation of one device.
fn reservation_from(words: &[Spanned<String>]) -> Result<Option<ReservationTerms>, SpannedError> {
    let requests = words.iter().map(parsed).collect::<Result<Vec<ReservationRequest>, _>>()?;
    together(&requests).map_err(|message| (words.first().map(Spanned::span), message))
}

/// Parses a module. What it needs of this host is checked when the daemon begins and still has its rights
/// ([`needs_host`]).
fn module_from(word: &Spanned<String>) -> Result<ModuleSpec, SpannedError> {
    let wrong = |message: String| (Some(word.span()), message);
    let spec: ModuleSpec = word.get_ref().parse().map_err(wrong)?;
    if ModuleProgram::is_meant(&spec) {
        return Ok(spec);
    }
    let mut files = FileReadDetector::default();
    let made = PipelineRecipe::new(&ModuleCatalogue::builtin(), std::slice::from_ref(&spec), &mut files);
    match made {
        Err(_) if files.is_read => Ok(spec),
        made => made.map(|_| spec).map_err(|refusal| wrong(refusal.to_string())),
    }
}

/// Whether a module is a program or reads a file.
pub fn needs_host(spec: &ModuleSpec) -> bool {
    let mut files = FileReadDetector::default();
    let made = PipelineRecipe::new(&ModuleCatalogue::builtin(), std::slice::from_ref(spec), &mut files);
    ModuleProgram::is_meant(spec) || (made.is_err() && files.is_read)
}

/// Detects that a module reads a file. It reads none, and refuses to create any: such a file would begin anew with
/// every start of the daemon.
#[derive(Default)]
struct FileReadDetector {
    is_read: bool,
}

impl ModuleFiles for FileReadDetector {
    fn read(&mut self, _path: &str, _bytes_max: usize) -> Result<Vec<u8>, String> {
        self.is_read = true;
        Err("it is read later".to_owned())
    }

    fn create(&mut self, _path: &str) -> Result<Arc<dyn ModuleFileSink>, String> {
        Err("modules that make files go with 'farbus attach --module'".to_owned())
    }
}

fn links_from(links: Spanned<u64>) -> Result<u16, SpannedError> {
    let count = u16::try_from(*links.get_ref()).ok().filter(|count| (1..=LANES_MAX).contains(count));
    let wrong = || (Some(links.span()), format!("a session has 1 to {LANES_MAX} links"));
    count.ok_or_else(wrong)
}

fn budget_from(mib: Spanned<u64>) -> Result<MemoryBudget, SpannedError> {
    match *mib.get_ref() {
        mib @ 16..=65536 => Ok(MemoryBudget::DEFAULT.with_peer_bytes((mib as usize) << 20)),
        _ => Err((Some(mib.span()), "a peer may hold 16 to 65536 MiB of memory".to_owned())),
    }
}

fn devices_from(budget: MemoryBudget, count: &Spanned<u64>) -> Result<MemoryBudget, SpannedError> {
    let devices = usize::try_from(*count.get_ref()).ok().filter(|count| (1..=DEVICES_MAX).contains(count));
    let wrong = || (Some(count.span()), format!("a host may use 1 to {DEVICES_MAX} devices at a time"));
    devices.map(|devices| budget.with_devices(devices)).ok_or_else(wrong)
}

fn grace_from(seconds: Spanned<u64>) -> Result<Duration, SpannedError> {
    let grace = Duration::from_secs(*seconds.get_ref());
    if grace <= GRACE_MAX {
        return Ok(grace);
    }
    let message = format!("exporters wait {} s for a link that was lost, and no longer", GRACE_MAX.as_secs());
    Err((Some(seconds.span()), message))
}

fn lease_limit_from(
    devices: Option<&Spanned<u64>>,
    [span, notice]: [Option<&Spanned<String>>; 2],
) -> Result<LeaseLimit, SpannedError> {
    let count = |value: &Spanned<u64>| {
        let count = u32::try_from(*value.get_ref()).ok().filter(|count| (1..=PEER_LEASES_MAX).contains(count));
        count.ok_or_else(|| (Some(value.span()), format!("a host may have 1 to {PEER_LEASES_MAX} devices at a time")))
    };
    let time = |value: &Spanned<String>| parse_span(value.get_ref()).map_err(|message| (Some(value.span()), message));
    let [span, notice] = [span.map(time).transpose()?, notice.map(time).transpose()?];
    Ok(LeaseLimit { devices: devices.map(count).transpose()?, span, notice })
}

fn hold_from(seconds: &Spanned<u64>) -> Result<Duration, SpannedError> {
    limit_of(*seconds.get_ref()).map_err(|message| (Some(seconds.span()), message))
}

fn silence_from(seconds: &Spanned<u64>) -> Result<Duration, SpannedError> {
    silence_limit_of(*seconds.get_ref()).map_err(|message| (Some(seconds.span()), message))
}

/// Where programs find the device. An address off the loopback is refused, because any host could connect there, and a
/// daemon's warning would go unread.
fn attach_place_from(
    via: FrontEndChoice,
    socket: Option<Spanned<PathBuf>>,
    listen: Option<Spanned<String>>,
    target: &DeviceTarget,
) -> Result<Option<SocketLocation>, SpannedError> {
    let span = listen.as_ref().map(Spanned::span).or(socket.as_ref().map(Spanned::span));
    let Some(protocol) = via.named().protocol() else {
        let message =
            "'socket' and 'listen' go with via = \"nbd\", \"redir\", \"rfc2217\" and \"tcp\": there programs connect";
        return span.map_or(Ok(None), |span| Err((Some(span), message.into())));
    };
    if socket.is_some() && listen.is_some() {
        return Err((span, "one of 'socket' and 'listen' is enough".into()));
    }
    let (socket, listen) = (socket.map(Spanned::into_inner), listen.map(Spanned::into_inner));
    let location = place_said(protocol, socket.as_deref(), listen.as_deref(), &target.device);
    let location = location.map_err(|failure| (span.clone(), failure.to_string()))?;
    match protocol.exposure(&location) {
        Some(exposure) => Err((span, exposure)),
        None => Ok(Some(location)),
    }
}

/// Who may connect at the attachment's socket. A group is looked up when its socket is made, by a process that may read
/// who is in it.
fn attach_access_from(table: &AttachTable) -> Result<SocketAccess, SpannedError> {
    let (mode, group) = (table.socket_mode.as_ref(), table.socket_group.as_ref());
    let span = group.or(mode).map(Spanned::span);
    if span.is_some() && table.socket.is_none() {
        let message =
            "'socket_mode' and 'socket_group' go with 'socket': the folder of other sockets is closed to others";
        return Err((span, message.into()));
    }
    let (mode, group) = (mode.map(parsed).transpose()?, group.map(parsed).transpose()?);
    SocketAccess::from_settings(mode, group).map_err(|message| (span, message))
}

fn parsed<T: FromStr<Err = String>>(word: &Spanned<String>) -> Result<T, SpannedError> {
    word.get_ref().parse().map_err(|message| (Some(word.span()), message))
}

#[cfg(test)]
mod tests;
