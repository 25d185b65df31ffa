//! An encoder of pictures as a value: everything that the one forward pass needs to know of it. Does not know
//! the spelling of configurations and tensors.

use throng_model::shapes::Activation;

/// An encoder with the projector to the decoder's embeddings.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionConfig {
    /// The family, as `model_type` of a `config.json` spells it.
    pub family: &'static str,
    /// Arrangement of pixel values.
    pub patches: PatchInput,
    /// Number of values of a patch: channels, frames, rows and columns of pixels.
    pub patch_values: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of attention heads.
    pub n_heads: usize,
    /// Number of heads of keys and values.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Number of columns of the hidden layer of a feed-forward network.
    pub mlp_width: usize,
    /// Whether feed-forward networks have gates.
    pub is_gated: bool,
    /// Activation of feed-forward networks.
    pub activation: EncoderActivation,
    /// Parts of Gemma 4's layers that others do not have.
    pub sandwich: Option<Sandwich>,
    /// Number subtracted from pixel values, and the factor after it.
    pub pixel_scale: Option<(f32, f32)>,
    /// Kind of the norms.
    pub norm: NormStyle,
    /// Embeddings of positions that are added to those of patches.
    pub positions: Positions,
    /// Rotation of queries and keys by row and column.
    pub rotation: Option<Rotation>,
    /// Place of the token for the whole picture, which has no feature.
    pub class_token: Option<ClassToken>,
    /// Whether there is a norm of patches before positions are added.
    pub has_patch_norm: bool,
    /// Whether there is a norm before the first layer.
    pub has_pre_norm: bool,
    /// Whether there is a norm after the last layer.
    pub has_post_norm: bool,
    /// Attention within windows on most layers.
    pub windows: Option<Windows>,
    /// Number of layers that run.
    pub n_layers: usize,
    /// Steps from the encoder's output to features.
    pub projector: Vec<Projection>,
    /// Steps from the output of single layers to features: the layer's index, and the steps. The features are
    /// added after the decoder's first layers.
    pub deepstack: Vec<(usize, Vec<Projection>)>,
    /// Number of elements of a feature.
    pub feature_size: usize,
}

/// Arrangement of pixel values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchInput {
    /// `[patches, values]`: patches row by row in blocks of `merge × merge`, row by row in a block.
    Rows {
        /// Number of rows and columns of a block.
        merge: usize,
    },
    /// `[tiles, channels, height, width]`, or `[channels, height, width]` of one tile.
    Tiles,
}

/// Activation of feed-forward networks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EncoderActivation {
    /// An activation that backends compute.
    Plain(Activation),
    /// `x · sigmoid(1.702 x)`, as CLIP has it.
    QuickGelu,
}

/// Layers with norms after attention and feed-forward network too, norms of heads, scores that are not
/// scaled, and a half of each head rotated by the column, the other by the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sandwich {
    /// Whether inputs and outputs of linear layers are bounded.
    pub clips: bool,
}

/// Kind of a norm of rows, with its epsilon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormStyle {
    /// Number added to the mean square or the variance.
    pub eps: f32,
    /// Number added to every stored gain.
    pub gain_offset: f32,
}

/// Embeddings of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// No positions.
    None,
    /// A table with an entry for each place of a tile, row by row, and one for the class token if there is
    /// one.
    Table {
        /// Number of rows.
        n_rows: usize,
    },
    /// A table for columns and one for rows, whose entries are summed.
    Axes {
        /// Number of columns, and of rows.
        n: usize,
    },
    /// A square of `side × side` whose corners are those of the picture, bilinear between.
    Bilinear {
        /// Number of rows and columns of the table.
        side: usize,
    },
    /// A square of `side × side` over the picture, bicubic between the centres of its cells.
    Bicubic {
        /// Rows and columns of the table.
        side: usize,
    },
}

/// Rotation by row and column.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// Radians per row or column, one for each pair of elements of a head.
    pub frequencies: Vec<f64>,
    /// Axis of each pair: 1 if it is rotated by the row, 2 by the column.
    pub sections: Vec<u8>,
    /// Number added to rows and columns.
    pub first: u32,
    /// Whether pairs are neighbours; else elements of the two halves of a head.
    pub is_interleaved: bool,
}

/// Place of the class token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassToken {
    /// Class token before all patches.
    First,
    /// Class token after all patches.
    Last,
}

/// Attention within windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// Number of rows and columns of a window in blocks of patches.
    pub side: usize,
    /// Layers whose attention reaches the whole picture.
    pub full_layers: Vec<usize>,
}

/// A step of a projector.
#[derive(Debug, Clone, PartialEq)]
pub enum Projection {
    /// A norm of rows, by the name of its tensors.
    Norm(String, NormStyle),
    /// A root mean square norm without a gain, with this epsilon.
    PlainNorm(f32),
    /// A linear layer to this number of columns, by the name of its tensors.
    Linear {
        /// Name of the tensors.
        name: String,
        /// Number of columns of the output.
        width: usize,
        /// Whether the matrix is stored with its input as rows.
        is_transposed: bool,
    },
    /// An activation between layers.
    Activation(Activation),
    /// A gated feed-forward network: names of gate, up and down, columns of its hidden layer and of its
    /// output.
    GatedMlp {
        /// Names of gate, up and down.
        names: [String; 3],
        /// Columns of the hidden layer.
        hidden: usize,
        /// Number of columns of the output.
        width: usize,
        /// Activation of the gate.
        activation: Activation,
    },
    /// Rows in another arrangement.
    Arrange(Arrangement),
}

/// An arrangement of the rows of a picture.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrangement {
    /// Adjacent rows, that many, become one.
    Join(usize),
    /// Blocks of `side × side` patches of a tile become their average, times a factor.
    Average {
        /// Rows and columns of a block.
        side: usize,
        /// Factor of the values.
        factor: f32,
    },
    /// Adjacent rows, that many, become one, with the values of one channel adjacent.
    JoinChannels(usize),
    /// Blocks of `side × side` patches of a tile become one row, patch after patch, row by row.
    Shuffle {
        /// Rows and columns of a block.
        side: usize,
    },
    /// Blocks of `side × side` patches of a tile become one row, with the values of one channel adjacent.
    ShuffleChannels {
        /// Rows and columns of a block.
        side: usize,
    },
    /// Tiles of a picture put together.
    Newlines(Newlines),
    /// Subtracts a stored mean from each element, before the product with a stored factor.
    Standardize {
        /// Names of the means and of the factors, after the beginning of the encoder's names.
        names: [&'static str; 2],
    },
}

/// Tiles of a picture put together, without padding and with a stored row after each row of patches; the
/// first tile is the whole picture. The grid of a content is the number of tiles, height and width of the
/// picture in pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newlines {
    /// Name of the stored row.
    pub name: String,
    /// Sizes of pictures in pixels, height and width, of which the tiles form one.
    pub sizes: Vec<[usize; 2]>,
    /// Side of a tile in pixels.
    pub tile: usize,
    /// Maximum number of patches, in tiles; larger pictures are made smaller.
    pub max_tiles: Option<usize>,
}

impl VisionConfig {
    /// Whether features depend on the size of the picture beside its patches.
    pub fn puts_tiles_together(&self) -> bool {
        let is = |step: &Projection| matches!(step, Projection::Arrange(Arrangement::Newlines(_)));
        self.projector.iter().any(is)
    }

    /// Number of patches of a block on either side, if patches are in blocks.
    pub fn merge(&self) -> usize {
        if let PatchInput::Rows { merge } = self.patches { merge } else { 1 }
    }
}
