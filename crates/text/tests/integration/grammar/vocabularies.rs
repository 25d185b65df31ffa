//! Tokenizers to constrain: the starter model's, and larger ones of other models where they are at hand.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use throng_text::grammar::{CompileLimits, GrammarCompiler};
use throng_text::{GgufEncoderKeys, GgufInfillKeys, GgufVocabulary, Tokenizer};

/// The starter model's tokenizer.
pub static STARTER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../starter/models/throng-starter.gguf");
    Arc::new(read(&path).expect("the starter model is in the repository"))
});

/// A compiler for the starter model.
#[allow(dead_code)] // not every binary that has this module uses it
pub static COMPILER: LazyLock<GrammarCompiler> = LazyLock::new(|| compiler(&STARTER));

/// A compiler for a tokenizer.
pub fn compiler(tokenizer: &Arc<Tokenizer>) -> GrammarCompiler {
    let ends = tokenizer.end_of_generation_token_ids();
    GrammarCompiler::new(tokenizer.clone(), ends, CompileLimits::default()).expect("it has end tokens")
}

/// The tokenizer of a released model (`../shared/tokenizers`), or `None` with a line that says so.
#[allow(dead_code)] // as above
pub fn released(name: &str) -> Option<Arc<Tokenizer>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/tokenizers");
    let path: PathBuf = root.join(format!("ggml-vocab-{name}.gguf"));
    if !path.exists() {
        println!("SKIPPED: {} is absent", path.display());
        return None;
    }
    Some(Arc::new(read(&path).expect("a vocabulary")))
}

/// The vocabulary of a GGUF file.
fn read(path: &Path) -> Option<Tokenizer> {
    let file = std::fs::read(path).ok()?;
    let mut values = Header { bytes: &file, at: 0 }.values();
    let mut list = |key: &str| match values.remove(key) {
        Some(Value::List(list)) => list,
        _ => Vec::new(),
    };
    let (tokens, scores) = (list("tokenizer.ggml.tokens"), list("tokenizer.ggml.scores"));
    let (types, merges) = (list("tokenizer.ggml.token_type"), list("tokenizer.ggml.merges"));
    let texts = |list: Vec<Value>| list.into_iter().filter_map(Value::text).collect::<Vec<String>>();
    let number = |key: &str| values.get(key).and_then(Value::number);
    let id = |key: &str| number(&format!("tokenizer.ggml.{key}_token_id")).map(|id| id as u32);
    let flag = |key: &str| number(&format!("tokenizer.ggml.{key}")).map(|flag| flag != 0.0);
    let text = |key: &str| values.get(key).cloned().and_then(Value::text);
    Tokenizer::from_gguf(&GgufVocabulary {
        model: text("tokenizer.ggml.model")?,
        pre: text("tokenizer.ggml.pre"),
        model_name: text("general.name"),
        tokens: texts(tokens),
        scores: scores.iter().filter_map(Value::number).map(|score| score as f32).collect(),
        token_types: types.iter().filter_map(Value::number).map(|kind| kind as i32).collect(),
        merges: texts(merges),
        bos_token_id: id("bos"),
        eos_token_id: id("eos"),
        eot_token_id: id("eot"),
        eom_token_id: id("eom"),
        unknown_token_id: id("unknown"),
        padding_token_id: id("padding"),
        add_bos_token: flag("add_bos_token"),
        add_eos_token: flag("add_eos_token"),
        add_space_prefix: flag("add_space_prefix"),
        infill: GgufInfillKeys::default(),
        encoder: GgufEncoderKeys::default(),
    })
    .ok()
}

#[derive(Clone)]
enum Value {
    Number(f64),
    Text(String),
    List(Vec<Value>),
}

impl Value {
    fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    fn text(self) -> Option<String> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// The metadata of a GGUF file that is known to be well-formed.
struct Header<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Header<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        self.at += N;
        self.bytes[self.at - N..self.at].try_into().unwrap()
    }

    fn size(&mut self) -> usize {
        u64::from_le_bytes(self.take()) as usize
    }

    fn string(&mut self) -> String {
        let n_bytes = self.size();
        self.at += n_bytes;
        String::from_utf8_lossy(&self.bytes[self.at - n_bytes..self.at]).into_owned()
    }

    fn values(mut self) -> HashMap<String, Value> {
        self.at = 16; // magic, version, number of tensors
        let n_values = self.size();
        (0..n_values)
            .map(|_| {
                let key = self.string();
                let kind = u32::from_le_bytes(self.take());
                (key, self.value(kind))
            })
            .collect()
    }

    fn value(&mut self, kind: u32) -> Value {
        let number = match kind {
            0 => f64::from(u8::from_le_bytes(self.take())),
            1 => f64::from(i8::from_le_bytes(self.take())),
            2 => f64::from(u16::from_le_bytes(self.take())),
            3 => f64::from(i16::from_le_bytes(self.take())),
            4 => f64::from(u32::from_le_bytes(self.take())),
            5 => f64::from(i32::from_le_bytes(self.take())),
            6 => f64::from(f32::from_le_bytes(self.take())),
            7 => f64::from(u8::from_le_bytes(self.take())),
            8 => return Value::Text(self.string()),
            9 => {
                let kind = u32::from_le_bytes(self.take());
                let n_values = self.size();
                return Value::List((0..n_values).map(|_| self.value(kind)).collect());
            }
            10 => self.size() as f64,
            11 => i64::from_le_bytes(self.take()) as f64,
            _ => f64::from_le_bytes(self.take()),
        };
        Value::Number(number)
    }
}
