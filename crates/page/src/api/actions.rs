//! Actions: what each takes, within which limits, who may do it, and the command line that does it.
//!
//! The page does an action by running farbus with that command line, word by word and without a shell. So what the page
//! does, and what it shows to be typed, cannot differ.

use std::fmt;

use farbus_io_net::trust::PageScope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::api::scope_schema::scope;
use crate::shell::quoted;

/// Characters of a path.
const PATH_CHARS_MAX: u64 = 4096;
/// Characters of a device's name, with its host.
pub const NAME_CHARS_MAX: u64 = 512;
/// Characters of a reason.
pub const REASON_CHARS_MAX: u64 = 200;
/// Texts of one parameter.
const TEXTS_MAX: usize = 32;
/// Characters of a span of time.
const SPAN_CHARS_MAX: usize = 16;
/// The longest time for which an action waits or keeps somebody out, seconds.
pub const DAY_S: u64 = 86_400;

/// Something that the page does.
#[derive(Debug)]
pub struct PageAction {
    /// The last part of its route, and its name in JSON.
    pub name: &'static str,
    /// The words with which its command line begins, after `farbus`.
    pub words: &'static [&'static str],
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// Who may do it.
    pub scope: PageScope,
    /// What it takes.
    pub parameters: &'static [ActionParameter],
    /// How long its command runs.
    pub runs: CommandLifetime,
}

/// How long the command of an action runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandLifetime {
    /// Seconds: its end is waited for.
    Briefly,
    /// Seconds: its end is waited for. It prints one JSON object a line, and the answer is a list of them.
    BrieflyInLines,
    /// Until it is done, which may take hours.
    Long,
    /// Until it is done, which may take hours; the processes say how far a swap of this device is.
    Swap,
    /// Until it is stopped; what it prints is kept as a recording.
    Recording,
    /// Until it is stopped; the latest of the text that it prints is kept.
    Console,
    /// Until it is stopped or nobody looks; it prints pictures, of which the newest is kept.
    Picture,
    /// As long as what it began lasts: it is done when it prints the first value.
    OnAfterValue {
        /// The switches with which the command ends at once.
        unless: &'static [&'static str],
    },
}

/// A parameter of an action.
#[derive(Debug)]
pub struct ActionParameter {
    /// Its name in JSON.
    pub name: &'static str,
    /// What it may be.
    pub kind: ParameterType,
    /// Where it stands in the command line.
    pub at: ArgumentPosition,
    /// What it means.
    pub help: &'static str,
    /// What it is about, if its action has so many that a form shows them in groups.
    pub group: Option<&'static str>,
}

/// The type of a parameter, with its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterType {
    /// A text without zero bytes, of one character at least.
    Text {
        /// The most characters.
        chars_max: u64,
    },
    /// 1 to [`TEXTS_MAX`] such texts.
    Texts {
        /// The most characters of each.
        chars_max: u64,
    },
    /// A span of time, as 90s, 15m, 2h, 3d or 1h30m.
    Span,
    /// A text that may name files: with absolute paths, for the page is in no folder.
    Words,
    /// An absolute path.
    Path,
    /// A whole number.
    Number {
        /// The least that is taken.
        min: u64,
        /// The greatest that is taken.
        max: u64,
    },
    /// One of these words.
    Choice(&'static [&'static str]),
    /// True or false.
    Switch,
}

