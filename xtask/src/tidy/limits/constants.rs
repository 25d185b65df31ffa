//! Constants with numbers and the defaults of settings, as they stand in the source.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use super::super::{SourceFile, source};
use super::value::{Value, evaluate};

/// Crates whose constants are not limits of a server: test code, and tile sizes.
const EXCEPT: &[&str] = &["bench", "kernels", "testkit"];
/// Module of the measuring commands.
const BENCH: &str = "commands::bench";

/// A constant, or the default of a field.
#[derive(Debug)]
pub struct Constant {
    /// The crate's folder.
    pub krate: String,
    /// The module's path inside of the crate, with `::`; `lib` is the root.
    pub module: String,
    /// The name; `Type.field` for a default.
    pub name: String,
    pub value: Value,
    /// The first sentence of the doc comment; empty without one.
    pub meaning: String,
}

/// Finds all constants whose values are numbers.
pub fn collect(files: &[SourceFile]) -> Vec<Constant> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| !file.is_test()) {
        let mut here = Found::default();
        here.visit_file(&file.syntax);
        found.push((file, here));
    }
    let mut constants = Vec::new();
    let mut shared = BTreeMap::new();
    // Constants may name constants of other files: a second pass knows those.
    for _ in 0..2 {
        constants.clear();
        for (file, here) in &found {
            let Some((krate, module)) = place(&file.path) else { continue };
            let mut named = shared.clone();
            for item in &here.items {
                let Some(value) = evaluate(&item.expr, &named) else { continue };
                named.insert(item.name.clone(), value);
                let (name, meaning) = (item.name.clone(), item.meaning.clone());
                constants.push(Constant {
                    krate: krate.into(),
                    module: module.clone(),
                    name,
                    value,
                    meaning,
                });
            }
        }
        shared = constants.iter().map(|constant| (constant.name.clone(), constant.value)).collect();
    }
    constants
}

/// Crate and module of a file of `crates/`.
fn place(path: &str) -> Option<(&str, String)> {
    let (krate, rest) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let module = rest.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
    (!EXCEPT.contains(&krate) && !module.starts_with(BENCH)).then_some((krate, module))
}

struct Item {
    name: String,
    expr: syn::Expr,
    meaning: String,
}

#[derive(Default)]
struct Found {
    items: Vec<Item>,
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !source::is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        let (name, expr) = (item.ident.to_string(), (*item.expr).clone());
        self.items.push(Item { name, expr, meaning: first_sentence(&item.attrs) });
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        let (name, expr) = (item.ident.to_string(), item.expr.clone());
        self.items.push(Item { name, expr, meaning: first_sentence(&item.attrs) });
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let is_default = item
            .trait_
            .as_ref()
            .is_some_and(|(_, path, _)| path.segments.last().is_some_and(|part| part.ident == "Default"));
        let (true, syn::Type::Path(of)) = (is_default, &*item.self_ty) else {
            return visit::visit_item_impl(self, item);
        };
        let of = of.path.segments.last().map(|part| part.ident.to_string()).unwrap_or_default();
        let mut fields = Fields::default();
        fields.visit_item_impl(item);
        let fields = fields.found.into_iter();
        self.items.extend(fields.map(|(field, expr)| Item {
            name: format!("{of}.{field}"),
            expr,
            meaning: String::new(),
        }));
    }
}

/// The fields of `Self { … }`.
#[derive(Default)]
struct Fields {
    found: Vec<(String, syn::Expr)>,
}

impl<'ast> Visit<'ast> for Fields {
    fn visit_expr_struct(&mut self, expr: &'ast syn::ExprStruct) {
        if expr.path.is_ident("Self") {
            for field in &expr.fields {
                if let syn::Member::Named(name) = &field.member {
                    self.found.push((name.to_string(), field.expr.clone()));
                }
            }
        }
    }
}

/// The first sentence of a doc comment, as text of a table's cell.
fn first_sentence(attributes: &[syn::Attribute]) -> String {
    let lines =
        attributes.iter().filter(|attribute| attribute.path().is_ident("doc")).filter_map(|attribute| {
            let syn::Meta::NameValue(doc) = &attribute.meta else { return None };
            let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &doc.value else {
                return None;
            };
            Some(text.value().trim().to_owned())
        });
    let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let text = lines.join(" ").replace("[`", "`").replace("`]", "`").replace('|', "\\|");
    match text.split_once(". ") {
        Some((sentence, _)) => format!("{sentence}."),
        None => text,
    }
}
