//! Names that stand for models: which of its targets a request for such a name goes to, by weights, and what takes the place of one
//! that cannot be used now. Does not know how models answer.

use std::borrow::Cow;

use serde::Deserialize;

use crate::app::App;
use crate::config::ModelAlias;
use crate::connection::RequestContext;
use crate::replica::Status;

/// What of a body decides: read before the rest of it, and only where there are such names.
#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    model: Cow<'a, str>,
    #[serde(borrow, default)]
    user: Option<Cow<'a, str>>,
}

/// The model that a request goes to whose body names an alias; `None` for all others.
pub(super) fn target(app: &App, context: &RequestContext, body: &[u8]) -> Option<String> {
    let aliases = &app.config.routing.aliases;
    if aliases.is_empty() {
        return None;
    }
    let Head { model, user } = serde_json::from_slice(body).ok()?;
    let alias = aliases.iter().find(|alias| alias.name == model)?;
    let tenant = context.key_holder();
    let session = context.destination.session().or(user.as_deref());
    let point = match session {
        Some(session) => point_of(&[&alias.name, &tenant.id.0, session]),
        None => fastrand::u64(..),
    };
    let chosen = weighted(alias, point)?;
    let chain = std::iter::once(chosen).chain(alias.fallback.iter().map(String::as_str));
    let usable = chain.into_iter().find(|model| is_usable(app, model));
    Some(usable.unwrap_or(chosen).to_owned())
}

/// Where a session stands in the range of all: the same on every gateway.
fn point_of(parts: &[&str]) -> u64 {
    let digest = throng_wire::digest(parts.join("\0").as_bytes());
    u64::from_str_radix(&digest[..16], 16).unwrap_or_default()
}

/// The target whose part of the range `point` is in. Growing the last one's weight moves no session between the others.
fn weighted(alias: &ModelAlias, point: u64) -> Option<&str> {
    let total: u64 = alias.targets.iter().map(|target| u64::from(target.weight)).sum();
    let mut place = (u128::from(point) * u128::from(total)) >> 64;
    for target in &alias.targets {
        match place.checked_sub(u128::from(target.weight)) {
            Some(rest) => place = rest,
            None => return Some(&target.model),
        }
    }
    None
}

/// Whether a model would take a request now.
fn is_usable(app: &App, model: &str) -> bool {
    match (app.router.find(model), app.foreign.find(model)) {
        (Ok(route), _) => route.status() == Status::Ready && route.check_room().is_ok(),
        (Err(_), Some(model)) => model.dispatcher.is_ready(),
        (Err(_), None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::WeightedModel;

    #[test]
    fn sessions_are_divided_by_weight_and_stay_when_a_canary_grows() {
        let of = |weights: [u32; 2]| ModelAlias {
            name: "chat".to_owned(),
            targets: ["old", "new"]
                .into_iter()
                .zip(weights)
                .map(|(model, weight)| WeightedModel { model: model.to_owned(), weight })
                .collect(),
            fallback: Vec::new(),
        };
        let (few, more) = (of([95, 5]), of([80, 20]));
        let mut n_new = [0, 0];
        for session in 0..10_000 {
            let point = point_of(&["chat", "tenant", &session.to_string()]);
            let (before, after) = (weighted(&few, point), weighted(&more, point));
            assert!(before == Some("old") || after == Some("new"), "{session} went back");
            n_new[0] += usize::from(before == Some("new"));
            n_new[1] += usize::from(after == Some("new"));
        }
        assert!((400..600).contains(&n_new[0]) && (1_850..2_150).contains(&n_new[1]), "{n_new:?}");
        assert_eq!(weighted(&of([0, 1]), 0), Some("new"));
        assert_eq!(weighted(&of([1, 0]), u64::MAX), Some("old"));
    }
}
