//! An image: bytes that machines boot or write, known by a name and kept by their digest. A name can come to mean other
//! bytes; a digest never does.

use crate::lifecycle::{Deadline, Edge, Guard, Owner, State};
use crate::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageState {
    Present,
    Removed,
}

/// Its bytes came; in the place of others, where the name was there.
pub const ADDED: &str = "added";
pub const REMOVED: &str = "removed";

const fn edge(from: Option<ImageState>, to: ImageState, trigger: &'static str) -> Edge<ImageState> {
    Edge { from, to, trigger, owner: Owner::Operator, guard: Guard::None }
}

static EDGES: &[Edge<ImageState>] = &[
    edge(None, ImageState::Present, ADDED),
    edge(Some(ImageState::Present), ImageState::Present, ADDED),
    edge(Some(ImageState::Removed), ImageState::Present, ADDED),
    edge(Some(ImageState::Present), ImageState::Removed, REMOVED),
];

impl State for ImageState {
    const ENTITY: &'static str = "image";
    const ALL: &'static [Self] = &[ImageState::Present, ImageState::Removed];

    fn as_str(self) -> &'static str {
        match self {
            ImageState::Present => "present",
            ImageState::Removed => "removed",
        }
    }

    fn edges() -> &'static [Edge<Self>] {
        EDGES
    }

    fn deadline(self) -> Deadline {
        match self {
            ImageState::Present | ImageState::Removed => Deadline::AtRest,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    pub state: ImageState,
    pub version: u64,
    pub sha256: String,
    pub bytes: u64,
    /// As its first bytes tell.
    pub kind: String,
    pub added_at: Timestamp,
    pub added_by: String,
}
