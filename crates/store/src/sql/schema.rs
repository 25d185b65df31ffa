//! The schema as numbered, forward-only steps. The database stores the number of completed steps: SQLite in
//! `user_version`, PostgreSQL in the table `schema_version`.

use sqlx::{AnyPool, AssertSqlSafe, Row};

use super::Dialect;
use super::transaction::Transaction;
use crate::error::StoreError;

/// `application_id` of a SQLite file: "thrg". The same number is PostgreSQL's advisory lock.
const APPLICATION_ID: i64 = 0x7468_7267;

/// The steps in SQLite. A released step never changes.
const SQLITE_STEPS: &[&str] = &[
    "CREATE TABLE organisations (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_unix_s INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE projects (
        id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL REFERENCES organisations (id), name TEXT NOT NULL,
        created_unix_s INTEGER NOT NULL, UNIQUE (organisation_id, name)
     ) STRICT;
     CREATE TABLE api_keys (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, project_id TEXT NOT NULL REFERENCES projects (id),
        name TEXT NOT NULL, prefix TEXT NOT NULL, digest BLOB NOT NULL UNIQUE, created_unix_s INTEGER NOT NULL,
        expires_unix_s INTEGER, revoked_unix_s INTEGER, models TEXT, requests_per_minute INTEGER,
        tokens_per_minute INTEGER, concurrent_requests INTEGER
     ) STRICT;
     CREATE INDEX api_keys_by_prefix ON api_keys (prefix);
     CREATE TABLE revision (value INTEGER NOT NULL) STRICT;
     INSERT INTO revision (value) VALUES (1);",
    "CREATE TABLE limits (
        scope TEXT NOT NULL, kind TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (scope, kind)
     ) STRICT;
     INSERT INTO limits SELECT id, 'requests_per_minute', requests_per_minute FROM api_keys
        WHERE requests_per_minute IS NOT NULL;
     INSERT INTO limits SELECT id, 'tokens_per_minute', tokens_per_minute FROM api_keys
        WHERE tokens_per_minute IS NOT NULL;
     INSERT INTO limits SELECT id, 'concurrent_requests', concurrent_requests FROM api_keys
        WHERE concurrent_requests IS NOT NULL;
     ALTER TABLE api_keys DROP COLUMN requests_per_minute;
     ALTER TABLE api_keys DROP COLUMN tokens_per_minute;
     ALTER TABLE api_keys DROP COLUMN concurrent_requests;
     CREATE TABLE ledger (
        id TEXT PRIMARY KEY, request_id TEXT NOT NULL, at_unix_s INTEGER NOT NULL, organisation_id TEXT NOT NULL,
        project_id TEXT NOT NULL, key_id TEXT NOT NULL, user_name TEXT NOT NULL, model TEXT NOT NULL,
        prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, generated_tokens INTEGER NOT NULL,
        prompt_price INTEGER NOT NULL, cached_price INTEGER NOT NULL, generated_price INTEGER NOT NULL,
        cost_picodollars INTEGER NOT NULL, latency_ms INTEGER NOT NULL, outcome TEXT NOT NULL
     ) STRICT, WITHOUT ROWID;
     CREATE INDEX ledger_by_time ON ledger (at_unix_s);
     CREATE TABLE daily_totals (
        day INTEGER NOT NULL, key_id TEXT NOT NULL, project_id TEXT NOT NULL, organisation_id TEXT NOT NULL,
        tokens INTEGER NOT NULL, cost_picodollars INTEGER NOT NULL, PRIMARY KEY (day, key_id, project_id)
     ) STRICT, WITHOUT ROWID;",
    "CREATE TABLE answers (
        tenant TEXT NOT NULL, name TEXT NOT NULL, request TEXT NOT NULL, owner TEXT NOT NULL, beat INTEGER NOT NULL,
        expires_unix_s INTEGER NOT NULL, is_whole INTEGER NOT NULL, content_type TEXT NOT NULL, body BLOB NOT NULL,
        PRIMARY KEY (tenant, name)
     ) STRICT;
     CREATE INDEX answers_by_expiry ON answers (expires_unix_s);",
    "CREATE TABLE residency_audit (
        number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, at_unix_ms INTEGER NOT NULL,
        event TEXT NOT NULL, request_id TEXT NOT NULL, organisation TEXT NOT NULL, model TEXT NOT NULL,
        permitted TEXT NOT NULL, replica TEXT NOT NULL, region TEXT NOT NULL, reason TEXT NOT NULL
     ) STRICT;
     CREATE INDEX residency_audit_by_time ON residency_audit (at_unix_ms);
     CREATE TRIGGER residency_audit_is_not_changed BEFORE UPDATE ON residency_audit
        BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;
     CREATE TRIGGER residency_audit_is_not_deleted BEFORE DELETE ON residency_audit
        BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END;",
    "ALTER TABLE api_keys ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
     CREATE INDEX api_keys_by_revision ON api_keys (revision);
     CREATE INDEX api_keys_by_project ON api_keys (project_id);
     CREATE TABLE usage_totals (
        width_s INTEGER NOT NULL, has_user INTEGER NOT NULL, start_unix_s INTEGER NOT NULL, project_id TEXT NOT NULL,
        key_id TEXT NOT NULL, model TEXT NOT NULL, user_name TEXT NOT NULL, requests INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, generated_tokens INTEGER NOT NULL,
        cost_microdollars INTEGER NOT NULL, cost_rest INTEGER NOT NULL,
        PRIMARY KEY (width_s, has_user, start_unix_s, project_id, key_id, model, user_name)
     ) STRICT, WITHOUT ROWID;
     CREATE TABLE usage_totals_start (unix_s INTEGER NOT NULL) STRICT;
     INSERT INTO usage_totals_start SELECT CASE WHEN MAX(at_unix_s) IS NULL THEN 0
        WHEN MAX(at_unix_s) >= 9223372036854770400 THEN 9223372036854774000
        ELSE (MAX(at_unix_s) / 3600 + 1) * 3600 END FROM ledger;",
    "CREATE TABLE objects (
        number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL,
        parent TEXT NOT NULL, version INTEGER NOT NULL, created_unix_s INTEGER NOT NULL,
        expires_unix_s INTEGER NOT NULL, is_pending INTEGER NOT NULL, owner TEXT NOT NULL, beat INTEGER NOT NULL,
        n_items INTEGER NOT NULL, n_bytes INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (tenant, kind, id)
     ) STRICT;
     CREATE INDEX objects_by_tenant ON objects (tenant, number);
     CREATE INDEX objects_by_kind ON objects (tenant, kind, number);
     CREATE INDEX objects_by_parent ON objects (tenant, kind, parent, number);
     CREATE INDEX objects_by_expiry ON objects (expires_unix_s);
     CREATE INDEX pending_objects ON objects (kind, number) WHERE is_pending = 1;
     CREATE TABLE object_items (
        object INTEGER NOT NULL REFERENCES objects (number), number INTEGER NOT NULL, id TEXT NOT NULL,
        body BLOB NOT NULL, PRIMARY KEY (object, number), UNIQUE (object, id)
     ) STRICT;
     CREATE TABLE object_totals (
        tenant TEXT PRIMARY KEY, n_objects INTEGER NOT NULL, n_bytes INTEGER NOT NULL
     ) STRICT;",
    // A row with its body would be written again with each item and each beat.
    "CREATE TABLE object_bodies (
        object INTEGER PRIMARY KEY REFERENCES objects (number), body BLOB NOT NULL
     ) STRICT;
     INSERT INTO object_bodies SELECT number, body FROM objects;
     ALTER TABLE objects DROP COLUMN body;",
];

