//! What README.md and the pages in `docs/` say is held against the program: flags, command lines, settings in
//! TOML, environment variables, metrics, routes, tables and links.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use throng_cli::args::{CommandLine, words_of};

use crate::process::throng;

/// Flags of cargo, docker, curl and other programs that the pages name.
const OTHER_PROGRAMS: [&str; 24] = [
    "--bench",
    "--build-arg",
    "--core",
    "--cpus",
    "--env",
    "--git",
    "--locked",
    "--mca",
    "--memory",
    "--no-show-model-warnings",
    "--nocapture",
    "--open-streams",
    "--publish",
    "--read-only",
    "--release",
    "--remote",
    "--router",
    "--set",
    "--tag",
    "--time",
    "--unix-socket",
    "--volume",
    "--worker-urls",
    "--workspace",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// README.md and the pages of `docs/` by their paths.
fn pages() -> BTreeMap<String, String> {
    let folder = root().join("docs");
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
    let read = |path: String| (path.clone(), std::fs::read_to_string(root().join(path)).unwrap());
    pages.chain(["README.md".to_owned()]).map(read).collect()
}

/// The text of all files below a folder of the project whose names have one of these endings.
fn sources(folder: &str, endings: &[&str]) -> String {
    fn walk(folder: &Path, endings: &[&str], text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                walk(&path, endings, text);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                *text += &std::fs::read_to_string(&path).unwrap_or_default();
            }
        }
    }
    let mut text = String::new();
    walk(&root().join(folder), endings, &mut text);
    text
}

/// Words that begin with `start` and go on with what `is_part` accepts, with the page that has them.
fn words(start: &str, is_part: impl Fn(char) -> bool) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (page, text) in pages() {
        for (at, _) in text.match_indices(start) {
            let is_inside = text[..at].ends_with(|c: char| c.is_alphanumeric() || "-_".contains(c));
            let rest = &text[at + start.len()..];
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            if !is_inside && end > 0 {
                found.insert(format!("{start}{}", &rest[..end]), page.clone());
            }
        }
    }
    found
}

/// All long flags of all commands, with their other names.
fn flags_of(command: &clap::Command, flags: &mut BTreeSet<String>) {
    for arg in command.get_arguments() {
        let names = arg.get_long_and_visible_aliases().unwrap_or_default();
        let others = arg.get_all_aliases().unwrap_or_default();
        flags.extend(names.into_iter().chain(others).map(|name| format!("--{name}")));
    }
    command.get_subcommands().for_each(|command| flags_of(command, flags));
}

#[test]
fn each_flag_exists() {
    let mut known: BTreeSet<String> = ["--help".to_owned(), "--version".to_owned()].into();
    flags_of(&CommandLine::described(), &mut known);
    let scripts =
        [sources("bench", &[".py", ".sh"]), sources("tests", &[".py"]), sources("xtask", &[".rs"])].concat();
    let named = words("--", |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_');
    let is_known = |flag: &str| {
        let flag = flag.trim_end_matches(['-', '_']).replace('_', "-");
        flag.is_empty()
            || known.contains(&flag)
            || OTHER_PROGRAMS.contains(&flag.as_str())
            || scripts.contains(&format!("\"{flag}\""))
    };
    let is_word = |flag: &str| flag[2..].starts_with(|c: char| c.is_ascii_lowercase());
    let unknown: Vec<_> = named.iter().filter(|(flag, _)| is_word(flag) && !is_known(flag)).collect();
    assert!(unknown.is_empty(), "flags that no program has: {unknown:#?}");
    assert!(named.len() > 100);
    let unused: Vec<_> = OTHER_PROGRAMS.iter().filter(|flag| !named.contains_key(**flag)).collect();
    assert!(unused.is_empty(), "no page names {unused:?} any more");
}

/// The words of a command line; quotes keep words together, and brackets mark what may be left out.
fn shell_words(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, c) if c.is_whitespace() => words.push(String::new()),
            (None, '[' | ']') => {}
            (_, c) => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The lines of a page that are commands of Throng, without the shell's words around them.
fn commands(text: &str) -> Vec<Vec<String>> {
    let joined = text.replace("\\\n", " ");
    let command = |line: &str| {
        let code = line.strip_prefix("    ").or_else(|| line.strip_prefix("$ ")).unwrap_or(line).trim();
        let code = code.split(" #").next().unwrap_or(code);
        let is_variable =
            |word: &String| word.contains('=') && word.starts_with(|c: char| c.is_ascii_uppercase());
        let ends = |word: &String| ["|", "&&", ">", ";", "&"].contains(&word.as_str());
        let words = shell_words(code).into_iter().skip_while(is_variable);
        let words: Vec<String> = words.take_while(|word| !ends(word)).collect();
        (words.first().is_some_and(|first| first == "throng") && words.len() > 1).then_some(words)
    };
    let is_code =
        |line: &&str| line.starts_with("    ") || line.starts_with("$ ") || line.starts_with("throng ");
    joined.lines().filter(is_code).filter_map(command).collect()
}

#[test]
fn each_command_line_is_one() {
    let mut n = 0;
    for (page, text) in pages() {
        for words in commands(&text) {
            n += 1;
            let Err(error) =
                CommandLine::described().try_get_matches_from(words_of(words.iter().map(Into::into)))
            else {
                continue;
            };
            let is_wrong = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
            assert!(!is_wrong, "{page}: {}: {error}", words.join(" "));
        }
    }
    assert!(n > 50, "{n}");
}

/// The blocks of TOML of a page: fenced ones, and indented ones that begin with a table.
fn toml_blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut fenced: Option<String> = None;
    let mut indented = String::new();
    for line in text.lines().chain([""; 2]) {
        match (&mut fenced, line.trim()) {
            (None, "```toml") => fenced = Some(String::new()),
            (Some(block), "```") => {
                blocks.push(std::mem::take(block));
                fenced = None;
            }
            (Some(block), _) => *block += &format!("{line}\n"),
            (None, _) => match line.strip_prefix("    ") {
                Some(code) => indented += &format!("{code}\n"),
                None if line.is_empty() && !indented.is_empty() => indented.push('\n'),
                None => blocks.push(std::mem::take(&mut indented)),
            },
        }
    }
    let is_table = |block: &String| {
        let first = block.lines().find(|line| !line.trim().is_empty() && !line.starts_with('#'));
        first.is_some_and(|first| {
            // Machines of the planner have a form of their own, which tests of throng-plan check.
            first.starts_with('[')
                && first != "[[machine]]"
                && first.contains(']')
                && !first.contains(['"', ' ', '}'])
        })
    };
    blocks.retain(is_table);
    blocks
}

