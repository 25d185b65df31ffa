//! Ids of what is kept.

use uuid::Uuid;

/// Makes an id that nothing else has, like `file-018f…`: the prefix and hexadecimal digits that rise with
/// time, so that neighbours in time are neighbours in an index.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}{}", Uuid::now_v7().simple())
}
