//! Query of a list: its page and order. Does not know the listed objects.

use throng_api::ApiError;
use throng_store::ListOrder;

/// A checked query. Unknown parameters have no effect.
#[derive(Debug, Default)]
pub(super) struct ListQuery {
    /// Id after which the page begins.
    pub after: Option<String>,
    /// Id before which the page ends.
    pub before: Option<String>,
    /// Maximum number of entries.
    pub limit: usize,
    /// Order of the entries.
    pub order: Option<ListOrder>,
    /// Purpose of the listed files; `None` for all.
    pub purpose: Option<String>,
}

impl ListQuery {
    /// Parses the query of a URL; `most` is the maximum number of entries, `usual` the default.
    ///
    /// # Errors
    /// 400 that names the parameter.
    pub fn parse(query: Option<&str>, [most, usual]: [usize; 2]) -> Result<Self, ApiError> {
        let mut read = Self { limit: usual, ..Self::default() };
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match &*name {
                "after" | "after_id" => read.after = Some(value.into_owned()),
                "before_id" => read.before = Some(value.into_owned()),
                "purpose" => read.purpose = Some(value.into_owned()),
                "limit" => {
                    let limit = value.parse::<usize>().ok().filter(|&limit| limit >= 1);
                    let reason = "It must be a number of at least 1.";
                    read.limit = limit.ok_or_else(|| ApiError::invalid_value("limit", reason))?.min(most);
                }
                "order" => {
                    read.order = Some(match &*value {
                        "asc" => ListOrder::Ascending,
                        "desc" => ListOrder::Descending,
                        other => return Err(ApiError::not_one_of("order", other, &["asc", "desc"])),
                    });
                }
                _ => {}
            }
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_read_or_refused() {
        let read = ListQuery::parse(Some("after=a%20b&limit=5000&order=asc&x=1"), [100, 20]).expect("read");
        assert_eq!((read.after.as_deref(), read.limit), (Some("a b"), 100));
        assert_eq!(read.order, Some(ListOrder::Ascending));
        assert_eq!(ListQuery::parse(None, [100, 20]).expect("read").limit, 20);
        for bad in ["limit=0", "limit=-1", "limit=x", "order=up"] {
            assert!(ListQuery::parse(Some(bad), [100, 20]).is_err(), "{bad}");
        }
    }
}
