//! Keys, organisations and limits as JSON of the admin API, without secrets.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use throng_store::{ApiKey, Cost, LimitKind, Limits};

/// A name and an id.
type Named<'a> = (&'a str, &'a str);
/// Projects, each with one of its keys.
type Projects<'a> = BTreeMap<Named<'a>, &'a ApiKey>;

/// JSON form of a key, for operators.
pub fn shown_key(key: &ApiKey) -> Value {
    json!({
        "object": "api_key",
        "id": key.id,
        "prefix": key.prefix,
        "name": key.name,
        "organisation": key.organisation,
        "organisation_id": key.organisation_id,
        "project": key.project,
        "project_id": key.project_id,
        "created_at": key.created_unix_s,
        "expires_at": key.expires_unix_s,
        "revoked_at": key.revoked_unix_s,
        "models": key.models,
        "limits": limits_json(&key.limits),
    })
}

/// Limits by name; money as a string in dollars.
pub fn limits_json(limits: &Limits) -> Value {
    let shown = |kind: LimitKind| {
        let limit = limits.get(kind)?;
        let value = match kind.is_money() {
            true => Cost::from_microdollars(limit).to_string().into(),
            false => limit.into(),
        };
        Some((kind.name().to_owned(), value))
    };
    Value::Object(LimitKind::ALL.into_iter().filter_map(shown).collect::<Map<_, _>>())
}

/// The organisations of these keys with their projects, by name.
pub fn organisations(keys: &[ApiKey]) -> Vec<Value> {
    let mut by_id: BTreeMap<Named<'_>, Projects<'_>> = BTreeMap::new();
    for key in keys {
        let projects = by_id.entry((&key.organisation, &key.organisation_id)).or_default();
        projects.insert((&key.project, &key.project_id), key);
    }
    let project = |((name, id), key): (Named<'_>, &ApiKey)| {
        json!({
            "object": "project",
            "id": id,
            "name": name,
            "limits": limits_json(&key.project_limits),
            "limits_of_each_user": limits_json(&key.user_limits),
        })
    };
    let organisation = |((name, id), projects): (Named<'_>, Projects<'_>)| {
        let limits = projects.values().next().map(|key| limits_json(&key.organisation_limits));
        let projects: Vec<Value> = projects.into_iter().map(project).collect();
        json!({"object": "organisation", "id": id, "name": name, "limits": limits, "projects": projects})
    };
    by_id.into_iter().map(organisation).collect()
}
