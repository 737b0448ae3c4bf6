//! What the proto files say about their own messages, fields and calls.

use prost_reflect::DescriptorPool;
use std::collections::HashMap;

/// Comments by file and by the path of what they stand at.
pub(super) struct Comments(HashMap<(String, Vec<i32>), String>);

impl Comments {
    pub fn of(pool: &DescriptorPool) -> Self {
        let mut all = HashMap::new();
        for file in pool.files() {
            let proto = file.file_descriptor_proto();
            for place in proto.source_code_info.iter().flat_map(|info| &info.location) {
                let parts = [place.leading_comments(), place.trailing_comments()];
                let text = parts.map(tidy).into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>().join(" ");
                if !text.is_empty() {
                    all.insert((file.name().to_owned(), place.path.clone()), text);
                }
            }
        }
        Self(all)
    }

    pub fn at(&self, file: &str, path: &[i32]) -> Option<&str> {
        self.0.get(&(file.to_owned(), path.to_vec())).map(String::as_str)
    }
}

/// One line of text from the lines of a comment.
fn tidy(comment: &str) -> String {
    comment.split_whitespace().collect::<Vec<_>>().join(" ")
}
