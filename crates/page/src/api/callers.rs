//! Who asks: the page's own user, or the bearer of a token.

use std::time::SystemTime;

use farbus_io_net::trust::{NoToken, PageScope, PageTokenList, StateError};
use hyper::StatusCode;

use crate::api::refusal::HttpRefusal;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// A program of this process's user, or of root.
    Owner,
    /// A program of another user, or of one that is not known.
    Other,
    /// A browser or program of another machine: it has come over TLS, whatever its user is.
    Remote,
}

/// Who asks, and what they may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageCaller {
    /// What they may do; `None`: learn that the page runs.
    pub scope: Option<PageScope>,
    /// Whether that is because of a token.
    pub has_token: bool,
    /// The name in the log.
    pub called: String,
    /// When their token ends: RFC 3339, UTC; `None`: they have none, or it lasts until it is revoked.
    pub until: Option<String>,
}

impl PageCaller {
    /// Whether it may do everything that the page's user may.
    pub fn is_owner(&self) -> bool {
        self.scope == Some(PageScope::Own)
    }

    /// The caller at the other end of a connection, with what its header `Authorization` says if there is one. `tokens`
    /// loads those that there are.
    ///
    /// # Errors
    /// [`HttpRefusal`]: what is shown is no token of this page. Then it does not matter which user asks.
    pub fn of(
        authorization: Option<&str>,
        client: ClientKind,
        tokens: impl FnOnce() -> Result<PageTokenList, StateError>,
    ) -> Result<Self, HttpRefusal> {
        let Some(header) = authorization else {
            let (scope, called) = match client {
                ClientKind::Owner => (Some(PageScope::Own), "page"),
                ClientKind::Other => (None, "another user"),
                ClientKind::Remote => (None, "another machine"),
            };
            return Ok(Self { scope, has_token: false, called: called.to_owned(), until: None });
        };
        let unauthorized = |why| HttpRefusal::of(StatusCode::UNAUTHORIZED, why);
        let token = match header.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => return Err(unauthorized("say: Authorization: Bearer TOKEN")),
        };
        let tokens = tokens().map_err(|_| unauthorized("the tokens of this page cannot be read"))?;
        match tokens.check(token, SystemTime::now()) {
            Ok(token) => {
                let called = format!("token {}", token.called());
                Ok(Self { scope: Some(token.scope), has_token: true, called, until: token.expires.clone() })
            }
            Err(NoToken::Unknown) => Err(unauthorized("this page has no such token, or it was revoked")),
            Err(NoToken::Expired) => Err(unauthorized("this token has expired")),
        }
    }
}
