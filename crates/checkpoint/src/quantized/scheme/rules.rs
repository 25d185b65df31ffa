//! Rules that choose the layout of each layer; the first rule that matches a layer decides. Does not know
//! layouts.

use std::collections::HashMap;

use regex_automata::meta::{Config, Regex};
use regex_automata::{Anchored, Input};

use super::super::layouts::Layout;

/// Maximum number of rules of a configuration.
const MAX_RULES: usize = 100_000;
/// Maximum number of regular expressions among them, and maximum bytes of the automaton of each.
const MAX_EXPRESSIONS: usize = 256;
const MAX_AUTOMATON_BYTES: usize = 1 << 20;

/// Layers that a rule is about.
#[derive(Debug)]
pub(super) enum Target {
    /// The layer or all layers of a module of this name, in any model.
    Module(String),
    /// Layers whose name begins with a match, as with Python's `re.match`.
    Expression(Box<Regex>),
    /// All layers to which no other rule applies.
    Rest,
}

/// A rule that cannot be used: the expression is invalid, has look-around or is too large, or there are too
/// many rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RuleError;

/// Verdict of a rule about its layers, and the number of the rule. Without a layout, they are not quantized.
type Verdict = (usize, Option<Layout>);

/// The layout of each layer.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    n: usize,
    modules: HashMap<String, Verdict>,
    expressions: Vec<(Box<Regex>, Verdict)>,
    rest: Option<Layout>,
}

impl Rules {
    /// Rules with one layout for all layers.
    pub(super) fn of_all(layout: Layout) -> Self {
        Self { rest: Some(layout), ..Self::default() }
    }

    /// Adds a rule after the existing ones; `None`: such layers are not quantized.
    pub(super) fn push(&mut self, target: Target, layout: Option<Layout>) -> Result<(), RuleError> {
        if self.n == MAX_RULES || self.expressions.len() == MAX_EXPRESSIONS {
            return Err(RuleError);
        }
        let verdict = (self.n, layout);
        self.n += 1;
        match target {
            Target::Module(name) => {
                self.modules.entry(name).or_insert(verdict);
            }
            Target::Expression(regex) => self.expressions.push((regex, verdict)),
            Target::Rest => self.rest = self.rest.or(layout),
        }
        Ok(())
    }

    /// The layout of the layer of this name; `None` if no rule defines one.
    pub(super) fn of_layer(&self, layer: &str) -> Option<Layout> {
        let input = Input::new(layer).anchored(Anchored::Yes);
        let by_expression = self.expressions.iter().find(|(regex, _)| regex.is_match(input.clone()));
        let by_expression = by_expression.map(|(_, verdict)| *verdict);
        let first = by_expression.into_iter().chain(self.of_module(layer)).min_by_key(|(n, _)| *n);
        first.map_or(self.rest, |(_, layout)| layout)
    }

    /// The first rule for the layer or for a module around it.
    fn of_module(&self, layer: &str) -> Option<Verdict> {
        if self.modules.is_empty() {
            return None;
        }
        let dots = || layer.match_indices('.').map(|(at, _)| at);
        let names = std::iter::once(0).chain(dots().map(|at| at + 1)).flat_map(|from| {
            dots().filter(move |&to| to > from).chain([layer.len()]).map(move |to| &layer[from..to])
        });
        names.filter_map(|name| self.modules.get(name)).min_by_key(|(n, _)| *n).copied()
    }
}

impl Target {
    pub(super) fn expression(pattern: &str) -> Result<Self, RuleError> {
        let config = Config::new().nfa_size_limit(Some(MAX_AUTOMATON_BYTES));
        let config = config.onepass_size_limit(Some(MAX_AUTOMATON_BYTES));
        let regex = Regex::builder().configure(config).build(pattern).map_err(|_| RuleError)?;
        Ok(Self::Expression(Box::new(regex)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Layout = Layout::FP8_ROWS;
    const B: Layout = Layout::MXFP4;

    #[test]
    fn the_first_rule_that_names_a_layer_counts() {
        let mut rules = Rules::default();
        rules.push(Target::Rest, Some(A)).unwrap();
        rules.push(Target::Module("layers.1.mlp".to_owned()), Some(B)).unwrap();
        rules.push(Target::expression(r".*self_attn\.[qk]_proj$").unwrap(), None).unwrap();
        rules.push(Target::expression(r".*self_attn").unwrap(), Some(B)).unwrap();
        assert_eq!(rules.of_layer("model.layers.1.mlp.down_proj"), Some(B));
        assert_eq!(rules.of_layer("model.layers.11.mlp.down_proj"), Some(A));
        assert_eq!(rules.of_layer("model.layers.1.mlps.down_proj"), Some(A));
        assert_eq!(rules.of_layer("model.layers.0.self_attn.q_proj"), None);
        assert_eq!(rules.of_layer("model.layers.0.self_attn.v_proj"), Some(B));
        assert_eq!(Target::expression("(?!x).*").unwrap_err(), RuleError);
    }

    /// A name must match from its beginning, and need not match to its end.
    #[test]
    fn expressions_are_anchored_as_pythons_match_is() {
        let mut rules = Rules::default();
        rules.push(Target::expression("model").unwrap(), Some(A)).unwrap();
        assert_eq!(rules.of_layer("model.layers.0"), Some(A));
        assert_eq!(rules.of_layer("language_model.layers.0"), None);
    }

    #[test]
    fn rules_are_bounded() {
        let mut rules = Rules::default();
        let n = (0..).take_while(|_| rules.push(Target::expression("x").unwrap(), None).is_ok()).count();
        assert_eq!(n, MAX_EXPRESSIONS);
        assert_eq!(Target::expression("(a{1000}){1000}").unwrap_err(), RuleError);
    }
}
