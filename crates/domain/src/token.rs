//! Access tokens: whose they are, what they allow, and whether they still do.

use crate::error::{Error, Reason};
use crate::id::TokenId;
use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::time::Timestamp;
use std::fmt;

/// What a caller may do. Each role may do all that the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Looks, and changes nothing.
    Viewer,
    /// Registers machines, moves them, starts and stops runs, pulls the brake.
    Operator,
    /// Also decides what may run on the fleet, and who may call.
    Admin,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Operator, Role::Admin];

    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|r| r.as_str() == text).ok_or_else(|| {
            Error::new(Reason::InvalidField, format!("role: {text:?} is not a role; use viewer, operator or admin"))
                .with("field", "role")
                .allowing(Self::ALL)
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether somebody has taken a token back. Expiry is not a state: it is read off the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenState {
    Active,
    Revoked,
}

pub const CREATED: &str = "created";
pub const REVOKED: &str = "revoked";

static EDGES: &[Edge<TokenState>] = &[
    Edge { from: None, to: TokenState::Active, trigger: CREATED, owner: Owner::Operator, guard: Guard::None },
    Edge {
        from: Some(TokenState::Active),
        to: TokenState::Revoked,
        trigger: REVOKED,
        owner: Owner::Operator,
        guard: Guard::None,
    },
];

impl State for TokenState {
    const ENTITY: &'static str = "token";
    const ALL: &'static [Self] = &[TokenState::Active, TokenState::Revoked];

    fn as_str(self) -> &'static str {
        match self {
            TokenState::Active => "active",
            TokenState::Revoked => "revoked",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            TokenState::Active | TokenState::Revoked => Deadline::AtRest,
        }
    }
}

/// A token as stored: all but its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub id: TokenId,
    pub name: String,
    pub role: Role,
    /// Only this customer's machines; empty: all.
    pub customer_id: String,
    /// The beginning of the secret, by which a person can tell tokens apart.
    pub prefix: String,
    pub state: TokenState,
    pub created_at: Timestamp,
    pub created_by: String,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    pub revoked_by: String,
}

pub fn revoked(id: &TokenId) -> Error {
    Error::new(Reason::TokenRevoked, "the token was revoked; ask an administrator for a new one")
        .with("token_id", id.as_str())
}

pub fn expired(id: &TokenId, at: Timestamp) -> Error {
    Error::new(Reason::TokenExpired, format!("the token expired at {at}; ask for a new one"))
        .with("token_id", id.as_str())
}

impl Token {
    /// One for the whole fleet that does not expire.
    pub fn new(id: TokenId, name: &str, role: Role, prefix: &str, created_at: Timestamp, created_by: &str) -> Self {
        Self {
            id,
            name: name.to_owned(),
            role,
            customer_id: String::new(),
            prefix: prefix.to_owned(),
            state: TokenState::Active,
            created_at,
            created_by: created_by.to_owned(),
            expires_at: None,
            revoked_at: None,
            revoked_by: String::new(),
        }
    }

    /// Whether it opens a door at this moment, and if not, why.
    pub fn valid(&self, now: Timestamp) -> Result<(), Error> {
        match (self.state, self.expires_at) {
            (TokenState::Revoked, _) => Err(revoked(&self.id)),
            (TokenState::Active, Some(at)) if at <= now => Err(expired(&self.id, at)),
            (TokenState::Active, _) => Ok(()),
        }
    }

    /// `active`, `expired` or `revoked`.
    pub fn state_text(&self, now: Timestamp) -> &'static str {
        match (self.state, self.valid(now)) {
            (TokenState::Active, Err(_)) => "expired",
            (state, _) => state.as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_contain_the_ones_before_them() {
        assert!(Role::Viewer < Role::Operator && Role::Operator < Role::Admin);
        for role in Role::ALL {
            assert_eq!(Role::parse(role.as_str()), Ok(role));
        }
        assert_eq!(Role::parse("root").map_err(|e| e.allowed.len()), Err(3));
    }

    #[test]
    fn a_token_is_good_until_it_expires_or_is_revoked() {
        let at = Timestamp::from_micros;
        let mut token = Token::new(TokenId::from_text("tok_1"), "ci", Role::Viewer, "mwt_abcd", at(1), "system");
        token.expires_at = Some(at(10));
        assert_eq!((token.valid(at(9)), token.state_text(at(9))), (Ok(()), "active"));
        assert_eq!(token.valid(at(10)).map_err(|e| e.reason), Err(Reason::TokenExpired));
        assert_eq!(token.state_text(at(10)), "expired");
        token.state = TokenState::Revoked;
        assert_eq!(token.valid(at(9)).map_err(|e| e.reason), Err(Reason::TokenRevoked));
        assert_eq!(token.state_text(at(11)), "revoked");
    }
}