/// The steps in PostgreSQL, whose first release had the schema of SQLite's second step.
const POSTGRES_STEPS: &[&str] = &["CREATE TABLE organisations (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, created_unix_s BIGINT NOT NULL
     );
     CREATE TABLE projects (
        id TEXT PRIMARY KEY, organisation_id TEXT NOT NULL REFERENCES organisations (id), name TEXT NOT NULL,
        created_unix_s BIGINT NOT NULL, UNIQUE (organisation_id, name)
     );
     CREATE TABLE api_keys (
        number BIGSERIAL PRIMARY KEY, id TEXT NOT NULL UNIQUE, project_id TEXT NOT NULL REFERENCES projects (id),
        name TEXT NOT NULL, prefix TEXT NOT NULL, digest BYTEA NOT NULL UNIQUE, created_unix_s BIGINT NOT NULL,
        expires_unix_s BIGINT, revoked_unix_s BIGINT, models TEXT
     );
     CREATE INDEX api_keys_by_prefix ON api_keys (prefix);
     CREATE TABLE revision (value BIGINT NOT NULL);
     INSERT INTO revision (value) VALUES (1);
     CREATE TABLE limits (
        scope TEXT NOT NULL, kind TEXT NOT NULL, value BIGINT NOT NULL, PRIMARY KEY (scope, kind)
     );
     CREATE TABLE ledger (
        id TEXT PRIMARY KEY, request_id TEXT NOT NULL, at_unix_s BIGINT NOT NULL, organisation_id TEXT NOT NULL,
        project_id TEXT NOT NULL, key_id TEXT NOT NULL, user_name TEXT NOT NULL, model TEXT NOT NULL,
        prompt_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, generated_tokens BIGINT NOT NULL,
        prompt_price BIGINT NOT NULL, cached_price BIGINT NOT NULL, generated_price BIGINT NOT NULL,
        cost_picodollars BIGINT NOT NULL, latency_ms BIGINT NOT NULL, outcome TEXT NOT NULL
     );
     CREATE INDEX ledger_by_time ON ledger (at_unix_s);
     CREATE TABLE daily_totals (
        day BIGINT NOT NULL, key_id TEXT NOT NULL, project_id TEXT NOT NULL, organisation_id TEXT NOT NULL,
        tokens BIGINT NOT NULL, cost_picodollars BIGINT NOT NULL, PRIMARY KEY (day, key_id, project_id)
     );",
    "CREATE TABLE answers (
        tenant TEXT NOT NULL, name TEXT NOT NULL, request TEXT NOT NULL, owner TEXT NOT NULL, beat BIGINT NOT NULL,
        expires_unix_s BIGINT NOT NULL, is_whole BIGINT NOT NULL, content_type TEXT NOT NULL, body BYTEA NOT NULL,
        PRIMARY KEY (tenant, name)
     );
     CREATE INDEX answers_by_expiry ON answers (expires_unix_s);",
    "CREATE TABLE residency_audit (
        number BIGSERIAL PRIMARY KEY, id TEXT NOT NULL UNIQUE, at_unix_ms BIGINT NOT NULL,
        event TEXT NOT NULL, request_id TEXT NOT NULL, organisation TEXT NOT NULL, model TEXT NOT NULL,
        permitted TEXT NOT NULL, replica TEXT NOT NULL, region TEXT NOT NULL, reason TEXT NOT NULL
     );
     CREATE INDEX residency_audit_by_time ON residency_audit (at_unix_ms);
     CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'the audit is only appended to'; END $$;
     CREATE TRIGGER residency_audit_is_not_changed BEFORE UPDATE OR DELETE OR TRUNCATE ON residency_audit
        FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();",
    "ALTER TABLE api_keys ADD COLUMN revision BIGINT NOT NULL DEFAULT 0;
     CREATE INDEX api_keys_by_revision ON api_keys (revision);
     CREATE INDEX api_keys_by_project ON api_keys (project_id);
     CREATE TABLE usage_totals (
        width_s BIGINT NOT NULL, has_user BIGINT NOT NULL, start_unix_s BIGINT NOT NULL, project_id TEXT NOT NULL,
        key_id TEXT NOT NULL, model TEXT NOT NULL, user_name TEXT NOT NULL, requests BIGINT NOT NULL,
        prompt_tokens BIGINT NOT NULL, cached_tokens BIGINT NOT NULL, generated_tokens BIGINT NOT NULL,
        cost_microdollars BIGINT NOT NULL, cost_rest BIGINT NOT NULL,
        PRIMARY KEY (width_s, has_user, start_unix_s, project_id, key_id, model, user_name)
     );
     CREATE TABLE usage_totals_start (unix_s BIGINT NOT NULL);
     INSERT INTO usage_totals_start SELECT CASE WHEN MAX(at_unix_s) IS NULL THEN 0
        WHEN MAX(at_unix_s) >= 9223372036854770400 THEN 9223372036854774000
        ELSE (MAX(at_unix_s) / 3600 + 1) * 3600 END FROM ledger;",
    "CREATE TABLE objects (
        number BIGSERIAL PRIMARY KEY, tenant TEXT NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL,
        parent TEXT NOT NULL, version BIGINT NOT NULL, created_unix_s BIGINT NOT NULL,
        expires_unix_s BIGINT NOT NULL, is_pending BIGINT NOT NULL, owner TEXT NOT NULL, beat BIGINT NOT NULL,
        n_items BIGINT NOT NULL, n_bytes BIGINT NOT NULL, body BYTEA NOT NULL, UNIQUE (tenant, kind, id)
     );
     CREATE INDEX objects_by_tenant ON objects (tenant, number);
     CREATE INDEX objects_by_kind ON objects (tenant, kind, number);
     CREATE INDEX objects_by_parent ON objects (tenant, kind, parent, number);
     CREATE INDEX objects_by_expiry ON objects (expires_unix_s);
     CREATE INDEX pending_objects ON objects (kind, number) WHERE is_pending = 1;
     CREATE TABLE object_items (
        object BIGINT NOT NULL REFERENCES objects (number), number BIGINT NOT NULL, id TEXT NOT NULL,
        body BYTEA NOT NULL, PRIMARY KEY (object, number), UNIQUE (object, id)
     );
     CREATE TABLE object_totals (
        tenant TEXT PRIMARY KEY, n_objects BIGINT NOT NULL, n_bytes BIGINT NOT NULL
     );",
    "CREATE TABLE object_bodies (
        object BIGINT PRIMARY KEY REFERENCES objects (number), body BYTEA NOT NULL
     );
     INSERT INTO object_bodies SELECT number, body FROM objects;
     ALTER TABLE objects DROP COLUMN body;",
];

