//! Cost models against the measured operators of H100 and A100 in `../shared/hardware`: on rows that the fit
//! did not see, and on the layers of a model that it did not see.

use throng_plan::cost::Roofline;
use throng_plan::cost::collective::Links;
use throng_plan::cost::fit::{
    CollectiveSample, ElementwiseSample, ProductSample, elementwise_seconds, error_bar, fit_all_reduce,
    fit_elementwise, fit_products,
};
use throng_plan::cost::product::ProductRates;
use throng_plan::cost::tables::{OperatorTable, parse_all_reduces};
use throng_plan::machine::{ComputeType, ErrorBar};
use throng_plan::model_shape::TransformerSizes;
use throng_plan::{Catalogue, Efficiency, Machine, ModelShape, Parallelism};
use throng_sim::cost::StepShape;
use throng_testkit::shared_files::shared;

/// Largest median error on what the fit did not see.
const MOST_ERROR: f64 = 0.10;

struct Tables {
    machine: Machine,
    rates: ProductRates,
    /// Llama-2 7B and 70B.
    models: [OperatorTable; 2],
    all_reduces: Vec<CollectiveSample>,
}

fn tables(name: &str) -> Option<Tables> {
    let machine = Catalogue::built_in().find(name).expect("in the box").clone();
    let read = |file: &str| {
        let path = shared(&format!("hardware/vidur_{name}_{file}.csv"))?;
        Some(std::fs::read_to_string(path).expect("a readable table"))
    };
    let model = |size: &str| {
        let text = read(&format!("Llama-2-{size}-hf_mlp"))?;
        Some(OperatorTable::parse(size, &text).expect("a table"))
    };
    let rates = ProductRates {
        operations_per_s: machine.operations_per_s(ComputeType::Bf16).expect("a figure"),
        bytes_per_s: machine.bandwidth().expect("a figure"),
        units: machine.units.as_ref().map(|units| units.value),
    };
    let all_reduces = parse_all_reduces("all_reduce", &read("dgx_all_reduce")?).expect("a table");
    Some(Tables { machine, rates, models: [model("7b")?, model("70b")?], all_reduces })
}

/// Two halves of some samples, every second one in each; a table has two rows of many sizes, so those of one
/// size are taken together by their number of rows.
fn halves(samples: &[ProductSample]) -> (Vec<ProductSample>, Vec<ProductSample>) {
    let is_even = |sample: &ProductSample| ((sample.product.m / 8.0) as u32).is_multiple_of(2);
    samples.iter().partition(|sample| is_even(sample))
}

fn product_error(rates: &ProductRates, efficiency: &Efficiency, samples: &[ProductSample]) -> ErrorBar {
    let pairs = samples.iter().map(|s| (rates.seconds(&s.product, efficiency), s.seconds));
    error_bar(pairs).expect("samples")
}

fn check_products(name: &str) {
    let Some(tables) = tables(name) else { return };
    let rates = &tables.rates;
    let start = Efficiency::ideal();
    let [small, large] = &tables.models;
    let both = small.clone().and(large);
    let (seen, unseen) = halves(&both.products);
    let cases = [
        ("half of the sizes, the other half", &seen, &unseen),
        ("7B, 70B", &small.products, &large.products),
        ("70B, 7B", &large.products, &small.products),
    ];
    for (case, fitted, predicted) in cases {
        let bar = product_error(rates, &fit_products(rates, fitted, &start), predicted);
        println!("{name}: fit on, predicted: {case}: median {:.3}, p90 {:.3}", bar.median, bar.p90);
        assert!(bar.median <= MOST_ERROR, "{name}, {case}: {bar:?}");
    }
}

#[test]
fn products_of_an_h100_are_predicted_on_unseen_rows_and_models() {
    check_products("h100");
}

#[test]
fn products_of_an_a100_are_predicted_on_unseen_rows_and_models() {
    check_products("a100");
}

fn elementwise_error(
    rates: &ProductRates,
    efficiency: &Efficiency,
    samples: &[ElementwiseSample],
) -> ErrorBar {
    let predicted = |s: &ElementwiseSample| elementwise_seconds(s.bytes, rates.bytes_per_s, efficiency);
    error_bar(samples.iter().map(|s| (predicted(s), s.seconds))).expect("samples")
}

fn all_reduce_error(links: Links, efficiency: &Efficiency, samples: &[CollectiveSample]) -> ErrorBar {
    let pairs = samples.iter().map(|s| (links.all_reduce(s.bytes, s.n_devices, efficiency), s.seconds));
    error_bar(pairs).expect("samples")
}

/// All shares of a machine, fitted on everything.
fn fitted(tables: &Tables) -> Efficiency {
    let both = tables.models[0].clone().and(&tables.models[1]);
    let links = Links { bytes_per_s: tables.machine.link().expect("a figure") };
    let start = Efficiency::of(&tables.machine);
    let products = fit_products(&tables.rates, &both.products, &start);
    let elementwise = fit_elementwise(tables.rates.bytes_per_s, &both.elementwise, &products);
    fit_all_reduce(links, &tables.all_reduces, &elementwise)
}

