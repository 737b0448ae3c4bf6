//! The rest: what is less likely to break, or is tried in another way by another test. With the feature `every-installer`.

mod choice;
mod discover;
mod erase;
mod install;
mod refusals;
mod seed;
mod trouble;
