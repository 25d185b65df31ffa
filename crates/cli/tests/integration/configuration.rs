//! `docs/configuration.md` has each setting of the configuration file, each flag that it names exists, and
//! its tables of common settings, profiles and expert settings are those of the program. The real binary says
//! which settings there are.

use std::collections::{BTreeMap, BTreeSet};

use throng_cli::args::CommandLine;
use throng_cli::config::{expert, profiles};

use crate::process::throng;

const PAGE: &str = include_str!("../../../../docs/configuration.md");

/// The sections that have settings of their own, and the keys of a section that are sections.
const SECTIONS: [&str; 26] = [
    "gateway.semantic_cache",
    "gateway.on_demand",
    "on_demand",
    "model",
    "engine",
    "engine.speculation",
    "adapters",
    "gateway.server",
    "gateway.tls",
    "gateway.access",
    "gateway.access.tokens",
    "gateway.access.tokens.claims",
    "gateway.api",
    "gateway.prices",
    "gateway.observability",
    "gateway.overload",
    "gateway.routing",
    "gateway.moderation",
    "gateway.response_cache",
    "gateway.autoscale",
    "gateway.state",
    "gateway.tools",
    "gateway.tools.server",
    "gateway.tools.http",
    "worker",
    "replica",
];
/// Tables that may come several times.
const REPEATED: [&str; 5] =
    ["gateway.prices", "gateway.tools.server", "gateway.tools.http", "replica", "on_demand"];
/// Keys that are read for one more release, with a warning that names the new one.
const OLD_KEYS: [&str; 1] = ["gateway.api.response_retention_s"];

/// The keys of a section: the error about an unknown key lists them.
fn keys_of(section: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("throng.toml");
    let head = if REPEATED.contains(&section) { format!("[[{section}]]") } else { format!("[{section}]") };
    std::fs::write(&file, format!("{head}\nno_such_key = 1\n")).unwrap();
    let output = throng(&["serve", "--config", file.to_str().unwrap()]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let (_, list) = told.split_once("expected ").unwrap_or_else(|| panic!("{section}: {told}"));
    let keys = list.split('`').skip(1).step_by(2);
    keys.map(|key| format!("{section}.{key}")).collect()
}

/// The rows of the tables: key, without the table `[expert]`, and flag.
fn rows() -> Vec<(&'static str, Option<&'static str>)> {
    let plain = |(key, flag): (&'static str, _)| (key.strip_prefix("expert.").unwrap_or(key), flag);
    rows_of(PAGE).into_iter().map(plain).collect()
}

/// The rows of the tables of a part of the page: key and flag.
fn rows_of(part: &'static str) -> Vec<(&'static str, Option<&'static str>)> {
    let cell = |text: &'static str| text.trim().strip_prefix('`')?.strip_suffix('`');
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix('|')?.split('|');
        Some((cell(cells.next()?)?, cells.next().and_then(cell)))
    };
    part.lines().filter_map(row).collect()
}

/// The part of the page under a heading of the second level.
fn part(heading: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("{heading}"));
    rest.split("\n## ").next().unwrap()
}

#[test]
fn each_setting_of_the_file_has_a_row_and_each_row_a_setting() {
    let mut settings: BTreeSet<String> = SECTIONS.into_iter().flat_map(keys_of).collect();
    settings.retain(|key| !REPEATED.contains(&&**key) && !OLD_KEYS.contains(&&**key));
    settings.insert("profile".to_owned());
    let listed: BTreeSet<String> = rows().into_iter().map(|(key, _)| key.to_owned()).collect();
    let missing: Vec<_> = settings.difference(&listed).collect();
    let unknown: Vec<_> = listed.difference(&settings).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "no row: {missing:?}; no setting: {unknown:?}");
}

