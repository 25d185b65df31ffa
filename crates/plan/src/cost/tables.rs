//! Tables of measured operators in the form of Microsoft's Vidur: milliseconds of each operator of a layer by
//! tokens and tensor-parallel degree, and of all-reduces by size.

use std::collections::BTreeMap;

use super::fit::{
    CollectiveSample, ElementwiseSample, ProductSample, error_bar, fit_elementwise, fit_products,
};
use super::product::{ACTIVATION_BYTES, Product, ProductRates};
use super::roofline::{ADD_PASSES, CUT_PASSES, NORM_PASSES};
use crate::error::PlanError;
use crate::machine::{ComputeType, Efficiency, Machine, MeasuredRange};

/// Fewest products of a fit and of its test.
const MIN_SAMPLES: usize = 20;

/// Operators of a dense layer on one device.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OperatorTable {
    /// Samples of products.
    pub products: Vec<ProductSample>,
    /// Norms, rotations, activations and additions.
    pub elementwise: Vec<ElementwiseSample>,
    /// Samples of whole layers.
    pub layers: Vec<LayerSample>,
}

/// One row of a table: a layer on one device without its attention over keys and values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerSample {
    /// Number of tokens.
    pub n_tokens: u32,
    /// Devices that share each matrix.
    pub tensor: u32,
    /// Seconds of all operators together.
    pub seconds: f64,
}

/// Columns of a row by their names.
struct Row<'a> {
    what: &'a str,
    cells: BTreeMap<&'a str, &'a str>,
    line: usize,
}

impl Row<'_> {
    fn number(&self, column: &str) -> Result<f64, PlanError> {
        let fault = |reason: String| PlanError::Malformed { what: self.what.to_owned(), reason };
        let cell = self.cells.get(column).ok_or_else(|| fault(format!("there is no column {column}")))?;
        let number: Option<f64> =
            cell.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| fault(format!("line {}: {column} is {cell}", self.line)))
    }

    fn seconds(&self, operator: &str) -> Result<f64, PlanError> {
        Ok(self.number(&format!("time_stats.{operator}.median"))? * 1e-3)
    }
}

fn rows<'a>(what: &'a str, text: &'a str) -> impl Iterator<Item = Row<'a>> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    lines.filter(|line| !line.is_empty()).enumerate().map(move |(i, line)| Row {
        what,
        cells: names.iter().copied().zip(line.split(',')).collect(),
        line: i + 2,
    })
}

impl OperatorTable {
    /// Reads a table of the operators of a dense layer in 16-bit floats; `what` names it in errors.
    ///
    /// # Errors
    /// When a column is absent or a cell is not a finite number that is not negative.
    pub fn parse(what: &str, text: &str) -> Result<Self, PlanError> {
        let mut table = Self::default();
        for row in rows(what, text) {
            table.add(&row)?;
        }
        Ok(table)
    }

    fn add(&mut self, row: &Row<'_>) -> Result<(), PlanError> {
        let (hidden, width) = (row.number("n_embd")?, row.number("n_expanded_embd")?);
        let (heads, kv_heads) = (row.number("n_head")?, row.number("n_kv_head")?);
        let (m, tensor) = (row.number("num_tokens")?, row.number("num_tensor_parallel_workers")?);
        let qkv = (heads + 2.0 * kv_heads) * hidden / heads / tensor;
        let products = [
            ("attn_pre_proj", qkv, hidden),
            ("attn_post_proj", hidden, hidden / tensor),
            ("mlp_up_proj", 2.0 * width / tensor, hidden),
            ("mlp_down_proj", hidden, width / tensor),
        ];
        let elementwise = [
            ("input_layernorm", NORM_PASSES * hidden),
            ("post_attention_layernorm", NORM_PASSES * hidden),
            ("attn_rope", CUT_PASSES * qkv),
            ("mlp_act", CUT_PASSES * 2.0 * width / tensor),
            ("add", ADD_PASSES * hidden),
        ];
        let mut all = 0.0;
        for (operator, n, k) in products {
            let product = Product { m, n, k, weight_bytes: ACTIVATION_BYTES };
            let seconds = row.seconds(operator)?;
            self.products.extend((seconds > 0.0).then_some(ProductSample { product, seconds }));
            all += seconds;
        }
        for (operator, numbers) in elementwise {
            let (bytes, seconds) = (m * numbers * ACTIVATION_BYTES, row.seconds(operator)?);
            self.elementwise.extend((seconds > 0.0).then_some(ElementwiseSample { bytes, seconds }));
            all += seconds;
        }
        self.layers.push(LayerSample { n_tokens: m as u32, tensor: tensor as u32, seconds: all });
        Ok(())
    }

