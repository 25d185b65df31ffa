//! The flags of `throng keys`, `throng usage` and `throng store`. Does not know the database.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use throng_store::parse_millionths;

/// Which database.
#[derive(Debug, Clone, Args)]
pub struct DatabaseArgs {
    /// The database with the keys: a path, or postgres://USER:PASSWORD@HOST/DATABASE
    #[arg(long, env = "THRONG_DATABASE", value_name = "DATABASE")]
    pub database: String,
}

/// `throng keys`.
#[derive(Debug, Clone, Args)]
pub struct KeysArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// What to do with keys.
#[derive(Debug, Clone, Subcommand)]
pub enum KeysCommand {
    /// Make a key and print it; it is shown this once only
    Create {
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
        /// The organisation, made if it is new
        #[arg(long, default_value = "default", value_name = "NAME")]
        organisation: String,
        /// The project of the organisation, made if it is new
        #[arg(long, default_value = "default", value_name = "NAME")]
        project: String,
        /// A name for the key
        #[arg(long, default_value = "", value_name = "NAME")]
        name: String,
        /// What the key may do.
        #[command(flatten)]
        permits: PermitArgs,
    },
    /// List all keys by their prefixes
    List {
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Revoke a key: servers refuse it within a second
    Revoke {
        /// The key's id or prefix
        key: String,
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Change what a key may do, or how much a project or an organisation may use; what is not named stays
    Limit {
        /// The key's id or prefix
        #[arg(required_unless_present_any = ["organisation", "project"], conflicts_with_all = ["organisation", "project"])]
        key: Option<String>,
        /// Limit this organisation, or the project in it
        #[arg(long, value_name = "NAME")]
        organisation: Option<String>,
        /// Limit this project, of the organisation "default" unless one is named
        #[arg(long, value_name = "NAME")]
        project: Option<String>,
        /// Limit each user of the project, as requests name them with "user"; not by day or month
        #[arg(long, requires = "project")]
        each_user: bool,
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
        /// What the key may do.
        #[command(flatten)]
        permits: PermitArgs,
    },
}

/// What a key may do. The word `none` takes a restriction away.
#[derive(Debug, Clone, Default, Args)]
pub struct PermitArgs {
    /// Refuse the key after this time: 90s, 30m, 12h, 30d, or none
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    pub expires_in: Option<Permit<u64>>,
    /// The models that the key may use, separated by commas, or none for all models
    #[arg(long, value_name = "MODELS", value_parser = parse_models)]
    pub models: Option<Permit<Vec<String>>>,
    /// Requests in a minute, or none
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    pub requests_per_minute: Option<Permit<u64>>,
    /// Tokens in a minute, of prompts and outputs, or none
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    pub tokens_per_minute: Option<Permit<u64>>,
    /// Requests at a time, or none
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    pub concurrent_requests: Option<Permit<u64>>,
    /// Tokens in a day (UTC), of prompts and outputs, or none
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    pub tokens_per_day: Option<Permit<u64>>,
    /// Tokens in a calendar month (UTC), of prompts and outputs, or none
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    pub tokens_per_month: Option<Permit<u64>>,
    /// US dollars in a day (UTC), for example 2.50, or none
    #[arg(long, value_name = "USD", value_parser = parse_money)]
    pub cost_per_day: Option<Permit<u64>>,
    /// US dollars in a calendar month (UTC), or none
    #[arg(long, value_name = "USD", value_parser = parse_money)]
    pub cost_per_month: Option<Permit<u64>>,
}

/// A restriction, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permit<T>(pub Option<T>);

/// `throng usage`.
#[derive(Debug, Clone, Args)]
pub struct UsageArgs {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// From how long ago on: 12h, 30d
    #[arg(long, default_value = "30d", value_name = "TIME", value_parser = parse_since)]
    pub since: u64,
    /// What to tell apart
    #[arg(long, value_enum, default_value = "key")]
    pub by: UsageBy,
    /// Print comma-separated values, one line a day
    #[arg(long)]
    pub csv: bool,
}

/// `throng store audit`.
#[derive(Debug, Clone, Args)]
pub struct AuditArgs {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// From how long ago on: 12h, 30d
    #[arg(long, default_value = "30d", value_name = "TIME", value_parser = parse_since)]
    pub since: u64,
    /// Only lines of this organisation; none: of clients without one
    #[arg(long, value_name = "NAME")]
    pub organisation: Option<String>,
    /// Print comma-separated values
    #[arg(long)]
    pub csv: bool,
}

/// Dimension by which usage is grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names say it")]
pub enum UsageBy {
    Key,
    Project,
    User,
    Model,
}

/// `throng store`.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// What to do with the database.
#[derive(Debug, Clone, Subcommand)]
pub enum StoreCommand {
    /// Copy the database into a new file, also while servers use it
    Backup {
        /// The new file
        file: PathBuf,
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Print where requests that are bound to regions went
    Audit(AuditArgs),
    /// Print what an organisation, a project or a tenant keeps between requests, one object or item a line
    Export(TenantArgs),
    /// Delete what an organisation, a project or a tenant keeps between requests
    Delete(TenantArgs),
    /// Check that the database is whole
    Check {
        /// The database.
        #[command(flatten)]
        database: DatabaseArgs,
    },
}

/// Whose files, batches, responses and conversations are meant.
#[derive(Debug, Clone, Args)]
pub struct TenantArgs {
    /// An organisation
    #[arg(long, required_unless_present = "tenant", value_name = "NAME")]
    pub organisation: Option<String>,
    /// One of its projects; all of them when absent
    #[arg(long, requires = "organisation", value_name = "NAME")]
    pub project: Option<String>,
    /// A tenant by its own name, as the log has it, for keys and tokens that are not in the database
    #[arg(long, conflicts_with = "organisation", value_name = "TENANT")]
    pub tenant: Option<String>,
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
}

const NONE: &str = "none";

fn parse_limit(text: &str) -> Result<Permit<u64>, String> {
    if text == NONE {
        return Ok(Permit(None));
    }
    let number = text.parse::<u64>().ok().filter(|number| (1..=i64::MAX as u64).contains(number));
    number.map(|number| Permit(Some(number))).ok_or_else(|| "must be a positive number, or none".to_owned())
}

/// Dollars as micro-dollars.
fn parse_money(text: &str) -> Result<Permit<u64>, String> {
    if text == NONE {
        return Ok(Permit(None));
    }
    let amount = parse_millionths(text).filter(|amount| (1..=i64::MAX as u64).contains(amount));
    amount
        .map(|amount| Permit(Some(amount)))
        .ok_or_else(|| "must be dollars with at most six decimals, like 2.50, or none".to_owned())
}

fn parse_since(text: &str) -> Result<u64, String> {
    match parse_lifetime(text) {
        Ok(Permit(Some(seconds))) => Ok(seconds),
        _ => Err("must be like 90s, 30m, 12h or 30d".to_owned()),
    }
}

/// A time in seconds, at most a hundred years.
fn parse_lifetime(text: &str) -> Result<Permit<u64>, String> {
    if text == NONE {
        return Ok(Permit(None));
    }
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    let parsed = units
        .iter()
        .find_map(|(unit, seconds)| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*seconds));
    let within = parsed.filter(|seconds| (1..=100 * 366 * 86_400).contains(seconds));
    within
        .map(|seconds| Permit(Some(seconds)))
        .ok_or_else(|| "must be like 90s, 30m, 12h or 30d, or none".to_owned())
}

fn parse_models(text: &str) -> Result<Permit<Vec<String>>, String> {
    if text == NONE {
        return Ok(Permit(None));
    }
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err("must be names separated by commas, or none".to_owned());
    }
    Ok(Permit(Some(names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_limits_and_lists_are_checked() {
        assert_eq!(parse_lifetime("30d"), Ok(Permit(Some(30 * 86_400))));
        assert_eq!(parse_lifetime("none"), Ok(Permit(None)));
        for bad in ["", "d", "0s", "-1d", "1.5h", "99999999999999999999d", "9999999999d", "30", "1w"] {
            assert!(parse_lifetime(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_limit("7"), Ok(Permit(Some(7))));
        assert!(["0", "-1", "9223372036854775808", "x", ""].iter().all(|bad| parse_limit(bad).is_err()));
        assert_eq!(parse_money("2.50"), Ok(Permit(Some(2_500_000))));
        assert!(["0", "-1", "1e3", "0.0000001", ""].iter().all(|bad| parse_money(bad).is_err()));
        assert_eq!(parse_models("a, b"), Ok(Permit(Some(vec!["a".to_owned(), "b".to_owned()]))));
        assert!(["", "a,,b", ","].iter().all(|bad| parse_models(bad).is_err()));
    }
}