/// Where a parameter stands in the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentPosition {
    /// By itself; it has to be given.
    Word,
    /// By itself, if it is given.
    WordIf,
    /// After this option.
    Option(&'static str),
    /// After this option; it has to be given.
    Required(&'static str),
}

/// A parameter that stands with no other.
pub const fn parameter(
    name: &'static str,
    kind: ParameterType,
    at: ArgumentPosition,
    help: &'static str,
) -> ActionParameter {
    ActionParameter { name, kind, at, help, group: None }
}

/// The word that names a device.
pub const fn device(help: &'static str) -> ActionParameter {
    parameter("device", ParameterType::Text { chars_max: NAME_CHARS_MAX }, ArgumentPosition::Word, help)
}

/// An option without a value.
pub const fn switch(name: &'static str, option: &'static str, help: &'static str) -> ActionParameter {
    parameter(name, ParameterType::Switch, ArgumentPosition::Option(option), help)
}

const APPEARS: &str = "Where it appears here";
const USED: &str = "How it is used";
const WAY: &str = "The way to it";
const KEPT: &str = "Who keeps it shared";
const SERVED: &str = "Who reaches it, and where";
const PERMITTED: &str = "What its users may do";

pub(crate) const SHARED: &str = "Name or bus id of the shared device.";
pub(crate) const ATTACHED: &str = "Name of the attached device, or HOST[:PORT]/DEVICE.";
pub(crate) const REASON: &str = "Why.";
pub(crate) const HOST: &str = "Name of a paired host.";
const ALLOWED: &str = "Name of the device, or 'all'.";
/// A name of a host, of a group, or the like.
pub const HOSTS: ParameterType = ParameterType::Text { chars_max: 128 };
/// An address of the network, at most 128 characters: HOST, HOST:PORT or ADDR[:PORT].
pub const ADDRESS: ParameterType = ParameterType::Text { chars_max: 128 };
const ADDRESSES: ParameterType = ParameterType::Texts { chars_max: 128 };
/// Modules with their settings, or reservations.
const MODULES: ParameterType = ParameterType::Texts { chars_max: NAME_CHARS_MAX };

/// The actions that the page offers, in the order in which they are listed and described. What programs do besides is
/// in [`crate::api::commands`].
pub const ACTIONS: &[PageAction] = &[
    PageAction {
        name: "share",
        words: &["share"],
        summary: "Share a device of this machine.",
        scope: PageScope::Own,
        parameters: &[
            parameter(
                "what",
                ParameterType::Words,
                ArgumentPosition::Word,
                "What to share, as 'farbus share' takes it.",
            ),
            switch("keep", "--keep", "Let the running daemon keep it.").about(KEPT),
            switch("save", "--save", "The same, and add it to the daemon's configuration.").about(KEPT),
            switch("observable", "--observable", "Who may use it may observe it while another uses it.")
                .about(PERMITTED),
            parameter("listen", ADDRESSES, ArgumentPosition::Option("--listen"), "Where to listen without encryption.")
                .about(SERVED),
            parameter(
                "secure",
                ADDRESS,
                ArgumentPosition::Option("--secure"),
                "Where to serve paired hosts: ADDR[:PORT].",
            )
            .about(SERVED),
            parameter(
                "allow_module",
                MODULES,
                ArgumentPosition::Option("--allow-module"),
                "Modules that importers may use.",
            )
            .about(PERMITTED),
            parameter(
                "reserve",
                MODULES,
                ArgumentPosition::Option("--reserve"),
                "What is reserved for every user of a device.",
            )
            .about(PERMITTED),
            parameter(
                "hold",
                ParameterType::Number { min: 1, max: 120 },
                ArgumentPosition::Option("--hold"),
                "How long it may wait to move, s.",
            )
            .about(PERMITTED),
        ],
        runs: CommandLifetime::OnAfterValue { unless: &["keep", "save"] },
    },
    PageAction {
        name: "unshare",
        words: &["unshare"],
        summary: "Stop sharing a device that the daemon shares.",
        scope: PageScope::Own,
        parameters: &[device(SHARED), switch("force", "--force", "End the sessions of its users, too.")],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "allow",
        words: &["allow"],
        summary: "Let a paired host use a device.",
        scope: PageScope::Own,
        parameters: &[
            parameter("host", HOSTS, ArgumentPosition::Word, HOST),
            device(ALLOWED),
            switch("reserve_high", "--reserve-high", "It may also reserve with high criticality."),
        ],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "forbid",
        words: &["forbid"],
        summary: "Take a permission back from a paired host.",
        scope: PageScope::Own,
        parameters: &[
            parameter("host", HOSTS, ArgumentPosition::Word, HOST),
            device(ALLOWED),
            switch("reserve_high", "--reserve-high", "Only to reserve with high criticality."),
        ],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "release",
        words: &["release"],
        summary: "Take a shared device back from its user.",
        scope: PageScope::Own,
        parameters: &[
            device(SHARED),
            parameter(
                "reason",
                ParameterType::Text { chars_max: REASON_CHARS_MAX },
                ArgumentPosition::Option("--reason"),
                REASON,
            ),
            parameter(
                "keep_out",
                ParameterType::Number { min: 0, max: DAY_S },
                ArgumentPosition::Option("--keep-out"),
                "For how many seconds its user may not have it again.",
            ),
            switch("force", "--force", "Also a disk that its user may write: what is not written out is lost."),
        ],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "attach",
        words: &["attach"],
        summary: "Use a device of another host, or of another process, here.",
        scope: PageScope::Own,
        parameters: &[
            parameter(
                "target",
                ParameterType::Text { chars_max: NAME_CHARS_MAX },
                ArgumentPosition::Word,
                "[HOST[:PORT]/]DEVICE, as 'farbus list HOST' shows it.",
            ),
            parameter(
                "via",
                ParameterType::Choice(&["auto", "kernel", "uas", "fuse", "nbd", "redir", "rfc2217", "tcp", "pty"]),
                ArgumentPosition::Option("--via"),
                "How it appears here.",
            )
            .about(APPEARS),
            parameter(
                "at",
                ParameterType::Path,
                ArgumentPosition::Option("--at"),
                "fuse: the folder for the disk's file. pty: the serial port's file.",
            )
            .about(APPEARS),
            parameter(
                "socket",
                ParameterType::Path,
                ArgumentPosition::Option("--socket"),
                "nbd, redir, rfc2217, tcp: the socket for programs.",
            )
            .about(APPEARS),
            parameter(
                "mode",
                ParameterType::Choice(&["exclusive", "read"]),
                ArgumentPosition::Option("--mode"),
                "fuse, nbd, uas: how.",
            )
            .about(USED),
            parameter(
                "wait",
                ParameterType::Number { min: 0, max: DAY_S },
                ArgumentPosition::Option("--wait"),
                "How many seconds to wait while another host uses it.",
            )
            .about(USED),
            parameter(
                "reason",
                ParameterType::Text { chars_max: REASON_CHARS_MAX },
                ArgumentPosition::Option("--reason"),
                REASON,
            )
            .about(USED),
            parameter("address", ADDRESS, ArgumentPosition::Option("--address"), "Where the paired host is now.")
                .about(WAY),
            parameter(
                "cache",
                ParameterType::Choice(&["none", "ahead", "writeback"]),
                ArgumentPosition::Option("--cache"),
                "What is kept here of a distant disk.",
            )
            .about(WAY),
            parameter(
                "grace",
                ParameterType::Number { min: 0, max: 120 },
                ArgumentPosition::Option("--grace"),
                "How long to wait for a lost link, s.",
            )
            .about(WAY),
            parameter(
                "links",
                ParameterType::Number { min: 1, max: 8 },
                ArgumentPosition::Option("--links"),
                "Links of the session.",
            )
            .about(WAY),
            parameter(
                "over",
                ParameterType::Choice(&["tcp", "quic"]),
                ArgumentPosition::Option("--over"),
                "What links are made of.",
            )
            .about(WAY),
            parameter(
                "module",
                MODULES,
                ArgumentPosition::Option("--module"),
                "Modules that everything passes through.",
            )
            .about(USED),
            parameter(
                "hold",
                ParameterType::Number { min: 1, max: 120 },
                ArgumentPosition::Option("--hold"),
                "How long it may wait to move, s.",
            )
            .about(WAY),
            parameter(
                "ahead",
                ParameterType::Choice(&["auto", "off"]),
                ArgumentPosition::Option("--ahead"),
                "kernel: fetch ahead of its requests.",
            )
            .about(WAY),
            parameter(
                "reserve",
                MODULES,
                ArgumentPosition::Option("--reserve"),
                "What to reserve of bus, processor and path.",
            )
            .about(USED),
            switch("inherit", "--inherit", "redir, nbd: take it over with a virtual machine.").about(APPEARS),
            parameter(
                "listen",
                ADDRESS,
                ArgumentPosition::Option("--listen"),
                "nbd, redir: a TCP address in place of the socket.",
            )
            .about(APPEARS),
            parameter(
                "socket_mode",
                ParameterType::Choice(&["600", "660", "666"]),
                ArgumentPosition::Option("--socket-mode"),
                "Mode of the socket.",
            )
            .about(APPEARS),
            parameter("socket_group", HOSTS, ArgumentPosition::Option("--socket-group"), "Group of the socket.")
                .about(APPEARS),
        ],
        runs: CommandLifetime::OnAfterValue { unless: &[] },
    },
    PageAction {
        name: "detach",
        words: &["detach"],
        summary: "Detach a device that is attached here.",
        scope: PageScope::Own,
        parameters: &[
            device(ATTACHED),
            switch("unmount", "--unmount", "First write out and unmount its file systems."),
            switch("force", "--force", "While programs have it open: what they have not written out is lost."),
        ],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "migrate",
        words: &["migrate"],
        summary: "Hand an attached device over to another host, as it is.",
        scope: PageScope::Own,
        parameters: &[
            device(ATTACHED),
            parameter("to", HOSTS, ArgumentPosition::Required("--to"), "Name or key of the other host."),
            switch("unmount", "--unmount", "First write out and unmount its file systems."),
            switch("with_machine", "--with-machine", "When its virtual machine leaves."),
            switch("discard", "--discard", "Wait for nothing: what is under way is lost."),
        ],
        runs: CommandLifetime::Long,
    },
    PageAction {
        name: "resume",
        words: &["resume"],
        summary: "Let a device that is held go on here.",
        scope: PageScope::Own,
        parameters: &[device(ATTACHED)],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "swap",
        words: &["swap"],
        summary: "Move a disk, or swap a USB device for its twin, while it is in use.",
        scope: PageScope::Own,
        parameters: &[
            device("Name of the shared device, or HOST/DEVICE that is attached here."),
            parameter(
                "to",
                ParameterType::Words,
                ArgumentPosition::Required("--to"),
                "block:PATH, HOST/DEVICE or usb:BUSID.",
            ),
            parameter(
                "rate",
                ParameterType::Text { chars_max: 16 },
                ArgumentPosition::Option("--rate"),
                "Copy at most so many bytes a second (100M).",
            ),
            switch("verify", "--verify", "Read and compare both before the switch."),
        ],
        runs: CommandLifetime::Swap,
    },
    PageAction {
        name: "swap-cancel",
        words: &["swap", "--cancel"],
        summary: "Cancel a swap: the disk stays where it was.",
        scope: PageScope::Own,
        parameters: &[device("The device that is being swapped.")],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "module-pause",
        words: &["module", "pause"],
        summary: "Hold everything that passes through the module 'pause' of an attached device.",
        scope: PageScope::Own,
        parameters: &[device(ATTACHED)],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "module-resume",
        words: &["module", "resume"],
        summary: "Let what was held pass again.",
        scope: PageScope::Own,
        parameters: &[device(ATTACHED)],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "eject",
        words: &["eject"],
        summary: "Take the medium out of a shared removable disk.",
        scope: PageScope::Own,
        parameters: &[device(SHARED)],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "insert",
        words: &["insert"],
        summary: "Put the medium of a shared removable disk back.",
        scope: PageScope::Own,
        parameters: &[device(SHARED)],
        runs: CommandLifetime::Briefly,
    },
    PageAction {
        name: "observe",
        words: &["observe", "--pcapng"],
        summary: "Record what an observable device sends to its user, until the operation is stopped.",
        scope: PageScope::Observe,
        parameters: &[
            parameter(
                "target",
                ParameterType::Text { chars_max: NAME_CHARS_MAX },
                ArgumentPosition::Word,
                "[HOST[:PORT]/]DEVICE.",
            ),
            parameter(
                "count",
                ParameterType::Number { min: 1, max: 1_000_000 },
                ArgumentPosition::Option("--count"),
                "After how many transfers it ends.",
            ),
        ],
        runs: CommandLifetime::Recording,
    },
    PageAction {
        name: "console",
        words: &["observe", "--console"],
        summary: "Show what the serial ports of an observable device send, until the operation is stopped.",
        scope: PageScope::Observe,
        parameters: &[parameter(
            "target",
            ParameterType::Text { chars_max: NAME_CHARS_MAX },
            ArgumentPosition::Word,
            "[HOST[:PORT]/]DEVICE.",
        )],
        runs: CommandLifetime::Console,
    },
    PageAction {
        name: "picture",
        words: &["stream", "read", "--observe", "--pictures", "--rate", "4"],
        summary: "Show the picture of a stream that is observable, while somebody looks at it: 10 minutes at most.",
        scope: PageScope::Observe,
        parameters: &[parameter(
            "target",
            ParameterType::Text { chars_max: NAME_CHARS_MAX },
            ArgumentPosition::Word,
            "[HOST[:PORT]/]DEVICE, a stream.",
        )],
        runs: CommandLifetime::Picture,
    },
];

/// Why an action is not begun: which parameter is wrong, and what it may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WrongParameter", deny_unknown_fields)]
pub struct WrongParameter {
    /// The parameter; absent if it is the whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl WrongParameter {
    fn with(parameter: &str, message: impl fmt::Display) -> Self {
        Self { parameter: Some(parameter.to_owned()), message: message.to_string() }
    }
}

/// An action with its parameters: a command line.
#[derive(Clone, Debug)]
pub struct CommandLine {
    /// The action that it does.
    pub action: &'static PageAction,
    /// What it is about, for the log: its first parameter that is a word.
    pub subject: String,
    /// The words after `farbus`, without `--json`.
    pub words: Vec<String>,
    /// Of each word, where in it the value of an option begins.
    options: Vec<Option<usize>>,
    /// The switches that were given.
    has: Vec<&'static str>,
}

/// An action, as programs see it that find out what there is.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Action")]
pub struct ActionDescription {
    /// Its name, the last part of its path.
    name: &'static str,
    /// What it does, in a sentence.
    summary: &'static str,
    /// The least scope that permits it.
    #[schemars(schema_with = "scope")]
    scope: PageScope,
    /// The words of farbus's command line that it begins with.
    command: &'static [&'static str],
    /// Whether its end is not waited for.
    is_long: bool,
    /// The names of the parameters that have to be given.
    required: Vec<&'static str>,
    /// The JSON Schema of each parameter, by name.
    parameters: Map<String, Value>,
}

