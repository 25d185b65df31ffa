//! `throng keys`: makes, lists, revokes and restricts API keys in the database. Does not know servers: they see the changes
//! in the database.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use comfy_table::{Table, presets};
use jiff::Timestamp;
use throng_store::{ApiKey, KeyChange, KeyLimits, NewKey, open, open_existing};

use crate::args::{DatabaseArgs, KeysArgs, KeysCommand, Permit, PermitArgs};
use crate::process::output;

/// Runs the command.
///
/// # Errors
/// When the database cannot be used, a value is out of its range or there is no such key.
pub async fn run(arguments: &KeysArgs) -> Result<()> {
    match arguments.command.clone() {
        KeysCommand::Create { database, organisation, project, name, permits } => {
            let change = change_of(permits);
            let limits = KeyLimits {
                requests_per_minute: change.requests_per_minute.flatten(),
                tokens_per_minute: change.tokens_per_minute.flatten(),
                concurrent_requests: change.concurrent_requests.flatten(),
            };
            let (expires_unix_s, models) = (change.expires_unix_s.flatten(), change.models.flatten());
            let new = NewKey { organisation, project, name, expires_unix_s, models, limits };
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
        KeysCommand::Limit { key, database, permits } => {
            let key = open_existing(&database.database).await?.change_key(&key, change_of(permits)).await?;
            Ok(output::line(table(&[key]))?)
        }
    }
}

async fn list(database: &DatabaseArgs) -> Result<()> {
    let keys = open_existing(&database.database).await?.keys().await?.keys;
    Ok(output::line(table(&keys))?)
}

fn change_of(permits: PermitArgs) -> KeyChange {
    let now = now_unix_s();
    KeyChange {
        expires_unix_s: permits
            .expires_in
            .map(|Permit(time)| time.map(|seconds| now.saturating_add(seconds))),
        models: permits.models.map(|Permit(models)| models),
        requests_per_minute: permits.requests_per_minute.map(|Permit(limit)| limit),
        tokens_per_minute: permits.tokens_per_minute.map(|Permit(limit)| limit),
        concurrent_requests: permits.concurrent_requests.map(|Permit(limit)| limit),
    }
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
        "REQ/MIN",
        "TOK/MIN",
        "CONCURRENT",
    ]);
    let limit = |limit: Option<u32>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
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
            limit(key.limits.requests_per_minute),
            limit(key.limits.tokens_per_minute),
            limit(key.limits.concurrent_requests),
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

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
