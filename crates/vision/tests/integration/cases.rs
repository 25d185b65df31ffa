//! The cases of a folder of reference models: prompts with pictures, their pixel values, and what
//! transformers 5.24 makes of them (`../shared/vision/README.md`).

use std::path::Path;
use std::sync::Arc;

use safetensors::SafeTensors;
use serde_json::Value;
use throng_core::prompt_media::{ContentLayout, FeatureRun, MediaContent, PromptMedia, PromptSpan, SpanKind};
use throng_core::request::{RequestId, SamplingParams, SequenceId};
use throng_core::scheduling::batch::{
    BLOCK_TOKENS, BlockId, ChosenToken, MemorySlot, NewSequence, ScheduledBatch, StateShare, StepOutput,
};
use throng_core::scheduling::executor::Executor;
use throng_model::kv_cache::KvDtype;
use throng_model::runner::RunnerLimits;
use throng_model::{LoadOptions, LoadedModel, load};
use throng_vision::with_vision;

/// KV cache for one short sequence.
pub const LIMITS: RunnerLimits = RunnerLimits {
    n_blocks: 16,
    kv_dtype: KvDtype::F32,
    max_batch_tokens: 192,
    max_batch_sequences: 4,
    max_sequence_tokens: None,
};

/// A folder with its expected numbers.
pub struct Folder {
    pub model: LoadedModel,
    pub cases: Value,
    bytes: Vec<u8>,
    config: Value,
}

/// A prompt with its pictures.
pub struct Case {
    pub name: String,
    pub input_ids: Vec<u32>,
    pub media: Option<Arc<PromptMedia>>,
    /// `[tokens, vocabulary]`.
    pub logits: Vec<f32>,
    pub greedy: Vec<u32>,
    /// `[3, tokens]`, where there are positions in sections.
    pub position_ids: Option<Vec<u32>>,
}

impl Folder {
    pub fn open(folder: &Path) -> Self {
        let options = LoadOptions { prepare: None, n_threads: 2, quantize: None };
        let model = load(folder, &options, &mut |_| {}).expect("the folder is a model");
        let json = |name: &str| -> Value {
            serde_json::from_slice(&std::fs::read(folder.join(name)).expect("a file")).expect("JSON")
        };
        Self {
            model: with_vision(model, None).expect("the encoder is known"),
            cases: json("cases.json"),
            config: json("config.json"),
            bytes: std::fs::read(folder.join("expected.safetensors")).expect("a file"),
        }
    }

    /// The cases of a folder with the model of a GGUF file, and of the `mmproj` file beside it.
    pub fn open_gguf(folder: &Path, gguf: &Path) -> Self {
        let options = LoadOptions { prepare: None, n_threads: 2, quantize: None };
        let model = load(gguf, &options, &mut |_| {}).expect("the file is a model");
        let model = with_vision(model, None).expect("the encoder is known");
        Self { model, ..Self::open(folder) }
    }

    fn floats(&self, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("safetensors");
        let tensor = tensors.tensor(name).ok()?;
        let data = tensor.data().to_vec();
        let numbers = data.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        Some((tensor.shape().to_vec(), numbers))
    }

    fn integers(&self, name: &str) -> Option<Vec<i64>> {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("safetensors");
        let data = tensors.tensor(name).ok()?.data().to_vec();
        Some(data.as_chunks::<8>().0.iter().map(|x| i64::from_le_bytes(*x)).collect())
    }

    pub fn pictures(&self) -> Vec<String> {
        self.cases["images"].as_object().expect("an object").keys().cloned().collect()
    }

    pub fn n_placeholders(&self, picture: &str) -> usize {
        self.cases["images"][picture]["placeholders"].as_u64().expect("a number") as usize
    }

    pub fn expected_features(&self, picture: &str) -> Vec<f32> {
        self.floats(&format!("{picture}.features")).expect("features").1
    }

    pub fn expected_deepstack(&self, picture: &str) -> Vec<Vec<f32>> {
        (0..).map_while(|k| Some(self.floats(&format!("{picture}.deepstack.{k}"))?.1)).collect()
    }

    /// The content of a picture whose features stand at these offsets from its first token.
    pub fn content(&self, picture: &str, offsets: &[u32]) -> MediaContent {
        let (shape, pixels) = self.floats(&format!("{picture}.pixel_values")).expect("pixel values");
        let patch = self.config["vision_config"]["patch_size"].clone();
        let patch = patch.as_u64().or_else(|| patch[0].as_u64()).expect("a size") as usize;
        let as_u32 = |shape: &[usize]| shape.iter().map(|&side| side as u32).collect::<Vec<_>>();
        let (grid, shape, pixels) = if let Some(grid) = self.integers(&format!("{picture}.image_grid_thw")) {
            ([grid[0] as u32, grid[1] as u32, grid[2] as u32], as_u32(&shape), pixels)
        } else if let Some(places) = self.integers(&format!("{picture}.image_position_ids")) {
            // Padding has the position −1.
            let n = places.chunks(2).filter(|place| place[0] >= 0).count();
            let side = |i: usize| places.chunks(2).map(|place| place[i]).max().expect("patches") as u32 + 1;
            let width = shape[2];
            ([1, side(1), side(0)], vec![n as u32, width as u32], pixels[..n * width].to_vec())
        } else {
            let tiles = &shape[shape.len() - 4..];
            let sides = [tiles[2] / patch, tiles[3] / patch];
            let size = self.integers(&format!("{picture}.image_sizes"));
            let size = size.filter(|_| self.config["model_type"] == "llava_onevision");
            let sides = size.map_or(sides, |size| [size[0] as usize, size[1] as usize]);
            ([tiles[0] as u32, sides[0] as u32, sides[1] as u32], as_u32(tiles), pixels)
        };
        let layout = ContentLayout { kind: SpanKind::Image, grid, shape, runs: runs_of(offsets) };
        MediaContent::new(layout, pixels.into()).expect("pixel values of a picture")
    }

