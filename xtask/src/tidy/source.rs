//! Rules for each file's content: it begins with its purpose, has no marks of unfinished work, no `unsafe`
//! outside `kernels` and `os`, no `unwrap` and no printing macro of std outside tests.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, SourceFile};

/// Crates that may hold `unsafe`; all others forbid it in their root file.
const MAY_BE_UNSAFE: &[&str] = &["crates/gpu/", "crates/kernels/", "crates/os/"];

/// Whether a file is part of the product. Tools, build scripts and what serves tests alone may use macros
/// that panic when printing fails.
fn is_product(path: &str) -> bool {
    path.starts_with("crates/") && !path.ends_with("/build.rs") && !path.starts_with("crates/testkit/")
}

/// Finds violations in one file.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !file.text.starts_with("//!") {
        findings.push(Finding::new(
            &file.path,
            "begins without //!: say what the file is for and what it does not know",
        ));
    }
    for (line_idx, line) in file.text.lines().enumerate() {
        for mark in ["TODO", "FIXME", "XXX"] {
            // Only comments are searched, since this file itself has the marks as strings.
            if line
                .split("//")
                .skip(1)
                .any(|comment| comment.split(|c: char| !c.is_alphanumeric()).any(|word| word == mark))
            {
                findings.push(Finding::new(
                    format!("{}:{}", file.path, line_idx + 1),
                    format!("{mark} in a comment"),
                ));
            }
        }
    }
    let is_root = file.path.ends_with("/src/lib.rs");
    let may_be_unsafe = MAY_BE_UNSAFE.iter().any(|path| file.path.starts_with(path));
    if is_root && !may_be_unsafe && !file.text.contains("#![forbid(unsafe_code)]") {
        findings.push(Finding::new(&file.path, "a crate root without #![forbid(unsafe_code)]"));
    }
    if !file.is_test() {
        let mut calls = Calls { file, findings: Vec::new() };
        calls.visit_file(&file.syntax);
        findings.append(&mut calls.findings);
    }
    findings
}

/// Whether attributes contain `#[cfg(test)]`.
pub fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

struct Calls<'a> {
    file: &'a SourceFile,
    findings: Vec<Finding>,
}

impl Calls<'_> {
    fn find(&mut self, span: proc_macro2::Span, rule: &str) {
        self.findings.push(Finding::new(format!("{}:{}", self.file.path, span.start().line), rule));
    }
}

impl<'ast> Visit<'ast> for Calls<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "unwrap" && call.args.is_empty() {
            self.find(
                call.method.span(),
                "unwrap outside tests: handle it, or expect() with the invariant's reason",
            );
        }
        visit::visit_expr_method_call(self, call);
    }
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let prints = ["print", "println", "eprint", "eprintln"].iter().any(|name| call.path.is_ident(name));
        if prints && is_product(&self.file.path) {
            self.find(
                call.path.span(),
                "panics where the stream cannot be written: log it, or print through throng_cli::process::output",
            );
        }
        visit::visit_macro(self, call);
    }
}
