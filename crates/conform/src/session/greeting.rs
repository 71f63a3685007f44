//! Hello and welcome.

use farbus_model::limits::LANES_MAX;
use farbus_wire::native::hello::{GREETING_BYTES, OPTIONS_BYTES_MAX};
use farbus_wire::native::{HelloOptions, ImporterHello, LanePosition, SessionId, WelcomeOutcome};

use super::entry::{SessionCheck, must, should};
use super::subject::{SessionSubject, outcome};
use crate::check::{CheckOutcome, CheckStop};

const BEGINS: &str = "protocol.md, A link begins";
const LANES: &str = "protocol.md, Several lanes";

/// Importers that connect and say nothing.
const SILENT: usize = 4;
/// A version of years to come.
const LATER: u8 = 9;
/// An option of a later version: kind, length, value.
const LATER_OPTION: [u8; 7] = [0xfe, 0xff, 3, 0, 1, 2, 3];

pub(super) const CHECKS: &[SessionCheck] = &[
    must("hello", "A hello is answered with a welcome of version 1, its lane, its link and outcome 0.", BEGINS, hello),
    must("hello-pieces", "A hello whose bytes arrive one by one is answered.", "TCP is a stream", pieces),
    must("session-names", "Two sessions have two names.", BEGINS, names),
    must("version-later", "A hello of versions 1 to 9 is answered with version 1.", BEGINS, version_later),
    must("version-none", "A hello of versions 2 to 9 is answered with outcome 3 and no session.", BEGINS, version_none),
    must("option-unknown", "An option that is not known is skipped, and the others count.", BEGINS, option_unknown),
    must("option-outside", "An option that ends behind the greeting ends the link.", BEGINS, option_outside),
    must("options-long", "A hello of more than 1024 bytes of options is not waited for.", BEGINS, options_long),
    must("magic", "A hello whose line's end was changed ends the link.", BEGINS, magic),
    must("session-unknown", "A hello for a session that there is not is answered with outcome 2.", BEGINS, unknown),
    must("grace", "A welcome grants a grace period where one is requested, not a longer one.", BEGINS, grace),
    must("lanes", "Of 200 lanes 8 at most are granted, and the last of them begins.", LANES, lanes),
    must("lanes-none", "Without the option there is no second lane.", LANES, lanes_none),
    must("hello-half", "An importer that leaves within its hello disturbs nobody.", BEGINS, half),
    must(
        "hello-silent",
        "Importers that connect and say nothing keep nobody from a session.",
        "requirement U4",
        silent,
    ),
    should("option-again", "A welcome repeats no option that it was not asked for.", BEGINS, option_again),
];

fn hello(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let hello = subject.hello(SessionSubject::options());
    let (wire, welcome) = subject.greet(&hello.encode())?;
    let (lane, link, version) = (welcome.position.lane, welcome.position.link, welcome.version);
    let talk = subject.begun(&hello, wire, &welcome)?;
    talk.leave();
    if (version, lane, link) != (1, 0, 1) {
        return Err(CheckStop::Fail(format!("version {version}, lane {lane}, link {link}")));
    }
    Ok("version 1, outcome 0".to_owned())
}

fn pieces(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let hello = subject.hello(SessionSubject::options());
    let mut wire = subject.dial()?;
    for byte in hello.encode() {
        wire.send(&[byte])?;
    }
    let welcome = wire.welcome()?;
    let mut talk = subject.begun(&hello, wire, &welcome)?;
    talk.ping(1)?;
    talk.leave();
    Ok("a session".to_owned())
}

fn names(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let (one, two) = (subject.begin()?, subject.begin()?);
    let are_same = one.position.session == two.position.session;
    one.leave();
    two.leave();
    if are_same { Err(CheckStop::fail("both have the same name")) } else { Ok("two names".to_owned()) }
}

fn version_later(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let hello = ImporterHello { version_max: LATER, ..subject.hello(SessionSubject::options()) };
    let (wire, welcome) = subject.greet(&hello.encode())?;
    let version = welcome.version;
    subject.begun(&hello, wire, &welcome)?.leave();
    if version == 1 { Ok("version 1".to_owned()) } else { Err(CheckStop::Fail(format!("version {version}"))) }
}

fn version_none(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let hello = ImporterHello { version_min: 2, version_max: LATER, ..subject.hello(SessionSubject::options()) };
    let (_, welcome) = subject.greet(&hello.encode())?;
    if welcome.outcome != WelcomeOutcome::Version {
        return Err(CheckStop::Fail(format!("the outcome is {}", outcome(welcome.outcome))));
    }
    subject.serves_others()?;
    Ok(format!("outcome 3, version {}", welcome.version))
}

