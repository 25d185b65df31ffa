//! Reads the claims of a verified token: organisation, project, user, permitted models and limits. Does not
//! know signatures.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use throng_store::{ApiKey, Limits};

use crate::config::ClaimNames;
use crate::named_limits::read_limits;
use crate::stored::KnownScopes;

/// Maximum length of a name in a claim in bytes; the same bound as for names in the database.
const MAX_NAME_BYTES: usize = 256;
/// Maximum number of models of one token.
const MAX_MODELS: usize = 256;

/// The claims of a token.
pub type Claims = Map<String, Value>;

/// The key that represents the token. A project of the database has its id and its limits. A token without a
/// project has a nameless one of its own, so that users without a common project share nothing, neither with
/// one another nor with a project of the same name.
///
/// # Errors
/// The claim that is absent or invalid.
pub fn key_of(claims: &Claims, names: &ClaimNames, known: &KnownScopes) -> Result<ApiKey, String> {
    let user = name(claims, &names.user)?.ok_or_else(|| names.user.clone())?;
    let organisation = name(claims, &names.organisation)?.unwrap_or_else(|| "default".to_owned());
    let project = name(claims, &names.project)?;
    let limits = match claims.get(&names.limits) {
        None | Some(Value::Null) => Limits::default(),
        Some(Value::Object(fields)) => {
            let change = read_limits(fields).map_err(|_| names.limits.clone())?;
            Limits::of(change.into_iter().filter_map(|(kind, limit)| Some((kind, limit?))))
        }
        Some(_) => return Err(names.limits.clone()),
    };
    let of_project = project.as_ref().and_then(|project| known.project(&organisation, project));
    let of_organisation = known.organisation(&organisation);
    let project_id = match (of_project, &project) {
        (Some(key), _) => key.project_id.clone(),
        (None, Some(project)) => id("proj", &[&organisation, project]),
        // A user may be called as a project is.
        (None, None) => id("user", &[&organisation, &user]),
    };
    Ok(ApiKey {
        id: id("token", &[&project_id, &user]),
        prefix: String::new(),
        name: user,
        organisation_id: of_organisation
            .map_or_else(|| id("org", &[&organisation]), |key| key.organisation_id.clone()),
        organisation,
        project: project.unwrap_or_default(),
        project_id,
        digest: [0; 32],
        created_unix_s: 0,
        expires_unix_s: None,
        revoked_unix_s: None,
        models: models(claims, &names.models)?,
        limits,
        project_limits: of_project.map(|key| key.project_limits).unwrap_or_default(),
        organisation_limits: of_organisation.map(|key| key.organisation_limits).unwrap_or_default(),
        user_limits: of_project.map(|key| key.user_limits).unwrap_or_default(),
    })
}

fn name(claims: &Claims, claim: &str) -> Result<Option<String>, String> {
    match claims.get(claim) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if is_name(text) => Ok(Some(text.clone())),
        Some(_) => Err(claim.to_owned()),
    }
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Reads a list of names, or a string with names separated by blanks, as `scope`.
fn models(claims: &Claims, claim: &str) -> Result<Option<Vec<String>>, String> {
    let fault = || claim.to_owned();
    let models: Vec<String> = match claims.get(claim) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.split_whitespace().map(str::to_owned).collect(),
        Some(Value::Array(list)) => {
            let names = list.iter().map(|one| one.as_str().filter(|text| is_name(text)).map(str::to_owned));
            names.collect::<Option<_>>().ok_or_else(fault)?
        }
        Some(_) => return Err(fault()),
    };
    if models.len() > MAX_MODELS { Err(fault()) } else { Ok(Some(models)) }
}

/// Derives an id from names, equal in every process.
fn id(kind: &str, names: &[&str]) -> String {
    let mut digest = Sha256::new();
    for name in names {
        digest.update((name.len() as u64).to_le_bytes());
        digest.update(name);
    }
    let hex: String = digest.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}_{hex}")
}
