//! The calls of the JSON gateway of etcd 3.4 (`/v3/…`) and later, and what it answers. Numbers of 64 bits
//! are texts there, keys and values base 64, and what is zero is left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::key::KeyRange;
use crate::trouble::{Trouble, TroubleKind};

/// A call of the gateway, each with a path of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Asks for a token.
    Authenticate {
        /// The user's name in etcd.
        user: String,
        /// The password of that user.
        password: String,
    },
    /// Asks for a lease.
    Grant {
        /// How long it lasts after the last [`Call::KeepAlive`], seconds.
        ttl_s: u64,
    },
    /// Keeps a lease.
    KeepAlive {
        /// Its number, from [`Reply::Granted`].
        lease: i64,
    },
    /// Ends a lease; all keys under it go.
    Revoke {
        /// Its number, from [`Reply::Granted`].
        lease: i64,
    },
    /// Reads keys with their values, in the order of their bytes.
    Range {
        /// The keys to read.
        range: KeyRange,
        /// How many at most; 0: all.
        limit: u32,
        /// As they were at this revision; 0: as they are.
        revision: i64,
    },
    /// Writes keys, all or none.
    Change(Change),
    /// Follows keys: the answer has no end.
    Watch {
        /// The keys to follow.
        range: KeyRange,
        /// The revision of the first change to be told.
        revision: i64,
    },
}

/// A change of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key whose last change has to be that of `revision` (0: there is no such key), or nothing is written.
    pub guard: String,
    /// The revision that the last change of `guard` must have.
    pub revision: i64,
    /// The lease of all that is put; 0: none.
    pub lease: i64,
    /// Keys and values to put.
    pub puts: Vec<(String, Vec<u8>)>,
    /// Keys to delete.
    pub deletes: Vec<String>,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key: any bytes, for others may write there.
    pub key: Vec<u8>,
    /// The value: any bytes.
    pub value: Vec<u8>,
    /// The lease; 0: none.
    pub lease: i64,
    /// The revision of the last change.
    pub revision: i64,
}

/// The keys that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The revision at which they were read.
    pub revision: i64,
    /// The keys, in their order.
    pub pairs: Vec<Pair>,
    /// Whether there are more behind them.
    pub has_more: bool,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A token, for the header of further calls.
    Token(String),
    /// A lease was granted.
    Granted {
        /// Its number, not 0.
        lease: i64,
        /// How long it lasts, seconds.
        ttl_s: u64,
    },
    /// What is left of a lease, seconds; 0: there is no such lease.
    Alive(u64),
    /// The lease has ended.
    Revoked,
    /// Keys that were read.
    Found(Found),
    /// Whether the keys were written, and the revision after that.
    Changed {
        /// Whether the guard was as expected, and all was written.
        is_done: bool,
        /// The revision of the database after the call.
        revision: i64,
    },
}

/// Why a call was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such lease.
    NoLease,
    /// The revision that was asked for is compacted.
    Compacted,
    /// The token is not valid any more.
    OldToken,
    /// Any other reason, with what to do about it.
    Trouble(Trouble),
}

/// What a watch says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// These keys have changed: those without a value are deleted.
    Changes {
        /// The changes in their order.
        changes: Vec<KeyChange>,
        /// The revision up to which all changes were told; `None`: more of the same may follow.
        revision: Option<i64>,
    },
    /// The watch has begun at a member that knows of this revision.
    Begun(i64),
    /// What happened before this revision is not known any more; the watch has ended.
    Compacted,
    /// The watch has ended, with etcd's reason.
    Ended(String),
}

/// A key that was put or deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The key: any bytes.
    pub key: Vec<u8>,
    /// Its value; `None` if it is deleted.
    pub value: Option<Vec<u8>>,
}

