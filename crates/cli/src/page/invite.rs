//! `farbus page invite`.

use std::io::{self, IsTerminal};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime};

use farbus_control::failure::FailureKind;
use farbus_io_net::trust::{
    AuditEvent, AuditLog, AuditOutcome, HostFolder, PageInvitation, PageScope, RemotePage, TOKEN_NAME_CHARS_MAX,
    is_shown,
};
use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;
use serde_json::json;

use super::super::CommandFailure;
use super::super::output::{print_json, say};
use super::token::lasting_from;

/// How long it is tried to reach the page.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);

/// Let a browser of another machine look at your page: show it a code, as a link and to be scanned.
///
/// The code counts once, and for 60 s, for the first browser that opens the link: show it to its user alone. The
/// browser does not know the certificate of your page, and warns: compare the SHA-256 fingerprint that it shows with
/// the one here, and go on only if they are the same.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Scopes, each with those before it:\n  read     what is shared and attached, events, figures\n  observe  what devices send, too\n  own      all that you do there: share, release, attach, audit\n\n\
    Examples:\n  farbus page invite\n  farbus page invite --scope own --expires 30d --name phone\n  farbus page token revoke phone"
)]
pub struct InviteArgs {
    /// What the browser may do: read, observe, own.
    #[arg(long, value_name = "SCOPE", default_value = "read")]
    scope: PageScope,
    /// After how long it is asked for another code: 15m, 2h, 30d.
    #[arg(long, value_name = "SPAN", value_parser = lasting_from, default_value = "12h")]
    expires: Duration,
    /// What you call its token.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print it as JSON, for programs.
    #[arg(long)]
    json: bool,
}

impl InviteArgs {
    /// Whether the output is JSON.
    pub fn is_for_programs(&self) -> bool {
        self.json
    }
}

pub fn run(args: &InviteArgs) -> Result<(), CommandFailure> {
    let folder = HostFolder::of_user()?;
    let is_name =
        |name: &str| !name.is_empty() && name.chars().count() <= TOKEN_NAME_CHARS_MAX && name.chars().all(is_shown);
    if args.name.as_deref().is_some_and(|name| !is_name(name)) {
        let why = format!("a name has 1 to {TOKEN_NAME_CHARS_MAX} characters that are shown");
        return Err(CommandFailure::new(FailureKind::Refused, why));
    }
    let none = || {
        let what = "no page for browsers of other machines runs here";
        CommandFailure::new(FailureKind::Gone, format!("{what}\n  type: farbus page --tls 0.0.0.0:7241"))
    };
    let RemotePage { listen, url, fingerprint } = RemotePage::load(&folder)?.ok_or_else(none)?;
    let listens =
        listen.parse().is_ok_and(|address| TcpStream::connect_timeout(&reachable(address), CONNECT_TIME_MAX).is_ok());
    if !listens {
        return Err(none());
    }
    let made = PageInvitation::make(&folder, args.scope, args.name.as_deref(), args.expires, SystemTime::now())?;
    let code = made.map_err(|why| CommandFailure::new(FailureKind::Refused, why))?;
    record(&folder, args);
    let link = format!("{url}/enter#{code}");
    if args.json {
        return print_json(&json!({
            "url": link, "fingerprint": fingerprint, "scope": args.scope, "lasts_s": args.expires.as_secs(),
        }));
    }
    // Alone on standard output, so that it can be passed on.
    say(&link);
    if let Some(drawn) = drawn(&link, io::stderr().is_terminal()) {
        eprint!("{drawn}");
    }
    eprintln!("lets one browser in within 60 s, scope {}", args.scope);
    eprintln!("its certificate has the SHA-256 fingerprint\n  {fingerprint}");
    Ok(())
}

/// Where a program of this machine reaches a listener.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv6() { [0, 0, 0, 0, 0, 0, 0, 1].into() } else { [127, 0, 0, 1].into() });
    }
    address
}

/// The link to be scanned, two rows of it in a line. Light modules are drawn: that is right on a dark ground, which a
/// terminal is told to have.
fn drawn(link: &str, is_terminal: bool) -> Option<String> {
    let code = QrCode::new(link).ok()?;
    let colours = (Dense1x2::Light, Dense1x2::Dark);
    let text = code.render::<Dense1x2>().dark_color(colours.0).light_color(colours.1).quiet_zone(true).build();
    let (before, after) = if is_terminal { ("\x1b[40;97m", "\x1b[0m") } else { ("", "") };
    Some(text.lines().map(|line| format!("{before}{line}{after}\n")).collect())
}

fn record(folder: &HostFolder, args: &InviteArgs) {
    let what = format!("{}, scope {}", args.name.as_deref().unwrap_or("a browser"), args.scope);
    let audit = AuditLog::new(folder.clone());
    audit.record(&AuditEvent {
        address: Some("owner"),
        why: Some(&what),
        ..AuditEvent::new("page-invite", AuditOutcome::Ok)
    });
    audit.finish();
}

#[cfg(test)]
mod tests {
    use qrcode::Color;

    use super::*;

    #[test]
    fn the_link_is_drawn_light_on_dark_with_a_quiet_zone() {
        let link = "https://lab3.example:7241/enter#00112233445566778899aabbccddeeff";
        let code = QrCode::new(link).unwrap();
        let width = code.width();
        let text = drawn(link, false).unwrap();
        let lines: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        // Four modules on each side, and two rows in a line.
        assert_eq!((lines[0].len(), lines.len()), (width + 8, (width + 8).div_ceil(2)));
        // Blocks are light: a full one, an upper half, a lower half.
        let is_dark = |row: usize, column: usize| {
            let light = if row.is_multiple_of(2) { ['\u{2588}', '\u{2580}'] } else { ['\u{2588}', '\u{2584}'] };
            !light.contains(&lines[(row + 4) / 2][column + 4])
        };
        for (row, column) in (0..width).flat_map(|row| (0..width).map(move |column| (row, column))) {
            assert_eq!(is_dark(row, column), code[(column, row)] == Color::Dark, "{row}, {column}");
        }
        assert!(lines[0].iter().all(|module| *module == '\u{2588}'));
        assert!(drawn(link, true).unwrap().lines().all(|line| line.ends_with("\x1b[0m")));
    }
}
