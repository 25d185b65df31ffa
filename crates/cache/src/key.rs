//! Key of a kept answer: everything that can change its tokens, and its tenant. Does not know how answers are
//! kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};
use throng_core::prompt_media::{PromptMedia, PromptSpan};
use throng_core::request::{BeamSearch, EarlyStopping, Priority, SamplingParams, TenantId};
use throng_fleet::replica::{Continuations, ReplicaRequest, RequestedAdapter};
use throng_text::DetokenizeOptions;

use super::policy::Sharing;

/// Number of a model's instance, unique within the process: its weights, build and instruction set do not
/// change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModelInstance(pub u64);

impl ModelInstance {
    /// Creates an instance with a new number.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Key of the answer to a request of one tenant, made only from a request. The tenant itself is compared,
/// not only a digest of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey {
    tenant: TenantId,
    model: ModelInstance,
    digest: [u8; 32],
    /// Fingerprint that distinguishes the model from others beyond this process; only if the answer depends
    /// on the model's bits alone.
    fingerprint: Option<Arc<str>>,
}

impl CacheKey {
    /// Creates the key of a request to a model whose weights, build and instruction set do not change.
    /// `text` has the settings by which tokens become text, which decide where a stop string ends it.
    /// `None` for a request that continues earlier output, and for one whose constraint has no identity.
    pub fn new(
        model: ModelInstance,
        request: &ReplicaRequest,
        text: Option<&DetokenizeOptions>,
    ) -> Option<Self> {
        // Each field is named, so that a new one is either in the key or left out on purpose.
        let ReplicaRequest {
            tenant,
            cache_salt,
            session: _,
            cache_marks: _,
            priority: _,
            prompt,
            media,
            sampling,
            constraint,
            adapter,
            continuations,
            holder: _,
        } = request;
        let Continuations::New { n } = continuations else { return None };
        let constraint = constraint.as_ref().map(|form| form.compiled.identity().ok_or(()));
        let mut fields = Fields(Sha256::new_with_prefix(b"throng answer"));
        fields.optional(cache_salt.as_deref(), |fields, salt| fields.bytes(salt.as_bytes()));
        fields.numbers(prompt);
        fields.number(u64::from(*n));
        fields.optional(constraint.transpose().ok()?, |fields, identity| fields.bytes(&identity.0));
        fields.optional(adapter.as_ref(), |fields, RequestedAdapter { adapter, name }| {
            fields.number(u64::from(adapter.id.0));
            fields.bytes(name.as_bytes());
        });
        fields.sampling(sampling);
        fields.optional(text.filter(|text| !text.stop.is_empty()), Fields::stops);
        // Nothing where there is nothing: answers that are kept on disk keep their names.
        media.iter().for_each(|media| fields.media(media));
        let digest = fields.0.finalize().into();
        Some(Self { tenant: tenant.clone(), model, digest, fingerprint: None })
    }

    /// Makes the key valid beyond this process if the model has a fingerprint. Not for requests with
    /// adapters, constraints or stop strings, which depend on files that the fingerprint does not cover.
    pub fn of_model(mut self, sharing: Sharing<'_>, request: &ReplicaRequest) -> Self {
        let has_stops = sharing.text.is_some_and(|text| !text.stop.is_empty());
        let is_durable = request.adapter.is_none() && request.constraint.is_none() && !has_stops;
        self.fingerprint = sharing.fingerprint.filter(|_| is_durable).cloned();
        self
    }

    /// Name valid beyond this process, and the owner of the answer: the fingerprint and the tenant
    /// themselves.
    pub fn durable(&self) -> Option<([u8; 32], Vec<u8>)> {
        let fingerprint = self.fingerprint.as_deref()?;
        let owner = [fingerprint.as_bytes(), b"\n", self.tenant.0.as_bytes()].concat();
        let mut fields = Fields(Sha256::new_with_prefix(b"throng answer on disk"));
        fields.bytes(fingerprint.as_bytes());
        fields.bytes(self.tenant.0.as_bytes());
        fields.bytes(&self.digest);
        Some((fields.0.finalize().into(), owner))
    }
}