impl Call {
    /// The path of the request.
    pub const fn path(&self) -> &'static str {
        match self {
            Call::Authenticate { .. } => "/v3/auth/authenticate",
            Call::Grant { .. } => "/v3/lease/grant",
            Call::KeepAlive { .. } => "/v3/lease/keepalive",
            Call::Revoke { .. } => "/v3/lease/revoke",
            Call::Range { .. } => "/v3/kv/range",
            Call::Change(_) => "/v3/kv/txn",
            Call::Watch { .. } => "/v3/watch",
        }
    }

    /// The body of the request.
    pub fn body(&self) -> Vec<u8> {
        let text = |key: &str| BASE64.encode(key);
        let body = match self {
            Call::Authenticate { user, password } => json!({ "name": user, "password": password }),
            Call::Grant { ttl_s } => json!({ "TTL": ttl_s.to_string() }),
            Call::KeepAlive { lease } | Call::Revoke { lease } => json!({ "ID": lease.to_string() }),
            Call::Range { range, limit, revision } => json!({
                "key": BASE64.encode(&range.from),
                "range_end": text(&range.to),
                "limit": limit.to_string(),
                "revision": revision.to_string(),
            }),
            Call::Change(Change { guard, revision, lease, puts, deletes }) => {
                let puts = puts.iter().map(|(key, value)| {
                    json!({ "request_put": { "key": text(key), "value": BASE64.encode(value), "lease": lease.to_string() } })
                });
                let deletes = deletes.iter().map(|key| json!({ "request_delete_range": { "key": text(key) } }));
                json!({
                    "compare": [{
                        "key": text(guard), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string(),
                    }],
                    "success": puts.chain(deletes).collect::<Vec<Value>>(),
                })
            }
            Call::Watch { range, revision } => json!({ "create_request": {
                "key": BASE64.encode(&range.from),
                "range_end": text(&range.to),
                "start_revision": revision.to_string(),
                "progress_notify": true,
                "fragment": true,
            } }),
        };
        body.to_string().into_bytes()
    }

    /// Reads the answer, by its HTTP status and body.
    ///
    /// # Errors
    /// [`Refusal`]: etcd refuses the call, or this is no answer of its gateway.
    pub fn reply(&self, status: u16, body: &[u8]) -> Result<Reply, Refusal> {
        if status != 200 {
            return Err(refusal_of(status, body));
        }
        Ok(match self {
            Call::Authenticate { .. } => Reply::Token(read::<Token>(body)?.token),
            Call::Grant { .. } => {
                let granted: Granted = read(body)?;
                let ttl_s = u64::try_from(granted.ttl.0).ok().filter(|ttl_s| granted.id.0 != 0 && *ttl_s > 0);
                Reply::Granted { lease: granted.id.0, ttl_s: ttl_s.ok_or_else(|| not_etcd(body))? }
            }
            Call::KeepAlive { .. } => {
                let line = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
                let streamed: Streamed<Granted> = read(line)?;
                // A lease that is not there has no TTL, or one of -1.
                Reply::Alive(u64::try_from(streamed.result(line)?.ttl.0).unwrap_or(0))
            }
            Call::Revoke { .. } => {
                read::<Headed>(body)?;
                Reply::Revoked
            }
            Call::Range { .. } => {
                let found: Ranged = read(body)?;
                let pairs = found.kvs.into_iter().map(|pair| pair.read(body)).collect::<Result<_, _>>()?;
                Reply::Found(Found { revision: found.header.revision.0, pairs, has_more: found.more })
            }
            Call::Change(_) => {
                let changed: Changed = read(body)?;
                Reply::Changed { is_done: changed.succeeded, revision: changed.header.revision.0 }
            }
            // Its answer is read line by line.
            Call::Watch { .. } => return Err(not_etcd(body)),
        })
    }
}