impl PageAction {
    /// The command line with these parameters.
    ///
    /// # Errors
    /// [`WrongParameter`]: one is missing, unknown, of another type, or outside its limits.
    pub fn command(&'static self, given: &Map<String, Value>) -> Result<CommandLine, WrongParameter> {
        if let Some(unknown) = given.keys().find(|name| self.parameters.iter().all(|known| known.name != **name)) {
            let known: Vec<&str> = self.parameters.iter().map(|parameter| parameter.name).collect();
            let short: String = unknown.chars().take(64).collect();
            return Err(WrongParameter::with(&short, format!("'{}' takes {}", self.name, known.join(", "))));
        }
        let (mut plain, mut options, mut has) = (Vec::new(), Vec::new(), Vec::new());
        for parameter in self.parameters {
            let value = given.get(parameter.name).filter(|value| !value.is_null());
            let texts = value.map(|value| parameter.texts_of(value)).transpose()?;
            match (parameter.at, parameter.kind, texts) {
                (ArgumentPosition::Word | ArgumentPosition::WordIf, _, Some(words)) => plain.extend(words),
                (ArgumentPosition::Word | ArgumentPosition::Required(_), _, None) => {
                    return Err(WrongParameter::with(parameter.name, format!("it is missing: {}", parameter.help)));
                }
                (
                    ArgumentPosition::Option(option) | ArgumentPosition::Required(option),
                    ParameterType::Switch,
                    Some(texts),
                ) => {
                    if texts == ["true"] {
                        options.push((option, None));
                        has.push(parameter.name);
                    }
                }
                (ArgumentPosition::Option(option) | ArgumentPosition::Required(option), _, Some(words)) => {
                    options.extend(words.into_iter().map(|word| (option, Some(word))));
                }
                (ArgumentPosition::Option(_) | ArgumentPosition::WordIf, _, None) => {}
            }
        }
        let subject = plain.last().cloned().unwrap_or_default();
        let mut words: Vec<String> = self.words.iter().map(|word| (*word).to_owned()).collect();
        let mut values: Vec<Option<usize>> = vec![None; words.len()];
        // A word that begins with a hyphen is no option.
        let is_guarded = plain.iter().any(|word| word.starts_with('-'));
        let spelled = options.into_iter().map(|(option, value)| match value {
            Some(value) => (format!("{option}={value}"), Some(option.len() + 1)),
            None => (option.to_owned(), None),
        });
        let plain = plain.into_iter().map(|word| (word, None));
        let ordered: Vec<(String, Option<usize>)> = match is_guarded {
            true => spelled.chain([("--".to_owned(), None)]).chain(plain).collect(),
            false => plain.chain(spelled).collect(),
        };
        for (word, value_at) in ordered {
            words.push(word);
            values.push(value_at);
        }
        Ok(CommandLine { action: self, subject, words, options: values, has })
    }

