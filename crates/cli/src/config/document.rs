//! A configuration file as text: sizes with units, and every mistake at once with its line. An invalid
//! setting is removed and the rest is read again. Does not know the settings.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

use super::tips;
use crate::args::bytes_of;

/// Maximum number of mistakes in a message.
const MAX_FAULTS: usize = 32;
/// Span of a setting that no file contains, such as a setting of a profile.
pub const NOWHERE: Range<usize> = 0..0;
/// Tables whose keys the operator chooses: a string in them is never a size.
const FREE_TABLES: [&str; 6] = [
    "model.default_chat_template_kwargs",
    "gateway.tools.server.env",
    "gateway.tools.server.headers",
    "gateway.tools.server.oauth",
    "gateway.tools.http.headers",
    "gateway.tools.http.parameters",
];

/// A parsed file with its mistakes.
#[derive(Debug, Default)]
pub struct Document<T> {
    /// Settings without those that have mistakes.
    pub settings: T,
    /// Mistakes in the order of their lines.
    pub faults: Vec<Fault>,
    /// Warnings about settings that are accepted in an outdated form.
    pub warnings: Vec<Fault>,
    /// Line numbers of the settings by path.
    pub lines: BTreeMap<String, usize>,
}

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Line number, from 1; 0 if unknown.
    pub line: usize,
    /// Description of the mistake, with the setting's path.
    pub text: String,
}

/// A mistake or a warning about the keys of a file, found before it is deserialized.
#[derive(Debug)]
pub struct Remark {
    /// Byte range of the key.
    pub span: Range<usize>,
    /// The description, with the setting's path.
    pub text: String,
    /// Whether this is a mistake; else a warning.
    pub is_mistake: bool,
}

impl<T> Document<T> {
    /// All faults with their lines, including `checked`: texts that begin with a setting's path.
    pub fn with(self, checked: Vec<String>) -> Vec<Fault> {
        let placed = |text: String| {
            let end =
                text.find(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c))).unwrap_or(text.len());
            Fault { line: self.line_of(&text[..end]).unwrap_or(0), text }
        };
        let mut faults: Vec<Fault> = checked.into_iter().map(placed).collect();
        faults.extend(self.faults);
        faults.sort();
        faults
    }

    /// The line of a setting, or of the innermost table around it that has a line.
    fn line_of(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            match (self.lines.get(path), path.rsplit_once('.')) {
                (Some(line), _) => return Some(*line),
                (None, Some((table, _))) => path = table,
                (None, None) => return None,
            }
        }
    }
}

/// The error message with all faults of a file, or of the flags if there is no file; `None` without faults.
pub fn told(file: Option<&Path>, faults: &[Fault]) -> Option<String> {
    let line = |fault: &Fault| match fault.line {
        0 => fault.text.clone(),
        line => format!("line {line}: {}", fault.text),
    };
    let texts: Vec<String> = faults.iter().map(line).collect();
    match (file, texts.as_slice()) {
        (None, [only]) => Some(only.clone()),
        (None, texts) => listed("the settings", texts),
        (Some(file), texts) => listed(&file.display().to_string(), texts),
    }
}

/// One message with all mistakes of `place`; `None` without any.
pub fn listed(place: &str, mistakes: &[String]) -> Option<String> {
    match mistakes {
        [] => None,
        [only] => Some(format!("{place}: {only}")),
        several => Some(format!("{place}: {} mistakes\n  {}", several.len(), several.join("\n  "))),
    }
}

