//! Where the body of an answer goes: kept whole up to a bound, or taken apart as it comes.

/// Takes a body piece by piece. What it refuses is why, in words that quote nothing of it.
pub trait Sink: Send {
    /// An answer begins: what came of an earlier attempt is forgotten.
    fn begin(&mut self);
    fn take(&mut self, piece: &[u8]) -> Result<(), String>;
    fn end(&mut self) -> Result<(), String>;
}

/// All of it, up to a bound.
pub struct Whole {
    pub body: Vec<u8>,
    most: usize,
}

impl Whole {
    pub fn of(most: usize) -> Self {
        Self { body: Vec::new(), most }
    }
}

impl Sink for Whole {
    fn begin(&mut self) {
        self.body.clear();
    }

    fn take(&mut self, piece: &[u8]) -> Result<(), String> {
        if self.body.len() + piece.len() > self.most {
            return Err(format!("it is larger than {} bytes", self.most));
        }
        self.body.extend_from_slice(piece);
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        Ok(())
    }
}
