//! Checks a model's recommended sampling values against the ranges of requests.

use throng_core::request::GenerationDefaults;

use super::generation_fields::GENERATION_FIELDS;
use crate::field::{Kind, Range};

/// Removes every recommended value that is out of the range for requests, and returns it with its
/// parameter's name.
pub fn drop_invalid(defaults: &mut GenerationDefaults) -> Vec<(&'static str, f64)> {
    let mut dropped = Vec::new();
    let numbers: [(_, &mut Option<f32>); 4] = [
        ("temperature", &mut defaults.temperature),
        ("top_p", &mut defaults.top_p),
        ("min_p", &mut defaults.min_p),
        ("repetition_penalty", &mut defaults.repetition_penalty),
    ];
    for (name, slot) in numbers {
        dropped.extend(slot.take_if(|value| !may_be(name, f64::from(*value))).map(|v| (name, v.into())));
    }
    for (name, slot) in [("top_k", &mut defaults.top_k), ("max_tokens", &mut defaults.max_tokens)] {
        dropped.extend(slot.take_if(|value| !may_be(name, f64::from(*value))).map(|v| (name, v.into())));
    }
    dropped
}

/// Whether a value is in the parameter's range for requests.
fn may_be(name: &str, value: f64) -> bool {
    let kind = GENERATION_FIELDS.iter().find(|field| field.name == name).map(|field| &field.kind);
    match kind {
        Some(Kind::Number(range, _)) => range.contains(value),
        Some(Kind::Integer(min, max, _)) => Range::closed(*min as f64, *max as f64).contains(value),
        _ => true,
    }
}
