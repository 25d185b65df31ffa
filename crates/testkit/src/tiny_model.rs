//! Tiny random models as GGUF files, in every weight format, for tests that need a real forward pass but no
//! meaningful output. Does not know what the weights compute.

use std::path::Path;

use fastrand::Rng;
use throng_checkpoint::gguf::writer::{TensorToWrite, write};
use throng_checkpoint::gguf::{GgufArray, GgufValue};
use throng_kernels::quant::{Format, quantize_row};

/// The shape of a tiny model.
#[derive(Debug, Clone)]
pub struct TinyModel {
    /// `general.architecture`: `llama`, `qwen3` or `qwen3moe`.
    pub architecture: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of layers.
    pub n_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Width of the feed-forward (of each expert, where there are any).
    pub feed_forward: usize,
    /// Experts of a layer and of a token; `(0, 0)` without.
    pub experts: (usize, usize),
    /// Number of tokens of the vocabulary.
    pub vocabulary: usize,
    /// Maximum number of tokens of a sequence.
    pub context: usize,
    /// Whether the file describes a byte-level vocabulary (then `vocabulary` is at least 260).
    pub with_tokenizer: bool,
    /// Seed of the weights.
    pub seed: u64,
}

impl Default for TinyModel {
    /// A model with one layer of 256 columns, which every format can hold, over 64 tokens.
    fn default() -> Self {
        Self {
            architecture: "qwen3",
            hidden: 256,
            n_layers: 1,
            n_heads: 8,
            n_kv_heads: 2,
            head_dim: 32,
            feed_forward: 256,
            experts: (0, 0),
            vocabulary: 64,
            context: 512,
            with_tokenizer: false,
            seed: 1,
        }
    }
}

/// One tensor before it is quantized.
struct Weights {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl TinyModel {
    /// The model as a GGUF file whose matrices are in `format`; norms and routers are F32, as in real files.
    pub fn gguf(&self, format: Format) -> Vec<u8> {
        let weights = self.weights();
        let stored: Vec<(Format, Vec<u8>)> = weights.iter().map(|weights| store(weights, format)).collect();
        let tensors: Vec<_> = weights
            .iter()
            .zip(&stored)
            .map(|(weights, (format, data))| TensorToWrite {
                name: &weights.name,
                shape: &weights.shape,
                format: *format,
                data,
            })
            .collect();
        let metadata = self.metadata();
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        write(3, &metadata, &tensors)
    }

    /// Writes [`Self::gguf`] to a file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_gguf(&self, format: Format, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, self.gguf(format))
    }

    fn weights(&self) -> Vec<Weights> {
        let mut rng = Rng::with_seed(self.seed);
        let mut all = Vec::new();
        let mut add = |name: &str, shape: &[usize], gain: f32| {
            let n = shape.iter().product();
            // Uniform with the variance that preserves the norm of activations; vectors are norm gains around 1.
            let (scale, centre) = match shape {
                [_] => (0.2, 1.0),
                _ => (gain * (3.0 / *shape.last().expect("a tensor has a shape") as f32).sqrt(), 0.0),
            };
            let values = (0..n).map(|_| centre + scale * (2.0 * rng.f32() - 1.0)).collect();
            all.push(Weights { name: format!("{name}.weight"), shape: shape.to_vec(), values });
        };
        let (hidden, width) = (self.hidden, self.feed_forward);
        let (query, key) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        // Embeddings of unit size and large output weights make the logits of tokens differ clearly.
        add("token_embd", &[self.vocabulary, hidden], (hidden as f32).sqrt());
        add("output", &[self.vocabulary, hidden], 3.0);
        add("output_norm", &[hidden], 1.0);
        for layer_idx in 0..self.n_layers {
            let mut add = |name: &str, shape: &[usize]| add(&format!("blk.{layer_idx}.{name}"), shape, 1.0);
            add("attn_norm", &[hidden]);
            add("ffn_norm", &[hidden]);
            add("attn_q", &[query, hidden]);
            add("attn_k", &[key, hidden]);
            add("attn_v", &[key, hidden]);
            add("attn_output", &[hidden, query]);
            if self.architecture != "llama" {
                add("attn_q_norm", &[self.head_dim]);
                add("attn_k_norm", &[self.head_dim]);
            }
            match self.experts {
                (0, _) => {
                    add("ffn_gate", &[width, hidden]);
                    add("ffn_up", &[width, hidden]);
                    add("ffn_down", &[hidden, width]);
                }
                (n_experts, _) => {
                    add("ffn_gate_inp", &[n_experts, hidden]);
                    add("ffn_gate_exps", &[n_experts, width, hidden]);
                    add("ffn_up_exps", &[n_experts, width, hidden]);
                    add("ffn_down_exps", &[n_experts, hidden, width]);
                }
            }
        }
        all
    }

