//! Network boot, the part that machines talk to before they have a system. It meets the rest of the house only in the
//! binary.

pub mod door;
pub mod images;
pub mod line;
pub mod port;
pub mod script;
