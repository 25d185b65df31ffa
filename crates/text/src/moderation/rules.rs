//! Moderation rules as one automaton: searching takes time linear in the text, for any rules. Does not know
//! streams.

use regex_automata::meta::{Config, Regex};
use regex_automata::{Input, MatchKind, PatternSet};
use regex_syntax::hir::Hir;

/// Maximum bytes of a text that a rule may match: streams are delayed by this much.
const MAX_MATCH_BYTES: usize = 1024;
/// Maximum bytes of a rule set's automaton.
const MAX_AUTOMATON_BYTES: usize = 16 << 20;
/// Maximum number of patterns of a rule set.
const MAX_PATTERNS: usize = 10_000;

/// Pattern of a rule. Case is ignored unless the regular expression says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextRule {
    /// Texts that match anywhere.
    Literals(Vec<String>),
    /// Texts that match a regular expression, in the syntax of the crate `regex`.
    Regex(String),
}

/// Reason why rules cannot be used. `rule` is the index of the faulty one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The pattern is not a regular expression.
    #[error("rule {rule}: {reason}")]
    Syntax {
        /// Index of the rule.
        rule: usize,
        /// Error of the expression.
        reason: String,
    },
    /// The pattern matches the empty text, which occurs everywhere.
    #[error("rule {rule} matches the empty text")]
    Empty {
        /// Index of the rule.
        rule: usize,
    },
    /// Matches have no length limit, or may be longer than streams can hold back.
    #[error(
        "rule {rule} matches texts of more than {MAX_MATCH_BYTES} bytes: bound its repetitions, as in .{{0,50}}"
    )]
    TooLong {
        /// Index of the rule.
        rule: usize,
    },
    /// All rules together are too large.
    #[error("the rules are too large: {0}")]
    TooLarge(String),
}

/// Rules that are searched for together.
#[derive(Debug, Clone)]
pub struct RuleSet {
    /// Finds the leftmost match.
    regex: Regex,
    /// Finds all matching rules, including overlapping matches.
    all: Regex,
    /// Index of each pattern's rule.
    rule_of_pattern: Vec<usize>,
    max_match_bytes: usize,
}

impl RuleSet {
    /// Compiles rules; their order determines their indices.
    ///
    /// # Errors
    /// When a rule cannot be searched for in a stream, or all rules together are too large.
    pub fn new(rules: &[TextRule]) -> Result<Self, RuleError> {
        let (mut patterns, mut rule_of_pattern) = (Vec::new(), Vec::new());
        let mut max_match_bytes = 1;
        for (rule, text) in rules.iter().enumerate() {
            let of_rule = match text {
                TextRule::Literals(literals) => {
                    literals.iter().map(|text| regex_syntax::escape(text)).collect()
                }
                TextRule::Regex(regex) => vec![regex.clone()],
            };
            for pattern in of_rule {
                let hir = parse(&pattern).map_err(|reason| RuleError::Syntax { rule, reason })?;
                let properties = hir.properties();
                if properties.minimum_len().is_none_or(|n| n == 0) {
                    return Err(RuleError::Empty { rule });
                }
                let longest = properties.maximum_len().filter(|&n| n <= MAX_MATCH_BYTES);
                max_match_bytes = max_match_bytes.max(longest.ok_or(RuleError::TooLong { rule })?);
                patterns.push(hir);
                rule_of_pattern.push(rule);
            }
        }
        if patterns.len() > MAX_PATTERNS {
            return Err(RuleError::TooLarge(format!("{} patterns, at most {MAX_PATTERNS}", patterns.len())));
        }
        let config = Config::new()
            .nfa_size_limit(Some(MAX_AUTOMATON_BYTES))
            .hybrid_cache_capacity(MAX_AUTOMATON_BYTES);
        let build = |kind: MatchKind| {
            let config = config.clone().match_kind(kind);
            let regex = Regex::builder().configure(config).build_many_from_hir(&patterns);
            regex.map_err(|error| RuleError::TooLarge(error.to_string()))
        };
        let (regex, all) = (build(MatchKind::LeftmostFirst)?, build(MatchKind::All)?);
        Ok(Self { regex, all, rule_of_pattern, max_match_bytes })
    }

    /// The rules that match somewhere in a text, ascending.
    pub fn matching(&self, text: &str) -> Vec<usize> {
        let mut patterns = PatternSet::new(self.all.pattern_len());
        self.all.which_overlapping_matches(&Input::new(text), &mut patterns);
        let mut rules: Vec<usize> =
            patterns.iter().map(|pattern| self.rule_of_pattern[pattern.as_usize()]).collect();
        rules.dedup();
        rules
    }

    /// The leftmost match within two positions of a text, with the text around them as context. Returns the
    /// rule and the start.
    pub(super) fn first_between(&self, text: &str, start: usize, end: usize) -> Option<(usize, usize)> {
        let found = self.regex.search(&Input::new(text).range(start..end))?;
        Some((self.rule_of_pattern[found.pattern().as_usize()], found.start()))
    }

    /// Maximum bytes of a text that a rule matches.
    pub(super) fn max_match_bytes(&self) -> usize {
        self.max_match_bytes
    }
}

fn parse(pattern: &str) -> Result<Hir, String> {
    let mut parser = regex_syntax::ParserBuilder::new().case_insensitive(true).nest_limit(64).build();
    parser.parse(pattern).map_err(|error| error.to_string())
}
