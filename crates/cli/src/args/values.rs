//! Values of flags and their parsers: numbers of bytes, lists, models, ISAs, the format of the log, variables
//! of chat templates. Does not know which flag a value belongs to.

use std::path::Path;

use clap::ValueEnum;
use serde_json::{Map, Value};
use throng_kernels::Isa;
use throng_text::ChatTemplate;

use crate::bounds;

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// A number of bytes: `1073741824`, `1GiB`, `1.5G`, `512M`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let (n_bytes, range) = (number_of_bytes(text)?, bounds::KV_CACHE_BYTES);
    let is_allowed = (*range.start() as f64..=*range.end() as f64).contains(&n_bytes);
    if is_allowed { Ok(n_bytes as u64) } else { Err("must be from 1 byte to 1024 TiB".to_owned()) }
}

/// Parses a number of bytes like [`parse_bytes`], but of any size.
pub fn bytes_of(text: &str) -> Result<u64, String> {
    let n_bytes = number_of_bytes(text)?;
    // Beyond 2^53 bytes a float is not exact, and no machine has them.
    let is_number = (0.0..=(1u64 << 53) as f64).contains(&n_bytes);
    if is_number { Ok(n_bytes as u64) } else { Err(format!("{text}: not a number of bytes")) }
}

fn number_of_bytes(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let number_end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let number: f64 = number.trim().parse().map_err(|_| format!("{text}: not a number of bytes"))?;
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{unit}: use KiB, MiB, GiB or TiB")),
    };
    Ok(number * (1u64 << shift) as f64)
}

/// The value of a flag that takes several words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words(pub Vec<String>);

/// Several words, separated by commas or as a list in JSON (vLLM's form).
pub fn parse_words(text: &str) -> Result<Words, String> {
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text).map(Words).map_err(|error| format!("not a list in JSON: {error}"));
    }
    Ok(Words(text.split(',').map(|word| word.trim().to_owned()).collect()))
}

/// A positional argument: a model. The name of a command is an error, since commands come before their flags.
pub fn model_place(text: &str) -> Result<String, String> {
    const COMMANDS: [&str; 17] = [
        "serve",
        "worker",
        "gateway",
        "fleet",
        "chat",
        "generate",
        "inspect",
        "pull",
        "models",
        "bench",
        "machine",
        "keys",
        "usage",
        "store",
        "config",
        "completions",
        "man",
    ];
    if COMMANDS.contains(&text) && !Path::new(text).exists() {
        return Err(format!(
            "this is a command and stands before all flags; for a file or folder write ./{text}"
        ));
    }
    Ok(text.to_owned())
}

/// Variables for a chat template, by name.
pub type Variables = Map<String, Value>;

/// Parses the JSON object of `--default-chat-template-kwargs`.
pub fn parse_variables(text: &str) -> Result<Variables, String> {
    let variables: Variables = serde_json::from_str(text).map_err(|error| error.to_string())?;
    check_variables(&variables)?;
    Ok(variables)
}

/// Checks that no variable has a name that the server itself sets.
pub fn check_variables(variables: &Variables) -> Result<(), String> {
    match variables.keys().find(|name| ChatTemplate::is_reserved(name)) {
        Some(name) => Err(format!("{name:?} is set by the server")),
        None => Ok(()),
    }
}

/// An ISA of this machine by its name in reports: `avx-512-vnni` for `AVX-512 VNNI`.
pub fn parse_isa(text: &str) -> Result<Isa, String> {
    let spelled = |isa: &Isa| isa.name().to_ascii_lowercase().replace(' ', "-");
    let available = Isa::available();
    available.iter().copied().find(|isa| spelled(isa) == text).ok_or_else(|| {
        let names: Vec<String> = available.iter().map(spelled).collect();
        format!("this machine has {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_with_their_units() {
        assert_eq!(parse_bytes("4GiB"), Ok(4 << 30));
        assert_eq!(parse_bytes("1.5g"), Ok(3 << 29));
        assert_eq!(parse_bytes("512MB"), Ok(512 << 20));
        assert_eq!(parse_bytes("1024"), Ok(1024));
        assert!(parse_bytes("four").is_err());
        assert!(parse_bytes("-1G").is_err());
        assert!(parse_bytes("1X").is_err());
    }

    #[test]
    fn lists_have_two_forms() {
        let words = |list: &[&str]| Ok(Words(list.iter().map(|&word| word.to_owned()).collect()));
        assert_eq!(parse_words("a, b"), words(&["a", "b"]));
        assert_eq!(parse_words("[\"*\"]"), words(&["*"]));
        assert_eq!(parse_words("[\"a\", \"b\"]"), words(&["a", "b"]));
        assert!(parse_words("[1]").is_err() && parse_words("[\"a\"").is_err());
    }

    #[test]
    fn only_isas_of_this_machine_are_accepted() {
        assert_eq!(parse_isa("scalar"), Ok(Isa::SCALAR));
        for isa in Isa::available() {
            assert_eq!(parse_isa(&isa.name().to_ascii_lowercase().replace(' ', "-")), Ok(isa));
        }
        assert!(parse_isa("abacus").expect_err("no such ISA").starts_with("this machine has scalar"));
    }
}
