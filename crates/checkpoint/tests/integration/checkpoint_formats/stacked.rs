//! Experts that share one tensor, as transformers, FBGEMM and ModelOpt write them.

use super::floats::{e2m1, e4m3, fp8_code};
use super::*;
use throng_checkpoint::quantized::{DecodedMatrix, ExpertRows};

const N_EXPERTS: usize = 3;
const NAME: &str = "mlp.experts.gate_up_proj";

/// A tensor with all experts, and the number of each expert, row and column.
struct Stack {
    config: Value,
    tensors: Tensors,
    shape: [usize; 2],
    is_transposed: bool,
    numbers: Vec<Vec<f64>>,
}

impl Stack {
    fn open(&self) -> QuantizedFolder {
        let views = self.tensors.iter().map(|(end, (dtype, shape, data))| {
            (format!("{NAME}{end}"), Stored::new(*dtype, shape.clone(), data).unwrap())
        });
        let file = serialize(views, None).unwrap();
        QuantizedFolder::new(SafetensorsFolder::parse_any(&file).unwrap(), scheme(&self.config))
    }

    fn rows(&self, expert_idx: usize, [first, n, step]: [usize; 3]) -> ExpertRows {
        let (n_experts, shape, is_transposed) = (N_EXPERTS, self.shape, self.is_transposed);
        ExpertRows { expert_idx, n_experts, shape, is_transposed, first, n, step }
    }

    fn decode(&self, expert_idx: usize, picked: [usize; 3]) -> Result<DecodedMatrix, String> {
        let decoded = self.open().decode_expert(NAME, self.rows(expert_idx, picked));
        decoded.unwrap().map_err(|error| error.to_string())
    }

    /// All rows, and every other one from the second on.
    fn check(&self) {
        let folder = self.open();
        assert_eq!(folder.encoded_names(), [NAME], "{}", self.config);
        assert!(folder.has_encoded(NAME) && folder.names().is_empty(), "{:?}", folder.names());
        let n_bytes: usize = self.tensors.values().map(|(_, _, data)| data.len()).sum();
        let encodings = folder.encodings();
        assert_eq!(encodings.iter().map(|of| of.n_stored_bytes).sum::<u64>(), n_bytes as u64);
        let [rows, cols] = self.shape;
        assert_eq!(encodings[0].n_elements, (N_EXPERTS * rows * cols) as u64);
        for (expert_idx, numbers) in self.numbers.iter().enumerate() {
            for picked in [[0, rows, 1], [1, rows / 2, 2], [rows / 2, rows / 2, 1]] {
                let decoded = self.decode(expert_idx, picked).unwrap();
                let mut found = vec![0.0; picked[1] * cols];
                dequantize_row(decoded.format, &decoded.data, &mut found);
                let wanted =
                    (0..picked[1]).flat_map(|i| &numbers[(picked[0] + i * picked[2]) * cols..][..cols]);
                for (found, number) in found.iter().zip(wanted) {
                    assert_eq!(*found, *number as f32, "{} expert {expert_idx}", self.config);
                }
            }
        }
    }
}

/// Where a row and column is in `[rows, cols]` or `[cols, rows]`.
fn place(is_transposed: bool, [row, col]: [usize; 2]) -> [usize; 2] {
    if is_transposed { [col, row] } else { [row, col] }
}

/// FP8 with one factor for each block of `[high, wide]` stored dimensions; `n_dims` dimensions of the
/// factors' tensor.
fn fp8(
    rng: &mut Rng,
    config: Value,
    end: &'static str,
    is_transposed: bool,
    [high, wide]: [usize; 2],
    n_dims: usize,
) -> Stack {
    let shape @ [rows, cols] = [64, 96];
    let stored = place(is_transposed, shape);
    let codes: Vec<u8> = (0..N_EXPERTS * rows * cols).map(|_| fp8_code(rng)).collect();
    let grid = [stored[0].div_ceil(high), stored[1].div_ceil(wide)];
    let n_factors = if n_dims == 0 { 1 } else { N_EXPERTS * grid[0] * grid[1] };
    let factors: Vec<f32> = (0..n_factors).map(|_| 0.001 + rng.f32()).collect();
    let number = |expert: usize, row: usize, col: usize| {
        let [i, j] = place(is_transposed, [row, col]);
        let factor = (expert * grid[0] + i / high) * grid[1] + j / wide;
        let code = codes[(expert * stored[0] + i) * stored[1] + j];
        e4m3(code) * f64::from(factors[factor % n_factors])
    };
    let of_expert = |expert| (0..rows * cols).map(|i| number(expert, i / cols, i % cols)).collect();
    let numbers = (0..N_EXPERTS).map(of_expert).collect();
    let dimensions = match n_dims {
        0 => vec![],
        1 => vec![N_EXPERTS],
        _ => vec![N_EXPERTS, grid[0], grid[1]],
    };
    let bytes = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
    let tensors = BTreeMap::from([
        ("", (Dtype::F8_E4M3, vec![N_EXPERTS, stored[0], stored[1]], codes.clone())),
        (end, (Dtype::F32, dimensions, bytes)),
    ]);
    Stack { config, tensors, shape, is_transposed, numbers }
}

