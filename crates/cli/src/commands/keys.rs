//! `throng keys`: creates, lists, revokes and restricts API keys in the database, and limits projects and
//! organisations. Servers notice the changes in the database by themselves.

use anyhow::Result;
use comfy_table::{Table, presets};
use jiff::Timestamp;
use throng_store::{
    ApiKey, Cost, KeyChange, LimitChange, LimitKind, LimitScope, Limits, NewKey, now_unix_s, open,
    open_existing,
};

use crate::args::{DatabaseArgs, KeysArgs, KeysCommand, Permit, PermitArgs};
use crate::process::output;
use crate::usage_error::UsageError;

/// The organisation of projects that are named without one.
const DEFAULT_ORGANISATION: &str = "default";

/// Runs the command.
///
/// # Errors
/// When the database cannot be used, a value is out of its range or there is no such key.
pub async fn run(arguments: &KeysArgs) -> Result<()> {
    match arguments.command.clone() {
        KeysCommand::Create { database, organisation, project, name, permits } => {
            let change = change_of(permits);
            let set = change.limits.into_iter().filter_map(|(kind, limit)| Some((kind, limit?)));
            let (expires_unix_s, models) = (change.expires_unix_s.flatten(), change.models.flatten());
            let new = NewKey { organisation, project, name, expires_unix_s, models, limits: Limits::of(set) };
            let created = open(&database.database).await?.create_key(new).await?;
            output::line(created.secret())?;
            output::note(format!("{}: the key is not shown again", created.key.id));
            Ok(())
        }
        KeysCommand::List { database } => list(&database).await,
        KeysCommand::Revoke { key, database } => {
            let key = open_existing(&database.database).await?.revoke_key(&key).await?;
            Ok(output::line(format!("{} {} is revoked", key.id, key.prefix))?)
        }
        KeysCommand::Limit { key: Some(key), database, permits, .. } => {
            let key = open_existing(&database.database).await?.change_key(&key, change_of(permits)).await?;
            Ok(output::line(table(&[key]))?)
        }
        KeysCommand::Limit { key: None, organisation, project, each_user, database, permits } => {
            let change = change_of(permits);
            if change.expires_unix_s.is_some() || change.models.is_some() {
                return Err(UsageError("--expires-in and --models belong to a key".to_owned()).into());
            }
            let scope = scope_of(organisation, project, each_user);
            let is_by_period = |kind: LimitKind| kind as usize > LimitKind::ConcurrentRequests as usize;
            if each_user && change.limits.iter().any(|(kind, _)| is_by_period(*kind)) {
                return Err(UsageError("each user has no limits by day or month".to_owned()).into());
            }
            let limits = open_existing(&database.database).await?.limit(&scope, change.limits).await?;
            Ok(output::line(describe(&limits))?)
        }
    }
}

fn scope_of(organisation: Option<String>, project: Option<String>, each_user: bool) -> LimitScope {
    let organisation = organisation.unwrap_or_else(|| DEFAULT_ORGANISATION.to_owned());
    match project {
        None => LimitScope::Organisation(organisation),
        Some(project) if each_user => LimitScope::EachUser { organisation, project },
        Some(project) => LimitScope::Project { organisation, project },
    }
}

async fn list(database: &DatabaseArgs) -> Result<()> {
    let keys = open_existing(&database.database).await?.keys().await?.keys;
    Ok(output::line(table(&keys))?)
}

fn change_of(permits: PermitArgs) -> KeyChange {
    let now = now_unix_s();
    let limits = limits_of(&permits);
    KeyChange {
        expires_unix_s: permits
            .expires_in
            .map(|Permit(time)| time.map(|seconds| now.saturating_add(seconds))),
        models: permits.models.map(|Permit(models)| models),
        limits,
    }
}

fn limits_of(permits: &PermitArgs) -> LimitChange {
    let all = [
        (LimitKind::RequestsPerMinute, &permits.requests_per_minute),
        (LimitKind::TokensPerMinute, &permits.tokens_per_minute),
        (LimitKind::ConcurrentRequests, &permits.concurrent_requests),
        (LimitKind::TokensPerDay, &permits.tokens_per_day),
        (LimitKind::TokensPerMonth, &permits.tokens_per_month),
        (LimitKind::CostPerDay, &permits.cost_per_day),
        (LimitKind::CostPerMonth, &permits.cost_per_month),
    ];
    all.into_iter().filter_map(|(kind, permit)| permit.as_ref().map(|Permit(limit)| (kind, *limit))).collect()
}

/// All limits in one line, `none` without any.
fn describe(limits: &Limits) -> String {
    let shown = |kind: LimitKind| {
        let limit = limits.get(kind)?;
        Some(match kind.is_money() {
            true => format!("{}={}", kind.name(), Cost::from_microdollars(limit)),
            false => format!("{}={limit}", kind.name()),
        })
    };
    let all: Vec<String> = LimitKind::ALL.into_iter().filter_map(shown).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(",") }
}

fn table(keys: &[ApiKey]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "ID",
        "PREFIX",
        "ORGANISATION",
        "PROJECT",
        "NAME",
        "STATE",
        "EXPIRES",
        "MODELS",
        "LIMITS",
    ]);
    for key in keys {
        table.add_row([
            key.id.clone(),
            key.prefix.clone(),
            key.organisation.clone(),
            key.project.clone(),
            key.name.clone(),
            state(key).to_owned(),
            key.expires_unix_s.map_or_else(|| "-".to_owned(), date),
            key.models.as_ref().map_or_else(|| "all".to_owned(), |models| models.join(",")),
            describe(&key.limits),
        ]);
    }
    table
}

fn state(key: &ApiKey) -> &'static str {
    match (key.is_revoked(), key.is_expired(now_unix_s())) {
        (true, _) => "revoked",
        (false, true) => "expired",
        (false, false) => "valid",
    }
}

fn date(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| unix_s.to_string(), |time| time.to_string())
}
