//! A client of etcd, over the JSON gateway that every etcd answers on its client port since 3.4: `POST /v3/kv/txn` and others,
//! with keys and values in base64 and whole numbers as strings.
//!
//! | file | |
//! |---|---|
//! | this | what is asked |
//! | `http` | requests and answers on one connection |
//! | `base64` | keys and values |
//! | `tls` | connections that are encrypted |
//!
//! One request is on its way at a time. An endpoint that does not answer in time is left for the next one. A transaction
//! whose answer is lost may have been done: its sender reads what became of it.

mod base64;
mod http;
mod tls;

pub use tls::Tls;

use crate::map::Item;
use crate::txn::{Compare, Op, Outcome, Revision, Txn};
use http::Connection;
use serde_json::{Value, json};
use std::time::Duration;

/// A lease.
pub type LeaseId = i64;

/// How long an endpoint may take to answer.
const PATIENCE: Duration = Duration::from_millis(700);

/// Why etcd could not be asked, or did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No endpoint answers.
    #[error("etcd cannot be reached: {0}")]
    Unreachable(String),
    /// It answers, and not as an etcd does.
    #[error("{endpoint} does not answer like an etcd of version 3.4 or later: {what}")]
    Foreign {
        /// Which.
        endpoint: String,
        /// What it said.
        what: String,
    },
    /// It wants a user and a password, or others.
    #[error("etcd refuses access: {0}")]
    Denied(String),
    /// It says why not.
    #[error("etcd: {0}")]
    Refused(String),
    /// A member answers, and is not well.
    #[error("version {version} answers, but: {what}")]
    Unwell {
        /// Its version.
        version: String,
        /// What it says of itself.
        what: String,
    },
}

/// How etcd is reached: `host:port` of its members, a user, and by which certificates they are known.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// The members.
    pub endpoints: Vec<String>,
    /// User and password.
    pub user: Option<(String, String)>,
    /// Connections are encrypted.
    pub tls: Option<Tls>,
}

/// See the module.
#[derive(Debug)]
pub struct Etcd {
    options: EtcdOptions,
    /// Which of the endpoints.
    at: usize,
    connection: Option<Connection>,
    token: Option<String>,
}

impl Etcd {
    /// Connects when it is first used.
    pub const fn new(options: EtcdOptions) -> Self {
        Self { options, at: 0, connection: None, token: None }
    }

    /// The endpoint that is asked.
    pub fn endpoint(&self) -> &str {
        self.options.endpoints.get(self.at).map_or("", String::as_str)
    }