    /// The action, for programs that find out what there is.
    pub fn described(&self) -> ActionDescription {
        let parameters: Map<String, Value> =
            self.parameters.iter().map(|parameter| (parameter.name.to_owned(), parameter.schema())).collect();
        ActionDescription {
            name: self.name,
            summary: self.summary,
            scope: self.scope,
            command: self.words,
            is_long: !self.is_brief(),
            required: self.required(),
            parameters,
        }
    }

    /// Whether its end is waited for.
    pub fn is_brief(&self) -> bool {
        matches!(self.runs, CommandLifetime::Briefly | CommandLifetime::BrieflyInLines)
    }

    /// The names of the parameters that have to be given.
    pub fn required(&self) -> Vec<&'static str> {
        self.parameters.iter().filter(|parameter| parameter.is_required()).map(|parameter| parameter.name).collect()
    }
}

impl ActionParameter {
    /// Puts the parameter into this group of the action's form.
    const fn about(mut self, group: &'static str) -> Self {
        self.group = Some(group);
        self
    }

    /// Whether it has to be given.
    pub fn is_required(&self) -> bool {
        !matches!(self.at, ArgumentPosition::Option(_) | ArgumentPosition::WordIf)
    }

    /// A value in its place, for a person to replace.
    pub fn placeholder(&self) -> Value {
        let word = match self.kind {
            HOSTS => "HOST",
            ParameterType::Words => "block:/PATH",
            ParameterType::Path => "/PATH",
            ParameterType::Text { .. } if self.name == "target" => "HOST/DEVICE",
            ParameterType::Text { .. } if self.name == "device" => "DEVICE",
            ParameterType::Number { min, .. } => return json!(min),
            ParameterType::Text { .. } => "TEXT",
            ParameterType::Texts { .. } => return json!(["TEXT"]),
            ParameterType::Span => "1h",
            ParameterType::Choice(words) => words.first().copied().unwrap_or_default(),
            ParameterType::Switch => return json!(false),
        };
        json!(word)
    }