/// Performs the missing steps, all or none of them. Two processes may start at the same time.
///
/// # Errors
/// When the database belongs to another program, or has more steps than this build.
pub async fn bring_up_to_date(pool: &AnyPool, dialect: Dialect, place: &str) -> Result<(), StoreError> {
    let mut transaction = Transaction::begin(pool, dialect.begin_writing()).await?;
    let (found, steps) = match dialect {
        Dialect::Sqlite => (sqlite_version(&mut transaction, place).await?, SQLITE_STEPS),
        Dialect::Postgres => (postgres_version(&mut transaction).await?, POSTGRES_STEPS),
    };
    let known = steps.len() as i64;
    if found > known {
        return Err(StoreError::NewerSchema { place: place.to_owned(), found, known });
    }
    let n_done = usize::try_from(found).map_err(|_| StoreError::Foreign { place: place.to_owned() })?;
    if n_done == steps.len() {
        return transaction.commit().await;
    }
    for step in &steps[n_done..] {
        sqlx::raw_sql(*step).execute(&mut *transaction).await?;
    }
    let stamp = match dialect {
        Dialect::Sqlite => {
            format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {known};")
        }
        Dialect::Postgres => format!("UPDATE schema_version SET value = {known}"),
    };
    sqlx::raw_sql(AssertSqlSafe(stamp)).execute(&mut *transaction).await?;
    transaction.commit().await
}

