//! Who is asking: OAuth 1.0 with PLAINTEXT, as MAAS checks it and as it answers.

use super::request::{Answer, Call, decode};
use std::collections::{BTreeMap, BTreeSet};

/// Seconds that a timestamp may be old.
const THRESHOLD: u64 = 300;

#[derive(Clone, Debug)]
pub(super) struct Account {
    pub name: String,
    pub admin: bool,
    pub consumer: String,
    pub token: String,
    pub secret: String,
}

impl Account {
    pub fn key(&self) -> String {
        format!("{}:{}:{}", self.consumer, self.token, self.secret)
    }
}

#[derive(Default)]
pub(super) struct Accounts {
    /// By token.
    pub by_token: BTreeMap<String, Account>,
    /// Timestamps and nonces that were used; those that are too old to be taken again are forgotten.
    used: BTreeSet<(u64, String, String)>,
}

impl Accounts {
    pub fn add(&mut self, name: &str, admin: bool) -> Account {
        let number = self.by_token.len() + 1;
        let account = Account {
            name: name.to_owned(),
            admin,
            consumer: format!("Consumer{number:010}"),
            token: format!("Token{number:013}"),
            secret: format!("Secret{number:026}"),
        };
        self.by_token.insert(account.token.clone(), account.clone());
        account
    }

    pub fn remove(&mut self, name: &str) {
        self.by_token.retain(|_, account| account.name != name);
    }

    /// `None`: nobody, which is not yet a refusal.
    pub fn check(&mut self, call: &Call, now: u64) -> Result<Option<Account>, Answer> {
        let Some(header) = call.authorization.strip_prefix("OAuth ") else { return Ok(None) };
        let parameters: BTreeMap<&str, String> = header
            .split(',')
            .filter_map(|part| part.trim().split_once('='))
            .map(|(name, value)| (name, decode(value.trim_matches('"'))))
            .collect();
        let needed = ["consumer_key", "token", "signature_method", "signature", "timestamp", "nonce"];
        let mut values = Vec::with_capacity(needed.len());
        for name in needed {
            match parameters.get(format!("oauth_{name}").as_str()) {
                Some(value) => values.push(value.clone()),
                None => return Ok(None),
            }
        }
        let [consumer, token, _, signature, timestamp, nonce] = values.as_slice() else { return Ok(None) };
        if !self.by_token.values().any(|a| a.consumer == *consumer) {
            return Err(refused("Invalid API key."));
        }
        let Some(account) = self.by_token.get(token).filter(|a| a.consumer == *consumer).cloned() else {
            return Err(refused(&format!("'Invalid access token: {token}'")));
        };
        // it was seen that the answer tells the very secret that was not known
        let expected = format!("&{}", account.secret);
        if *signature != expected {
            return Err(refused(&format!("'Invalid signature. Expected signature base string: {expected}'")));
        }
        let given: u64 = timestamp.parse().unwrap_or(0);
        if now.saturating_sub(given) > THRESHOLD {
            return Err(refused(&format!(
                "'Expired timestamp: given {given} and now {now} has a greater difference than threshold {THRESHOLD}'"
            )));
        }
        if self.used.len().is_multiple_of(4096) {
            self.used = self.used.split_off(&(now.saturating_sub(THRESHOLD), String::new(), String::new()));
        }
        if !self.used.insert((given, token.clone(), nonce.clone())) {
            return Err(refused(&format!("'Nonce already used: {nonce}'")));
        }
        Ok(Some(account))
    }
}

fn refused(why: &str) -> Answer {
    let mut answer = Answer::new(401, "text/html; charset=utf-8", format!("Authorization Error: {why}"));
    answer.headers.push(("WWW-Authenticate", "OAuth realm=\"OAuth\"".into()));
    answer
}