#[test]
fn each_setting_of_an_example_exists() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("throng.toml");
    let mut n = 0;
    for (page, text) in pages() {
        for block in toml_blocks(&text) {
            n += 1;
            std::fs::write(&file, &block).unwrap();
            let output = throng(&["config", "check", file.to_str().unwrap()]).output().unwrap();
            let told = String::from_utf8(output.stderr).unwrap();
            for fault in
                ["unknown field", "unknown variant", "invalid type", "missing field", "duplicate key"]
            {
                assert!(!told.contains(fault), "{page}: {told}\n{block}");
            }
        }
    }
    assert!(n > 10, "{n}");
}

#[test]
fn each_variable_and_metric_exists() {
    let code =
        [sources("crates", &[".rs", ".py"]), sources("xtask", &[".rs"]), sources("tests", &[".py"])].concat();
    let code = code + &sources("bench", &[".py"]) + &sources("packaging", &["post", "postinst", "postrm"]);
    for (variable, page) in words("THRONG_", |c| c.is_ascii_uppercase() || c == '_') {
        assert!(code.contains(&variable), "{page}: no program reads {variable}");
    }
    for start in ["throng_", "vllm:"] {
        for (metric, page) in words(start, |c| c.is_ascii_lowercase() || c == '_') {
            let endings = ["_total", "_bucket", "_sum", "_count", "_"];
            let plain = endings.iter().find_map(|end| metric.strip_suffix(end)).unwrap_or(&metric);
            // Names of vLLM's metrics are made from a prefix and a name.
            let name = plain.trim_start_matches("vllm:");
            assert!(code.contains(name), "{page}: no metric is called {metric}");
        }
    }
}

#[test]
fn each_route_exists() {
    let code = sources("crates/gateway/src", &[".rs"]);
    let methods = ["GET", "POST", "PUT", "PATCH", "DELETE"];
    let mut n = 0;
    for (page, text) in pages() {
        for (method, path) in methods.iter().flat_map(|method| {
            let start = format!("{method} /");
            let places: Vec<usize> = text.match_indices(&start).map(|(at, _)| at + start.len() - 1).collect();
            places.into_iter().map(move |at| (method, at))
        }) {
            let rest = &text[path..];
            let end =
                rest.find(|c: char| !(c.is_alphanumeric() || "/_-{}.".contains(c))).unwrap_or(rest.len());
            let path = rest[..end].trim_end_matches('.');
            let is_fixed = |part: &&str| !part.contains('{') && !part.chars().any(|c| c.is_ascii_uppercase());
            let fixed: Vec<&str> = path.split('/').take_while(is_fixed).collect();
            let fixed = fixed.join("/");
            n += 1;
            let is_known = fixed.is_empty() || code.contains(&format!("\"{fixed}"));
            assert!(is_known, "{page}: there is no route {method} {path}");
        }
    }
    assert!(n > 30, "{n}");
}

#[test]
fn each_table_has_whole_rows() {
    for (page, text) in pages() {
        let mut columns = None;
        for (idx, line) in text.lines().enumerate() {
            if !line.starts_with('|') {
                columns = None;
                continue;
            }
            // A bar inside of a cell is written \| or stands in code.
            let is_bar = |(at, c): (usize, char)| {
                c == '|' && !line[..at].ends_with('\\') && line[..at].matches('`').count() % 2 == 0
            };
            let n = line.char_indices().filter(|found| is_bar(*found)).count();
            let place = format!("{page}:{}", idx + 1);
            assert_eq!(
                *columns.get_or_insert(n),
                n,
                "{place} has another number of cells than its table: {line}"
            );
            assert!(!line.contains("\",."), "{place} ends with the rest of a program's text: {line}");
            assert_eq!(line.matches('`').count() % 2, 0, "{place}: {line}");
        }
    }
}

/// What GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let plain = heading.trim_start_matches('#').trim().to_lowercase();
    plain.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
}

#[test]
fn each_link_leads_somewhere() {
    let all = pages();
    for (page, text) in &all {
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split(')').next().unwrap();
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, fragment) =
                target.split_once('#').map_or((target, None), |(path, end)| (path, Some(end)));
            let folder = Path::new(page).parent().unwrap();
            let linked = if path.is_empty() { page.clone() } else { folder.join(path).display().to_string() };
            let file = root().join(&linked);
            assert!(file.exists(), "{page}: {target} does not exist");
            if let Some(fragment) = fragment {
                let linked = std::fs::read_to_string(file).unwrap();
                let headings = linked.lines().filter(|line| line.starts_with('#'));
                assert!(
                    headings.map(anchor).any(|anchor| anchor == fragment),
                    "{page}: {target} has no such heading"
                );
            }
        }
    }
}
