//! Crates have at most 22,000 lines in `src`, without exceptions. Files have at most 500 lines and functions
//! at most 80, except for tests. Exceptions are listed in `xtask/tidy-exceptions.txt`; one that is no longer
//! needed is a finding, so the list can only shrink.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, SourceFile};

const MAX_CRATE_LINES: usize = 22_000;
const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 80;
const EXCEPTIONS: &str = "xtask/tidy-exceptions.txt";

/// Finds crates, files and functions that are too long.
pub fn check(root: &Path, files: &[SourceFile]) -> Result<Vec<Finding>> {
    let mut exceptions = exceptions(root)?;
    let mut findings = large_crates(files);
    for file in files.iter().filter(|file| !file.is_test()) {
        let n_lines = file.text.lines().count();
        let limit = exceptions.get_mut(&file.path).map_or(MAX_FILE_LINES, |exception| {
            exception.is_needed = n_lines > MAX_FILE_LINES;
            exception.limit
        });
        if n_lines > limit {
            findings.push(Finding::new(&file.path, format!("{n_lines} lines, at most {limit}")));
        }
        let mut functions = Functions::default();
        functions.visit_file(&file.syntax);
        for (name, line, n_lines) in functions.found {
            if n_lines > MAX_FUNCTION_LINES {
                let rule = format!("fn {name} has {n_lines} lines, at most {MAX_FUNCTION_LINES}");
                findings.push(Finding::new(format!("{}:{line}", file.path), rule));
            }
        }
    }
    for (path, exception) in exceptions {
        if !exception.is_needed {
            findings.push(Finding::new(EXCEPTIONS, format!("{path} needs no exception any more")));
        }
    }
    Ok(findings)
}

/// Crates with too many lines under `src`.
fn large_crates(files: &[SourceFile]) -> Vec<Finding> {
    let mut n_lines: BTreeMap<&str, usize> = BTreeMap::new();
    for file in files {
        if let Some((name, _)) = file.path.split_once("/src/") {
            *n_lines.entry(name).or_default() += file.text.lines().count();
        }
    }
    let too_large = n_lines.into_iter().filter(|(_, n)| *n > MAX_CRATE_LINES);
    too_large
        .map(|(name, n)| Finding::new(name, format!("{n} lines in src, at most {MAX_CRATE_LINES}")))
        .collect()
}

struct Exception {
    limit: usize,
    is_needed: bool,
}

/// Lines of `path limit reason…`; `#` begins a comment.
fn exceptions(root: &Path) -> Result<BTreeMap<String, Exception>> {
    let text = std::fs::read_to_string(root.join(EXCEPTIONS)).context(EXCEPTIONS)?;
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let (path, limit) = (words.next(), words.next());
            let limit = limit.and_then(|limit| limit.parse().ok());
            let path = path.with_context(|| format!("{EXCEPTIONS}: {line}"))?;
            let limit = limit.with_context(|| format!("{EXCEPTIONS}: {line}: path, limit, reason"))?;
            Ok((path.to_owned(), Exception { limit, is_needed: false }))
        })
        .collect()
}

/// Name, first line and length of every function that is not a test.
#[derive(Default)]
struct Functions {
    found: Vec<(String, usize, usize)>,
}

impl Functions {
    fn note(&mut self, name: &syn::Ident, span: proc_macro2::Span) {
        let (first, last) = (span.start().line, span.end().line);
        self.found.push((name.to_string(), first, last + 1 - first));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !super::source::is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.note(
            &function.sig.ident,
            function.sig.span().join(function.block.span()).unwrap_or(function.block.span()),
        );
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.note(
            &function.sig.ident,
            function.sig.span().join(function.block.span()).unwrap_or(function.block.span()),
        );
        visit::visit_impl_item_fn(self, function);
    }
}
