//! `docs/configuration.md` has each setting of the configuration file, and each flag that it names exists.
//! The real binary says which settings there are.

use std::collections::BTreeSet;

use crate::process::throng;

const PAGE: &str = include_str!("../../../../docs/configuration.md");

/// The sections that have settings of their own, and the keys of a section that are sections.
const SECTIONS: [&str; 22] = [
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
    "worker",
    "replica",
];
/// Tables that may come several times.
const REPEATED: [&str; 3] = ["gateway.prices", "replica", "on_demand"];

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

/// The rows of the tables: key and flag.
fn rows() -> Vec<(&'static str, Option<&'static str>)> {
    let cell = |text: &'static str| text.trim().strip_prefix('`')?.strip_suffix('`');
    let row = |line: &'static str| {
        let mut cells = line.strip_prefix('|')?.split('|');
        Some((cell(cells.next()?)?, cells.next().and_then(cell)))
    };
    PAGE.lines().filter_map(row).collect()
}

#[test]
fn each_setting_of_the_file_has_a_row_and_each_row_a_setting() {
    let settings: BTreeSet<String> = SECTIONS.into_iter().flat_map(keys_of).collect();
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
