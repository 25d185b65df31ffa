//! A plan as one page: its numbers in a script that draws plots, without content of other servers.

use anyhow::Result;

use super::view::PlanView;

/// The page, in which the numbers take the place of a mark.
const PAGE: &str = include_str!("page.html");

/// Mark in the page's template that the plan replaces.
const MARK: &str = "{{plan}}";

/// The page of a plan.
///
/// # Errors
/// When a number cannot be written as JSON.
pub fn page(plan: &PlanView) -> Result<String> {
    // Nothing in the numbers ends the script that they are in.
    let json = serde_json::to_string(plan)?.replace('<', "\\u003c");
    Ok(PAGE.replacen(MARK, &json, 1))
}
