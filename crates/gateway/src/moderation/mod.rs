//! Moderation of texts: the rules of each tenant, compiled once, and a classifier. Does not know the
//! consequences of a match.

mod classifier;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use throng_core::request::TokenId;
use throng_text::Tokenizer;
use throng_text::moderation::{RuleError, RuleSet, TextRule};

use crate::config::{ModerationConfig, ModerationRule};
use throng_api::ApiError;
use throng_auth::Tenant;
use throng_http::retry_after::retry_after_s;
use throng_metering::metrics::ModerationCounts;

pub(crate) use self::classifier::{Classifier, Judgement, Unavailable};

/// The rules of all tenants.
#[derive(Debug, Default)]
pub(crate) struct Moderation {
    /// Rules for tenants that no rule names.
    others: TenantRules,
    /// Rules by organisation or project.
    named: BTreeMap<String, TenantRules>,
    categories: BTreeSet<String>,
    /// Classifier, if one is configured.
    classifier: Option<Arc<Classifier>>,
    n_prompts: AtomicU64,
    n_answers: AtomicU64,
}

/// Rules for one tenant.
#[derive(Debug, Clone, Default)]
pub(crate) struct TenantRules {
    input: Option<Arc<Rules>>,
    output: Option<Arc<Rules>>,
}

/// Rules with their categories.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Rules for texts.
    pub set: Arc<RuleSet>,
    /// Category of each rule.
    categories: Vec<String>,
}

impl Moderation {
    /// Compiles the operator's rules.
    ///
    /// # Errors
    /// A description of the fault, for the operator.
    pub fn new(config: &ModerationConfig) -> Result<Self, String> {
        for (number, rule) in config.rules.iter().enumerate() {
            if rule.literals.is_empty() == rule.regex.is_none() {
                return Err(format!("rule {number} must have either literals or a regex"));
            }
        }
        let names: BTreeSet<&String> = config.rules.iter().flat_map(|rule| &rule.tenants).collect();
        let of = |name: Option<&String>| {
            let holds = |rule: &&ModerationRule| {
                rule.tenants.is_empty() || name.is_some_and(|name| rule.tenants.contains(name))
            };
            let rules: Vec<&ModerationRule> = config.rules.iter().filter(holds).collect();
            TenantRules::new(&rules).map_err(|error| error.to_string())
        };
        Ok(Self {
            others: of(None)?,
            named: names
                .iter()
                .map(|name| Ok(((*name).clone(), of(Some(name))?)))
                .collect::<Result<_, String>>()?,
            categories: config.rules.iter().map(|rule| rule.category.clone()).collect(),
            classifier: config.classifier.as_ref().map(Classifier::new).transpose()?.map(Arc::new),
            ..Self::default()
        })
    }

    /// Classifier, if one is configured.
    pub fn classifier(&self) -> Option<&Arc<Classifier>> {
        self.classifier.as_ref()
    }

    /// Counts of texts refused or cut so far.
    pub fn counts(&self) -> ModerationCounts {
        ModerationCounts {
            n_prompts: self.n_prompts.load(Ordering::Relaxed),
            n_answers: self.n_answers.load(Ordering::Relaxed),
            n_failures: self.classifier.as_ref().map_or(0, |classifier| classifier.n_failures()),
        }
    }

    /// Counts an answer that was cut.
    pub fn answer_cut(&self) {
        self.n_answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Refuses prompts with a match of this tenant's rules; `param` is their parameter. Returns their texts
    /// if the classifier must judge them.
    ///
    /// # Errors
    /// 400 `content_filter`.
    pub fn check_prompts<'a>(
        &self,
        tenant: &Tenant,
        tokenizer: Option<&Arc<Tokenizer>>,
        prompts: impl Iterator<Item = &'a [TokenId]>,
        param: &str,
    ) -> Result<Vec<String>, ApiError> {
        let rules = self.of(tenant).input.as_ref();
        let is_judged = self.classifier.as_ref().is_some_and(|classifier| classifier.judges_input());
        let Some(tokenizer) = tokenizer.filter(|_| rules.is_some() || is_judged) else {
            return Ok(Vec::new());
        };
        let texts: Vec<String> = prompts.map(|prompt| tokenizer.decode(prompt, true)).collect();
        let found = rules.and_then(|rules| texts.iter().find_map(|text| rules.categories_of(text).next()));
        match found {
            Some(category) => Err(self.refuse(param, category)),
            None => Ok(if is_judged { texts } else { Vec::new() }),
        }
    }

    /// Refuses prompts that the classifier does not allow.
    ///
    /// # Errors
    /// 400 `content_filter`; 503 `moderation_unavailable` when the classifier does not answer and prompts
    /// are then refused.
    pub async fn judge_prompts(&self, texts: &[String], param: &str) -> Result<(), ApiError> {
        let Some(classifier) = self.classifier.as_ref().filter(|_| !texts.is_empty()) else { return Ok(()) };
        let judged = classifier.judge(texts).await;
        let judgements = judged.map_err(|Unavailable| ApiError::moderation_unavailable(retry_after_s()))?;
        judgements.into_iter().flatten().next().map_or(Ok(()), |category| Err(self.refuse(param, &category)))
    }

    fn refuse(&self, param: &str, category: &str) -> ApiError {
        self.n_prompts.fetch_add(1, Ordering::Relaxed);
        ApiError::content_filter(param, category)
    }

    /// Rules for a tenant: those of its project, else of its organisation.
    pub fn of(&self, tenant: &Tenant) -> &TenantRules {
        let names = tenant.key.as_deref().map(|key| [&key.project, &key.organisation]);
        let named = names.into_iter().flatten().find_map(|name| self.named.get(name));
        named.unwrap_or(&self.others)
    }

    /// Categories of all rules.
    pub fn categories(&self) -> impl Iterator<Item = &str> {
        self.categories.iter().map(String::as_str)
    }
}

impl TenantRules {
    fn new(rules: &[&ModerationRule]) -> Result<Self, RuleError> {
        let compile = |holds: fn(&ModerationRule) -> bool| {
            let rules: Vec<&ModerationRule> = rules.iter().copied().filter(|rule| holds(rule)).collect();
            let texts: Vec<TextRule> = rules.iter().map(|rule| text_rule(rule)).collect();
            let categories = rules.iter().map(|rule| rule.category.clone()).collect();
            let rules = || Ok(Arc::new(Rules { set: Arc::new(RuleSet::new(&texts)?), categories }));
            (!texts.is_empty()).then(rules).transpose()
        };
        Ok(Self { input: compile(|rule| rule.input)?, output: compile(|rule| rule.output)? })
    }

    /// Rules that cut answers.
    pub fn output(&self) -> Option<&Arc<Rules>> {
        self.output.as_ref()
    }

    /// Categories of a text, by the rules for prompts and for answers.
    pub fn categories_of(&self, text: &str) -> BTreeSet<&str> {
        let rules = [&self.input, &self.output].into_iter().flatten();
        rules.flat_map(|rules| rules.categories_of(text)).collect()
    }
}

impl Rules {
    fn categories_of(&self, text: &str) -> impl Iterator<Item = &str> {
        self.set.matching(text).into_iter().filter_map(|rule| self.categories.get(rule).map(String::as_str))
    }
}

fn text_rule(rule: &ModerationRule) -> TextRule {
    match &rule.regex {
        Some(regex) => TextRule::Regex(regex.clone()),
        None => TextRule::Literals(rule.literals.clone()),
    }
}
