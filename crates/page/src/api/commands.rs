//! Actions for programs: what the command can do and the page does not offer by a button.
//!
//! What makes trust is not here: pairing, invitations and new tokens are made at a terminal. Neither is what has a
//! terminal or a program of its own (`run`, `shell`, `pipe`, `stream read`), nor `type`: its text would stand in the
//! list of operations.

use farbus_io_net::trust::PageScope;

use crate::api::actions::{
    ADDRESS, ATTACHED, ActionParameter, ArgumentPosition, CommandLifetime, DAY_S, HOST, HOSTS, NAME_CHARS_MAX,
    PageAction, ParameterType, REASON, REASON_CHARS_MAX, SHARED, device, parameter, switch,
};

const LEASED: &str = "HOST[:PORT]/DEVICE.";
const PLAN: &str = "The plan, as TOML.";
const EXAMPLE: &str = "An example in place of a file; 'list' names them.";
const FOR: ActionParameter =
    parameter("for", ParameterType::Span, ArgumentPosition::Option("--for"), "For how long from now.");
const TO: ActionParameter =
    parameter("to", HOSTS, ArgumentPosition::Required("--to"), "Name or key of the other host.");
const TEXTS: ParameterType = ParameterType::Texts { chars_max: NAME_CHARS_MAX };

const fn brief(
    name: &'static str,
    words: &'static [&'static str],
    summary: &'static str,
    parameters: &'static [ActionParameter],
) -> PageAction {
    PageAction { name, words, summary, scope: PageScope::Own, parameters, runs: CommandLifetime::Briefly }
}

const fn long(
    name: &'static str,
    words: &'static [&'static str],
    summary: &'static str,
    parameters: &'static [ActionParameter],
) -> PageAction {
    PageAction { name, words, summary, scope: PageScope::Own, parameters, runs: CommandLifetime::Long }
}

