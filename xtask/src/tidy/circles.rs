//! Modules beside each other import each other in one direction only. Reads `use` items and paths; does not
//! know macros. A module and the modules inside it count as one here, so a child may use what its parent
//! defines.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::{Finding, SourceFile, source};

/// Names of a module that is imported through another: `pub use` leads at most this many steps on.
const MAX_REEXPORTS: usize = 8;

type ModulePath = Vec<String>;

/// Finds circles among the modules of each folder.
pub fn check(files: &[SourceFile]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, Crate> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.is_test()) {
        if let Some((name, path)) = file.path.split_once("/src/") {
            let of_crate = crates.entry(name).or_default();
            of_crate.modules.insert(module_path(path), Module::of(file));
        }
    }
    crates.iter().flat_map(|(name, of_crate)| of_crate.findings(name)).collect()
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`; the root is empty.
fn module_path(path: &str) -> ModulePath {
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').filter(|part| !matches!(*part, "lib" | "main" | "mod")).map(str::to_owned).collect()
}

#[derive(Default)]
struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

/// What one file names outside itself.
#[derive(Default)]
struct Module {
    paths: BTreeSet<Vec<String>>,
    /// What a name that it imports stands for.
    imports: BTreeMap<String, Vec<String>>,
}

impl Module {
    fn of(file: &SourceFile) -> Self {
        let mut module = Self::default();
        module.visit_file(&file.syntax);
        module
    }

    fn add_tree(&mut self, tree: &syn::UseTree, prefix: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add_tree(&path.tree, prefix);
                prefix.pop();
            }
            syn::UseTree::Name(name) => self.add_import(name.ident.to_string(), &name.ident, prefix),
            syn::UseTree::Rename(rename) => self.add_import(rename.rename.to_string(), &rename.ident, prefix),
            syn::UseTree::Glob(_) => drop(self.paths.insert(prefix.clone())),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(tree, prefix));
            }
        }
    }

    fn add_import(&mut self, name: String, ident: &syn::Ident, prefix: &[String]) {
        let mut path = prefix.to_vec();
        if ident != "self" {
            path.push(ident.to_string());
        }
        self.imports.insert(name, path.clone());
        self.paths.insert(path);
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !source::is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

impl Crate {
    /// The module that `path`, as written in the module `from`, resolves to.
    fn resolve(&self, from: &[String], path: &[String], steps_left: usize) -> Option<ModulePath> {
        let (mut at, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.to_vec(), &path[1..]),
            "super" => {
                let n = path.iter().take_while(|part| *part == "super").count();
                (from[..from.len().checked_sub(n)?].to_vec(), &path[n..])
            }
            first => {
                let child = [from, &[first.to_owned()]].concat();
                if !self.modules.contains_key(&child) {
                    return None;
                }
                (from.to_vec(), path)
            }
        };
        while let Some((next, more)) = rest.split_first() {
            let child = [at.as_slice(), std::slice::from_ref(next)].concat();
            if !self.modules.contains_key(&child) {
                break;
            }
            (at, rest) = (child, more);
        }
        let imported = rest.first().and_then(|name| self.modules.get(&at)?.imports.get(name));
        match imported {
            Some(path) if steps_left > 0 => self.resolve(&at, path, steps_left - 1).or(Some(at)),
            _ => Some(at),
        }
    }

    fn findings(&self, name: &str) -> Vec<Finding> {
        // Of each folder: which of its modules imports which.
        let mut folders: BTreeMap<ModulePath, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
        let mut targets = Vec::new();
        for (from, module) in &self.modules {
            for path in &module.paths {
                targets.extend(self.resolve(from, path, MAX_REEXPORTS).map(|to| (from, to)));
            }
        }
        for (from, to) in &targets {
            let n_shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(n_shared), to.get(n_shared)) {
                folders.entry(from[..n_shared].to_vec()).or_default().entry(a).or_default().insert(b);
            }
        }
        let circles = |(folder, edges): (&ModulePath, _)| {
            let place = format!("{name}/src/{}", folder.join("/"));
            circle(edges).map(|modules| {
                Finding::new(place, format!("modules import each other in a circle: {}", modules.join(", ")))
            })
        };
        folders.iter().filter_map(circles).collect()
    }
}

/// The modules that are left when those that import none of the others, or that none imports, are taken away.
fn circle<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Option<Vec<&'a str>> {
    let mut left: BTreeSet<&str> =
        edges.iter().flat_map(|(from, to)| to.iter().chain([from])).copied().collect();
    loop {
        let imports = |from: &str, to: &str| edges.get(from).is_some_and(|of| of.contains(to));
        let in_circle = |module: &&str| {
            left.iter().any(|other| imports(module, other)) && left.iter().any(|other| imports(other, module))
        };
        let kept: BTreeSet<&str> = left.iter().copied().filter(|module| in_circle(module)).collect();
        if kept.len() == left.len() {
            return (!kept.is_empty()).then(|| kept.into_iter().collect());
        }
        left = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let parse = |(path, text): &(&str, &str)| SourceFile {
            path: format!("crates/x/src/{path}"),
            text: (*text).to_owned(),
            syntax: syn::parse_file(text).expect("Rust"),
        };
        let files: Vec<_> = files.iter().map(parse).collect();
        check(&files).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn siblings_that_import_each_other_are_a_circle() {
        let b = ("b.rs", "use super::a::A; pub struct B;");
        let found =
            found(&[("lib.rs", "mod a; mod b; mod c;"), ("a.rs", "use crate::b::B; pub struct A;"), b]);
        assert_eq!(found, ["modules import each other in a circle: a, b"]);
    }

    #[test]
    fn a_name_that_the_parent_imports_counts_as_its_own_module() {
        let lib = ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;");
        let found = found(&[lib, ("a.rs", "use crate::B; pub struct A;"), ("b.rs", "fn f(_: crate::A) {}")]);
        assert_eq!(found, ["modules import each other in a circle: a, b"]);
    }

    #[test]
    fn a_circle_through_files_of_folders_is_one() {
        let found = found(&[
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod c;"),
            ("a/c.rs", "use crate::b::B;"),
            ("b/mod.rs", "mod d; pub struct B;"),
            ("b/d.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, ["modules import each other in a circle: a, b"]);
    }

    #[test]
    fn one_direction_children_and_tests_are_none() {
        let found = found(&[
            ("lib.rs", "mod a; mod b; use a::A;"),
            ("a.rs", "use crate::b::B; pub struct A; #[cfg(test)] mod tests { }"),
            ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
            ("b/child.rs", "use super::B;"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
