//! The bodies of requests about conversations.

use serde_json::value::RawValue;

use super::input::{Entry, read_items};
use super::item::Item;
use super::tools::read_metadata;
use crate::error::ApiError;
use crate::field::Kind::Custom;
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;
use crate::json::{Node, TreeBudget};

/// Maximum number of items that are added at a time.
const MAX_ADDED: usize = 20;

/// A request to make or change a conversation.
#[derive(Debug, Default)]
pub struct ConversationBody {
    /// Metadata set by the conversation's client.
    pub metadata: Option<Box<RawValue>>,
    /// First items of the conversation.
    pub items: Vec<Item>,
    /// Parameters without effect.
    pub ignored: IgnoredParameters,
}

/// The parameters of a conversation.
pub const CONVERSATION_BODY_FIELDS: &[Field<ConversationBody>] = &[
    field(
        "metadata",
        Custom(Shape::StringMap, |b, node, _| {
            b.metadata = read_metadata(node)?;
            Ok(())
        }),
        "Kept with the conversation and given back.",
    ),
    field(
        "items",
        Custom(Shape::Array(MAX_ADDED, &Shape::Object), |b, node, _| {
            b.items = items_of(node)?;
            Ok(())
        }),
        "Its first items.",
    ),
];

impl ConversationBody {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(bytes: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let mut body = Self::default();
        let bound = &mut Bound { fields: CONVERSATION_BODY_FIELDS, target: &mut body };
        body.ignored = read_body(bytes, &mut [bound], options)?;
        Ok(body)
    }

    /// Notes of its client, an empty object if there are none.
    pub fn metadata_or_none(&self) -> Box<RawValue> {
        self.metadata.clone().unwrap_or_else(|| RawValue::from_string("{}".to_owned()).unwrap_or_default())
    }
}

/// A request to add items to a conversation.
#[derive(Debug, Default)]
pub struct ItemsBody {
    /// The items, at least one.
    pub items: Vec<Item>,
    /// Parameters without effect.
    pub ignored: IgnoredParameters,
}

/// The parameters of adding items.
pub const ITEMS_BODY_FIELDS: &[Field<ItemsBody>] = &[field(
    "items",
    Custom(Shape::Array(MAX_ADDED, &Shape::Object), |b, node, _| {
        b.items = items_of(node)?;
        Ok(())
    }),
    "The items to add.",
)];

impl ItemsBody {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(bytes: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let mut body = Self::default();
        let bound = &mut Bound { fields: ITEMS_BODY_FIELDS, target: &mut body };
        body.ignored = read_body(bytes, &mut [bound], options)?;
        if body.items.is_empty() { Err(ApiError::missing_required_parameter("items")) } else { Ok(body) }
    }
}

fn items_of(node: &Node<'_, '_>) -> Result<Vec<Item>, ApiError> {
    let entries = read_items(node, MAX_ADDED, &mut TreeBudget::default())?;
    let item = |entry: Entry| match entry {
        Entry::Item(item) => Ok(item),
        Entry::Reference(id) => Err(ApiError::item_not_found(&id, "items")),
    };
    entries.into_iter().map(item).collect()
}