/// Parses a file. Never fails: mistakes become faults. `arrange` moves and adds settings before they are
/// deserialized; the keys that it adds have the span [`NOWHERE`].
pub fn read<T: DeserializeOwned + Default>(
    text: &str,
    arrange: impl FnOnce(&mut DeTable<'_>) -> Vec<Remark>,
) -> Document<T> {
    let (mut faults, mut warnings) = (Vec::new(), Vec::new());
    let text = with_sizes(text);
    let (mut root, errors) = DeTable::parse_recoverable(&text);
    let syntax = errors.iter().map(|error| fault_at(&text, error.span(), error.message().to_owned()));
    faults.extend(syntax.take(MAX_FAULTS));
    for Remark { span, text: told, is_mistake } in arrange(root.get_mut()) {
        let list = if is_mistake { &mut faults } else { &mut warnings };
        list.push(fault_at(&text, Some(span), told));
    }
    let mut lines = BTreeMap::new();
    list_lines(root.get_ref(), "", &text, &mut lines);
    let settings = loop {
        match T::deserialize(Deserializer::from(root.clone())) {
            Ok(settings) => break settings,
            Err(error) => {
                let removed = error.span().and_then(|span| remove(root.get_mut(), &span, ""));
                let is_known = |fault: &Fault| faults.iter().any(|other: &Fault| other.line == fault.line);
                let fault = describe(&text, &error, removed.as_ref());
                // A line that does not parse also causes errors about its setting; those are left out.
                if errors.is_empty() || !is_known(&fault) {
                    faults.push(fault);
                }
                if removed.is_none() || faults.len() >= MAX_FAULTS {
                    break T::default();
                }
            }
        }
    };
    faults.sort();
    faults.dedup();
    warnings.sort();
    Document { settings, faults, warnings, lines }
}

/// A setting removed because of a mistake.
struct Removed {
    path: String,
    key: Range<usize>,
    /// Span of the value, if that may be shown.
    value: Option<Range<usize>>,
}

fn describe(text: &str, error: &Error, removed: Option<&Removed>) -> Fault {
    let Some(removed) = removed else { return fault_at(text, error.span(), error.message().to_owned()) };
    let value = removed.value.clone().and_then(|span| text.get(span));
    let value = value.map(|value| format!(" = {value}")).unwrap_or_default();
    let tip = tips::tip(&removed.path, error.message());
    let tip = tip.map(|tip| format!(". {tip}")).unwrap_or_default();
    let told = format!("{}{value}: {}{tip}", removed.path, error.message());
    fault_at(text, Some(removed.key.clone()), told)
}

fn fault_at(text: &str, span: Option<Range<usize>>, told: String) -> Fault {
    let at = span.map_or(0, |span| span.start.min(text.len()));
    Fault { line: line_at(text, at), text: told }
}

fn line_at(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count()
}

/// Removes the innermost setting whose key or value contains `span`.
fn remove(table: &mut DeTable<'_>, span: &Range<usize>, path: &str) -> Option<Removed> {
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let path = joined(path, key.get_ref());
        if !holds(&key.span(), span) {
            if let Some(removed) = remove_inside(value.get_mut(), span, &path) {
                return Some(removed);
            }
            if !holds(&value.span(), span) {
                continue;
            }
        }
        let shown = is_plain(value.get_ref()).then(|| value.span());
        found = Some((key.get_ref().to_string(), Removed { path, key: key.span(), value: shown }));
        break;
    }
    let (name, removed) = found?;
    table.remove(name.as_str());
    Some(removed)
}

fn remove_inside(value: &mut DeValue<'_>, span: &Range<usize>, path: &str) -> Option<Removed> {
    let items = match value {
        DeValue::Table(table) => return remove(table, span, path),
        DeValue::Array(items) => items,
        _ => return None,
    };
    for idx in 0..items.len() {
        let item = items.get_mut(idx)?;
        if let Some(removed) = remove_inside(item.get_mut(), span, path) {
            return Some(removed);
        }
        let key = item.span();
        if holds(&key, span) {
            let all = std::mem::replace(items, [].into_iter().collect());
            let kept = all.into_iter().enumerate().filter(|(other, _)| *other != idx);
            *items = kept.map(|(_, item)| item).collect();
            return Some(Removed { path: format!("{path}[{idx}]"), key, value: None });
        }
    }
    None
}

fn holds(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Whether a value may be shown: numbers and booleans are not secrets.
fn is_plain(value: &DeValue<'_>) -> bool {
    matches!(value, DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_))
}

/// The path of a key in the table at `path`.
pub fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Records the line of each setting and table. An array of tables gets the line of its last one.
fn list_lines(table: &DeTable<'_>, path: &str, text: &str, lines: &mut BTreeMap<String, usize>) {
    for (key, value) in table {
        let path = joined(path, key.get_ref());
        match value.get_ref() {
            DeValue::Table(inner) => list_lines(inner, &path, text, lines),
            DeValue::Array(items) => {
                let tables = items.iter().filter_map(|item| item.get_ref().as_table());
                tables.for_each(|inner| list_lines(inner, &path, text, lines));
            }
            _ => {}
        }
        if key.span() != NOWHERE {
            lines.insert(path, line_at(text, key.span().start));
        }
    }
}

