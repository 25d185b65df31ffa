//! The bodies of `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`, in vLLM's form. Does not
//! know adapters.

use crate::error::ApiError;
use crate::field::Kind::{Boolean, Ignored, ModelName, Text};
use crate::field::{Bound, Field, ReadOptions, Shape, field, read_body};
use crate::ignored::IgnoredParameters;

/// Maximum bytes of a path.
const MAX_PATH_BYTES: usize = 4096;

/// A checked request to load an adapter.
#[derive(Debug, Clone)]
pub struct LoadAdapterRequest {
    /// Name of the adapter in requests.
    pub name: String,
    /// Folder of the adapter on the server.
    pub path: String,
    /// Whether to replace a loaded adapter of the same name.
    pub in_place: bool,
    /// Base model of the adapter; `None`: the only served model.
    pub model: Option<String>,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// A checked request to unload an adapter.
#[derive(Debug, Clone)]
pub struct UnloadAdapterRequest {
    /// Name of the adapter in requests.
    pub name: String,
    /// Unknown parameters.
    pub ignored: IgnoredParameters,
}

/// The parameters of both requests.
#[derive(Debug, Default)]
pub struct AdapterOptions {
    lora_name: Option<String>,
    lora_path: Option<String>,
    load_inplace: Option<bool>,
    base_model_name: Option<String>,
}

const NAME: Field<AdapterOptions> =
    field("lora_name", ModelName(|o| &mut o.lora_name), "What requests call the adapter in `model`.");

/// The parameters of `POST /v1/load_lora_adapter`.
pub const LOAD_ADAPTER_FIELDS: &[Field<AdapterOptions>] = &[
    NAME,
    field(
        "lora_path",
        Text(MAX_PATH_BYTES, |o| &mut o.lora_path),
        "The adapter's folder on the server, as PEFT saves it.",
    ),
    field(
        "load_inplace",
        Boolean(|o| &mut o.load_inplace),
        "Replace the adapter of the same name; requests that use it end with it. false unless said.",
    ),
    field(
        "base_model_name",
        ModelName(|o| &mut o.base_model_name),
        "The model that the adapter belongs to; needed only where there are several.",
    ),
];

/// The parameters of `POST /v1/unload_lora_adapter`.
pub const UNLOAD_ADAPTER_FIELDS: &[Field<AdapterOptions>] =
    &[NAME, field("lora_int_id", Ignored(Shape::Any), "A number of vLLM's; without effect.")];

impl LoadAdapterRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let (own, ignored) = read(LOAD_ADAPTER_FIELDS, body, options)?;
        let path = own.lora_path.filter(|path| !path.is_empty());
        Ok(Self {
            name: own.lora_name.ok_or_else(|| ApiError::missing_required_parameter("lora_name"))?,
            path: path.ok_or_else(|| ApiError::missing_required_parameter("lora_path"))?,
            in_place: own.load_inplace.unwrap_or(false),
            model: own.base_model_name,
            ignored,
        })
    }
}

impl UnloadAdapterRequest {
    /// Reads and checks a body.
    ///
    /// # Errors
    /// A 400 that names the parameter.
    pub fn parse(body: &[u8], options: &ReadOptions) -> Result<Self, ApiError> {
        let (own, ignored) = read(UNLOAD_ADAPTER_FIELDS, body, options)?;
        let name = own.lora_name.ok_or_else(|| ApiError::missing_required_parameter("lora_name"))?;
        Ok(Self { name, ignored })
    }
}

fn read(
    fields: &'static [Field<AdapterOptions>],
    body: &[u8],
    options: &ReadOptions,
) -> Result<(AdapterOptions, IgnoredParameters), ApiError> {
    let mut own = AdapterOptions::default();
    let ignored = read_body(body, &mut [&mut Bound { fields, target: &mut own }], options)?;
    Ok((own, ignored))
}