/// A hello with these bytes behind its options, counted among them.
fn with_option(hello: &ImporterHello, option: &[u8]) -> Vec<u8> {
    let mut bytes = hello.encode();
    bytes.extend(option);
    let length = (bytes.len() - GREETING_BYTES) as u32;
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn option_unknown(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let hello = subject.hello(HelloOptions::default());
    let grace = [1, 0, 4, 0, 0x88, 0x13, 0, 0];
    let bytes = with_option(&hello, &[&LATER_OPTION[..], &grace].concat());
    let (wire, welcome) = subject.greet(&bytes)?;
    let mut talk = subject.begun(&hello, wire, &welcome)?;
    talk.ping(1)?;
    talk.leave();
    match welcome.options.grace_ms {
        Some(..=5000) => Ok("skipped, and the grace period behind it was granted".to_owned()),
        other => Err(CheckStop::Fail(format!("a grace period of 5000 ms behind it was granted as {other:?}"))),
    }
}

fn option_outside(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let hello = subject.hello(HelloOptions::default());
    subject.refuses_hello(&with_option(&hello, &[0xfe, 0xff, 9, 0, 1]), "an option of 9 bytes of which 1 is there")
}

fn options_long(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut bytes = subject.hello(HelloOptions::default()).encode();
    let length = OPTIONS_BYTES_MAX as u32 + 1;
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    // Not all of them are sent: the header says enough.
    subject.refuses_hello(&bytes, "1025 bytes of options")
}

fn magic(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut bytes = subject.hello(SessionSubject::options()).encode();
    bytes[6..8].copy_from_slice(b"\n\n");
    subject.refuses_hello(&bytes, "'farbus' and two line feeds")
}

fn unknown(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let fresh = subject.hello(SessionSubject::options());
    let position = LanePosition { session: SessionId([0xc5; 16]), ..fresh.position };
    let (_, welcome) = subject.greet(&ImporterHello { position, ..fresh }.encode())?;
    if welcome.outcome != WelcomeOutcome::Unknown {
        return Err(CheckStop::Fail(format!("the outcome is {}", outcome(welcome.outcome))));
    }
    Ok("outcome 2".to_owned())
}

fn grace(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let requested = 1500;
    let talk = subject.begin_with(HelloOptions { grace_ms: Some(requested), ..HelloOptions::default() })?;
    let granted = talk.granted.grace_ms;
    talk.leave();
    match granted {
        Some(granted) if granted <= requested => Ok(format!("{granted} ms")),
        other => Err(CheckStop::Fail(format!("{requested} ms were requested, {other:?} granted"))),
    }
}

fn lanes(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut talk = subject.begin_with(HelloOptions { lanes: Some(200), ..SessionSubject::options() })?;
    let granted = talk.granted.lanes.unwrap_or(1);
    if !(1..=u32::from(LANES_MAX)).contains(&granted) {
        return Err(CheckStop::Fail(format!("{granted} lanes were granted")));
    }
    let further = |number: u16| {
        ImporterHello::new(
            LanePosition { lane: number, link: 1, received: 0, ..talk.position },
            HelloOptions::default(),
        )
    };
    let beyond = further(granted as u16);
    if granted > 1 {
        let (_wire, welcome) = subject.greet(&further(granted as u16 - 1).encode())?;
        if (welcome.outcome, u32::from(welcome.position.lane)) != (WelcomeOutcome::Resumed, granted - 1) {
            let of = outcome(welcome.outcome);
            return Err(CheckStop::Fail(format!("lane {} of {granted}: the outcome is {of}", granted - 1)));
        }
    }
    subject.refuses_hello(&beyond.encode(), &format!("lane {granted} of {granted}"))?;
    talk.ping(1)?;
    talk.leave();
    Ok(format!("{granted} lanes"))
}

fn lanes_none(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut talk = subject.begin()?;
    let position = LanePosition { lane: 1, link: 1, received: 0, ..talk.position };
    let seen =
        subject.refuses_hello(&ImporterHello::new(position, HelloOptions::default()).encode(), "lane 1 of one lane")?;
    talk.ping(1)?;
    talk.leave();
    Ok(seen)
}

fn half(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let bytes = subject.hello(SessionSubject::options()).encode();
    let mut wire = subject.dial()?;
    wire.send(&bytes[..GREETING_BYTES / 2])?;
    drop(wire);
    subject.serves_others()?;
    Ok("another importer has a session".to_owned())
}

fn silent(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(subject.dial()?);
    }
    subject.serves_others()?;
    Ok(format!("a session beside {} silent importers", silent.len()))
}

fn option_again(subject: &mut SessionSubject<'_>) -> CheckOutcome {
    let talk = subject.begin_with(HelloOptions::default())?;
    let granted = talk.granted;
    talk.leave();
    match (granted.lanes, granted.hold_ms) {
        (None | Some(1), None) => Ok("neither lanes nor a hold".to_owned()),
        other => Err(CheckStop::Fail(format!("lanes and hold: {other:?}"))),
    }
}
