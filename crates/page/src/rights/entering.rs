//! Lets browsers of other machines in: takes the code that one shows, and makes the token that it shows from then on.

use std::net::IpAddr;
use std::time::SystemTime;

use farbus_io_net::trust::{AuditOutcome, HostFolder, NoCode, NotRedeemed, PageInvitation, PageTokenList, StateError};
use hyper::StatusCode;

use crate::api::operations::OperationRegistry;
use crate::api::refusal::HttpRefusal;
use crate::line::messages::PageAnswer;

/// Takes the code, and makes the token. Both have a line in the audit log. It blocks while another process changes the
/// owner's files.
///
/// # Errors
/// [`HttpRefusal`]: the code lets nobody in, or no token can be made.
pub fn enter(operations: &OperationRegistry, code: &str, from: IpAddr) -> Result<PageAnswer, HttpRefusal> {
    let entered = try_enter(code);
    let (outcome, what) = match &entered {
        Ok((called, PageAnswer::Entered { scope, .. })) => (AuditOutcome::Ok, format!("token {called}, scope {scope}")),
        Ok(_) => (AuditOutcome::Ok, String::new()),
        Err(refusal) => (AuditOutcome::Refused, refusal.why.to_string()),
    };
    operations.entered(from, &what, outcome);
    entered.map(|(_, answer)| answer)
}

/// Revokes the token that a client has shown, as the header `Authorization` says it. The audit log gets a line. It
/// blocks while another process changes the owner's files.
///
/// # Errors
/// [`HttpRefusal`]: the client has shown none, or the files cannot be changed: the token counts as before.
pub fn leave(operations: &OperationRegistry, authorization: Option<&str>) -> Result<PageAnswer, HttpRefusal> {
    let none = || HttpRefusal::of(StatusCode::NOT_FOUND, "this browser has shown no token");
    let unchanged = |_: StateError| {
        let why = "the page's files cannot be changed, and the token counts as before: 'farbus doctor' says why";
        HttpRefusal::of(StatusCode::INTERNAL_SERVER_ERROR, why)
    };
    let token =
        authorization.and_then(|header| header.split_once(' ')).map(|(_, token)| token.trim()).ok_or_else(none)?;
    let folder = HostFolder::of_user().map_err(unchanged)?;
    let tokens = PageTokenList::load(&folder).map_err(unchanged)?;
    // One that was revoked meanwhile has ended, which is what is asked for.
    let Ok(found) = tokens.check(token, SystemTime::now()) else { return Ok(PageAnswer::Done) };
    PageTokenList::revoke(&folder, &found.id).map_err(unchanged)?;
    operations.left(&format!("token {}", found.called()));
    Ok(PageAnswer::Done)
}

fn try_enter(code: &str) -> Result<(String, PageAnswer), HttpRefusal> {
    let refused = |why: &'static str| HttpRefusal::of(StatusCode::FORBIDDEN, why);
    let unread = |_: StateError| {
        let why = "the page's files cannot be read: 'farbus doctor' says why";
        HttpRefusal::of(StatusCode::INTERNAL_SERVER_ERROR, why)
    };
    let folder = HostFolder::of_user().map_err(unread)?;
    match PageInvitation::redeem(&folder, code, SystemTime::now()).map_err(unread)? {
        Ok((kept, token, lasts_s)) => {
            let scope = kept.scope;
            Ok((kept.called().to_owned(), PageAnswer::Entered { token, scope, lasts_s }))
        }
        Err(NotRedeemed::Code(NoCode::Used)) => Err(refused("this code was used already: each lets one browser in")),
        Err(NotRedeemed::Code(NoCode::Expired)) => Err(refused("this code has expired: it counts for 60 seconds")),
        Err(NotRedeemed::Code(NoCode::Unknown)) => Err(refused("this page has made no such code")),
        Err(NotRedeemed::Token(_)) => {
            Err(refused("no token can be made for this browser: 'farbus page token list' shows those there are"))
        }
    }
}
