//! Bodies of the admin API. Unknown fields, repeated fields and values out of range are refused.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::{Map, Value};
use throng_store::{KeyChange, LimitChange, LimitKind, LimitScope, Limits, now_unix_s};

use throng_api::{ApiError, ReadOptions};
use throng_auth::{LimitFault, read_limits};

/// Longest lifetime of a key: a hundred years.
const MAX_LIFETIME_S: u64 = 100 * 366 * 86_400;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CreateKey {
    pub organisation: Option<String>,
    pub project: Option<String>,
    pub name: Option<String>,
    pub models: Option<Vec<String>>,
    expires_in_s: Option<u64>,
    limits: Map<String, Value>,
}

/// Change of a key: an absent field leaves the value, null removes a restriction.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChangeKey {
    #[serde(deserialize_with = "present")]
    models: Option<Option<Vec<String>>>,
    #[serde(deserialize_with = "present")]
    expires_in_s: Option<Option<u64>>,
    limits: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitBody {
    organisation: String,
    #[serde(default)]
    project: Option<String>,
    #[serde(default)]
    each_user: bool,
    limits: Map<String, Value>,
}

/// Parses a body, which must be an object.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], _: &ReadOptions) -> Result<T, ApiError> {
    // serde would take an array of the fields' values too.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::refused_change("the body must be a JSON object".to_owned()));
    }
    std::str::from_utf8(bytes).map_err(|error| ApiError::invalid_utf8(error.valid_up_to()))?;
    serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Data => ApiError::refused_change(error.to_string()),
        _ => ApiError::invalid_json("it cannot be read", error.line(), error.column()),
    })
}

fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(value).map(Some)
}

impl CreateKey {
    pub fn expires_unix_s(&self) -> Result<Option<u64>, ApiError> {
        self.expires_in_s.map(expiry).transpose()
    }

    pub fn limits(&self) -> Result<Limits, ApiError> {
        let change = change_of(&self.limits)?;
        Ok(Limits::of(change.into_iter().filter_map(|(kind, limit)| Some((kind, limit?)))))
    }
}

impl ChangeKey {
    pub fn change(self) -> Result<KeyChange, ApiError> {
        let expires_unix_s = self.expires_in_s.map(|time| time.map(expiry).transpose()).transpose()?;
        Ok(KeyChange { expires_unix_s, models: self.models, limits: change_of(&self.limits)? })
    }
}

impl LimitBody {
    pub fn scope(&self) -> Result<LimitScope, ApiError> {
        let organisation = self.organisation.clone();
        match (&self.project, self.each_user) {
            (Some(project), false) => Ok(LimitScope::Project { organisation, project: project.clone() }),
            (Some(project), true) => Ok(LimitScope::EachUser { organisation, project: project.clone() }),
            (None, false) => Ok(LimitScope::Organisation(organisation)),
            (None, true) => Err(ApiError::missing_required_parameter("project")),
        }
    }

    pub fn change(&self) -> Result<LimitChange, ApiError> {
        let change = change_of(&self.limits)?;
        let is_by_minute = |kind: LimitKind| kind <= LimitKind::ConcurrentRequests;
        if self.each_user && change.iter().any(|(kind, _)| !is_by_minute(*kind)) {
            return Err(ApiError::invalid_value("limits", "Each user has no limits by day or month."));
        }
        Ok(change)
    }
}

fn change_of(fields: &Map<String, Value>) -> Result<LimitChange, ApiError> {
    read_limits(fields).map_err(|fault| match fault {
        LimitFault::Unknown(name) => ApiError::unknown_parameter(format!("limits.{name}")),
        LimitFault::Invalid(name, expected) => {
            let reason = format!("Invalid 'limits.{name}': it must be {expected}, or null.");
            ApiError::invalid_value(format!("limits.{name}"), reason)
        }
    })
}

fn expiry(lifetime_s: u64) -> Result<u64, ApiError> {
    if !(1..=MAX_LIFETIME_S).contains(&lifetime_s) {
        let reason = "Invalid 'expires_in_s': it must be from 1 to a hundred years.";
        return Err(ApiError::invalid_value("expires_in_s", reason));
    }
    Ok(now_unix_s() + lifetime_s)
}