fn nvfp4(rng: &mut Rng, is_transposed: bool, has_one: bool) -> Stack {
    let shape @ [rows, cols] = [32, 64];
    let codes: Vec<u8> = (0..N_EXPERTS * rows * cols).map(|_| rng.u8(..16)).collect();
    let factors: Vec<u8> = (0..N_EXPERTS * rows * cols / 16).map(|_| fp8_code(rng) & 0x7f).collect();
    let n_second = if has_one { 1 } else { N_EXPERTS };
    let second: Vec<f32> = (0..n_second).map(|_| 0.001 + rng.f32()).collect();
    let index = |expert: usize, row: usize, col: usize, n_cols: usize| {
        let [i, j] = place(is_transposed, [row, col]);
        let [high, wide] = place(is_transposed, [rows, n_cols]);
        (expert * high + i) * wide + j
    };
    let mut packed = vec![0; codes.len() / 2];
    let mut numbers = vec![vec![0.0; rows * cols]; N_EXPERTS];
    for (expert, row, col) in
        (0..codes.len()).map(|i| (i / (rows * cols), i % (rows * cols) / cols, i % cols))
    {
        let code = codes[(expert * rows + row) * cols + col];
        packed[index(expert, row, col / 2, cols / 2)] |= code << (4 * (col % 2));
        let factor = e4m3(factors[index(expert, row, col / 16, cols / 16)]);
        // The engine multiplies the factors first, in f32.
        let factor = f64::from((factor * f64::from(second[expert % n_second])) as f32);
        numbers[expert][row * cols + col] = e2m1(code) * factor;
    }
    let dimensions = |n_cols: usize| {
        let [high, wide] = place(is_transposed, [rows, n_cols]);
        vec![N_EXPERTS, high, wide]
    };
    let second_shape = if has_one { vec![] } else { vec![N_EXPERTS] };
    let tensors = BTreeMap::from([
        ("", (Dtype::U8, dimensions(cols / 2), packed)),
        ("_weight_scale", (Dtype::F8_E4M3, dimensions(cols / 16), factors)),
        (
            "_weight_scale_2",
            (Dtype::F32, second_shape, second.iter().flat_map(|x| x.to_le_bytes()).collect()),
        ),
    ]);
    let config = json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16});
    Stack { config, tensors, shape, is_transposed, numbers }
}

fn blocks_config() -> Value {
    json!({"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"})
}

fn whole_config() -> Value {
    json!({"quant_method": "fp8", "weight_block_size": null, "activation_scheme": "static"})
}

#[test]
fn experts_of_one_tensor_have_the_numbers_of_their_formats() {
    let rng = &mut Rng::with_seed(91);
    let modelopt = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
    let fbgemm = json!({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0});
    for is_transposed in [false, true] {
        let [rows, cols] = place(is_transposed, [64, 96]);
        fp8(rng, blocks_config(), "_scale_inv", is_transposed, [32, 32], 3).check();
        fp8(rng, whole_config(), "_scale_inv", is_transposed, [rows, cols], 3).check();
        fp8(rng, whole_config(), "_scale_inv", is_transposed, [rows, cols], 1).check();
        fp8(rng, modelopt.clone(), "_weight_scale", is_transposed, [rows, cols], 0).check();
        fp8(rng, fbgemm.clone(), "_scale", is_transposed, [rows, 1], 3).check();
        fp8(rng, fbgemm.clone(), "_scale", is_transposed, [1, cols], 3).check();
        nvfp4(rng, is_transposed, true).check();
        nvfp4(rng, is_transposed, false).check();
    }
}

#[test]
fn what_says_how_activations_are_rounded_is_not_read() {
    let mut stack = nvfp4(&mut Rng::with_seed(92), true, true);
    stack.tensors.insert("_input_scale", (Dtype::F32, vec![], 1.0_f32.to_le_bytes().to_vec()));
    assert!(stack.open().names().is_empty());
}

#[test]
fn experts_that_do_not_fit_are_refused() {
    let rng = &mut Rng::with_seed(93);
    let mut stack = fp8(rng, blocks_config(), "_scale_inv", true, [32, 32], 3);
    stack.tensors.get_mut("_scale_inv").unwrap().1 = vec![N_EXPERTS, 2, 3];
    let error = stack.decode(0, [0, 64, 1]).unwrap_err();
    let wanted = "tensor mlp.experts.gate_up_proj_scale_inv: expected F32 or F16 or BF16 or F8_E8M0 [3, 3, 2], found F32 [3, 2, 3]";
    assert_eq!(error, wanted);

    let mut stack = nvfp4(rng, true, true);
    stack.tensors.remove("_weight_scale_2");
    let error = stack.decode(0, [0, 32, 1]).unwrap_err();
    assert_eq!(error, "the model lacks the tensor mlp.experts.gate_up_proj_weight_scale_2");

    let mut stack = nvfp4(rng, true, true);
    stack.shape = [32, 56];
    let error = stack.decode(0, [0, 32, 1]).unwrap_err();
    assert_eq!(error, "tensor mlp.experts.gate_up_proj: expected a multiple of 16 columns, found 56");

    let mut stack = fp8(rng, blocks_config(), "_scale_inv", true, [32, 32], 3);
    stack.config = json!({"quant_method": "modelopt", "quant_algo": "MXFP8"});
    let error = stack.decode(0, [0, 64, 1]).unwrap_err();
    assert_eq!(error, "tensor mlp.experts.gate_up_proj: experts of this format are not read from one tensor");
}
