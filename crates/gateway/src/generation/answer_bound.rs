//! Bounds on the size of an answer, checked from the request if it determines the size, and otherwise while
//! the answer grows. Does not write answers.

use std::mem::size_of;

use throng_api::ApiError;
use throng_api::answer::AnswerShape;
use throng_api::spec::GenerationSpec;
use throng_core::scheduling::batch::TokenLogprob;
use throng_fleet::replica::TokenReport;

use super::prepare::Prepared;

/// Approximate bytes of JSON of a token id.
const TOKEN_ID_BYTES: usize = 7;

fn n_top(asked: Option<u32>) -> usize {
    asked.unwrap_or(0) as usize
}

/// Bounds on the size of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnswerBound {
    max_bytes: usize,
    prompt_bytes: usize,
    token_bytes: usize,
    report_bytes: usize,
    max_tokens_param: &'static str,
}

impl AnswerBound {
    /// Creates the bound for the answer to `prepared`, of at most `max_bytes` bytes.
    ///
    /// # Errors
    /// 400 `answer_too_large` when the echoed prompts, or the requested output, exceed it.
    pub fn new(
        shape: &AnswerShape,
        spec: &GenerationSpec,
        prepared: &Prepared,
        max_bytes: usize,
    ) -> Result<Self, ApiError> {
        let Prepared { requests, echo, .. } = prepared;
        let (options, names) = (&spec.options, spec.options.names);
        let Some(first) = requests.first() else { return Err(ApiError::empty_array(names.prompt)) };
        let n_prompt_tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
        let n_choices = requests.len() * first.n_continuations() as usize;
        let top = first.sampling.prompt_logprobs;
        let of_prompt_token: usize = shape.prompt_logprobs.iter().map(|form| form.with(n_top(top))).sum();
        let of_id = if shape.token_ids { TOKEN_ID_BYTES } else { 0 };
        let echoed: usize = echo.iter().flatten().map(String::len).sum();
        let once = n_prompt_tokens.saturating_mul(of_prompt_token + of_id).saturating_add(echoed);
        let prompt_bytes = once.saturating_mul(shape.n_repeats);
        if prompt_bytes > max_bytes {
            let reason = format!(
                "repeating {n_prompt_tokens} prompt tokens {} times, with {} log-probabilities each, takes about \
                 {prompt_bytes} bytes",
                shape.n_repeats,
                top.map_or(0, |top| top + 1),
            );
            let param = if shape.n_repeats > 1 { "n" } else { shape.prompt_logprobs_param };
            return Err(ApiError::answer_too_large(Some((param, &reason)), max_bytes));
        }
        let of_token = shape.logprobs.map_or(0, |form| form.with(n_top(first.sampling.logprobs)));
        let token_bytes = of_token + of_id;
        // Beams are kept whole until the search ends.
        let of_beams = first.sampling.beams.map(|_| first.sampling.max_tokens);
        if let (Some(n_tokens), false) =
            (of_beams.or(options.max_tokens.map(|_| first.sampling.max_tokens)), options.is_streaming())
        {
            let bytes = (n_choices * n_tokens as usize).saturating_mul(token_bytes);
            if bytes > max_bytes - prompt_bytes {
                let reason = format!(
                    "{n_choices} choices of {n_tokens} tokens, with {} log-probabilities each, may take about \
                     {bytes} bytes",
                    first.sampling.logprobs.map_or(0, |top| top + 1),
                );
                return Err(ApiError::answer_too_large(Some((names.max_tokens, &reason)), max_bytes));
            }
        }
        let report = size_of::<TokenReport>() + 16;
        let of_top = |top: Option<u32>| report + n_top(top) * size_of::<TokenLogprob>();
        let report_bytes = if top.is_some() { n_prompt_tokens.saturating_mul(of_top(top)) } else { 0 };
        let max_tokens_param = names.max_tokens;
        Ok(Self { max_bytes, prompt_bytes, token_bytes, report_bytes, max_tokens_param })
    }

    /// Creates the bound for an answer of text alone, which `max_tokens_param` could have shortened.
    pub fn of_text(max_bytes: usize, max_tokens_param: &'static str) -> Self {
        Self { max_bytes, prompt_bytes: 0, token_bytes: 0, report_bytes: 0, max_tokens_param }
    }

    /// Bytes of memory for the log-probabilities of the prompts.
    pub fn prompt_report_bytes(&self) -> usize {
        self.report_bytes
    }

    /// Approximate bytes of JSON of an answer with `n_tokens` tokens and `n_text_bytes` bytes of text.
    pub fn json_bytes(&self, n_tokens: usize, n_text_bytes: usize) -> usize {
        self.prompt_bytes + n_tokens * self.token_bytes + n_text_bytes
    }

    /// Checks an answer that has grown.
    ///
    /// # Errors
    /// 400 `answer_too_large`.
    pub fn check(&self, n_tokens: usize, n_text_bytes: usize) -> Result<(), ApiError> {
        let bytes = self.json_bytes(n_tokens, n_text_bytes);
        if bytes <= self.max_bytes {
            return Ok(());
        }
        let reason = format!("after {n_tokens} tokens it takes about {bytes} bytes");
        Err(ApiError::answer_too_large(Some((self.max_tokens_param, &reason)), self.max_bytes))
    }
}