/// All of them, in the order of the book's reference.
pub const COMMANDS: &[PageAction] = &[
    brief("shareable", &["share", "--list"], "Which USB devices of this machine could be shared.", &[]),
    brief(
        "list",
        &["list"],
        "The devices of a host, or of all hosts known and found.",
        &[
            parameter(
                "words",
                TEXTS,
                ArgumentPosition::WordIf,
                "HOST[:PORT] or a paired host's name, and words of a query.",
            ),
            parameter("address", ADDRESS, ArgumentPosition::Option("--address"), "Where the paired host is now."),
            switch("directory", "--directory", "What the directory says of all sites; no host is asked."),
        ],
    ),
    brief("hold", &["hold"], "Hold a virtual machine's device before the machine migrates.", &[device(ATTACHED)]),
    long(
        "migrate-vm",
        &["migrate-vm"],
        "Migrate a virtual machine to another host, with its devices.",
        &[
            parameter("monitor", ParameterType::Path, ArgumentPosition::Word, "The socket of QEMU's monitor (QMP)."),
            TO,
            parameter(
                "uri",
                ParameterType::Text { chars_max: 256 },
                ArgumentPosition::Required("--uri"),
                "Where the other QEMU waits.",
            ),
            parameter(
                "device",
                TEXTS,
                ArgumentPosition::Option("--device"),
                "Devices that the machine has; all by default.",
            ),
            parameter(
                "downtime",
                ParameterType::Number { min: 1, max: 600_000 },
                ArgumentPosition::Option("--downtime"),
                "The longest time that the machine may stand still, ms.",
            ),
            switch("check", "--check", "Only say what would move, or why nothing could."),
        ],
    ),
    brief(
        "label",
        &["label"],
        "Say what a shared device is for, and where it is.",
        &[
            device(SHARED),
            parameter(
                "words",
                TEXTS,
                ArgumentPosition::WordIf,
                "NAME=VALUE, place=TEXT, comment=TEXT; NAME= takes it away.",
            ),
        ],
    ),
    long(
        "lease",
        &["lease"],
        "Have devices for a time, or wait for them.",
        &[
            parameter("targets", TEXTS, ArgumentPosition::Word, "HOST[:PORT]/DEVICE, several, or words of a query."),
            parameter(
                "count",
                ParameterType::Number { min: 1, max: 64 },
                ArgumentPosition::Option("--count"),
                "How many of them.",
            ),
            FOR,
            parameter(
                "from",
                ParameterType::Text { chars_max: 32 },
                ArgumentPosition::Option("--from"),
                "From when: +90m, 2026-11-27T08:00Z.",
            ),
            switch("no_wait", "--no-wait", "Fail if it is not free."),
            parameter(
                "reason",
                ParameterType::Text { chars_max: REASON_CHARS_MAX },
                ArgumentPosition::Option("--reason"),
                REASON,
            ),
            parameter(
                "priority",
                ParameterType::Number { min: 0, max: 9 },
                ArgumentPosition::Option("--priority"),
                "A higher one comes first.",
            ),
        ],
    ),
    brief(
        "lease-list",
        &["lease", "list"],
        "Who has which device until when.",
        &[parameter("host", HOSTS, ArgumentPosition::WordIf, HOST)],
    ),
    brief("lease-extend", &["lease", "extend"], "Let a lease end later.", &[device(LEASED), FOR]),
    brief(
        "lease-release",
        &["lease", "release"],
        "End a lease: the next in the queue gets the device.",
        &[device(LEASED), switch("force", "--force", "Even while it is attached: what is not written out is lost.")],
    ),
    brief("lease-give", &["lease", "give"], "Give the rest of a lease to another host.", &[device(LEASED), TO]),
    brief("directory-limits", &["directory", "limit"], "What each host may have of a directory's devices.", &[]),
    brief(
        "directory-limit",
        &["directory", "limit"],
        "How many devices of a directory a host may have at a time, and for how long; without either, show it.",
        &[
            parameter("host", HOSTS, ArgumentPosition::Word, HOST),
            parameter(
                "devices",
                ParameterType::Number { min: 0, max: 65_536 },
                ArgumentPosition::Option("--devices"),
                "How many at a time.",
            ),
            FOR,
            switch("none", "--none", "Take the limit away."),
        ],
    ),
    PageAction {
        name: "nbd",
        words: &["nbd"],
        summary: "Serve block devices of this machine to programs that speak NBD.",
        scope: PageScope::Own,
        parameters: &[
            parameter("what", ParameterType::Words, ArgumentPosition::Word, "What to serve, as 'farbus nbd' takes it."),
            parameter("socket", ParameterType::Path, ArgumentPosition::Option("--socket"), "The socket for programs."),
            parameter(
                "listen",
                ADDRESS,
                ArgumentPosition::Option("--listen"),
                "A TCP address in its place: there is no password.",
            ),
        ],
        runs: CommandLifetime::OnAfterValue { unless: &[] },
    },
    brief("module-list", &["module", "list"], "The modules that devices can be used through.", &[]),
    brief(
        "module-show",
        &["module", "show"],
        "A module's manual.",
        &[parameter("module", HOSTS, ArgumentPosition::Word, "Its name.")],
    ),
    brief(
        "status-of",
        &["status"],
        "What a paired host tells this one.",
        &[parameter("host", HOSTS, ArgumentPosition::Word, HOST)],
    ),
    PageAction {
        name: "audit-find",
        words: &["audit"],
        summary: "What hosts used or were refused here: the audit log.",
        scope: PageScope::Own,
        parameters: &[
            parameter(
                "lines",
                ParameterType::Number { min: 1, max: 2000 },
                ArgumentPosition::Option("--lines"),
                "How many of the latest.",
            ),
            switch("refused", "--refused", "Only what was refused or failed."),
            switch("grants", "--grants", "Only what was granted or taken back."),
            parameter("host", HOSTS, ArgumentPosition::Option("--host"), "Only this host."),
            parameter("device", HOSTS, ArgumentPosition::Option("--device"), "Only this device."),
        ],
        runs: CommandLifetime::BrieflyInLines,
    },
    brief("page-token-list", &["page", "token", "list"], "Which tokens of the page there are.", &[]),
    brief(
        "page-token-revoke",
        &["page", "token", "revoke"],
        "Take a token of the page back.",
        &[parameter("token", HOSTS, ArgumentPosition::Word, "Its name or id.")],
    ),
    brief("doctor", &["doctor"], "What this machine can do, and what to type for each lack.", &[]),
    brief("id", &["id"], "This host's name and the fingerprint of its key.", &[]),
    brief(
        "unpair",
        &["unpair"],
        "Forget a paired host, and end its sessions.",
        &[parameter("host", HOSTS, ArgumentPosition::Word, HOST)],
    ),
    brief("identity-list", &["identity", "list"], "The devices that this host has shared, by identity.", &[]),
    brief(
        "identity-adopt",
        &["identity", "adopt"],
        "Give a device the identity of one that was shared before.",
        &[
            device(SHARED),
            parameter("id", HOSTS, ArgumentPosition::Word, "An id of 'farbus identity list', or the last name."),
        ],
    ),
    brief("daemon-reload", &["daemon", "reload"], "Let the running daemon read its configuration again.", &[]),
    brief("daemon-sleep", &["daemon", "sleep"], "Detach what the kernel would not sleep with.", &[]),
    brief("daemon-wake", &["daemon", "wake"], "Attach again what 'daemon-sleep' detached.", &[]),
    long(
        "daemon-restart",
        &["daemon", "restart"],
        "Let the program that is installed now replace the running daemon.",
        &[switch("interrupt", "--interrupt", "Detach for a moment what cannot be passed on.")],
    ),
    long(
        "topology-up",
        &["topology", "up"],
        "Bring this host's links up, and wait until they are.",
        &[
            parameter("plan", ParameterType::Path, ArgumentPosition::WordIf, PLAN),
            parameter(
                "wait",
                ParameterType::Number { min: 0, max: DAY_S },
                ArgumentPosition::Option("--wait"),
                "How long to wait, s.",
            ),
        ],
    ),
    brief("topology-status", &["topology", "status"], "The state of this host's links.", &[]),
    brief("topology-down", &["topology", "down"], "Take this host's links down.", &[]),
    brief(
        "plan-bandwidth",
        &["plan", "bandwidth"],
        "The bandwidth of every transfer type at every speed.",
        &[
            parameter(
                "speed",
                ParameterType::Choice(&["low", "full", "high", "super"]),
                ArgumentPosition::Option("--speed"),
                "Only this one.",
            ),
            parameter(
                "kind",
                ParameterType::Choice(&["control", "isochronous", "interrupt", "bulk"]),
                ArgumentPosition::Option("--kind"),
                "Only this one.",
            ),
        ],
    ),
    brief(
        "plan-examples",
        &["plan", "examples"],
        "Example files of plans.",
        &[parameter("example", HOSTS, ArgumentPosition::WordIf, "Only this one.")],
    ),
    brief(
        "plan-schedule",
        &["plan", "schedule"],
        "Plan a bus: which endpoints are admitted, and when each may send.",
        &[
            parameter("plan", ParameterType::Path, ArgumentPosition::Word, PLAN),
            parameter(
                "mode",
                ParameterType::Choice(&["controller", "sound", "spread", "printed"]),
                ArgumentPosition::Option("--mode"),
                "How exactly.",
            ),
        ],
    ),
    brief(
        "plan-topology",
        &["plan", "topology"],
        "Plan how to join hosts by USB with the fewest bridges.",
        &[parameter("plan", ParameterType::Path, ArgumentPosition::Word, PLAN)],
    ),
    brief(
        "plan-pipe",
        &["plan", "pipe"],
        "Budget, period and worst delay of a tuned pipe, of an example.",
        &[parameter("example", HOSTS, ArgumentPosition::Required("--example"), EXAMPLE)],
    ),
];
