//! The processors of model families: one file a kind of configuration, from upright pixels to the encoder's
//! input values and to the placeholder tokens in the prompt.

mod dynamic_patches;
mod fixed;
mod gemma4;
mod internvl;
mod llama4;
mod onevision;
mod pixtral;
mod settings;
mod smolvlm;
mod values;

use std::borrow::Cow;

use serde_json::Value;

use crate::error::{ImageError, ProcessorError};
use crate::rgb_image::RgbImage;
use settings::Settings;

/// Piece of the tokens that replace an image in a prompt, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Control tokens and line breaks around the image's tokens.
    Text(Cow<'static, str>),
    /// Number of tokens of the image whose embeddings the encoder's features replace.
    Tokens(u32),
}

/// An image as its encoder takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessedImage {
    /// The values, in the order of transformers.
    pub pixels: Vec<f32>,
    /// Sizes of the values' dimensions, without those of a batch of one image.
    pub shape: Vec<u32>,
    /// Number of frames or tiles; rows and columns of patches of each, before any are merged.
    pub grid: [u32; 3],
    /// Tokens that replace the image in the prompt.
    pub pieces: Vec<Piece>,
    /// Rows and columns of the image's tokens, for models whose rotary positions have three parts.
    pub rotary_grid: Option<[u32; 2]>,
}

impl ProcessedImage {
    /// Number of tokens whose embeddings the encoder's features replace.
    pub fn n_tokens(&self) -> u32 {
        self.pieces.iter().map(|piece| if let Piece::Tokens(n) = piece { *n } else { 0 }).sum()
    }
}

/// Rules for resizing, cutting and normalizing a model's images.
#[derive(Debug, Clone, PartialEq)]
pub struct Processor {
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    DynamicPatches(dynamic_patches::DynamicPatches),
    Fixed(fixed::Fixed),
    Gemma4(gemma4::Gemma4),
    Internvl(internvl::Internvl),
    Llama4(llama4::Llama4),
    Onevision(onevision::Onevision),
    Pixtral(pixtral::Pixtral),
    Smolvlm(smolvlm::Smolvlm),
}

impl Processor {
    /// The processor of a model: `preprocessor` is the content of `preprocessor_config.json` or, where the
    /// model has all in one file, `processor_config.json`; `model` is that of `config.json`.
    ///
    /// # Errors
    /// [`ProcessorError`]: a class that is not supported, or a setting that is invalid.
    pub fn from_config(preprocessor: &Value, model: &Value) -> Result<Self, ProcessorError> {
        let settings = Settings::new(preprocessor, model);
        let kind = match settings.class() {
            "Qwen2VLImageProcessor" | "Qwen3VLImageProcessor" => {
                Kind::DynamicPatches(dynamic_patches::DynamicPatches::qwen(&settings)?)
            }
            "Glm4vImageProcessor" | "Glm46VImageProcessor" => {
                Kind::DynamicPatches(dynamic_patches::DynamicPatches::glm(&settings)?)
            }
            "Gemma3ImageProcessor" => Kind::Fixed(fixed::Fixed::gemma3(&settings)?),
            "CLIPImageProcessor" | "LlavaImageProcessor" if settings.model_type() == "llava" => {
                Kind::Fixed(fixed::Fixed::llava(&settings)?)
            }
            "Gemma4ImageProcessor" => Kind::Gemma4(gemma4::Gemma4::new(&settings)?),
            "GotOcr2ImageProcessor" => Kind::Internvl(internvl::Internvl::new(&settings)?),
            "Llama4ImageProcessor" => Kind::Llama4(llama4::Llama4::new(&settings)?),
            "LlavaOnevisionImageProcessor" => Kind::Onevision(onevision::Onevision::new(&settings)?),
            "PixtralImageProcessor" => Kind::Pixtral(pixtral::Pixtral::new(&settings)?),
            "SmolVLMImageProcessor" | "Idefics3ImageProcessor" => {
                Kind::Smolvlm(smolvlm::Smolvlm::new(&settings)?)
            }
            other => return Err(ProcessorError::Unknown(other.to_owned())),
        };
        Ok(Self { kind })
    }

    /// The text with which the chat template marks an image; `None` if it is the image token itself.
    pub fn marker(&self) -> Option<&'static str> {
        match &self.kind {
            Kind::Fixed(fixed) => fixed.marker(),
            Kind::Llama4(_) => Some("<|image|>"),
            _ => None,
        }
    }

    /// Computes the values of an image.
    ///
    /// # Errors
    /// [`ImageError::Shape`] for a shape that the model refuses.
    pub fn process(&self, image: &RgbImage) -> Result<ProcessedImage, ImageError> {
        match &self.kind {
            Kind::DynamicPatches(kind) => kind.process(image),
            Kind::Fixed(kind) => Ok(kind.process(image)),
            Kind::Gemma4(kind) => kind.process(image),
            Kind::Internvl(kind) => Ok(kind.process(image)),
            Kind::Llama4(kind) => Ok(kind.process(image)),
            Kind::Onevision(kind) => Ok(kind.process(image)),
            Kind::Pixtral(kind) => Ok(kind.process(image)),
            Kind::Smolvlm(kind) => Ok(kind.process(image)),
        }
    }
}
