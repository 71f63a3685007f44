//! The calls of the JSON gateway of etcd 3.4 (`/v3/…`) and later, and what it answers. Numbers of 64 bits
//! are texts there, keys and values base 64, and what is zero is left out.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::key::KeyRange;
use crate::trouble::{DirectoryFailure, DirectoryFailureKind};

/// A call of the gateway, each with a path of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdCall {
    /// Asks for a token.
    Authenticate {
        /// The user's name in etcd.
        user: String,
        /// The password of that user.
        password: String,
    },
    /// Asks for a lease.
    Grant {
        /// How long it lasts after the last [`EtcdCall::KeepAlive`], seconds.
        ttl_s: u64,
    },
    /// Keeps a lease.
    KeepAlive {
        /// Its number, from [`EtcdReply::Granted`].
        lease: i64,
    },
    /// Ends a lease; all keys under it go.
    Revoke {
        /// Its number, from [`EtcdReply::Granted`].
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
    Change(EtcdTransaction),
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
pub struct EtcdTransaction {
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
pub struct KeyValue {
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
pub struct RangeResult {
    /// The revision at which they were read.
    pub revision: i64,
    /// The keys, in their order.
    pub pairs: Vec<KeyValue>,
    /// Whether there are more behind them.
    pub has_more: bool,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdReply {
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
    Found(RangeResult),
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
pub enum EtcdRefusal {
    /// There is no such lease.
    NoLease,
    /// The revision that was asked for is compacted.
    Compacted,
    /// The token is not valid any more.
    OldToken,
    /// Any other reason, with what to do about it.
    Trouble(DirectoryFailure),
}

/// What a watch says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchUpdate {
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

impl EtcdCall {
    /// The path of the request.
    pub const fn path(&self) -> &'static str {
        match self {
            EtcdCall::Authenticate { .. } => "/v3/auth/authenticate",
            EtcdCall::Grant { .. } => "/v3/lease/grant",
            EtcdCall::KeepAlive { .. } => "/v3/lease/keepalive",
            EtcdCall::Revoke { .. } => "/v3/lease/revoke",
            EtcdCall::Range { .. } => "/v3/kv/range",
            EtcdCall::Change(_) => "/v3/kv/txn",
            EtcdCall::Watch { .. } => "/v3/watch",
        }
    }

    /// The body of the request.
    pub fn body(&self) -> Vec<u8> {
        let text = |key: &str| BASE64.encode(key);
        let body = match self {
            EtcdCall::Authenticate { user, password } => json!({ "name": user, "password": password }),
            EtcdCall::Grant { ttl_s } => json!({ "TTL": ttl_s.to_string() }),
            EtcdCall::KeepAlive { lease } | EtcdCall::Revoke { lease } => json!({ "ID": lease.to_string() }),
            EtcdCall::Range { range, limit, revision } => json!({
                "key": BASE64.encode(&range.from),
                "range_end": text(&range.to),
                "limit": limit.to_string(),
                "revision": revision.to_string(),
            }),
            EtcdCall::Change(EtcdTransaction { guard, revision, lease, puts, deletes }) => {
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
            EtcdCall::Watch { range, revision } => json!({ "create_request": {
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
    /// [`EtcdRefusal`]: etcd refuses the call, or this is no answer of its gateway.
    pub fn reply(&self, status: u16, body: &[u8]) -> Result<EtcdReply, EtcdRefusal> {
        if status != 200 {
            return Err(refusal_of(status, body));
        }
        Ok(match self {
            EtcdCall::Authenticate { .. } => EtcdReply::Token(read::<AuthenticateResponse>(body)?.token),
            EtcdCall::Grant { .. } => {
                let granted: LeaseGrantResponse = read(body)?;
                let ttl_s = u64::try_from(granted.ttl.0).ok().filter(|ttl_s| granted.id.0 != 0 && *ttl_s > 0);
                EtcdReply::Granted { lease: granted.id.0, ttl_s: ttl_s.ok_or_else(|| not_etcd(body))? }
            }
            EtcdCall::KeepAlive { .. } => {
                let line = body.split(|byte| *byte == b'\n').next().unwrap_or_default();
                let streamed: StreamResponse<LeaseGrantResponse> = read(line)?;
                // A lease that is not there has no TTL, or one of -1.
                EtcdReply::Alive(u64::try_from(streamed.result(line)?.ttl.0).unwrap_or(0))
            }
            EtcdCall::Revoke { .. } => {
                read::<HeaderOnlyResponse>(body)?;
                EtcdReply::Revoked
            }
            EtcdCall::Range { .. } => {
                let found: RangeResponse = read(body)?;
                let pairs = found.kvs.into_iter().map(|pair| pair.read(body)).collect::<Result<_, _>>()?;
                EtcdReply::Found(RangeResult { revision: found.header.revision.0, pairs, has_more: found.more })
            }
            EtcdCall::Change(_) => {
                let changed: TxnResponse = read(body)?;
                EtcdReply::Changed { is_done: changed.succeeded, revision: changed.header.revision.0 }
            }
            // Its answer is read line by line.
            EtcdCall::Watch { .. } => return Err(not_etcd(body)),
        })
    }
}

/// Reads a line of the answer to [`EtcdCall::Watch`].
///
/// # Errors
/// [`EtcdRefusal`]: etcd refuses to go on, or this is no line of its gateway.
pub fn news(line: &[u8]) -> Result<WatchUpdate, EtcdRefusal> {
    let streamed: StreamResponse<WatchResponse> = read(line)?;
    let watched = streamed.result(line)?;
    if watched.compact_revision.0 > 0 {
        return Ok(WatchUpdate::Compacted);
    }
    if watched.canceled {
        return Ok(WatchUpdate::Ended(watched.cancel_reason));
    }
    if watched.created {
        // Its revision may be later than what the watch still has to tell.
        return Ok(WatchUpdate::Begun(watched.header.revision.0));
    }
    let changes = watched.events.into_iter().map(|event| {
        let is_deleted = event.kind == "DELETE";
        let pair = event.kv.read(line)?;
        Ok(KeyChange { key: pair.key, value: (!is_deleted).then_some(pair.value) })
    });
    let changes = changes.collect::<Result<_, EtcdRefusal>>()?;
    let revision = (!watched.fragment).then_some(watched.header.revision.0);
    Ok(WatchUpdate::Changes { changes, revision })
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, EtcdRefusal> {
    serde_json::from_slice(body).map_err(|_| not_etcd(body))
}

fn not_etcd(body: &[u8]) -> EtcdRefusal {
    let begins = String::from_utf8_lossy(&body[..body.len().min(60)]).escape_debug().to_string();
    EtcdRefusal::Trouble(DirectoryFailure::new(
        DirectoryFailureKind::NotEtcd,
        format!("this is no answer of etcd's gateway: {begins}"),
    ))
}

/// Reads a refusal by its code (gRPC's) and, where one code means several things, by etcd's words.
fn refusal_of(status: u16, body: &[u8]) -> EtcdRefusal {
    match serde_json::from_slice::<GrpcStatus>(body) {
        Ok(refused) => refused.meaning(),
        // A gateway's own refusal is followed by a trailer in the body.
        Err(_) => match serde_json::Deserializer::from_slice(body).into_iter::<GrpcStatus>().next() {
            Some(Ok(refused)) => refused.meaning(),
            _ if status == 503 || status == 504 => EtcdRefusal::Trouble(DirectoryFailure::new(
                DirectoryFailureKind::Unreachable,
                format!("it answers with HTTP status {status}"),
            )),
            _ => not_etcd(body),
        },
    }
}

/// A number that the gateway writes as a text; a missing one is 0.
#[derive(Clone, Copy, Default)]
struct Int64Text(i64);

impl<'de> Deserialize<'de> for Int64Text {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Int64Text).map_err(serde::de::Error::custom)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseHeader {
    revision: Int64Text,
}

#[derive(Deserialize)]
struct HeaderOnlyResponse {
    #[expect(dead_code, reason = "that it is there is what is asked")]
    header: ResponseHeader,
}

#[derive(Deserialize)]
struct AuthenticateResponse {
    token: String,
}

#[derive(Deserialize)]
struct LeaseGrantResponse {
    #[serde(rename = "ID", default)]
    id: Int64Text,
    #[serde(rename = "TTL", default)]
    ttl: Int64Text,
}

#[derive(Deserialize)]
struct RangeResponse {
    header: ResponseHeader,
    #[serde(default)]
    kvs: Vec<KeyValueText>,
    #[serde(default)]
    more: bool,
}

#[derive(Deserialize)]
struct TxnResponse {
    header: ResponseHeader,
    #[serde(default)]
    succeeded: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct KeyValueText {
    key: String,
    value: String,
    lease: Int64Text,
    mod_revision: Int64Text,
}

impl KeyValueText {
    fn read(self, body: &[u8]) -> Result<KeyValue, EtcdRefusal> {
        let read = |text: &str| BASE64.decode(text).map_err(|_| not_etcd(body));
        let (key, value) = (read(&self.key)?, read(&self.value)?);
        Ok(KeyValue { key, value, lease: self.lease.0, revision: self.mod_revision.0 })
    }
}

#[derive(Deserialize)]
struct StreamResponse<T> {
    result: Option<T>,
    error: Option<GrpcStatus>,
}

impl<T> StreamResponse<T> {
    fn result(self, line: &[u8]) -> Result<T, EtcdRefusal> {
        match self {
            StreamResponse { error: Some(refused), .. } => Err(refused.meaning()),
            StreamResponse { result: Some(result), .. } => Ok(result),
            StreamResponse { .. } => Err(not_etcd(line)),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WatchResponse {
    header: ResponseHeader,
    created: bool,
    canceled: bool,
    cancel_reason: String,
    compact_revision: Int64Text,
    fragment: bool,
    events: Vec<EventText>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EventText {
    #[serde(rename = "type")]
    kind: String,
    kv: KeyValueText,
}

/// A refusal: of a call `error` and `code`, of a stream `grpc_code` and `message`.
#[derive(Deserialize)]
struct GrpcStatus {
    message: String,
    #[serde(alias = "grpc_code")]
    code: u32,
}

impl GrpcStatus {
    /// The codes are those of gRPC.
    fn meaning(self) -> EtcdRefusal {
        let message = self.message.escape_debug().to_string();
        let has = |words: &str| message.contains(words);
        let kind = match self.code {
            5 if has("lease not found") => return EtcdRefusal::NoLease,
            11 if has("compacted") => return EtcdRefusal::Compacted,
            16 => return EtcdRefusal::OldToken,
            3 if has("auth store is old") => return EtcdRefusal::OldToken,
            3 | 9 if has("authentication") || has("user name") || has("password") => DirectoryFailureKind::Password,
            7 => DirectoryFailureKind::Permission,
            8 if has("space exceeded") => DirectoryFailureKind::Full,
            _ => DirectoryFailureKind::Unreachable,
        };
        EtcdRefusal::Trouble(DirectoryFailure::new(kind, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What etcd 3.4.23 answered.
    const HEADER: &str = r#""header":{"cluster_id":"2755613793311995676","member_id":"9829954754940738069","revision":"5","raft_term":"2"}"#;

    fn lease(text: &str, call: &EtcdCall) -> Result<EtcdReply, EtcdRefusal> {
        call.reply(200, text.replace("HEADER", HEADER).as_bytes())
    }

    #[test]
    fn answers_of_etcd_are_read() {
        let grant = EtcdCall::Grant { ttl_s: 30 };
        let granted = EtcdReply::Granted { lease: 1_879_586_651_710_531_077, ttl_s: 30 };
        assert_eq!(lease(r#"{HEADER,"ID":"1879586651710531077","TTL":"30"}"#, &grant), Ok(granted));
        let keep = EtcdCall::KeepAlive { lease: 77 };
        assert_eq!(lease("{\"result\":{HEADER,\"ID\":\"77\",\"TTL\":\"30\"}}\n", &keep), Ok(EtcdReply::Alive(30)));
        assert_eq!(lease("{\"result\":{HEADER,\"ID\":\"77\"}}\n", &keep), Ok(EtcdReply::Alive(0)));
        assert_eq!(lease("{HEADER}", &EtcdCall::Revoke { lease: 77 }), Ok(EtcdReply::Revoked));
        let range = EtcdCall::Range { range: KeyRange::format(), limit: 1, revision: 0 };
        let found = r#"{HEADER,"kvs":[{"key":"L2YvYQ==","create_revision":"2","mod_revision":"2","version":"1","value":"MQ==","lease":"7"}],"more":true,"count":"9"}"#;
        let pair = KeyValue { key: b"/f/a".to_vec(), value: b"1".to_vec(), lease: 7, revision: 2 };
        assert_eq!(
            lease(found, &range),
            Ok(EtcdReply::Found(RangeResult { revision: 5, pairs: vec![pair], has_more: true }))
        );
        assert_eq!(
            lease("{HEADER}", &range),
            Ok(EtcdReply::Found(RangeResult { revision: 5, ..RangeResult::default() }))
        );
        let change = EtcdTransaction { guard: "/f".into(), revision: 0, lease: 7, puts: vec![], deletes: vec![] };
        let changed = r#"{HEADER,"succeeded":true,"responses":[{"response_put":{"header":{"revision":"3"}}}]}"#;
        assert_eq!(lease(changed, &EtcdCall::Change(change)), Ok(EtcdReply::Changed { is_done: true, revision: 5 }));
        let call = EtcdCall::Authenticate { user: "u".into(), password: "p".into() };
        assert_eq!(lease(r#"{HEADER,"token":"a.1"}"#, &call), Ok(EtcdReply::Token("a.1".into())));
    }

    #[test]
    fn news_of_a_watch_are_read() {
        let read = |text: &str| news(text.replace("HEADER", HEADER).as_bytes());
        let changes = |changes, revision| Ok(WatchUpdate::Changes { changes, revision });
        assert_eq!(read(r#"{"result":{HEADER,"created":true}}"#), Ok(WatchUpdate::Begun(5)));
        let put = KeyChange { key: b"/f/a".to_vec(), value: Some(b"1".to_vec()) };
        let deleted = KeyChange { key: b"/f/a".to_vec(), value: None };
        let text = r#"{"result":{HEADER,"events":[{"kv":{"key":"L2YvYQ==","mod_revision":"4","value":"MQ=="}},{"type":"DELETE","kv":{"key":"L2YvYQ==","mod_revision":"5"}}]}}"#;
        assert_eq!(read(text), changes(vec![put, deleted], Some(5)));
        assert_eq!(read(r#"{"result":{HEADER}}"#), changes(vec![], Some(5)));
        assert_eq!(read(r#"{"result":{HEADER,"canceled":true,"compact_revision":"3"}}"#), Ok(WatchUpdate::Compacted));
        let ended = r#"{"result":{HEADER,"canceled":true,"cancel_reason":"etcdserver: no leader"}}"#;
        assert_eq!(read(ended), Ok(WatchUpdate::Ended("etcdserver: no leader".into())));
        let refused =
            r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"x"}}"#;
        assert!(matches!(read(refused), Err(EtcdRefusal::Trouble(it)) if it.kind == DirectoryFailureKind::Unreachable));
    }

    #[test]
    fn refusals_of_etcd_are_told_apart() {
        let call = EtcdCall::Grant { ttl_s: 1 };
        let refused = |status, code: u32, message: &str| {
            let body = format!(r#"{{"error":"{message}","message":"{message}","code":{code}}}Grpc-Trailer: x"#);
            call.reply(status, body.as_bytes()).unwrap_err()
        };
        assert_eq!(refused(404, 5, "etcdserver: requested lease not found"), EtcdRefusal::NoLease);
        assert_eq!(refused(400, 11, "etcdserver: mvcc: required revision has been compacted"), EtcdRefusal::Compacted);
        assert_eq!(refused(401, 16, "etcdserver: invalid auth token"), EtcdRefusal::OldToken);
        for (code, message, kind) in [
            (3, "etcdserver: authentication failed, invalid user ID or password", DirectoryFailureKind::Password),
            (3, "etcdserver: user name is empty", DirectoryFailureKind::Password),
            (9, "etcdserver: authentication is not enabled", DirectoryFailureKind::Password),
            (7, "etcdserver: permission denied", DirectoryFailureKind::Permission),
            (8, "etcdserver: mvcc: database space exceeded", DirectoryFailureKind::Full),
            (14, "etcdserver: request timed out", DirectoryFailureKind::Unreachable),
        ] {
            let EtcdRefusal::Trouble(trouble) = refused(400, code, message) else { panic!("{message}") };
            assert_eq!((trouble.kind, trouble.message.as_str()), (kind, message));
        }
        for (status, body) in [(404, "404 page not found"), (200, "<html>\u{1b}"), (200, "{}"), (200, "{\"header\":3}")]
        {
            let refusal = call.reply(status, body.as_bytes());
            let is_named =
                |it: &DirectoryFailure| it.kind == DirectoryFailureKind::NotEtcd && !it.message.contains('\u{1b}');
            assert!(matches!(&refusal, Err(EtcdRefusal::Trouble(it)) if is_named(it)), "{body}: {refusal:?}");
        }
    }

    #[test]
    fn calls_are_written_as_the_gateway_reads_them() {
        let body = |call: EtcdCall| String::from_utf8(call.body()).unwrap();
        let range = EtcdCall::Range { range: KeyRange { from: "/f/".into(), to: "/f0".into() }, limit: 1, revision: 0 };
        assert_eq!(body(range), r#"{"key":"L2Yv","limit":"1","range_end":"L2Yw","revision":"0"}"#);
        let change = EtcdTransaction {
            guard: "/f".into(),
            revision: 3,
            lease: 7,
            puts: vec![("/f/b".into(), b"2".to_vec())],
            deletes: vec!["/f/a".into()],
        };
        assert_eq!(
            body(EtcdCall::Change(change)),
            r#"{"compare":[{"key":"L2Y=","mod_revision":"3","result":"EQUAL","target":"MOD"}],"success":[{"request_put":{"key":"L2YvYg==","lease":"7","value":"Mg=="}},{"request_delete_range":{"key":"L2YvYQ=="}}]}"#
        );
    }
}
