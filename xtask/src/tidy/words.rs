//! Files and types must not have meaningless names.

use syn::visit::{self, Visit};

use super::{Finding, SourceFile};

const EMPTY_WORDS: &[&str] =
    &["manager", "helper", "helpers", "util", "utils", "common", "misc", "base", "impl"];

/// Finds files and types with a meaningless word in their name.
pub fn check(file: &SourceFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let stems = file.path.trim_end_matches(".rs").split(['/', '_', '-']);
    for word in stems.filter(|stem| EMPTY_WORDS.contains(stem)) {
        findings.push(Finding::new(&file.path, format!("a file named {word}: name what it does")));
    }
    let mut types = Types { file, findings };
    types.visit_file(&file.syntax);
    types.findings
}

struct Types<'a> {
    file: &'a SourceFile,
    findings: Vec<Finding>,
}

impl Types<'_> {
    fn name(&mut self, name: &syn::Ident) {
        let text = name.to_string();
        let empty = EMPTY_WORDS.iter().find(|word| {
            let mut letters = word.chars();
            let first = letters.next().into_iter().flat_map(char::to_uppercase);
            text.ends_with(&first.chain(letters).collect::<String>())
        });
        // `Database`-like words end the same way; only a whole last word counts.
        if let Some(word) = empty.filter(|word| is_last_word(&text, word)) {
            let place = format!("{}:{}", self.file.path, name.span().start().line);
            self.findings.push(Finding::new(place, format!("{text}: a type named {word}")));
        }
    }
}

fn is_last_word(name: &str, word: &str) -> bool {
    let start = name.len() - word.len();
    name[start..].starts_with(char::is_uppercase)
}

impl<'ast> Visit<'ast> for Types<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.name(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.name(&item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.name(&item.ident);
        visit::visit_item_trait(self, item);
    }
}
