//! Generation in the terminal: tokenizes a prompt, submits it to the engine and streams the detokenized
//! text. Uses the same components as a request over HTTP.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use throng_core::request::{FinishReason, Request, SamplingParams, TokenId};
use throng_engine::StreamEvent;
use throng_text::{DetokenizeOptions, Detokenizer, EncodeOptions, TemplateInput, Tokenizer};

use crate::args::SamplingArgs;
use crate::running::RunningModel;

/// Statistics of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    /// Number of prompt tokens.
    pub n_prompt: usize,
    /// Number of output tokens.
    pub n_output: usize,
    /// Finish reason.
    pub reason: FinishReason,
}

impl RunningModel {
    /// The model's tokenizer.
    ///
    /// # Errors
    /// When the model has no tokenizer.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().with_context(|| format!("{} has no tokenizer", self.names[0]))
    }

    /// The prompt tokens that continue a conversation of `{role, content}` messages.
    ///
    /// # Errors
    /// When the model has no chat template, or it refuses the conversation.
    pub fn chat_prompt(&self, messages: &[Value]) -> Result<Vec<TokenId>> {
        let template = self.chat_template.as_ref();
        let template = template.with_context(|| format!("{} has no chat template", self.names[0]))?;
        let tokenizer = self.tokenizer()?;
        let messages = Value::Array(messages.to_vec());
        let rendered = template.render(&TemplateInput::new(&messages, tokenizer.special_tokens()))?;
        Ok(tokenizer.encode_rendered(&rendered, false)?)
    }

    /// The prompt tokens that continue a text.
    ///
    /// # Errors
    /// When the model has no tokenizer or the text is too long.
    pub fn text_prompt(&self, text: &str) -> Result<Vec<TokenId>> {
        let options = EncodeOptions { add_special_tokens: true, parse_special: false };
        Ok(self.tokenizer()?.encode(text, options)?)
    }

    /// Continues a prompt and passes the text to `on_text` piece by piece; `on_text` returns false to stop.
    ///
    /// # Errors
    /// When the engine refuses the prompt or fails.
    pub async fn generate(
        &self,
        prompt: Vec<TokenId>,
        sampling: &SamplingArgs,
        mut on_text: impl FnMut(&str) -> bool,
    ) -> Result<Answered> {
        let n_prompt = prompt.len();
        let request = Request::plain(self.engine.next_request_id(), prompt, self.sampling_params(sampling));
        let mut stream = self.engine.submit(request)?;
        let mut detokenizer = Detokenizer::new(Arc::clone(self.tokenizer()?), DetokenizeOptions::default());
        let mut n_output = 0;
        while let Some(event) = stream.next().await {
            match event {
                StreamEvent::Prompt { .. } => {}
                StreamEvent::Token { report, .. } => {
                    n_output += 1;
                    if !on_text(&detokenizer.push(report.chosen.token).text) {
                        return Ok(Answered { n_prompt, n_output, reason: FinishReason::Abort });
                    }
                }
                StreamEvent::Finished { reason, .. } => {
                    on_text(&detokenizer.finish());
                    return Ok(Answered { n_prompt, n_output, reason });
                }
                StreamEvent::Failed { error } => bail!("the engine failed: {error}"),
            }
        }
        bail!("the engine stopped")
    }

    fn sampling_params(&self, sampling: &SamplingArgs) -> SamplingParams {
        let defaults = &self.model.generation_defaults;
        let neutral = SamplingParams::default();
        SamplingParams {
            temperature: sampling.temperature.or(defaults.temperature).unwrap_or(neutral.temperature),
            top_p: sampling.top_p.or(defaults.top_p).unwrap_or(neutral.top_p),
            top_k: defaults.top_k.unwrap_or(neutral.top_k),
            min_p: defaults.min_p.unwrap_or(neutral.min_p),
            repetition_penalty: defaults.repetition_penalty.unwrap_or(neutral.repetition_penalty),
            max_tokens: sampling.max_tokens,
            eos_token_ids: self.eos_token_ids(),
            seed: sampling.seed.unwrap_or_else(|| fastrand::u64(..)),
            ..neutral
        }
    }
}
