//! The draft model of a model, or its EAGLE-3 head: found and loaded beside it. A draft model must have the
//! same vocabulary. Does not know how drafts are verified.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use throng_core::scheduling::executor::{Executor, ExecutorError};
use throng_model::LoadedModel;
use throng_model::drafting::DraftingExecutor;
use throng_model::kv_cache::KvDtype;
use throng_model::load::{EagleHead, ModelAndHead, RunnerOptions, is_eagle_head};
use throng_model::runner::RunnerLimits;
use throng_text::Tokenizer;

use crate::args;
use crate::config::ModelSection;
use crate::source::{HubPlace, ModelSource};
use crate::vocabulary;

use super::ranks::Ranks;
use super::sizes::kv_block_bytes;
use super::{Compute, kv_dtype, n_threads, open, prepare};

/// Maximum difference in size between vocabularies of one tokenizer, due to unused tokens at the end (as in
/// llama.cpp).
const MOST_UNSHARED_TOKENS: usize = 128;

/// A draft model or EAGLE-3 head that fits the model.
#[derive(Clone)]
pub struct DraftModel {
    drafter: Drafter,
    kv_dtype: KvDtype,
    /// Bytes of one of its KV blocks.
    pub block_bytes: u64,
}

#[derive(Clone)]
enum Drafter {
    Model(Arc<LoadedModel>),
    Head(Arc<EagleHead>),
}

/// Replaces or wraps the draft model's executor, which is passed if there is one.
pub type WrapDraft = dyn Fn(Option<Box<dyn Executor>>) -> Option<Box<dyn Executor>> + Send;

impl DraftModel {
    /// Whether it is a head, which reads hidden states of the model.
    pub fn is_head(&self) -> bool {
        matches!(self.drafter, Drafter::Head(_))
    }

    /// Finds and loads the draft model `name` of `model`, or the EAGLE-3 head if the files contain one. With
    /// `asks_head`, other files are refused.
    ///
    /// # Errors
    /// When it cannot be loaded or has another vocabulary.
    pub fn load(
        (name, asks_head): (&str, bool),
        section: &ModelSection,
        (model, tokenizer): (&LoadedModel, Option<&Tokenizer>),
    ) -> Result<Self> {
        let own = ModelSection {
            model: Some(name.to_owned()),
            download_dir: section.download_dir.clone(),
            n_threads: section.n_threads,
            strict_config: section.strict_config,
            reference: section.reference,
            isa: section.isa,
            kv_cache_dtype: args::KvDtype::Auto,
            ..ModelSection::default()
        };
        let load = || -> Result<Self> {
            if let Some(head) = Self::head(&own, model)? {
                return Ok(head);
            }
            if asks_head {
                bail!("it is no EAGLE-3 head: its config.json names no such architecture");
            }
            let (_, draft_model) = open(&own)?;
            let own_tokenizer = vocabulary::tokenizer(&draft_model)?;
            check_vocabulary((model, tokenizer), (&draft_model, own_tokenizer.as_ref()))?;
            for model in [model, &draft_model] {
                if model.config.is_recurrent() {
                    bail!("the recurrent layers of {} cannot take rejected drafts back", model.name);
                }
            }
            prepare(n_threads(&own), &draft_model, &Compute::choose(&own)?, &mut |_| {})?;
            let kv_dtype = kv_dtype(&own, &draft_model);
            let block_bytes = kv_block_bytes(&draft_model, kv_dtype)?;
            Ok(Self { drafter: Drafter::Model(Arc::new(draft_model)), kv_dtype, block_bytes })
        };
        load().with_context(|| format!("the draft model {name}"))
    }

    /// The EAGLE-3 head in these files; `None` if they contain another kind of model.
    fn head(own: &ModelSection, model: &LoadedModel) -> Result<Option<Self>> {
        let place =
            HubPlace { model: own.model.as_deref(), revision: None, folder: own.download_dir.as_deref() };
        let ModelSource::Path { path, .. } = ModelSource::find(&place)? else { return Ok(None) };
        if !path.is_dir() || !is_eagle_head(&path)? {
            return Ok(None);
        }
        let head = EagleHead::open(&path, model)?;
        let sized = |dtype: KvDtype| Some((dtype, head.block_bytes(dtype)?));
        let (kv_dtype, block_bytes) = sized(kv_dtype(own, model))
            .or_else(|| sized(KvDtype::F16))
            .context("its KV block is too large")?;
        Ok(Some(Self { drafter: Drafter::Head(Arc::new(head)), kv_dtype, block_bytes }))
    }
}

/// An executor of `model` with its draft model, if any; `wrap` may replace the draft model's executor. A
/// divided model runs on `ranks`, its draft model on the first of them; beside a model on a GPU the draft
/// model computes on the processor.
///
/// # Errors
/// When memory does not suffice.
pub fn executor(
    (model, compute): (&LoadedModel, &Compute),
    draft_model: Option<&DraftModel>,
    options: &RunnerOptions,
    wrap: &WrapDraft,
    ranks: Option<&mut Ranks>,
) -> Result<Box<dyn Executor>, ExecutorError> {
    let failed = |error: throng_model::load::LoadError| ExecutorError::Device(error.to_string());
    if let Some(ranks) = &ranks {
        ranks.bind();
    }
    let threads = options.threads();
    let target = || match ranks {
        None => compute.executor(model, &threads, options).map_err(failed),
        Some(ranks) => ranks.executor(model, &threads, options),
    };
    let (runner, draft_runner, is_head) = match draft_model.map(|draft| (&draft.drafter, draft.kv_dtype)) {
        None => (target()?, None, false),
        Some((Drafter::Model(draft_model), kv_dtype)) => {
            let runner = target()?;
            let limits = RunnerLimits { kv_dtype, ..options.limits };
            let of_draft = draft_model.runner_on(&threads, &RunnerOptions { limits, ..*options });
            (runner, Some(of_draft.map_err(failed)?), false)
        }
        Some((Drafter::Head(head), kv_dtype)) => {
            let both = model.runner_with_head(&threads, options, head, kv_dtype).map_err(failed)?;
            (both.model, Some(both.head), true)
        }
    };
    Ok(match wrap(draft_runner) {
        None => runner,
        Some(head) if is_head => Box::new(ModelAndHead { model: runner, head }.drafting()),
        Some(draft_runner) => Box::new(DraftingExecutor::new(runner, draft_runner)),
    })
}

