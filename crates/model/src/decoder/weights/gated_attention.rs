//! The tensors of attention with an output gate. Does not know what the gate does.

use super::recurrent::rows_by_kind;
use super::{Loader, TensorError, weight};
use crate::backend::{Backend, Linear, MatrixRole};
use crate::config::AttentionConfig;
use crate::weights::TensorView;

impl<B: Backend> Loader<'_, B> {
    /// Queries, keys, values and output gates. Files have the gates of each head after its queries, in one tensor.
    pub(super) fn gated_query_key_value(
        &mut self,
        layer: &str,
        attention: &AttentionConfig,
    ) -> Result<Linear<B>, TensorError> {
        let (hidden, names) = (self.config.hidden_size, self.names);
        let (query, key) = (attention.query_width(), attention.key_width());
        let at = |name: &str| weight(&format!("{layer}{name}"));
        let both = self.checked(&at(names.query), &[2 * query, hidden])?;
        let keys = self.checked(&at(names.key), &[key, hidden])?;
        let values = self.checked(&at(names.value), &[key, hidden])?;
        let gathered = rows_by_kind(&both, &[attention.head_dim; 2]);
        let (queries, gates) = gathered.split_at(gathered.len() / 2);
        let shape = [query, hidden];
        let [queries, gates] = [queries, gates].map(|data| TensorView { data, shape: &shape, ..both });
        let role = MatrixRole::QueryKeyValue { n_query_rows: query, n_key_rows: key };
        let n_bytes = gathered.len() + keys.data.len() + values.data.len();
        let weight = self.make(role, &[queries, keys, values, gates])?;
        self.note(n_bytes);
        Ok(Linear { weight, bias: None })
    }
}