async fn sqlite_version(connection: &mut sqlx::AnyConnection, place: &str) -> Result<i64, StoreError> {
    let found: i64 = sqlx::query("PRAGMA user_version").fetch_one(&mut *connection).await?.try_get(0)?;
    let owner: i64 = sqlx::query("PRAGMA application_id").fetch_one(&mut *connection).await?.try_get(0)?;
    let tables: i64 =
        sqlx::query("SELECT COUNT(*) FROM sqlite_schema").fetch_one(connection).await?.try_get(0)?;
    if owner != APPLICATION_ID && (tables > 0 || owner != 0 || found != 0) {
        return Err(StoreError::Foreign { place: place.to_owned() });
    }
    Ok(found)
}

/// Waits for other processes that change the schema; the lock ends with the transaction.
async fn postgres_version(connection: &mut sqlx::AnyConnection) -> Result<i64, StoreError> {
    let prepare = format!(
        "DO $$ BEGIN PERFORM pg_advisory_xact_lock({APPLICATION_ID}); END $$;
         CREATE SCHEMA IF NOT EXISTS throng;
         CREATE TABLE IF NOT EXISTS schema_version (value BIGINT NOT NULL);
         INSERT INTO schema_version SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM schema_version);"
    );
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *connection).await?;
    Ok(sqlx::query("SELECT value FROM schema_version").fetch_one(connection).await?.try_get(0)?)
}
