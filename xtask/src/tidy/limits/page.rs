//! The page itself: rows with their values filled in, then all other limits by crate.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Result, bail};

use super::constants::Constant;
use super::value::print;

const HEAD: &str = "# Limits\n\n\
    Every queue, body, buffer, table and retry has a bound, and past it comes an error or a defined loss. Defaults that a setting\n\
    changes name the setting; [configuration.md](configuration.md) has its range. `cargo xtask limits` writes this page from the\n\
    constants in the source, and `cargo xtask tidy` fails when the two differ.\n";

const REST: &str = "\n## All other limits, by crate\n\n\
    Constants of the source that no row above names. Modules are those of the crate.\n";

/// Parts of the names of constants that bound something.
const BOUNDS: &[&str] = &["MAX_", "_LIMIT", "TIMEOUT", "GRACE", "PATIENCE"];

/// Writes the page from rows with placeholders: `{NAME@module}` for a constant, where the module may be the
/// end of its path, and `{Type.field}` for the default of a setting.
pub fn write(rows: &str, constants: &[Constant]) -> Result<String> {
    let (mut page, mut used) = (HEAD.to_owned(), BTreeSet::new());
    for line in rows.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        if let Some(heading) = line.strip_prefix("## ") {
            write!(page, "\n## {heading}\n\n| what | limit | past it |\n| --- | --- | --- |\n")?;
            continue;
        }
        if line.matches(" | ").count() != 2 {
            bail!("not three cells: {line}");
        }
        writeln!(page, "| {} |", fill(line, constants, &mut used)?)?;
    }
    page.push_str(REST);
    let is_bound = |name: &str| BOUNDS.iter().any(|part| name.contains(part));
    let mut rest: Vec<&Constant> = constants
        .iter()
        .filter(|constant| is_bound(&constant.name) && !constant.meaning.is_empty())
        .filter(|constant| {
            !used.contains(&(constant.krate.as_str(), constant.module.as_str(), constant.name.as_str()))
        })
        .collect();
    rest.sort_by_key(|constant| (&constant.krate, &constant.module));
    let mut last = "";
    for constant in rest {
        if constant.krate != last {
            last = &constant.krate;
            write!(page, "\n### {last}\n\n| constant | value | meaning |\n| --- | --- | --- |\n")?;
        }
        let value = print(&constant.name, constant.value);
        let module = constant.module.trim_end_matches("lib");
        let separator = if module.is_empty() { "" } else { "::" };
        writeln!(page, "| `{module}{separator}{}` | {value} | {} |", constant.name, constant.meaning)?;
    }
    Ok(page)
}

/// A row with its placeholders replaced; notes which constants it names.
fn fill<'a>(
    row: &str,
    constants: &'a [Constant],
    used: &mut BTreeSet<(&'a str, &'a str, &'a str)>,
) -> Result<String> {
    let mut text = String::new();
    let mut parts = row.split('{');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let Some((placeholder, rest)) = part.split_once('}') else { bail!("a brace without its end: {row}") };
        let (name, module) = placeholder.split_once('@').unwrap_or((placeholder, ""));
        let is_there = |constant: &&Constant| {
            let path = format!("{}::{}", constant.krate, constant.module);
            module.is_empty() || path == module || path.ends_with(&format!("::{module}"))
        };
        let found: Vec<&Constant> =
            constants.iter().filter(|constant| constant.name == name).filter(is_there).collect();
        let [constant] = found[..] else {
            bail!("{{{placeholder}}} names {} constants with a number, not one", found.len())
        };
        used.insert((&constant.krate, &constant.module, &constant.name));
        text.push_str(&print(name, constant.value));
        text.push_str(rest);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::super::value::Value;
    use super::*;

    fn constant(module: &str, name: &str, n: i128) -> Constant {
        let (krate, meaning) = ("x".to_owned(), "Meaning.".to_owned());
        Constant { krate, module: module.into(), name: name.into(), value: Value::Int(n), meaning }
    }

    #[test]
    fn rows_are_filled_and_the_rest_follows() {
        let constants =
            [constant("a::b", "MAX_BYTES", 2048), constant("c", "MAX_BYTES", 1), constant("c", "N", 1)];
        let page = write("# comment\n## Bodies\nbody | {MAX_BYTES@b} | 413\n", &constants).unwrap();
        assert!(page.contains(
            "## Bodies\n\n| what | limit | past it |\n| --- | --- | --- |\n| body | 2 KiB | 413 |\n"
        ));
        assert!(page.ends_with("| `c::MAX_BYTES` | 1 bytes | Meaning. |\n"), "{page}");
    }

    #[test]
    fn a_placeholder_names_exactly_one_constant() {
        let constants = [constant("a", "MAX", 1), constant("b", "MAX", 2)];
        for row in ["x | {MAX} | y", "x | {MIN} | y", "x | {MAX@c} | y", "x | {MAX@a} y"] {
            assert!(write(row, &constants).is_err(), "{row}");
        }
    }
}
