//! `farbus page token`.

use std::time::{Duration, SystemTime};

use farbus_control::failure::FailureKind;
use farbus_io_net::local::time_words::parse_span;
use farbus_io_net::trust::limits::PAGE_TOKEN_TIME_MAX;
use farbus_io_net::trust::{AuditEvent, AuditLog, AuditOutcome, HostFolder, PageScope, PageToken, PageTokenList};
use serde_json::{Value, json};

use super::super::CommandFailure;
use super::super::output::{print_done, print_json, print_table, say, table};

/// Let programs use your page: /metrics, /api/v1.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A program says 'Authorization: Bearer TOKEN'. Its user does not matter then; a page of yours has to run ('farbus page', or [page] of the daemon).\n\n\
    Examples:\n  farbus page token create --scope read --name prometheus\n  farbus page token list\n  farbus page token revoke prometheus"
)]
pub struct TokenArgs {
    #[command(subcommand)]
    verb: TokenVerb,
}

#[derive(Debug, clap::Subcommand)]
enum TokenVerb {
    /// Make a token, and print it: nothing shows it again.
    #[command(
        after_help = "Scopes, each with those before it:\n  read     what is shared and attached, events, figures\n  observe  what devices send, too\n  own      all that you do there: share, release, attach, audit\n\n\
        Examples:\n  farbus page token create --scope read --name prometheus > token\n  \
        farbus page token create --scope own --expires 1h --json | jq -r .token"
    )]
    Create(CreateArgs),
    /// Show which tokens there are.
    #[command(after_help = "Examples:\n  farbus page token list\n  farbus page token list --json")]
    List {
        /// Print JSON, for programs.
        #[arg(long)]
        json: bool,
    },
    /// Take a token back: it opens nothing from now on.
    #[command(after_help = "Examples:\n  farbus page token revoke prometheus\n  farbus page token revoke 1f2e3d4c")]
    Revoke {
        /// Its name or id.
        token: String,
        /// Print the result as JSON, for programs.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// What its bearer may do: read, observe, own.
    #[arg(long, value_name = "SCOPE")]
    scope: PageScope,
    /// After how long it ends: 15m, 2h, 30d. Without it, when you revoke it.
    #[arg(long, value_name = "SPAN", value_parser = lasting_from)]
    expires: Option<Duration>,
    /// What you call it.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Print it as JSON, for programs.
    #[arg(long)]
    json: bool,
}

const LASTING_S_MAX: u64 = PAGE_TOKEN_TIME_MAX.as_secs();

/// Parses how long a token lasts.
///
/// # Errors
/// A sentence for a person.
pub fn lasting_from(text: &str) -> Result<Duration, String> {
    let span = parse_span(text)?;
    match span.as_secs() {
        1..=LASTING_S_MAX => Ok(span),
        _ => Err("1 s to 3660 days; without --expires it lasts until you revoke it".into()),
    }
}

impl TokenArgs {
    /// Whether the output is JSON.
    pub fn is_for_programs(&self) -> bool {
        match &self.verb {
            TokenVerb::Create(CreateArgs { json, .. }) | TokenVerb::List { json } | TokenVerb::Revoke { json, .. } => {
                *json
            }
        }
    }
}

pub fn run(args: &TokenArgs) -> Result<(), CommandFailure> {
    let folder = HostFolder::of_user()?;
    match &args.verb {
        TokenVerb::Create(args) => create(&folder, args),
        TokenVerb::List { json } => list(&folder, *json),
        TokenVerb::Revoke { token, json } => {
            let revoked = PageTokenList::revoke(&folder, token)?.ok_or_else(|| {
                CommandFailure::new(
                    FailureKind::Gone,
                    format!("no token is called '{token}'\n  see: farbus page token list"),
                )
            })?;
            record(&folder, "page-token-revoke", &revoked);
            print_done(*json, "revoke", revoked.called())
        }
    }
}

fn create(folder: &HostFolder, args: &CreateArgs) -> Result<(), CommandFailure> {
    let made = PageTokenList::make(folder, args.scope, args.name.as_deref(), args.expires)?;
    let (kept, token) = made.map_err(|why| CommandFailure::new(FailureKind::Refused, why))?;
    record(folder, "page-token-create", &kept);
    if args.json {
        let mut value = in_json(&kept);
        value["token"] = json!(token);
        return print_json(&value);
    }
    // Alone on standard output, so that it can be written to a file.
    say(&token);
    let until = kept.expires.as_deref().map_or("until you revoke it".to_owned(), |end| format!("until {end}"));
    eprintln!("scope {}, {until}: farbus page token revoke {}", kept.scope, kept.called());
    Ok(())
}

fn list(folder: &HostFolder, json: bool) -> Result<(), CommandFailure> {
    let tokens = PageTokenList::load(folder)?;
    if json {
        return print_json(&tokens.iter().map(in_json).collect::<Vec<_>>());
    }
    if tokens.iter().next().is_none() {
        say("There are no tokens. Try: farbus page token create --scope read --name prometheus");
        return Ok(());
    }
    let mut table = table(&["ID", "NAME", "SCOPE", "MADE", "ENDS"]);
    for token in tokens.iter() {
        let ends = match &token.expires {
            None => "when revoked".to_owned(),
            Some(at) if token.has_expired(SystemTime::now()) => format!("{at} (over)"),
            Some(at) => at.clone(),
        };
        let name = token.name.clone().unwrap_or_default();
        table.add_row([token.id.clone(), name, token.scope.to_string(), token.made.clone(), ends]);
    }
    print_table(&table);
    Ok(())
}

fn in_json(token: &PageToken) -> Value {
    json!({
        "id": token.id, "name": token.name, "scope": token.scope, "made": token.made, "expires": token.expires,
        "has_expired": token.has_expired(SystemTime::now()),
    })
}

fn record(folder: &HostFolder, event: &str, token: &PageToken) {
    let what = format!("{}, scope {}", token.called(), token.scope);
    let audit = AuditLog::new(folder.clone());
    audit.record(&AuditEvent { address: Some("owner"), why: Some(&what), ..AuditEvent::new(event, AuditOutcome::Ok) });
    audit.finish();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lasts_minutes_to_ten_years() {
        for (text, days) in [("30d", 30.0), ("3660d", 3660.0), ("12h", 0.5)] {
            assert_eq!(lasting_from(text).map(|span| span.as_secs_f64() / 86_400.0), Ok(days), "{text}");
        }
        for text in ["0d", "3661d", "", "forever", "-1d", "99999999999999999999d"] {
            assert!(lasting_from(text).is_err(), "{text}");
        }
    }
}