    /// The value as words, within its limits: one, but of [`ParameterType::Texts`].
    fn texts_of(&self, value: &Value) -> Result<Vec<String>, WrongParameter> {
        let ParameterType::Texts { chars_max } = self.kind else { return Ok(vec![self.text_of(self.kind, value)?]) };
        match value.as_array() {
            Some(all) if (1..=TEXTS_MAX).contains(&all.len()) => {
                all.iter().map(|one| self.text_of(ParameterType::Text { chars_max }, one)).collect()
            }
            _ => Err(WrongParameter::with(self.name, format!("a list of 1 to {TEXTS_MAX} texts"))),
        }
    }

    /// The value of one word, within its limits.
    fn text_of(&self, kind: ParameterType, value: &Value) -> Result<String, WrongParameter> {
        let wrong = |what: String| WrongParameter::with(self.name, what);
        let text = |chars_max: u64| match value.as_str() {
            Some(text) if text.is_empty() || text.chars().count() as u64 > chars_max || text.contains('\0') => {
                Err(wrong(format!("1 to {chars_max} characters, none of them zero")))
            }
            Some(text) => Ok(text.to_owned()),
            None => Err(wrong(format!("a text of 1 to {chars_max} characters"))),
        };
        match kind {
            ParameterType::Text { chars_max } | ParameterType::Texts { chars_max } => text(chars_max),
            ParameterType::Span => match value.as_str().filter(|span| is_span(span)) {
                Some(span) => Ok(span.to_owned()),
                None => Err(wrong("a span of time: 90s, 15m, 2h, 3d, 1h30m".to_owned())),
            },
            ParameterType::Words => text(PATH_CHARS_MAX).and_then(|words| match names_relative_path(&words) {
                true => Err(wrong("a path begins with '/' here: the page is in no folder".to_owned())),
                false => Ok(words),
            }),
            ParameterType::Path => text(PATH_CHARS_MAX).and_then(|path| match path.starts_with('/') {
                true => Ok(path),
                false => Err(wrong("a path begins with '/' here: the page is in no folder".to_owned())),
            }),
            ParameterType::Number { min, max } => match value.as_u64().filter(|number| (min..=max).contains(number)) {
                Some(number) => Ok(number.to_string()),
                None => Err(wrong(format!("a whole number from {min} to {max}"))),
            },
            ParameterType::Choice(words) => match value.as_str().filter(|word| words.contains(word)) {
                Some(word) => Ok(word.to_owned()),
                None => Err(wrong(format!("one of {}", words.join(", ")))),
            },
            ParameterType::Switch => match value.as_bool() {
                Some(is_on) => Ok(is_on.to_string()),
                None => Err(wrong("true or false".to_owned())),
            },
        }
    }