/// Reads a line of the answer to [`Call::Watch`].
///
/// # Errors
/// [`Refusal`]: etcd refuses to go on, or this is no line of its gateway.
pub fn news(line: &[u8]) -> Result<News, Refusal> {
    let streamed: Streamed<Watched> = read(line)?;
    let watched = streamed.result(line)?;
    if watched.compact_revision.0 > 0 {
        return Ok(News::Compacted);
    }
    if watched.canceled {
        return Ok(News::Ended(watched.cancel_reason));
    }
    if watched.created {
        // Its revision may be later than what the watch still has to tell.
        return Ok(News::Begun(watched.header.revision.0));
    }
    let changes = watched.events.into_iter().map(|event| {
        let is_deleted = event.kind == "DELETE";
        let pair = event.kv.read(line)?;
        Ok(KeyChange { key: pair.key, value: (!is_deleted).then_some(pair.value) })
    });
    let changes = changes.collect::<Result<_, Refusal>>()?;
    let revision = (!watched.fragment).then_some(watched.header.revision.0);
    Ok(News::Changes { changes, revision })
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|_| not_etcd(body))
}

fn not_etcd(body: &[u8]) -> Refusal {
    let begins = String::from_utf8_lossy(&body[..body.len().min(60)]).escape_debug().to_string();
    Refusal::Trouble(Trouble::new(TroubleKind::NotEtcd, format!("this is no answer of etcd's gateway: {begins}")))
}

/// Reads a refusal by its code (gRPC's) and, where one code means several things, by etcd's words.
fn refusal_of(status: u16, body: &[u8]) -> Refusal {
    match serde_json::from_slice::<Refused>(body) {
        Ok(refused) => refused.meaning(),
        // A gateway's own refusal is followed by a trailer in the body.
        Err(_) => match serde_json::Deserializer::from_slice(body).into_iter::<Refused>().next() {
            Some(Ok(refused)) => refused.meaning(),
            _ if status == 503 || status == 504 => Refusal::Trouble(Trouble::new(
                TroubleKind::Unreachable,
                format!("it answers with HTTP status {status}"),
            )),
            _ => not_etcd(body),
        },
    }
}

/// A number that the gateway writes as a text; a missing one is 0.
#[derive(Clone, Copy, Default)]
struct Number(i64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Number).map_err(serde::de::Error::custom)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Header {
    revision: Number,
}

