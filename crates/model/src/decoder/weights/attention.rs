//! The tensors of attention. Does not know feed-forward blocks.

use super::{AttentionWeights, Loader, QueryKeyNorms, TensorError, weight};
use crate::backend::{Backend, Linear, MatrixRole};
use crate::config::{AttentionConfig, QkNorm};

impl<B: Backend> Loader<'_, B> {
    pub(super) fn attention(
        &mut self,
        layer: &str,
        attention: &AttentionConfig,
    ) -> Result<AttentionWeights<B>, TensorError> {
        let output = format!("{layer}{}", self.names.attention_output);
        let query_key_value = match attention.has_output_gate {
            false => self.query_key_value(layer, attention)?,
            true => self.gated_query_key_value(layer, attention)?,
        };
        let query_key_norms = self.query_key_norms(layer, attention)?;
        let parts = [(output.as_str(), self.config.hidden_size)];
        let output = self.linear(MatrixRole::RowParallel, &parts, attention.query_width())?;
        let sinks = || self.vector(&format!("{layer}{}", self.names.sinks), attention.n_heads);
        let sinks = attention.has_sinks.then(sinks).transpose()?;
        let ones = || self.backend.vector(&vec![1.0; attention.head_dim]);
        let value_norm = attention.normalizes_values.then(ones).transpose()?;
        let gate = format!("{layer}{}", self.names.attention_gate);
        let parts = [(gate.as_str(), attention.query_width())];
        let gate =
            attention.is_gated.then(|| self.matrix(MatrixRole::Router, &parts, self.config.hidden_size));
        let gate = gate.transpose()?;
        let relative = self.relative_weights(layer, attention)?;
        Ok(AttentionWeights { query_key_value, query_key_norms, value_norm, gate, output, sinks, relative })
    }

    fn query_key_value(
        &mut self,
        layer: &str,
        attention: &AttentionConfig,
    ) -> Result<Linear<B>, TensorError> {
        let (config, names) = (self.config, self.names);
        let (query, key) = (attention.query_width(), attention.key_width());
        let role = MatrixRole::QueryKeyValue { n_query_rows: query, n_key_rows: key };
        if attention.kv_layer_idx.is_some() {
            let query_name = format!("{layer}{}", names.query);
            return self.linear(role, &[(&query_name, query)], config.hidden_size);
        }
        let stacked = format!("{layer}{}", names.query_key_value);
        if self.has(&weight(&stacked)) {
            return self.linear(role, &[(&stacked, query + 2 * key)], config.hidden_size);
        }
        let value = if attention.values_are_keys { names.key } else { names.value };
        let [q, k, v] = [names.query, names.key, value].map(|name| format!("{layer}{name}"));
        self.linear(role, &[(&q, query), (&k, key), (&v, key)], config.hidden_size)
    }

    fn query_key_norms(
        &mut self,
        layer: &str,
        attention: &AttentionConfig,
    ) -> Result<Option<QueryKeyNorms<B>>, TensorError> {
        let (query_width, key_width) = match attention.qk_norm {
            QkNorm::None => return Ok(None),
            QkNorm::PerHead | QkNorm::PerHeadAfterRope => (attention.head_dim, attention.head_dim),
            QkNorm::WholeWidth => (attention.query_width(), attention.key_width()),
            QkNorm::LayerPerHead => return self.layer_norms_of_heads(layer, attention).map(Some),
            QkNorm::Plain | QkNorm::PlainAfterRope => {
                let ones = || self.backend.vector(&vec![1.0; attention.head_dim]);
                return Ok(Some(QueryKeyNorms { query: ones()?, key: ones()?, biases: [None, None] }));
            }
        };
        let query = self.norm(&format!("{layer}{}", self.names.query_norm), query_width)?;
        let key_name = match attention.kv_layer_idx {
            None => self.names.key_norm,
            // There are no keys of its own to be normed.
            Some(_) => self.names.query_norm,
        };
        let key = self.norm(&format!("{layer}{key_name}"), key_width)?;
        Ok(Some(QueryKeyNorms { query, key, biases: [None, None] }))
    }

    /// Norms by mean and variance with a gain for each head.
    fn layer_norms_of_heads(
        &mut self,
        layer: &str,
        attention: &AttentionConfig,
    ) -> Result<QueryKeyNorms<B>, TensorError> {
        let &AttentionConfig { n_heads, n_kv_heads, head_dim, .. } = attention;
        let names = self.names;
        let mut gain = |name: &str, n_heads: usize| {
            let tensor = self.checked(&weight(&format!("{layer}{name}")), &[n_heads, head_dim])?;
            self.note(tensor.data.len());
            Ok::<_, TensorError>(self.backend.vector(&tensor.numbers())?)
        };
        let query = gain(names.query_norm, n_heads)?;
        let key = gain(names.key_norm, n_kv_heads)?;
        let zeros = |n_heads: usize| self.backend.vector(&vec![0.0; n_heads * head_dim]);
        Ok(QueryKeyNorms { query, key, biases: [Some(zeros(n_heads)?), Some(zeros(n_kv_heads)?)] })
    }
}
