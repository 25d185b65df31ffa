//! Pages of items, and their queries.

use serde::Serialize;
use throng_api::ApiError;
use throng_api::responses::Item;
use throng_state::conversations::{ItemPage, PageQuery};

/// Maximum number of items of a page.
const MAX_LIMIT: usize = 100;
const DEFAULT_LIMIT: usize = 20;

/// JSON of a page.
#[derive(Debug, Serialize)]
pub(super) struct ItemList<'a> {
    object: &'static str,
    data: &'a [Item],
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
    has_more: bool,
}

impl<'a> ItemList<'a> {
    pub fn new(page: &'a ItemPage) -> Self {
        let (first_id, last_id) = (page.items.first().map(Item::id), page.items.last().map(Item::id));
        Self { object: "list", data: &page.items, first_id, last_id, has_more: page.has_more }
    }
}

/// Parses the query of a page; the newest items come first by default.
///
/// # Errors
/// 400 that names the parameter.
pub(super) fn page_query(query: &str) -> Result<PageQuery, ApiError> {
    let mut range = PageQuery { after: None, limit: DEFAULT_LIMIT, is_descending: true };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "after" => range.after = Some(value.into_owned()),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                range.limit = limit.ok_or_else(|| {
                    ApiError::invalid_value(
                        "limit",
                        format!("'limit' must be an integer from 1 to {MAX_LIMIT}."),
                    )
                })?;
            }
            "order" => {
                range.is_descending = match &*value {
                    "asc" => false,
                    "desc" => true,
                    other => return Err(ApiError::not_one_of("order", other, &["asc", "desc"])),
                };
            }
            _ => {}
        }
    }
    Ok(range)
}
