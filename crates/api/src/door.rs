//! Through which door a call came: told to whoever counts, logs or audits it.

/// In the extensions of every call that was made on behalf of a REST request; absent, it was gRPC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Door {
    #[default]
    Grpc,
    Rest,
}

impl Door {
    pub const fn as_str(self) -> &'static str {
        match self {
            Door::Grpc => "grpc",
            Door::Rest => "rest",
        }
    }
}
