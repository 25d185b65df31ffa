//! OpenAI's usage and cost APIs: queries and responses. Does not know the database.

mod page;
mod query;

pub use page::{csv, json};
pub use query::{UsageKind, UsageQuestion};