    /// The parameter as a JSON schema.
    pub fn schema(&self) -> Value {
        let mut schema = match self.kind {
            ParameterType::Text { chars_max } => json!({ "type": "string", "minLength": 1, "maxLength": chars_max }),
            ParameterType::Texts { chars_max } => json!({
                "type": "array", "minItems": 1, "maxItems": TEXTS_MAX,
                "items": { "type": "string", "minLength": 1, "maxLength": chars_max },
            }),
            ParameterType::Span => {
                json!({ "type": "string", "maxLength": SPAN_CHARS_MAX, "pattern": "^([0-9]+[smhd])+$" })
            }
            ParameterType::Words => json!({ "type": "string", "minLength": 1, "maxLength": PATH_CHARS_MAX }),
            ParameterType::Path => {
                json!({ "type": "string", "minLength": 1, "maxLength": PATH_CHARS_MAX, "pattern": "^/" })
            }
            ParameterType::Number { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
            ParameterType::Choice(words) => json!({ "type": "string", "enum": words }),
            ParameterType::Switch => json!({ "type": "boolean" }),
        };
        schema["description"] = json!(self.help);
        schema
    }
}

/// Whether it is numbers, each with a unit behind it.
fn is_span(text: &str) -> bool {
    let mut has_digit = false;
    let is_right = text.chars().all(|c| match c {
        '0'..='9' => {
            has_digit = true;
            true
        }
        's' | 'm' | 'h' | 'd' => std::mem::take(&mut has_digit),
        _ => false,
    });
    is_right && !has_digit && (1..=SPAN_CHARS_MAX).contains(&text.len())
}

/// Whether words of `farbus share` or `farbus swap --to` name a file by a path that depends on a folder.
fn names_relative_path(words: &str) -> bool {
    let is_relative = |path: &str| !path.starts_with('/');
    match words.split_once(':') {
        Some(("disk" | "block", rest)) => {
            is_relative(rest)
                || rest.split(',').any(|word| {
                    let scratch = word.strip_prefix("scratch=");
                    scratch.is_some_and(|at| is_relative(at) && !at.starts_with(|c: char| c.is_ascii_digit()))
                })
        }
        Some(("stream", rest)) => is_relative(rest) && rest.split(',').next() != Some("pattern"),
        _ => false,
    }
}

impl CommandLine {
    /// The command line, to be typed.
    pub fn line(&self) -> String {
        let words = self.words.iter().zip(&self.options).map(|(word, value_at)| match value_at {
            Some(at) => format!("{}{}", &word[..*at], quoted(&word[*at..])),
            None => quoted(word),
        });
        std::iter::once("farbus".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
    }

    /// The words after `farbus` with which it is run: with `--json`, where the command takes that.
    pub fn arguments(&self) -> Vec<String> {
        let options = self.words.iter().position(|word| word == "--").unwrap_or(self.words.len());
        let mut words = self.words.clone();
        if self.prints_json() {
            words.insert(options, "--json".to_owned());
        }
        words
    }

    /// Whether its output is JSON.
    pub fn prints_json(&self) -> bool {
        !matches!(self.action.runs, CommandLifetime::Recording | CommandLifetime::Console | CommandLifetime::Picture)
    }

    /// Whether its command goes on after it is done.
    pub fn goes_on(&self) -> bool {
        match self.action.runs {
            CommandLifetime::OnAfterValue { unless } => !unless.iter().any(|switch| self.has.contains(switch)),
            CommandLifetime::Briefly
            | CommandLifetime::BrieflyInLines
            | CommandLifetime::Long
            | CommandLifetime::Swap
            | CommandLifetime::Recording
            | CommandLifetime::Console
            | CommandLifetime::Picture => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::action_examples::examples;
    use crate::api::table;

    /// The command of this action with these parameters.
    fn command(name: &str, given: Value) -> Result<CommandLine, WrongParameter> {
        let Value::Object(given) = given else { panic!("an object") };
        table::action(name).unwrap().command(&given)
    }

    #[test]
    fn a_command_line_is_quoted_and_its_words_are_never_options() {
        let line = |name: &str, given: Value| command(name, given).unwrap().line();
        assert_eq!(line("release", json!({ "device": "disk" })), "farbus release disk");
        let full = json!({ "device": "disk", "reason": "it's mine", "keep_out": 60, "force": true });
        assert_eq!(line("release", full), r"farbus release disk --reason='it'\''s mine' --keep-out=60 --force");
        assert_eq!(line("detach", json!({ "device": "-f", "force": true })), "farbus detach --force -- -f");
        assert_eq!(line("module-pause", json!({ "device": "a/b" })), "farbus module pause a/b");
        assert_eq!(line("detach", json!({ "device": "$(reboot)", "force": false })), "farbus detach '$(reboot)'");
    }

    #[test]
    fn parameters_outside_their_limits_are_refused_by_name() {
        for (name, given, parameter) in [
            ("release", json!({}), "device"),
            ("release", json!({ "device": "" }), "device"),
            ("release", json!({ "device": 7 }), "device"),
            ("release", json!({ "device": "a\0b" }), "device"),
            ("release", json!({ "device": "x".repeat(513) }), "device"),
            ("release", json!({ "device": "a", "keep_out": 86_401 }), "keep_out"),
            ("release", json!({ "device": "a", "keep_out": -1 }), "keep_out"),
            ("release", json!({ "device": "a", "force": "yes" }), "force"),
            ("release", json!({ "device": "a", "shell": "sh" }), "shell"),
            ("attach", json!({ "target": "a/b", "via": "magic" }), "via"),
            ("attach", json!({ "target": "a/b", "at": "mnt" }), "at"),
            ("share", json!({ "what": "disk:a.img" }), "what"),
            ("share", json!({ "what": "disk:/a.img,scratch=b" }), "what"),
            ("share", json!({ "what": "stream:fifo" }), "what"),
            ("swap", json!({ "device": "a", "to": "block:b" }), "to"),
            ("swap", json!({ "device": "a" }), "to"),
        ] {
            assert_eq!(command(name, given.clone()).unwrap_err().parameter.as_deref(), Some(parameter), "{given}");
        }
        for what in ["zero", "disk:/a.img,scratch=64M", "stream:pattern,rate=30", "memory:1M", "usb:1-1"] {
            command("share", json!({ "what": what })).unwrap();
        }
    }

    #[test]
    fn the_line_that_is_shown_is_the_one_that_is_run() {
        for command in examples() {
            // Bash reads the line as the words that are run.
            let script = format!("farbus() {{ printf '%s\\0' \"$@\"; }}; {}", command.line());
            let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
            let words: Vec<&[u8]> = output.stdout.strip_suffix(b"\0").unwrap().split(|byte| *byte == 0).collect();
            assert_eq!(words, command.words.iter().map(String::as_bytes).collect::<Vec<_>>(), "{}", command.line());
        }
    }
}