    /// The shares of a machine's peaks that explain the table: fitted to every second size of a step, with
    /// the error on the others.
    ///
    /// # Errors
    /// When the machine has no figure of its memory or its arithmetic, or the table too few sizes.
    pub fn efficiency(&self, machine: &Machine, source: &str) -> Result<Efficiency, PlanError> {
        let rates = ProductRates {
            operations_per_s: machine.operations_per_s(ComputeType::Bf16)?,
            bytes_per_s: machine.bandwidth()?,
            units: machine.units.as_ref().map(|units| units.value),
        };
        let is_fitted = |sample: &ProductSample| ((sample.product.m / 8.0) as u32).is_multiple_of(2);
        let (fitted, tested): (Vec<ProductSample>, Vec<ProductSample>) =
            self.products.iter().partition(|sample| is_fitted(sample));
        if fitted.len() < MIN_SAMPLES || tested.len() < MIN_SAMPLES {
            return Err(PlanError::value(
                "the number of products in the table",
                self.products.len(),
                "expected 40 of several sizes",
            ));
        }
        let products = fit_products(&rates, &fitted, &Efficiency::of(machine));
        let fitted = fit_elementwise(rates.bytes_per_s, &self.elementwise, &products);
        let pairs = tested.iter().map(|sample| (rates.seconds(&sample.product, &fitted), sample.seconds));
        let range = MeasuredRange {
            max_tokens: self.layers.iter().map(|layer| layer.n_tokens).max().unwrap_or(0),
            max_devices: self.layers.iter().map(|layer| layer.tensor).max().unwrap_or(0),
        };
        let error = error_bar(pairs);
        Ok(Efficiency { source: source.to_owned(), range: Some(range), error, ..fitted })
    }

    /// The samples of two tables together.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.products.extend(&other.products);
        self.elementwise.extend(&other.elementwise);
        self.layers.extend(&other.layers);
        self
    }
}

/// Reads a table of all-reduces; those between hosts are left out. `what` names it in errors.
///
/// # Errors
/// When a column is absent or a cell is not a finite number that is not negative.
pub fn parse_all_reduces(what: &str, text: &str) -> Result<Vec<CollectiveSample>, PlanError> {
    let mut samples = Vec::new();
    for row in rows(what, text) {
        let n_devices = row.number("num_workers")?;
        let seconds = row.seconds("all_reduce")?;
        if row.number("devices_per_node")? == n_devices && seconds > 0.0 {
            samples.push(CollectiveSample { bytes: row.number("size")?, n_devices, seconds });
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "time_stats.all_reduce.median,num_workers,size,devices_per_node\n";

    #[test]
    fn exchanges_between_hosts_are_left_out() {
        let text = format!("{HEADER}0.03,8,2048,8\n0.4,2,2048,1\n");
        let found = parse_all_reduces("x.csv", &text).expect("a table");
        assert_eq!(found, [CollectiveSample { bytes: 2048.0, n_devices: 8.0, seconds: 3e-5 }]);
    }

    #[test]
    fn a_bad_cell_and_an_absent_column_are_named() {
        let error = |text: &str| parse_all_reduces("x.csv", text).expect_err(text).to_string();
        assert_eq!(
            error(&format!("{HEADER}nan,8,2048,8")),
            "x.csv: line 2: time_stats.all_reduce.median is nan"
        );
        assert_eq!(error("a,b\n1,2"), "x.csv: there is no column num_workers");
    }
}