    /// Asks one endpoint after the other until one answers.
    async fn post(&mut self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let mut last = EtcdError::Unreachable("no endpoint is named".to_owned());
        for _ in 0..self.options.endpoints.len() {
            let posted = tokio::time::timeout(PATIENCE, self.post_here(path, body)).await;
            match posted {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error @ (EtcdError::Denied(_) | EtcdError::Refused(_)))) => return Err(error),
                Ok(Err(error)) => last = error,
                Err(_) => {
                    let waited = PATIENCE.as_secs_f64();
                    let why = format!("{} did not answer within {waited:.1} s", self.endpoint());
                    last = EtcdError::Unreachable(why);
                }
            }
            self.connection = None;
            self.at = (self.at + 1) % self.options.endpoints.len();
        }
        Err(last)
    }

    async fn post_here(&mut self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        if self.token.is_none()
            && let Some((name, password)) = self.options.user.clone()
        {
            let body = json!({ "name": name, "password": password });
            let answer = self.exchange("/v3/auth/authenticate", &body);
            self.token = answer.await?["token"].as_str().map(str::to_owned);
        }
        let answer = self.exchange(path, body).await;
        if let Err(EtcdError::Denied(_)) = answer
            && self.token.take().is_some()
        {
            // It may be of before a restart; asked anew the next time.
            return Err(EtcdError::Unreachable("the token was refused".to_owned()));
        }
        answer
    }

    async fn exchange(&mut self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let endpoint = self.endpoint().to_owned();
        let unreachable = |error: std::io::Error| match error.kind() {
            // It is there: it shows another certificate, or speaks another language.
            std::io::ErrorKind::InvalidData => {
                EtcdError::Foreign { endpoint: endpoint.clone(), what: error.to_string() }
            }
            _ => EtcdError::Unreachable(format!("{endpoint}: {error}")),
        };
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&endpoint, self.options.tls.as_ref()).await.map_err(unreachable)?,
        };
        let exchanged = connection.post(&endpoint, path, self.token.as_deref(), &body.to_string()).await;
        let (status, text) = exchanged.map_err(unreachable)?;
        let foreign = || {
            if text.contains("HTTP request to an HTTPS server") {
                let what = "it wants TLS: give --etcd-ca".to_owned();
                return EtcdError::Foreign { endpoint: endpoint.clone(), what };
            }
            if text.contains("CommonName of client") {
                let what = "its gateway takes no certificate (--etcd-cert) with a common name".to_owned();
                return EtcdError::Foreign { endpoint: endpoint.clone(), what };
            }
            let what = format!("status {status}, {:?}", text.chars().take(80).collect::<String>());
            EtcdError::Foreign { endpoint: endpoint.clone(), what }
        };
        let answer: Value =
            serde_json::from_str(text.lines().next().unwrap_or_default()).map_err(|_| foreign())?;
        self.connection = Some(connection);
        let error = &answer["error"];
        if status == 200 && error.is_null() {
            return Ok(answer);
        }
        // In a stream the error is an object, and the status was said before.
        let Some(why) = error.as_str().or_else(|| error["message"].as_str()) else { return Err(foreign()) };
        let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
        Err(if status == 401 || says(&["auth", "permission", "user name"]) {
            EtcdError::Denied(why.to_owned())
        } else if status == 503
            || says(&["no leader", "leader changed", "not leader", "timed out", "unavailable"])
        {
            EtcdError::Unreachable(why.to_owned())
        } else {
            EtcdError::Refused(why.to_owned())
        })
    }

    /// A number, which is a string in JSON, and left out if it is zero.
    fn number(value: &Value) -> i64 {
        value.as_str().and_then(|text| text.parse().ok()).or_else(|| value.as_i64()).unwrap_or(0)
    }

    fn revision(value: &Value) -> Revision {
        Self::number(value).unsigned_abs()
    }

    /// All keys that begin with `prefix`, and the revision in which that is so.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn range(&mut self, prefix: &str) -> Result<(Revision, Vec<Item>), EtcdError> {
        self.read(prefix, false).await
    }

    /// As [`range`](Self::range), as far as the member knows that is asked: also if it has no leader, and then it may be old.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn range_here(&mut self, prefix: &str) -> Result<(Revision, Vec<Item>), EtcdError> {
        self.read(prefix, true).await
    }

    async fn read(&mut self, prefix: &str, here: bool) -> Result<(Revision, Vec<Item>), EtcdError> {
        let end = end_of(prefix);
        let (key, end) = (base64::encode(prefix.as_bytes()), base64::encode(&end));
        let body = json!({ "key": key, "range_end": end, "serializable": here });
        let answer = self.post("/v3/kv/range", &body).await?;
        let text = |value: &Value| {
            let bytes = base64::decode(value.as_str().unwrap_or_default())?;
            String::from_utf8(bytes).ok()
        };
        let items = answer["kvs"].as_array().into_iter().flatten().filter_map(|item| {
            Some(Item {
                key: text(&item["key"])?,
                value: text(&item["value"])?,
                made: Self::revision(&item["create_revision"]),
                changed: Self::revision(&item["mod_revision"]),
            })
        });
        Ok((Self::revision(&answer["header"]["revision"]), items.collect()))
    }

    /// Executes a transaction; what is leased goes with `lease`.
    ///
    /// # Errors
    /// If it cannot be asked: then it may have been done all the same.
    pub async fn txn(&mut self, txn: &Txn, lease: LeaseId) -> Result<Outcome, EtcdError> {
        let key = |key: &str| base64::encode(key.as_bytes());
        let compare: Vec<_> = txn
            .when
            .iter()
            .map(|compare| match compare {
                Compare::Changed(of, at) => {
                    json!({ "key": key(of), "target": "MOD", "result": "EQUAL", "mod_revision": at.to_string() })
                }
                Compare::Made(of, at) => {
                    json!({ "key": key(of), "target": "CREATE", "result": "EQUAL", "create_revision": at.to_string() })
                }
                Compare::Exists(of) => {
                    json!({ "key": key(of), "target": "CREATE", "result": "GREATER", "create_revision": "0" })
                }
            })
            .collect();
        let put = |of: &str, value: &str, lease: LeaseId| json!({ "request_put": { "key": key(of), "value": key(value), "lease": lease.to_string() } });
        let success: Vec<_> = txn
            .then
            .iter()
            .map(|op| match op {
                Op::Put(of, value) => put(of, value, 0),
                Op::PutLeased(of, value) => put(of, value, lease),
                Op::Delete(of) => json!({ "request_delete_range": { "key": key(of) } }),
                Op::DeletePrefix(of) => json!({ "request_delete_range": {
                    "key": key(of), "range_end": base64::encode(&end_of(of)) } }),
            })
            .collect();
        let answer = self.post("/v3/kv/txn", &json!({ "compare": compare, "success": success })).await?;
        Ok(match answer["succeeded"].as_bool() {
            Some(true) => Outcome::Done(Self::revision(&answer["header"]["revision"])),
            _ => Outcome::Refused,
        })
    }

    /// A new lease of at least `ttl`, in whole seconds, and how long it lasts.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn grant(&mut self, ttl: Duration) -> Result<(LeaseId, Duration), EtcdError> {
        let answer =
            self.post("/v3/lease/grant", &json!({ "TTL": ttl.as_secs().max(1).to_string() })).await?;
        Ok((Self::number(&answer["ID"]), seconds(&answer["TTL"])))
    }

    /// Renews a lease: how long it lasts from now on; `None` if it is over.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn renew(&mut self, lease: LeaseId) -> Result<Option<Duration>, EtcdError> {
        let answer = self.post("/v3/lease/keepalive", &json!({ "ID": lease.to_string() })).await?;
        let ttl = seconds(&answer["result"]["TTL"]);
        Ok((!ttl.is_zero()).then_some(ttl))
    }

    /// Ends a lease, and what goes with it.
    ///
    /// # Errors
    /// If it cannot be asked, or there is no such lease.
    pub async fn revoke(&mut self, lease: LeaseId) -> Result<(), EtcdError> {
        self.post("/v3/lease/revoke", &json!({ "ID": lease.to_string() })).await.map(drop)
    }

    /// Whether the member that is asked leads.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub async fn is_leader(&mut self) -> Result<bool, EtcdError> {
        let answer = self.post("/v3/maintenance/status", &json!({})).await?;
        let (me, leader) = (&answer["header"]["member_id"], &answer["leader"]);
        Ok(!leader.is_null() && me == leader)
    }

    /// The version of the member that is asked, if it is well: it knows a leader, and raises no alarm.
    ///
    /// # Errors
    /// If it cannot be asked, or is not well.
    pub async fn health(&mut self) -> Result<String, EtcdError> {
        let answer = self.post("/v3/maintenance/status", &json!({})).await?;
        let version = answer["version"].as_str().unwrap_or("unknown").to_owned();
        // Alarms are among these, and since 3.4 that it has no leader is, too.
        let said = answer["errors"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut wrong: Vec<_> =
            said.filter(|error| !error.contains("no leader")).map(str::to_owned).collect();
        // Left out, or zero; ids of members need all 64 bits.
        if answer["leader"].as_str().is_none_or(|leader| leader == "0") {
            wrong.insert(0, "it has no leader".to_owned());
        }
        if wrong.is_empty() {
            Ok(version)
        } else {
            Err(EtcdError::Unwell { version, what: wrong.join("; ") })
        }
    }
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs(Etcd::number(value).max(0).unsigned_abs())
}

/// The first key behind all that begin with `prefix`.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        // All prefixes end with a slash.
        *last += 1;
    }
    end
}
