//! The tensors of attention with an output gate. Does not know the gate's effect.

use super::recurrent::rows_by_kind;
use super::{Loader, TensorError, weight};
use crate::backend::{Backend, Linear, MatrixRole};
use crate::config::AttentionConfig;
use throng_checkpoint::TensorView;

impl<B: Backend> Loader<'_, B> {
    /// Queries, keys, values and output gates. Files have the gates of each head after its queries, in one
    /// tensor.
    pub(super) fn gated_query_key_value(
        &mut self,
        layer: &str,
        attention: &AttentionConfig,
    ) -> Result<Linear<B>, TensorError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let (query, key) = (attention.query_width(), attention.key_width());
        let at = |name: &str| weight(&format!("{layer}{name}"));
        let both = self.stored(&at(names.query), [2 * query, hidden])?;
        let keys = self.stored(&at(names.key), [key, hidden])?;
        let values = self.stored(&at(names.value), [key, hidden])?;
        let gathered = rows_by_kind(&both.view(), &[attention.head_dim; 2]);
        let (queries, gates) = gathered.split_at(gathered.len() / 2);
        let shape = [query, hidden];
        let [queries, gates] = [queries, gates].map(|data| TensorView { data, shape: &shape, ..both.view() });
        let role = MatrixRole::QueryKeyValue { n_query_rows: query, n_key_rows: key };
        let n_bytes = both.n_stored_bytes + keys.n_stored_bytes + values.n_stored_bytes;
        let weight = self.make(role, &[queries, keys.view(), values.view(), gates])?;
        self.note(n_bytes);
        Ok(Linear { weight, bias: None })
    }
}
