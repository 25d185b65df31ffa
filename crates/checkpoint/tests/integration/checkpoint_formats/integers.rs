//! Test data of layers quantized to integers: AWQ, GPTQ and compressed-tensors.

use super::*;

pub(super) fn awq(rng: &mut Rng, [rows, cols]: [usize; 2], group: usize) -> Case {
    let codes: Vec<u32> = (0..rows * cols).map(|_| rng.u32(0..16)).collect();
    let n_groups = cols / group;
    let zeros: Vec<u32> = (0..n_groups * rows).map(|_| rng.u32(0..16)).collect();
    let (scale, scale_bytes) = scales(rng, n_groups * rows, Dtype::F16);
    // AutoAWQ's order_map: the row at each nibble of a word.
    let order = [0, 2, 4, 6, 1, 3, 5, 7];
    let pack = |at: &dyn Fn(usize, usize) -> u32, n: usize| -> Vec<u8> {
        let word = |i: usize, w: usize| (0..8).fold(0, |word, p| word | at(i, w * 8 + order[p]) << (4 * p));
        words(
            &(0..n)
                .flat_map(|i| (0..rows / 8).map(move |w| (i, w)))
                .map(|(i, w)| word(i, w))
                .collect::<Vec<_>>(),
        )
    };
    let numbers = (0..rows * cols).map(|i| {
        let (row, col) = (i / cols, i % cols);
        let of_group = col / group * rows + row;
        (f64::from(codes[row * cols + col]) - f64::from(zeros[of_group])) * scale[of_group]
    });
    let numbers = numbers.collect();
    let tensors = BTreeMap::from([
        ("qweight", (Dtype::I32, vec![cols, rows / 8], pack(&|col, row| codes[row * cols + col], cols))),
        ("qzeros", (Dtype::I32, vec![n_groups, rows / 8], pack(&|g, row| zeros[g * rows + row], n_groups))),
        ("scales", (Dtype::F16, vec![n_groups, rows], scale_bytes)),
    ]);
    let config =
        json!({"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": "gemm"});
    Case { config, tensors, shape: [rows, cols], numbers, format: Format::Q5_0 }
}

/// AutoAWQ's `WQLinear_GEMV`: scales and zero points are padded to `zeros_width` words.
pub(super) fn awq_gemv(rng: &mut Rng, [rows, cols]: [usize; 2], group: usize, zeros_width: usize) -> Case {
    let codes: Vec<u32> = (0..rows * cols).map(|_| rng.u32(0..16)).collect();
    let n_groups = cols / group;
    let zeros: Vec<u32> = (0..rows * n_groups).map(|_| rng.u32(0..16)).collect();
    let (scale, _) = scales(rng, rows * n_groups, Dtype::F16);
    let padded = |row: usize, i: usize| if i < n_groups { scale[row * n_groups + i] } else { 0.0 };
    let at = (0..rows).flat_map(|row| (0..8 * zeros_width).map(move |i| (row, i)));
    let scale_bytes = at.flat_map(|(row, i)| f16::from_f64(padded(row, i)).to_le_bytes()).collect();
    let qzeros = zeros.chunks(n_groups).flat_map(|row| {
        let mut words = bits_in_words(row.iter().copied(), 4);
        words.resize(zeros_width, 0);
        words
    });
    let numbers = (0..rows * cols).map(|i| {
        let of_group = i / cols * n_groups + i % cols / group;
        (f64::from(codes[i]) - f64::from(zeros[of_group])) * scale[of_group]
    });
    let numbers = numbers.collect();
    let tensors = BTreeMap::from([
        ("qweight", (Dtype::I32, vec![rows, cols / 8], words(&bits_in_words(codes.iter().copied(), 4)))),
        ("qzeros", (Dtype::I32, vec![rows, zeros_width], words(&qzeros.collect::<Vec<_>>()))),
        ("scales", (Dtype::F16, vec![rows, 8 * zeros_width], scale_bytes)),
    ]);
    let config = json!({
        "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": "GEMV",
        "modules_to_not_convert": ["visual"],
    });
    Case { config, tensors, shape: [rows, cols], numbers, format: Format::Q5_0 }
}