/// Refuses a draft model whose tokens differ from those of the model.
fn check_vocabulary(
    (model, tokenizer): (&LoadedModel, Option<&Tokenizer>),
    (draft_model, draft_tokenizer): (&LoadedModel, Option<&Tokenizer>),
) -> Result<()> {
    let (Some(tokenizer), Some(draft_tokenizer)) = (tokenizer, draft_tokenizer) else {
        let (size, of_draft) = (model.config.vocabulary_size, draft_model.config.vocabulary_size);
        if size != of_draft || tokenizer.is_some() != draft_tokenizer.is_some() {
            bail!(
                "its vocabulary cannot be compared with that of {}: one of them has no tokenizer",
                model.name
            );
        }
        return Ok(());
    };
    let sizes = [tokenizer.vocabulary_size(), draft_tokenizer.vocabulary_size()];
    if sizes[0].abs_diff(sizes[1]) > MOST_UNSHARED_TOKENS {
        bail!("its vocabulary has {} tokens and that of {} has {}", sizes[1], model.name, sizes[0]);
    }
    let n_common = sizes[0].min(sizes[1]) as u32;
    let differs = |&id: &u32| {
        tokenizer.token_bytes(id) != draft_tokenizer.token_bytes(id)
            || tokenizer.is_special(id) != draft_tokenizer.is_special(id)
    };
    match (0..n_common).find(differs) {
        Some(id) => bail!(
            "its vocabulary is another one: token {id} is {:?}, in {} it is {:?}",
            draft_tokenizer.token_text(id),
            model.name,
            tokenizer.token_text(id),
        ),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use throng_kernels::quant::Format;
    use throng_model::LoadOptions;
    use throng_model::load::load_bytes;
    use throng_testkit::tiny_model::TinyModel;

    use super::*;

    fn tiny(vocabulary: usize, with_tokenizer: bool) -> (LoadedModel, Option<Tokenizer>) {
        let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
        let bytes = TinyModel { vocabulary, with_tokenizer, ..Default::default() }.gguf(Format::Q8_0);
        let model = load_bytes("tiny", &bytes, &options, &mut |_| {}).expect("loads");
        let tokenizer = vocabulary::tokenizer(&model).expect("valid");
        (model, tokenizer)
    }

    fn check(
        model: &(LoadedModel, Option<Tokenizer>),
        draft: &(LoadedModel, Option<Tokenizer>),
    ) -> Result<(), String> {
        check_vocabulary((&model.0, model.1.as_ref()), (&draft.0, draft.1.as_ref()))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn vocabularies_may_differ_by_unused_tokens() {
        let model = tiny(300, true);
        assert_eq!(check(&model, &tiny(300, true)), Ok(()));
        assert_eq!(check(&model, &tiny(320, true)), Ok(()));
        assert!(check(&model, &tiny(512, true)).expect_err("too large").contains("has 512 tokens"));
        assert!(check(&model, &tiny(300, false)).expect_err("unknown").contains("cannot be compared"));
        assert_eq!(check(&tiny(64, false), &tiny(64, false)), Ok(()));
        assert!(check(&tiny(64, false), &tiny(96, false)).is_err());
    }

    #[test]
    fn a_head_is_found_by_its_files() {
        let fixture =
            |name: &str| format!("{}/../model/tests/fixtures/eagle3/{name}", env!("CARGO_MANIFEST_DIR"));
        let section = ModelSection { model: Some(fixture("model")), ..ModelSection::default() };
        let (_, model) = open(&section).expect("opens");
        let load =
            |name: &str, asks_head| DraftModel::load((&fixture(name), asks_head), &section, (&model, None));
        for (name, block_bytes) in
            [("eagle-head", 16 * 4 * (2 * 16 + 32)), ("speculators-head", 16 * 4 * (2 * 16 + 40))]
        {
            for asks_head in [false, true] {
                let head = load(name, asks_head).expect("a head of the model");
                assert_eq!((head.block_bytes, head.kv_dtype), (block_bytes, KvDtype::F32));
            }
        }
        assert!(matches!(load("model", false).map(|draft| draft.drafter), Ok(Drafter::Model(_))));
        let refusal = load("model", true).err().map(|error| format!("{error:#}"));
        assert!(refusal.is_some_and(|refusal| refusal.contains("no EAGLE-3 head")));
    }

    #[test]
    fn another_vocabulary_is_refused_with_the_first_difference() {
        let model = tiny(300, true);
        let (starter, tokenizer) = {
            let section = ModelSection::default();
            let (_, model) = open(&section).expect("built in");
            let tokenizer = vocabulary::tokenizer(&model).expect("valid");
            (model, tokenizer)
        };
        assert!(check(&model, &(starter, tokenizer)).is_err());
    }
}
