//! Settings whose earlier names still work, each with a warning that names the new one. Does not know what
//! they mean.

use toml::de::DeTable;

use super::document::Remark;
use super::expert::key;

/// Earlier names of settings with their present names.
const RENAMED: [(&str, &str); 1] =
    [("gateway.api.response_retention_s", "gateway.state.retention_days, which counts days")];

/// Warnings for the earlier names that a file has.
pub(super) fn warnings(root: &DeTable<'_>) -> Vec<Remark> {
    let warning = |(path, now): &(&str, &str)| {
        let text = format!("{path} is now {now}; the next release reads it there only");
        Some(Remark { span: key(root, path)?.span(), text, is_mistake: false })
    };
    RENAMED.iter().filter_map(warning).collect()
}
