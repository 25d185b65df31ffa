//! Blocks of NVFP4 as in ggml, with the factor that files store separately. Does not know tensors.

use throng_kernels::quant::Format;

/// Number of columns that share a scale.
pub(crate) const GROUP: usize = 16;
/// Number of groups with a scale in a block.
const GROUPS_IN_BLOCK: usize = 4;

/// The bytes of a block of 64 columns: its factor, the scales (E4M3) of its groups, then of each group bytes
/// with the codes of two columns that are eight apart.
pub(crate) fn scaled_block(
    factor: f32,
    scales: [u8; GROUPS_IN_BLOCK],
    code: impl Fn(usize) -> u8,
) -> impl Iterator<Item = u8> {
    let columns = (0..GROUPS_IN_BLOCK).flat_map(|group| (0..GROUP / 2).map(move |i| group * GROUP + i));
    let codes = columns.map(move |col| code(col) & 15 | (code(col + GROUP / 2) & 15) << 4);
    factor.to_le_bytes().into_iter().chain(scales).chain(codes)
}

/// Blocks of NVFP4, each with this factor.
pub fn with_factor(factor: f32, blocks: &[u8]) -> Vec<u8> {
    let mut scaled =
        Vec::with_capacity(blocks.len() / Format::NVFP4.block_bytes() * Format::NVFP4_SCALED.block_bytes());
    for block in blocks.chunks_exact(Format::NVFP4.block_bytes()) {
        scaled.extend(factor.to_le_bytes());
        scaled.extend(block);
    }
    scaled
}

/// The name of the tensor with the factors of a weight in a GGUF file (one factor, or one for each expert),
/// as in llama.cpp.
pub fn factors_of(name: &str) -> Option<String> {
    Some(format!("{}.scale", name.strip_suffix(".weight")?))
}