/// The shares in the box are those that the fit of all rows finds.
#[test]
fn the_shares_in_the_box_are_those_of_the_tables() {
    for name in ["h100", "a100"] {
        let Some(tables) = tables(name) else { return };
        let (kept, found) = (Efficiency::of(&tables.machine), fitted(&tables));
        println!("{name}: {found:#?}");
        let both = tables.models[0].clone().and(&tables.models[1]);
        let links = Links { bytes_per_s: tables.machine.link().expect("a figure") };
        let errors = |of: &Efficiency| {
            [
                product_error(&tables.rates, of, &both.products),
                elementwise_error(&tables.rates, of, &both.elementwise),
                all_reduce_error(links, of, &tables.all_reduces),
            ]
        };
        println!("{name}: {:?}", errors(&found));
        for (kept, found) in errors(&kept).iter().zip(errors(&found)) {
            assert!(kept.median <= found.median + 0.005, "{name}: {kept:?} is not as good as {found:?}");
        }
    }
}

/// Llama-2 of either size with one layer, as the tables have it.
fn one_layer(size: &str) -> ModelShape {
    let (hidden_size, n_heads, n_kv_heads, feed_forward) =
        if size == "7b" { (4096.0, 32.0, 32.0, 11008.0) } else { (8192.0, 64.0, 8.0, 28672.0) };
    let sizes = TransformerSizes {
        n_layers: 1.0,
        hidden_size,
        n_heads,
        n_kv_heads,
        head_dim: 128.0,
        feed_forward,
        vocabulary_size: 32768.0,
        experts: None,
        tied_embeddings: false,
        max_sequence_tokens: 4096,
    };
    ModelShape::transformer(size, &sizes).expect("sizes")
}

/// Seconds of one layer without attention over keys and values and without exchanges.
fn layer_seconds(
    machine: &Machine,
    model: &ModelShape,
    tensor: u32,
    n_tokens: u32,
    shares: &Efficiency,
) -> f64 {
    let roofline = Roofline::new(machine, model, Parallelism::tensor(tensor)).expect("links");
    let step = StepShape { n_sequences: 1, n_tokens, n_prompt_tokens: n_tokens, ..StepShape::default() };
    let parts = roofline.with_efficiency(shares.clone()).parts(&step);
    parts.products + parts.elementwise
}

/// Whole layers of one model by a fit on the other; the error bars in the box are not narrower.
#[test]
fn layers_are_predicted_by_the_operators_of_another_model() {
    for name in ["h100", "a100"] {
        let Some(tables) = tables(name) else { return };
        let kept = Efficiency::of(&tables.machine);
        let mut errors = Vec::new();
        for (fitted, predicted, size) in [(0, 1, "70b"), (1, 0, "7b")] {
            let fitted = &tables.models[fitted];
            let products = fit_products(&tables.rates, &fitted.products, &kept);
            let shares = fit_elementwise(tables.rates.bytes_per_s, &fitted.elementwise, &products);
            let model = one_layer(size);
            let pairs = tables.models[predicted].layers.iter().map(|layer| {
                let seconds = layer_seconds(&tables.machine, &model, layer.tensor, layer.n_tokens, &shares);
                (seconds, layer.seconds)
            });
            let bar = error_bar(pairs).expect("layers");
            println!("{name}: layers of {size} by the other model: {bar:?}");
            assert!(bar.median <= MOST_ERROR, "{name}, {size}: {bar:?}");
            errors.push(bar);
        }
        let stated = kept.error.expect("measured");
        assert!(errors.iter().all(|bar| bar.median <= stated.median && bar.p90 <= stated.p90), "{stated:?}");
    }
}

/// Whole layers of each machine by the shares of machines that were not measured.
#[test]
fn the_error_of_machines_without_measurements_is_not_understated() {
    let unmeasured = Efficiency::of(&Machine { name: "unmeasured".to_owned(), ..any_accelerator() });
    let stated = unmeasured.error.expect("stated");
    for name in ["h100", "a100"] {
        let Some(tables) = tables(name) else { return };
        for (i, size) in ["7b", "70b"].into_iter().enumerate() {
            let model = one_layer(size);
            let pairs = tables.models[i].layers.iter().map(|layer| {
                let seconds =
                    layer_seconds(&tables.machine, &model, layer.tensor, layer.n_tokens, &unmeasured);
                (seconds, layer.seconds)
            });
            let bar = error_bar(pairs).expect("layers");
            println!("{name}: layers of {size} by the shares of unmeasured machines: {bar:?}");
            assert!(bar.median <= stated.median && bar.p90 <= stated.p90, "{bar:?} {stated:?}");
        }
    }
}

fn any_accelerator() -> Machine {
    Catalogue::built_in().find("l4").expect("in the box").clone()
}
