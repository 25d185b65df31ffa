//! Reads from the files of a running model how it takes images.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use throng_gateway::ImageInput;
use throng_images::{Processor, RgbImage};
use throng_model::LoadedModel;

use super::RunningModel;

/// Names of the files that describe a processor; the first that exists counts.
const PROCESSORS: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];
/// Largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// The configuration of the image processor and that of the model; `None` for a model that takes only text.
///
/// # Errors
/// When a file is there and cannot be read.
pub fn files(running: &RunningModel) -> Result<Option<[Value; 2]>> {
    if running.engine.capacity().takes_media { files_of(&running.model) } else { Ok(None) }
}

/// The image processor's files of a model with a vision part; `None` if no file describes the processing of
/// images.
fn files_of(model: &LoadedModel) -> Result<Option<[Value; 2]>> {
    if let Some(files) = model.media().and_then(|media| media.processor()) {
        return Ok(Some(files));
    }
    let Some(config) = model.config_json()? else { return Ok(None) };
    for name in PROCESSORS {
        if let Some(processor) = read(&model.path.join(name))? {
            return Ok(Some([processor, Value::Object(config)]));
        }
    }
    Ok(None)
}

/// Number of tokens of an image of these sizes, width and height in pixels, each.
///
/// # Errors
/// When no file describes how a model with a vision part takes images, or in an unsupported way.
pub fn tokens_of(model: &LoadedModel, sizes: &[(u32, u32)]) -> Result<Vec<u32>> {
    let files = files_of(model)?;
    let [processor, config] = files.with_context(|| format!("{} is missing", PROCESSORS[0]))?;
    let processor = Processor::from_config(&processor, &config)?;
    let n_tokens = |&(width, height): &(u32, u32)| {
        let pixels = vec![0; 3 * width as usize * height as usize];
        let image = RgbImage::new(width, height, pixels).context("no image has this size")?;
        Ok(processor.process(&image)?.n_tokens())
    };
    sizes.iter().map(n_tokens).collect()
}

/// Image input of the model; `None` for a model that takes only text, and with a warning if its files do not
/// describe the processing of images.
pub fn input(running: &RunningModel) -> Option<ImageInput> {
    let tokenizer = running.tokenizer.as_deref()?;
    let made = files(running).map_err(|error| format!("{error:#}")).and_then(|files| {
        let files = files.map(|[processor, config]| ImageInput::new(&processor, &config, tokenizer));
        files.transpose()
    });
    made.unwrap_or_else(|reason| {
        tracing::warn!("images are refused: {reason}");
        None
    })
}

fn read(path: &Path) -> Result<Option<Value>> {
    let Ok(metadata) = path.metadata() else { return Ok(None) };
    anyhow::ensure!(metadata.len() <= MAX_BYTES, "{} has more than {MAX_BYTES} bytes", path.display());
    let json = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&json).with_context(|| format!("{} is not JSON", path.display())).map(Some)
}