#[derive(Deserialize)]
struct Headed {
    #[expect(dead_code, reason = "that it is there is what is asked")]
    header: Header,
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

#[derive(Deserialize)]
struct Granted {
    #[serde(rename = "ID", default)]
    id: Number,
    #[serde(rename = "TTL", default)]
    ttl: Number,
}

#[derive(Deserialize)]
struct Ranged {
    header: Header,
    #[serde(default)]
    kvs: Vec<PairText>,
    #[serde(default)]
    more: bool,
}

#[derive(Deserialize)]
struct Changed {
    header: Header,
    #[serde(default)]
    succeeded: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PairText {
    key: String,
    value: String,
    lease: Number,
    mod_revision: Number,
}

impl PairText {
    fn read(self, body: &[u8]) -> Result<Pair, Refusal> {
        let read = |text: &str| BASE64.decode(text).map_err(|_| not_etcd(body));
        let (key, value) = (read(&self.key)?, read(&self.value)?);
        Ok(Pair { key, value, lease: self.lease.0, revision: self.mod_revision.0 })
    }
}

#[derive(Deserialize)]
struct Streamed<T> {
    result: Option<T>,
    error: Option<Refused>,
}

impl<T> Streamed<T> {
    fn result(self, line: &[u8]) -> Result<T, Refusal> {
        match self {
            Streamed { error: Some(refused), .. } => Err(refused.meaning()),
            Streamed { result: Some(result), .. } => Ok(result),
            Streamed { .. } => Err(not_etcd(line)),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Watched {
    header: Header,
    created: bool,
    canceled: bool,
    cancel_reason: String,
    compact_revision: Number,
    fragment: bool,
    events: Vec<EventText>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EventText {
    #[serde(rename = "type")]
    kind: String,
    kv: PairText,
}

/// A refusal: of a call `error` and `code`, of a stream `grpc_code` and `message`.
#[derive(Deserialize)]
struct Refused {
    message: String,
    #[serde(alias = "grpc_code")]
    code: u32,
}

impl Refused {
    /// The codes are those of gRPC.
    fn meaning(self) -> Refusal {
        let message = self.message.escape_debug().to_string();
        let has = |words: &str| message.contains(words);
        let kind = match self.code {
            5 if has("lease not found") => return Refusal::NoLease,
            11 if has("compacted") => return Refusal::Compacted,
            16 => return Refusal::OldToken,
            3 if has("auth store is old") => return Refusal::OldToken,
            3 | 9 if has("authentication") || has("user name") || has("password") => TroubleKind::Password,
            7 => TroubleKind::Permission,
            8 if has("space exceeded") => TroubleKind::Full,
            _ => TroubleKind::Unreachable,
        };
        Refusal::Trouble(Trouble::new(kind, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What etcd 3.4.23 answered.
    const HEADER: &str = r#""header":{"cluster_id":"2755613793311995676","member_id":"9829954754940738069","revision":"5","raft_term":"2"}"#;

    fn lease(text: &str, call: &Call) -> Result<Reply, Refusal> {
        call.reply(200, text.replace("HEADER", HEADER).as_bytes())
    }

    #[test]
    fn answers_of_etcd_are_read() {
        let grant = Call::Grant { ttl_s: 30 };
        let granted = Reply::Granted { lease: 1_879_586_651_710_531_077, ttl_s: 30 };
        assert_eq!(lease(r#"{HEADER,"ID":"1879586651710531077","TTL":"30"}"#, &grant), Ok(granted));
        let keep = Call::KeepAlive { lease: 77 };
        assert_eq!(lease("{\"result\":{HEADER,\"ID\":\"77\",\"TTL\":\"30\"}}\n", &keep), Ok(Reply::Alive(30)));
        assert_eq!(lease("{\"result\":{HEADER,\"ID\":\"77\"}}\n", &keep), Ok(Reply::Alive(0)));
        assert_eq!(lease("{HEADER}", &Call::Revoke { lease: 77 }), Ok(Reply::Revoked));
        let range = Call::Range { range: KeyRange::format(), limit: 1, revision: 0 };
        let found = r#"{HEADER,"kvs":[{"key":"L2YvYQ==","create_revision":"2","mod_revision":"2","version":"1","value":"MQ==","lease":"7"}],"more":true,"count":"9"}"#;
        let pair = Pair { key: b"/f/a".to_vec(), value: b"1".to_vec(), lease: 7, revision: 2 };
        assert_eq!(lease(found, &range), Ok(Reply::Found(Found { revision: 5, pairs: vec![pair], has_more: true })));
        assert_eq!(lease("{HEADER}", &range), Ok(Reply::Found(Found { revision: 5, ..Found::default() })));
        let change = Change { guard: "/f".into(), revision: 0, lease: 7, puts: vec![], deletes: vec![] };
        let changed = r#"{HEADER,"succeeded":true,"responses":[{"response_put":{"header":{"revision":"3"}}}]}"#;
        assert_eq!(lease(changed, &Call::Change(change)), Ok(Reply::Changed { is_done: true, revision: 5 }));
        let call = Call::Authenticate { user: "u".into(), password: "p".into() };
        assert_eq!(lease(r#"{HEADER,"token":"a.1"}"#, &call), Ok(Reply::Token("a.1".into())));
    }

    #[test]
    fn news_of_a_watch_are_read() {
        let read = |text: &str| news(text.replace("HEADER", HEADER).as_bytes());
        let changes = |changes, revision| Ok(News::Changes { changes, revision });
        assert_eq!(read(r#"{"result":{HEADER,"created":true}}"#), Ok(News::Begun(5)));
        let put = KeyChange { key: b"/f/a".to_vec(), value: Some(b"1".to_vec()) };
        let deleted = KeyChange { key: b"/f/a".to_vec(), value: None };
        let text = r#"{"result":{HEADER,"events":[{"kv":{"key":"L2YvYQ==","mod_revision":"4","value":"MQ=="}},{"type":"DELETE","kv":{"key":"L2YvYQ==","mod_revision":"5"}}]}}"#;
        assert_eq!(read(text), changes(vec![put, deleted], Some(5)));
        assert_eq!(read(r#"{"result":{HEADER}}"#), changes(vec![], Some(5)));
        assert_eq!(read(r#"{"result":{HEADER,"canceled":true,"compact_revision":"3"}}"#), Ok(News::Compacted));
        let ended = r#"{"result":{HEADER,"canceled":true,"cancel_reason":"etcdserver: no leader"}}"#;
        assert_eq!(read(ended), Ok(News::Ended("etcdserver: no leader".into())));
        let refused =
            r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"x"}}"#;
        assert!(matches!(read(refused), Err(Refusal::Trouble(it)) if it.kind == TroubleKind::Unreachable));
    }

    #[test]
    fn refusals_of_etcd_are_told_apart() {
        let call = Call::Grant { ttl_s: 1 };
        let refused = |status, code: u32, message: &str| {
            let body = format!(r#"{{"error":"{message}","message":"{message}","code":{code}}}Grpc-Trailer: x"#);
            call.reply(status, body.as_bytes()).unwrap_err()
        };
        assert_eq!(refused(404, 5, "etcdserver: requested lease not found"), Refusal::NoLease);
        assert_eq!(refused(400, 11, "etcdserver: mvcc: required revision has been compacted"), Refusal::Compacted);
        assert_eq!(refused(401, 16, "etcdserver: invalid auth token"), Refusal::OldToken);
        for (code, message, kind) in [
            (3, "etcdserver: authentication failed, invalid user ID or password", TroubleKind::Password),
            (3, "etcdserver: user name is empty", TroubleKind::Password),
            (9, "etcdserver: authentication is not enabled", TroubleKind::Password),
            (7, "etcdserver: permission denied", TroubleKind::Permission),
            (8, "etcdserver: mvcc: database space exceeded", TroubleKind::Full),
            (14, "etcdserver: request timed out", TroubleKind::Unreachable),
        ] {
            let Refusal::Trouble(trouble) = refused(400, code, message) else { panic!("{message}") };
            assert_eq!((trouble.kind, trouble.message.as_str()), (kind, message));
        }
        for (status, body) in [(404, "404 page not found"), (200, "<html>\u{1b}"), (200, "{}"), (200, "{\"header\":3}")]
        {
            let refusal = call.reply(status, body.as_bytes());
            let is_named = |it: &Trouble| it.kind == TroubleKind::NotEtcd && !it.message.contains('\u{1b}');
            assert!(matches!(&refusal, Err(Refusal::Trouble(it)) if is_named(it)), "{body}: {refusal:?}");
        }
    }

    #[test]
    fn calls_are_written_as_the_gateway_reads_them() {
        let body = |call: Call| String::from_utf8(call.body()).unwrap();
        let range = Call::Range { range: KeyRange { from: "/f/".into(), to: "/f0".into() }, limit: 1, revision: 0 };
        assert_eq!(body(range), r#"{"key":"L2Yv","limit":"1","range_end":"L2Yw","revision":"0"}"#);
        let change = Change {
            guard: "/f".into(),
            revision: 3,
            lease: 7,
            puts: vec![("/f/b".into(), b"2".to_vec())],
            deletes: vec!["/f/a".into()],
        };
        assert_eq!(
            body(Call::Change(change)),
            r#"{"compare":[{"key":"L2Y=","mod_revision":"3","result":"EQUAL","target":"MOD"}],"success":[{"request_put":{"key":"L2YvYg==","lease":"7","value":"Mg=="}},{"request_delete_range":{"key":"L2YvYQ=="}}]}"#
        );
    }
}
