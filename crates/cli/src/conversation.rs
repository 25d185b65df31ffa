//! Generation in the terminal: tokenizes a prompt, submits it to the engine and streams the detokenized
//! text. Uses the same components as a request over HTTP.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use throng_core::prompt_media::PromptMedia;
use throng_core::request::{FinishReason, Request, SamplingParams, TokenId};
use throng_engine::StreamEvent;
use throng_text::{DetokenizeOptions, Detokenizer, EncodeOptions, TemplateInput, Tokenizer};

use crate::args::SamplingArgs;
use crate::attachments::file_of;
use crate::running::{RunningModel, images};

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

/// A prompt with its images.
#[derive(Debug)]
pub struct ChatPrompt {
    /// Token ids of the prompt.
    pub tokens: Vec<TokenId>,
    /// Images, if it has some.
    pub media: Option<Arc<PromptMedia>>,
}

impl From<Vec<TokenId>> for ChatPrompt {
    fn from(tokens: Vec<TokenId>) -> Self {
        Self { tokens, media: None }
    }
}

/// Takes the files of the images out of messages and leaves placeholders for the templates.
fn take_images(messages: &mut Value) -> Vec<Vec<u8>> {
    let contents =
        messages.as_array_mut().into_iter().flatten().filter_map(|message| message.get_mut("content"));
    let parts = contents.filter_map(Value::as_array_mut).flatten();
    let mut files = Vec::new();
    for part in parts {
        if let Some(file) = file_of(part) {
            files.push(file);
            *part = json!({"type": "image"});
        }
    }
    files
}

impl RunningModel {
    /// The model's tokenizer.
    ///
    /// # Errors
    /// When the model has no tokenizer.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().with_context(|| format!("{} has no tokenizer", self.names[0]))
    }

    /// The prompt that continues a conversation of `{role, content}` messages; content with images is a list
    /// of parts.
    ///
    /// # Errors
    /// When the model has no chat template, it refuses the conversation, or an image cannot be used.
    pub fn chat_prompt(&self, messages: &[Value]) -> Result<ChatPrompt> {
        let template = self.chat_template.as_ref();
        let template = template.with_context(|| format!("{} has no chat template", self.names[0]))?;
        let tokenizer = self.tokenizer()?;
        let mut messages = Value::Array(messages.to_vec());
        let files = take_images(&mut messages);
        let mut rendered = template.render(&TemplateInput::new(&messages, tokenizer.special_tokens()))?;
        if files.is_empty() {
            return Ok(ChatPrompt { tokens: tokenizer.encode_rendered(&rendered, false)?, media: None });
        }
        let input = images::input(self).with_context(|| format!("{} takes only text", self.names[0]))?;
        let images = files.iter().map(|file| input.process(file)).collect::<Result<Vec<_>, _>>()?;
        input.expand(&mut rendered, &images)?;
        let tokens = tokenizer.encode_rendered(&rendered, false)?;
        let media = Some(Arc::new(input.place(images, &tokens)?));
        Ok(ChatPrompt { tokens, media })
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
        prompt: ChatPrompt,
        sampling: &SamplingArgs,
        mut on_text: impl FnMut(&str) -> bool,
    ) -> Result<Answered> {
        let ChatPrompt { tokens, media } = prompt;
        let n_prompt = tokens.len();
        let plain = Request::plain(self.engine.next_request_id(), tokens, self.sampling_params(sampling));
        let request = Request { media, ..plain };
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