/// Key of a request that is being answered, by which equal later ones find it. Requests of different
/// priorities have different keys, so that an urgent one does not wait for a less urgent one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct InFlightKey {
    pub answer: CacheKey,
    pub priority: Priority,
}

/// Digest of a request's fields, each encoded so that different lists of fields differ.
struct Fields(Sha256);

impl Fields {
    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn float(&mut self, number: f32) {
        // -0.0 and 0.0 mean the same.
        self.0.update((number + 0.0).to_bits().to_le_bytes());
    }

    fn flag(&mut self, flag: bool) {
        self.0.update([u8::from(flag)]);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn numbers(&mut self, numbers: &[u32]) {
        self.number(numbers.len() as u64);
        numbers.iter().for_each(|number| self.0.update(number.to_le_bytes()));
    }

    fn optional<T>(&mut self, field: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(field.is_some());
        if let Some(field) = field {
            write(self, field);
        }
    }

    fn sampling(&mut self, sampling: &SamplingParams) {
        let SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logit_bias,
            allowed_token_ids,
            bad_words,
            min_tokens,
            max_tokens,
            eos_token_ids,
            ignore_eos,
            stop_token_ids,
            seed,
            logprobs,
            prompt_logprobs,
            beams,
            max_draft_tokens: _,
        } = sampling;
        for number in [temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty] {
            self.float(*number);
        }
        for number in [top_k, min_tokens, max_tokens] {
            self.number(u64::from(*number));
        }
        self.number(logit_bias.len() as u64);
        for (token, bias) in logit_bias {
            self.number(u64::from(*token));
            self.float(*bias);
        }
        self.optional(allowed_token_ids.as_deref(), Self::numbers);
        self.number(bad_words.len() as u64);
        bad_words.iter().for_each(|word| self.numbers(word));
        self.numbers(eos_token_ids);
        self.flag(*ignore_eos);
        self.numbers(stop_token_ids);
        self.optional(sampling.draws().then_some(*seed), Self::number);
        self.optional(*logprobs, |fields, n| fields.number(u64::from(n)));
        self.optional(*prompt_logprobs, |fields, n| fields.number(u64::from(n)));
        self.optional(*beams, Self::beams);
    }

    fn beams(&mut self, beams: BeamSearch) {
        let BeamSearch { width, length_penalty, early_stopping } = beams;
        self.number(u64::from(width));
        self.number(length_penalty.to_bits());
        self.number(match early_stopping {
            EarlyStopping::WhenFull => 0,
            EarlyStopping::WhenUnlikelyToImprove => 1,
            EarlyStopping::WhenUnableToImprove => 2,
        });
    }

    fn media(&mut self, media: &PromptMedia) {
        let PromptMedia { spans, positions, contents: _ } = media;
        self.number(spans.len() as u64);
        for PromptSpan { start, len, digest, kind } in spans {
            [*start, *len, *kind as u32].into_iter().for_each(|number| self.number(number.into()));
            self.bytes(&digest.0);
        }
        self.numbers(&positions.iter().flat_map(|position| position.0).collect::<Vec<_>>());
    }

    /// Adds the settings that decide where a stop string ends the text.
    fn stops(&mut self, text: &DetokenizeOptions) {
        let DetokenizeOptions {
            skip_special_tokens,
            spaces_between_special_tokens,
            stop,
            include_stop_str_in_output,
            markers,
            continues_prompt,
        } = text;
        self.number(stop.len() as u64);
        stop.iter().for_each(|text| self.bytes(text.as_bytes()));
        for flag in
            [skip_special_tokens, spaces_between_special_tokens, include_stop_str_in_output, continues_prompt]
        {
            self.flag(*flag);
        }
        self.numbers(markers);
    }
}
