//! OpenAI's usage and cost APIs: the questions and the answers. Does not know the database.

mod page;
mod query;

pub use page::{csv, json};
pub use query::{UsageKind, UsageQuestion};