pub(super) fn gptq(rng: &mut Rng, bits: usize, sym: bool, act_order: bool, is_second: bool) -> Case {
    let ([rows, cols], group) = ([32, 128], 32);
    let (most, n_groups) = (1_u32 << bits, cols / group);
    let codes: Vec<u32> = (0..rows * cols).map(|_| rng.u32(0..most)).collect();
    let zero = |rng: &mut Rng| if sym { most / 2 } else { rng.u32(1..most) };
    let zeros: Vec<u32> = (0..n_groups * rows).map(|_| zero(rng)).collect();
    let (scale, scale_bytes) = scales(rng, n_groups * rows, Dtype::F16);
    let mut groups: Vec<u32> = (0..cols).map(|col| (col / group) as u32).collect();
    if act_order {
        rng.shuffle(&mut groups);
    }
    let of_rows: Vec<Vec<u32>> =
        codes.chunks(cols).map(|row| bits_in_words(row.iter().copied(), bits)).collect();
    let n_words = of_rows[0].len();
    let qweight: Vec<u32> = (0..n_words).flat_map(|word| of_rows.iter().map(move |row| row[word])).collect();
    let stored = zeros.iter().map(|zero| zero - u32::from(!is_second)).collect::<Vec<_>>();
    let qzeros: Vec<u32> =
        stored.chunks(rows).flat_map(|group| bits_in_words(group.iter().copied(), bits)).collect();
    let numbers = (0..rows * cols).map(|i| {
        let of_group = groups[i % cols] as usize * rows + i / cols;
        (f64::from(codes[i]) - f64::from(zeros[of_group])) * scale[of_group]
    });
    let numbers = numbers.collect();
    let tensors = BTreeMap::from([
        ("qweight", (Dtype::I32, vec![n_words, rows], words(&qweight))),
        ("qzeros", (Dtype::I32, vec![n_groups, rows * bits / 32], words(&qzeros))),
        ("scales", (Dtype::F16, vec![n_groups, rows], scale_bytes)),
        ("g_idx", (Dtype::I32, vec![cols], words(&groups))),
    ]);
    let format = match (act_order, bits, sym) {
        (true, ..) => Format::F32,
        (_, 2 | 3, _) | (_, 4, true) => Format::Q4_0,
        (_, 4, false) => Format::Q5_0,
        (_, _, true) => Format::Q8_0,
        _ => Format::F32,
    };
    let name = if is_second { "gptq_v2" } else { "gptq" };
    let config = json!({
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": sym,
        "checkpoint_format": name, "static_groups": false, "true_sequential": true, "lm_head": false,
        // As GPTQModel and transformers write them.
        "method": "gptq", "format": name, "pack_dtype": "int32", "dynamic": {"-:.*attn.*": {}, "lm_head": {}}, "batch_size": 1,
        "model_file_base_name": "model", "meta": {"quantizer": ["gptqmodel:5.0"], "damp_auto_increment": 0.01},
    });
    Case { config, tensors, shape: [rows, cols], numbers, format }
}

/// Codes one after the other, from the lowest bit of the first word on.
fn bits_in_words(codes: impl Iterator<Item = u32>, bits: usize) -> Vec<u32> {
    let stream: Vec<bool> = codes.flat_map(|code| (0..bits).map(move |bit| code >> bit & 1 == 1)).collect();
    stream
        .chunks(32)
        .map(|word| word.iter().enumerate().fold(0, |word, (i, bit)| word | u32::from(*bit) << i))
        .collect()
}

pub(super) fn packed(rng: &mut Rng, bits: usize, is_symmetric: bool, dtype: Dtype) -> Case {
    let ([rows, cols], group) = ([16, 64], 32);
    let (most, n_groups) = (1_u32 << bits, cols / group);
    let codes: Vec<u32> = (0..rows * cols).map(|_| rng.u32(0..most)).collect();
    let zeros: Vec<u32> =
        (0..rows * n_groups).map(|_| if is_symmetric { most / 2 } else { rng.u32(0..most) }).collect();
    let (scale, scale_bytes) = scales(rng, rows * n_groups, dtype);
    let n_words = (cols * bits).div_ceil(32);
    let packed: Vec<u32> =
        codes.chunks(cols).flat_map(|row| bits_in_words(row.iter().copied(), bits)).collect();
    let by_group: Vec<Vec<u32>> =
        (0..n_groups).map(|g| bits_in_words((0..rows).map(|row| zeros[row * n_groups + g]), bits)).collect();
    let n_zero_words = by_group[0].len();
    let packed_zeros: Vec<u32> =
        (0..n_zero_words).flat_map(|word| by_group.iter().map(move |words| words[word])).collect();
    let numbers = (0..rows * cols).map(|i| {
        let of_group = i / cols * n_groups + i % cols / group;
        (f64::from(codes[i]) - f64::from(zeros[of_group])) * scale[of_group]
    });
    let numbers = numbers.collect();
    let mut tensors = BTreeMap::from([
        ("weight_packed", (Dtype::I32, vec![rows, n_words], words(&packed))),
        ("weight_scale", (dtype, vec![rows, n_groups], scale_bytes)),
    ]);
    if !is_symmetric {
        tensors.insert("weight_zero_point", (Dtype::I32, vec![n_zero_words, n_groups], words(&packed_zeros)));
    }
    let weights = json!({
        "num_bits": bits, "group_size": group, "strategy": "group", "symmetric": is_symmetric, "type": "int",
        "dynamic": false, "observer": "minmax", "actorder": null,
    });
    let format = format_of(bits, is_symmetric);
    Case { config: weights_config("pack-quantized", &weights), tensors, shape: [rows, cols], numbers, format }
}

