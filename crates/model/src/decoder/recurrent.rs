//! The recurrent mixer of a layer. Does not know attention and feed-forward blocks.

use super::parts::norm_states;
use super::weights::{LayerWeights, RecurrentCore, RecurrentWeights};
use super::{Workspace, add_output, adds_directly, norm};
use crate::backend::{Backend, BackendError, Columns, LayerStates};
use crate::config::{DecoderConfig, HybridConfig, Mixer};
use crate::state_cache::StateLayout;

/// The states of a model, and the buffers of its recurrent layers, one pair for each pair of widths.
pub(super) struct RecurrentBuffers<B: Backend> {
    /// `None` for a model without recurrent layers.
    pub(super) states: Option<B::States>,
    buffers: Vec<MixerBuffers<B>>,
}

struct MixerBuffers<B: Backend> {
    /// Columns of `input` and of `output`.
    widths: (usize, usize),
    input: B::Buffer,
    output: B::Buffer,
}

impl<B: Backend> RecurrentBuffers<B> {
    pub(super) fn new(
        backend: &B,
        config: &DecoderConfig,
        max_tokens: usize,
        layout: &StateLayout,
    ) -> Result<Self, BackendError> {
        let mut buffers: Vec<MixerBuffers<B>> = Vec::new();
        for widths in
            config.layers.iter().filter_map(|layer| layer.mixer.recurrent_widths(config.hidden_size))
        {
            if buffers.iter().all(|buffers| buffers.widths != widths) {
                let input = backend.buffer(max_tokens, widths.0)?;
                let output = backend.buffer(max_tokens, widths.1)?;
                buffers.push(MixerBuffers { widths, input, output });
            }
        }
        let states = config.is_recurrent().then(|| backend.states(layout)).transpose()?;
        Ok(Self { states, buffers })
    }

    fn of(&mut self, config: &DecoderConfig, mixer: &Mixer) -> &mut MixerBuffers<B> {
        of_widths(&mut self.buffers, config, mixer)
    }

    pub(super) fn set_rows(&mut self, backend: &mut B, n_rows: usize) {
        for MixerBuffers { input, output, .. } in &mut self.buffers {
            backend.set_rows(input, n_rows);
            backend.set_rows(output, n_rows);
        }
    }
}

/// The recurrent mixer of a layer.
pub(super) fn run_recurrent<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    mixer: &Mixer,
    layer_idx: usize,
    (weights, of_mixer): (&LayerWeights<B>, &RecurrentWeights<B>),
    ws: &mut Workspace<B>,
) {
    run_core(backend, config, mixer, layer_idx, (weights, of_mixer), ws);
    let Workspace { residual, scratch, output: block_output, recurrent, .. } = ws;
    let output = &recurrent.of(config, mixer).output;
    let post_norm = norm(config, &weights.post_mixer_norm);
    let (weight, bias) = (&of_mixer.output.weight, of_mixer.output.bias.as_ref());
    if adds_directly(config, post_norm) {
        return backend.matmul_add(output, weight, bias, scratch, residual);
    }
    backend.matmul(output, weight, bias, block_output);
    backend.all_reduce(block_output);
    add_output(backend, config, post_norm, ws);
}

/// The recurrent mixer of a layer, whose result is left in the output buffer.
pub(super) fn mix_states<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    mixer: &Mixer,
    layer_idx: usize,
    (weights, of_mixer): (&LayerWeights<B>, &RecurrentWeights<B>),
    ws: &mut Workspace<B>,
) {
    run_core(backend, config, mixer, layer_idx, (weights, of_mixer), ws);
    let output = &ws.recurrent.of(config, mixer).output;
    backend.matmul(output, &of_mixer.output.weight, of_mixer.output.bias.as_ref(), &mut ws.output);
    backend.all_reduce(&mut ws.output);
}

/// The projection to the inputs of a mixer, and the mixer's core.
fn run_core<B: Backend>(
    backend: &mut B,
    config: &DecoderConfig,
    mixer: &Mixer,
    layer_idx: usize,
    (weights, of_mixer): (&LayerWeights<B>, &RecurrentWeights<B>),
    ws: &mut Workspace<B>,
) {
    let Workspace { residual, scratch, batch, recurrent, .. } = ws;
    let RecurrentBuffers { states, buffers } = recurrent;
    let MixerBuffers { input, output, .. } = of_widths(buffers, config, mixer);
    let (weight, bias) = (&of_mixer.input.weight, of_mixer.input.bias.as_ref());
    match norm(config, &weights.pre_mixer_norm) {
        None => backend.matmul(residual, weight, bias, input),
        Some(norm) => backend.norm_matmul(residual, norm, weight, bias, scratch, input),
    }
    if let Mixer::Hybrid(HybridConfig { state_space: shape, input_scales, .. }) = mixer {
        let (width, of_state) = (shape.width(), shape.n_groups * shape.state_dim);
        let mut first = 0;
        for (width, scale) in [width, width, of_state, of_state, shape.n_heads].into_iter().zip(input_scales)
        {
            if *scale != 1.0 {
                backend.scale_columns(input, Columns { first, n_groups: 1, width }, *scale);
            }
            first += width;
        }
    }
    let all = states.as_mut().expect("a model with recurrent layers has states");
    let states = LayerStates { all, layer_idx };
    match &of_mixer.core {
        RecurrentCore::ShortConv(conv) => backend.short_conv(states, batch, input, conv, output),
        RecurrentCore::GatedDelta(net) => backend.gated_delta_net(states, batch, input, net, output),
        RecurrentCore::StateSpace(model) => backend.state_space(states, batch, input, model, output),
    }
    norm_states(backend, config, layer_idx, mixer, of_mixer, output);
}

fn of_widths<'a, B: Backend>(
    buffers: &'a mut [MixerBuffers<B>],
    config: &DecoderConfig,
    mixer: &Mixer,
) -> &'a mut MixerBuffers<B> {
    let widths = mixer.recurrent_widths(config.hidden_size);
    let buffers = buffers.iter_mut().find(|buffers| Some(buffers.widths) == widths);
    buffers.expect("there are buffers for every recurrent mixer")
}