#[test]
fn each_flag_of_the_page_exists_and_belongs_to_one_setting() {
    let help = |command| throng(&[command, "--help"]).output().unwrap().stdout;
    let help = ["serve", "worker", "gateway"].map(help).concat();
    let help = String::from_utf8(help).unwrap();
    let flags: Vec<&str> = rows().into_iter().filter_map(|(_, flag)| flag).collect();
    assert!(flags.len() > 30, "{flags:?}");
    for flag in &flags {
        let is_word =
            |at: usize| !help[at + flag.len()..].starts_with(|c: char| c == '-' || c.is_alphanumeric());
        let is_listed = help.match_indices(flag).any(|(at, _)| is_word(at));
        // The model usually stands without its flag, which help does not list.
        assert!(is_listed || *flag == "--model", "{flag}: {help}");
        assert_eq!(
            flags.iter().filter(|other| *other == flag).count(),
            1,
            "{flag} has two names in the file"
        );
    }
}

#[test]
fn the_first_tables_have_the_flags_of_the_short_help() {
    let mut command = CommandLine::described();
    let serve = command.find_subcommand_mut("serve").unwrap();
    let is_shown =
        |arg: &&clap::Arg| !arg.is_hide_set() && !arg.is_hide_short_help_set() && !arg.is_positional();
    let shown = serve.get_arguments().filter(is_shown).filter_map(|arg| arg.get_long());
    let shown: BTreeSet<String> = shown.map(|flag| format!("--{flag}")).collect();
    let listed = rows_of(part("Settings that most servers need"));
    assert!((25..=35).contains(&listed.len()), "{}", listed.len());
    let flags = listed.into_iter().filter_map(|(_, flag)| flag).filter(|flag| *flag != "--model");
    // These are not in the file.
    let flags = flags.chain(["--config", "--log-format"]).map(str::to_owned);
    assert_eq!(flags.collect::<BTreeSet<_>>(), shown);
}

#[test]
fn the_expert_settings_are_those_of_the_program() {
    let rows = rows_of(part("Expert settings"));
    let listed: BTreeSet<String> = rows.iter().map(|(key, _)| (*key).to_owned()).collect();
    let known = expert::KEYS.iter().map(|key| format!("expert.{key}"));
    assert_eq!(listed, known.collect::<BTreeSet<_>>());
    let help = throng(&["serve", "--help"]).output().unwrap().stdout;
    let help = String::from_utf8(help).unwrap();
    let (_, expert) = help.split_once("\nExpert:\n").unwrap();
    for flag in rows.into_iter().filter_map(|(_, flag)| flag) {
        assert!(expert.contains(flag), "{flag} is not in the group Expert: {expert}");
    }
}

/// The settings of a part of a file, by their paths.
fn flat(table: &toml::Table, path: &str, settings: &mut BTreeMap<String, i64>) {
    for (key, value) in table {
        let path = format!("{path}{key}");
        match value {
            toml::Value::Table(inner) => flat(inner, &format!("{path}."), settings),
            value => {
                settings.insert(path, value.as_integer().unwrap());
            }
        }
    }
}

/// A number of a table: bytes have a unit.
fn number(cell: &str) -> i64 {
    let (digits, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let factor = match unit {
        "" => 1,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => panic!("{cell}"),
    };
    digits.parse::<i64>().unwrap() * factor
}

#[test]
fn the_table_of_profiles_has_the_values_of_the_program() {
    let [service, edge] = [profiles::SERVICE, profiles::EDGE].map(|text| {
        let mut settings = BTreeMap::new();
        flat(&text.parse().unwrap(), "", &mut settings);
        settings
    });
    let mut listed = BTreeSet::new();
    for line in part("Profiles").lines().filter(|line| line.starts_with('|')).skip(2) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, key, desktop, of_service, of_edge, _] = cells[..] else { panic!("{line}") };
        let key = key.trim_matches('`');
        let desktop = number(desktop);
        assert_eq!(service.get(key).copied().unwrap_or(desktop), number(of_service), "{line}");
        assert_eq!(edge.get(key).copied().unwrap_or(desktop), number(of_edge), "{line}");
        assert!(expert::KEYS.contains(&key), "{key} is no expert setting");
        listed.insert(key.to_owned());
    }
    assert_eq!(listed, service.into_keys().chain(edge.into_keys()).collect::<BTreeSet<_>>());
}