    fn metadata(&self) -> Vec<(String, GgufValue)> {
        let size = |n: usize| GgufValue::U32(u32::try_from(n).expect("a tiny model"));
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let mut metadata = vec![
            ("general.architecture".to_owned(), GgufValue::String(self.architecture.to_owned())),
            (key("context_length"), size(self.context)),
            (key("embedding_length"), size(self.hidden)),
            (key("block_count"), size(self.n_layers)),
            (key("feed_forward_length"), size(self.feed_forward)),
            (key("attention.head_count"), size(self.n_heads)),
            (key("attention.head_count_kv"), size(self.n_kv_heads)),
            (key("attention.key_length"), size(self.head_dim)),
            (key("attention.value_length"), size(self.head_dim)),
            (key("attention.layer_norm_rms_epsilon"), GgufValue::F32(1e-6)),
            (key("rope.freq_base"), GgufValue::F32(10_000.0)),
        ];
        if self.experts.0 > 0 {
            metadata.push((key("expert_count"), size(self.experts.0)));
            metadata.push((key("expert_used_count"), size(self.experts.1)));
            metadata.push((key("expert_feed_forward_length"), size(self.feed_forward)));
        }
        if self.with_tokenizer {
            metadata.extend(tokenizer(self.vocabulary));
        }
        metadata
    }
}

/// Leaves norms and routers in F32.
fn store(weights: &Weights, format: Format) -> (Format, Vec<u8>) {
    let format = match weights.shape.len() == 1 || weights.name.contains("ffn_gate_inp") {
        true => Format::F32,
        false => format,
    };
    let n_bytes = format.bytes_of(weights.values.len()).expect("rows are whole blocks");
    let mut bytes = vec![0; n_bytes];
    quantize_row(format, &weights.values, &mut bytes);
    (format, bytes)
}

/// A byte-level vocabulary without merges: 256 bytes, the ChatML control tokens, an end token, and unused
/// tokens.
fn tokenizer(n_tokens: usize) -> Vec<(String, GgufValue)> {
    assert!(n_tokens >= 260, "256 bytes and four special tokens");
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    const UNUSED: i32 = 5;
    let mut tokens: Vec<String> = byte_characters().into_iter().map(String::from).collect();
    let mut types = vec![NORMAL; tokens.len()];
    for special in ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"] {
        tokens.push(special.to_owned());
        types.push(CONTROL);
    }
    for idx in tokens.len()..n_tokens {
        tokens.push(format!("[unused{idx}]"));
        types.push(UNUSED);
    }
    let strings = |strings: &[String]| {
        GgufValue::Array(GgufArray::Strings(strings.iter().map(String::as_str).collect()))
    };
    let text = |text: &str| GgufValue::String(text.to_owned());
    [
        ("model", text("gpt2")),
        ("pre", text("qwen2")),
        ("tokens", strings(&tokens)),
        ("token_type", GgufValue::Array(GgufArray::I32(types))),
        ("merges", strings(&[])),
        ("eos_token_id", GgufValue::U32(258)),
        ("bos_token_id", GgufValue::U32(256)),
        ("add_bos_token", GgufValue::Bool(false)),
    ]
    .map(|(name, value)| (format!("tokenizer.ggml.{name}"), value))
    .into_iter()
    .chain([("tokenizer.chat_template".to_owned(), text(CHAT_TEMPLATE))])
    .collect()
}

const CHAT_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n\
    {{ message['content'] }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The printable character of each byte in byte-level BPE (GPT-2).
fn byte_characters() -> [char; 256] {
    let is_itself = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next_substitute = 256;
    std::array::from_fn(|byte| {
        let mut code = byte as u32;
        if !is_itself(code) {
            code = next_substitute;
            next_substitute += 1;
        }
        char::from_u32(code).expect("these are characters")
    })
}
