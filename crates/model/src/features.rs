//! Features of a picture as numbers. Does not know their source.

/// Features of a picture: rows that replace the embeddings of its tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Features {
    /// Number of elements of a row: the width of the decoder's residual stream.
    pub width: usize,
    /// Features, one row after the other.
    pub rows: Vec<f32>,
    /// Rows that are added to the residual stream of the same tokens after the first layers, one list a
    /// layer.
    pub deepstack: Vec<Vec<f32>>,
}

impl Features {
    /// Number of features.
    pub fn n_rows(&self) -> usize {
        self.rows.len() / self.width.max(1)
    }

    /// Bytes of all rows.
    pub fn n_bytes(&self) -> usize {
        let n_deepstack: usize = self.deepstack.iter().map(Vec::len).sum();
        (self.rows.len() + n_deepstack) * size_of::<f32>()
    }

    /// Whether the rows after each layer are as many as those in place of the embeddings.
    pub(crate) fn is_whole(&self) -> bool {
        self.rows.len() == self.n_rows() * self.width
            && self.deepstack.iter().all(|rows| rows.len() == self.rows.len())
    }
}