/// One scale for all rows.
pub(super) fn packed_by_one(rng: &mut Rng, bits: usize) -> Case {
    let [rows, cols] = [5, 64];
    let codes: Vec<u32> = (0..rows * cols).map(|_| rng.u32(0..1 << bits)).collect();
    let (scale, scale_bytes) = scales(rng, 1, Dtype::BF16);
    let numbers =
        codes.iter().map(|&code| (f64::from(code) - f64::from(1 << (bits - 1))) * scale[0]).collect();
    let packed: Vec<u32> =
        codes.chunks(cols).flat_map(|row| bits_in_words(row.iter().copied(), bits)).collect();
    let tensors = BTreeMap::from([
        ("weight_packed", (Dtype::I32, vec![rows, cols * bits / 32], words(&packed))),
        ("weight_scale", (Dtype::BF16, vec![1], scale_bytes)),
    ]);
    let weights =
        json!({"num_bits": bits, "strategy": "tensor", "symmetric": true, "type": "int", "dynamic": false});
    let config = weights_config("pack-quantized", &weights);
    Case { config, tensors, shape: [rows, cols], numbers, format: format_of(bits, true) }
}

/// What has all codes of so many bits, or all their differences from zero points.
fn format_of(bits: usize, is_symmetric: bool) -> Format {
    match bits + usize::from(!is_symmetric) {
        ..=4 => Format::Q4_0,
        5 => Format::Q5_0,
        6..=8 => Format::Q8_0,
        _ => Format::F32,
    }
}

/// W4A8 and its kin: a byte for each integer, scales for groups of columns.
pub(super) fn int8_groups(rng: &mut Rng, bits: usize, is_symmetric: bool) -> Case {
    let ([rows, cols], group) = ([6, 96], 32);
    let (least, most) = (-(1_i32 << (bits - 1)), (1_i32 << (bits - 1)) - 1);
    let integer = |rng: &mut Rng| rng.i32(least..=most) as i8;
    let codes: Vec<i8> = (0..rows * cols).map(|_| integer(rng)).collect();
    let n_groups = cols / group;
    let zeros: Vec<i8> = (0..rows * n_groups).map(|_| if is_symmetric { 0 } else { integer(rng) }).collect();
    let (scale, scale_bytes) = scales(rng, rows * n_groups, Dtype::BF16);
    let numbers = (0..rows * cols).map(|i| {
        let of_group = i / cols * n_groups + i % cols / group;
        (f64::from(codes[i]) - f64::from(zeros[of_group])) * scale[of_group]
    });
    let numbers = numbers.collect();
    let bytes = |integers: &[i8]| integers.iter().map(|&integer| integer as u8).collect::<Vec<_>>();
    let mut tensors = BTreeMap::from([
        ("weight", (Dtype::I8, vec![rows, cols], bytes(&codes))),
        ("weight_scale", (Dtype::BF16, vec![rows, n_groups], scale_bytes)),
    ]);
    if !is_symmetric {
        tensors.insert("weight_zero_point", (Dtype::I8, vec![rows, n_groups], bytes(&zeros)));
    }
    let weights = json!({
        "num_bits": bits, "group_size": group, "strategy": "group", "symmetric": is_symmetric, "type": "int",
        "dynamic": false,
    });
    let format = format_of(bits, is_symmetric);
    Case { config: weights_config("int-quantized", &weights), tensors, shape: [rows, cols], numbers, format }
}

pub(super) fn int8(rng: &mut Rng, dtype: Dtype) -> Case {
    let [rows, cols] = [7, 64];
    let codes: Vec<i8> = (0..rows * cols).map(|_| rng.i8(..)).collect();
    let (scale, scale_bytes) = match dtype {
        // More digits than F16 has.
        Dtype::F32 => {
            let values: Vec<f32> = (0..rows).map(|_| 0.01 + rng.f32()).collect();
            (
                values.iter().map(|&x| f64::from(x)).collect(),
                values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            )
        }
        _ => scales(rng, rows, dtype),
    };
    let numbers = codes.iter().enumerate().map(|(i, &code)| f64::from(code) * scale[i / cols]).collect();
    let tensors = BTreeMap::from([
        ("weight", (Dtype::I8, vec![rows, cols], codes.iter().map(|&code| code as u8).collect())),
        ("weight_scale", (dtype, vec![rows, 1], scale_bytes)),
    ]);
    let weights =
        json!({"num_bits": 8, "strategy": "channel", "symmetric": true, "type": "int", "dynamic": false});
    let format = if dtype == Dtype::F32 { Format::F32 } else { Format::Q8_0 };
    Case { config: weights_config("int-quantized", &weights), tensors, shape: [rows, cols], numbers, format }
}