/// The text with sizes like `"64MiB"` replaced by numbers where a setting counts bytes. Line numbers do not
/// change.
fn with_sizes(text: &str) -> String {
    let (root, _) = DeTable::parse_recoverable(text);
    let mut sizes = Vec::new();
    list_sizes(root.get_ref(), "", &mut sizes);
    sizes.sort_by_key(|(span, _)| std::cmp::Reverse(span.start));
    let mut text = text.to_owned();
    for (span, n_bytes) in sizes {
        text.replace_range(span, &n_bytes.to_string());
    }
    text
}

fn list_sizes(table: &DeTable<'_>, path: &str, sizes: &mut Vec<(Range<usize>, u64)>) {
    for (key, value) in table {
        let path = joined(path, key.get_ref());
        if !FREE_TABLES.contains(&path.as_str()) {
            size_of(value, &path, sizes);
        }
    }
}

fn size_of(value: &Spanned<DeValue<'_>>, path: &str, sizes: &mut Vec<(Range<usize>, u64)>) {
    match value.get_ref() {
        DeValue::Table(inner) => list_sizes(inner, path, sizes),
        DeValue::Array(items) => items.iter().for_each(|item| size_of(item, path, sizes)),
        DeValue::String(written) if path.ends_with(tips::BYTES) && !written.contains('\n') => {
            sizes.extend(bytes_of(written).ok().map(|n_bytes| (value.span(), n_bytes)));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct File {
        engine: Section,
        replica: Vec<Item>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Section {
        max_kv_bytes: u64,
        port: u16,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Item {
        url: String,
        #[serde(default)]
        cache_bytes: u64,
    }

    #[test]
    fn sizes_have_units_where_bytes_are_counted() {
        let text = "[engine]\nmax_kv_bytes = \"64MiB\" # much\nport = 5\n[[replica]]\nurl = \"a\"\n\
                    cache_bytes = '1.5g'\n[[replica]]\nurl = \"64MiB\"\ncache_bytes = 7\n";
        let read = read::<File>(text, |_| Vec::new());
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        assert_eq!(read.settings.engine, Section { max_kv_bytes: 64 << 20, port: 5 });
        let items = read.settings.replica;
        assert_eq!((items[0].cache_bytes, items[1].cache_bytes), (3 << 29, 7));
        assert_eq!(items[1].url, "64MiB");
    }

    #[test]
    fn every_mistake_is_told_with_its_line_and_the_rest_is_read() {
        let text = "[engine]\nprot = 1\nport = 70000\nmax_kv_bytes = \"64 elephants\"\n\n[[replica]]\n\
                    cache_bytes = 1\n[[replica]]\nurl = \"a\"\ncache_bytes = \"1KiB\"\n[unknown]\nx = 1\n";
        let read = read::<File>(text, |_| Vec::new());
        let told: Vec<String> =
            read.faults.iter().map(|fault| format!("{}: {}", fault.line, fault.text)).collect();
        for (idx, words) in [
            "2: engine.prot = 1: unknown field `prot`",
            "3: engine.port = 70000: ",
            "4: engine.max_kv_bytes: ",
            "6: replica[0]: missing field `url`",
            "11: unknown: unknown field `unknown`",
        ]
        .iter()
        .enumerate()
        {
            assert!(told.get(idx).is_some_and(|told| told.starts_with(words)), "{words}: {told:#?}");
        }
        assert_eq!(told.len(), 5, "{told:#?}");
        assert_eq!(read.settings.replica, [Item { url: "a".into(), cache_bytes: 1024 }]);
    }

    #[test]
    fn mistakes_of_the_form_and_of_settings_come_together() {
        let told = read::<File>("[engine]\nport = \nprot = 1\n", |_| Vec::new()).faults;
        assert!(told.iter().any(|fault| fault.line == 2), "{told:?}");
        assert!(told.iter().any(|fault| fault.line == 3 && fault.text.contains("prot")), "{told:?}");
        assert_eq!(read::<File>("[engine", |_| Vec::new()).faults.len(), 1);
    }
}
