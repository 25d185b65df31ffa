//! Formats of the ids of kept objects.

use uuid::Uuid;

/// Creates a unique id such as `file-018f…`: the prefix and hexadecimal digits that increase with time, so
/// that ids of neighbouring times are neighbours in an index.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}{}", Uuid::now_v7().simple())
}