    pub fn cases(&self) -> Vec<Case> {
        self.cases["cases"].as_array().expect("a list").iter().map(|case| self.case(case)).collect()
    }

    fn case(&self, case: &Value) -> Case {
        let name = case["name"].as_str().expect("a name").to_owned();
        let ids = |key: &str| {
            let ids = self.integers(&format!("{name}.{key}"));
            ids.map(|ids| ids.into_iter().map(|id| id as u32).collect::<Vec<u32>>())
        };
        let input_ids = ids("input_ids").expect("ids");
        let mut positions = ids("image_positions").unwrap_or_default().into_iter();
        let mut media = PromptMedia::default();
        let mut grids = Vec::new();
        for picture in case["images"].as_array().expect("a list") {
            let picture = picture.as_str().expect("a name");
            let places: Vec<u32> = positions.by_ref().take(self.n_placeholders(picture)).collect();
            let offsets: Vec<u32> = places.iter().map(|place| place - places[0]).collect();
            let content = self.content(picture, &offsets);
            let span = PromptSpan {
                start: places[0],
                len: offsets[offsets.len() - 1] + 1,
                digest: content.digest(),
                kind: SpanKind::Image,
            };
            let [time, rows, columns] = content.layout().grid;
            grids.push((span, [time, rows / 2, columns / 2]));
            media.spans.push(span);
            if media.content_of(&span).is_none() {
                media.contents.push(Arc::new(content));
            }
        }
        let position_ids = ids("position_ids");
        if position_ids.is_some() {
            media.positions = PromptMedia::grid_positions(input_ids.len() as u32, &grids);
        }
        Case {
            media: (!media.spans.is_empty()).then(|| Arc::new(media)),
            logits: self.floats(&format!("{name}.logits")).expect("logits").1,
            greedy: ids("greedy").expect("tokens"),
            input_ids,
            position_ids,
            name,
        }
    }
}

/// Adjacent tokens of offsets in increasing order.
pub fn runs_of(offsets: &[u32]) -> Vec<FeatureRun> {
    let chunks = offsets.chunk_by(|a, b| a + 1 == *b);
    chunks.map(|chunk| FeatureRun { offset: chunk[0], len: chunk.len() as u32 }).collect()
}

/// The only sequence of an executor, in scattered blocks.
pub struct OneSequence {
    tokens: Vec<u32>,
    n_prompt: usize,
    n_computed: usize,
    media: Option<Arc<PromptMedia>>,
    sampling: Arc<SamplingParams>,
    batch: ScheduledBatch,
    step: StepOutput,
    n_steps: u32,
}

impl OneSequence {
    pub fn new(case: &Case, sampling: Arc<SamplingParams>) -> Self {
        let (batch, step) = Default::default();
        let (tokens, n_prompt) = (case.input_ids.clone(), case.input_ids.len());
        Self { tokens, n_prompt, n_computed: 0, media: case.media.clone(), sampling, batch, step, n_steps: 0 }
    }

    /// Computes the prompt in chunks; `each` sees the reports of all its positions, the first output's last.
    pub fn prefill(
        &mut self,
        executor: &mut dyn Executor,
        chunk: usize,
        mut each: impl FnMut(ChosenToken<'_>),
    ) {
        while self.n_computed < self.n_prompt {
            self.step(executor, chunk.min(self.n_prompt - self.n_computed));
            self.step.prompt(0).for_each(&mut each);
            self.step.sampled(0).for_each(&mut each);
        }
    }

    pub fn decode(&mut self, executor: &mut dyn Executor, n_tokens: usize) {
        (0..n_tokens).for_each(|_| self.step(executor, 1));
    }

    pub fn output(&self) -> &[u32] {
        &self.tokens[self.n_prompt..]
    }

    fn step(&mut self, executor: &mut dyn Executor, n_new: usize) {
        let end = self.n_computed + n_new;
        let n_blocks = executor.capacity().n_blocks as usize;
        let blocks: Vec<_> =
            (0..end.div_ceil(BLOCK_TOKENS)).map(|i| BlockId(((i * 7 + 3) % n_blocks) as u32)).collect();
        self.batch.clear();
        self.batch.push(NewSequence {
            id: SequenceId { request: RequestId(1), index: 0 },
            start: self.n_computed as u32,
            n_prompt: self.n_prompt as u32,
            next_prompt_token: self.tokens.get(end).copied(),
            sample: end >= self.n_prompt,
            sampling: Arc::clone(&self.sampling),
            constraint: None,
            adapter: None,
            tokens: &self.tokens[self.n_computed..end],
            drafts: &[],
            blocks: &blocks,
            history: &[],
            output: &[],
        });
        self.media.iter().for_each(|media| self.batch.set_media(Arc::clone(media), None));
        if executor.capacity().n_state_slots > 0 {
            let (from, to) = (MemorySlot(self.n_steps % 2), MemorySlot((self.n_steps + 1) % 2));
            let from = (self.n_computed > 0).then_some(from);
            self.batch.set_state(StateShare { from, to, saves: [None; 2] });
            self.n_steps += 1;
        }
        executor.execute(&self.batch, &mut self.step).expect("the step runs");
        assert_eq!(self.step.error(0), None);
        self.n_computed = end;
        self.tokens.extend(self.step.sampled(0).map(|report| report.chosen.token));
    }
}
