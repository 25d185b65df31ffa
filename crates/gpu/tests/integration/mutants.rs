//! Faults that are planted in the text of kernels: the suite must notice each of them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use throng_gpu::{Device, GpuBackend};
use throng_testkit::backend_suite::{Part, check_part};

use crate::harness::adapter;

/// A fault: the kernel, its text, the text in its place, and the part of the suite that must notice it.
struct Mutant {
    fault: &'static str,
    kernel: &'static str,
    text: &'static str,
    replacement: &'static str,
    part: Part,
}

const MUTANTS: [Mutant; 11] = [
    Mutant {
        fault: "a tile of the next columns",
        kernel: "many",
        text: "b * 8u + i % 8u);\n                let at = i % 8u * 256u",
        replacement: "min(b + 1u, n_blocks - 1u) * 8u + i % 8u);\n                let at = i % 8u * 256u",
        part: Part::Products,
    },
    Mutant {
        fault: "no barrier between the tile and its use",
        kernel: "many",
        text: "workgroupBarrier();\n            for (var k = 0u;",
        replacement: "for (var k = 0u;",
        part: Part::Products,
    },
    Mutant {
        fault: "the last row is lost",
        kernel: "many",
        text: "if (first_row + r + 0u * 16u < p.n)",
        replacement: "if (first_row + r + 0u * 16u + 1u < p.n)",
        part: Part::Products,
    },
    Mutant {
        fault: "sums of few rows are added in another order than those of many",
        kernel: "few",
        text: "partial[s * 64u + lid / SUMS * SUMS + i]",
        replacement: "partial[s * 64u + lid / SUMS * SUMS + (SUMS - 1u - i)]",
        part: Part::Products,
    },
    Mutant {
        fault: "splits begin where the window does",
        kernel: "attend",
        text: "let first_split = first_of_tile / SPLIT * SPLIT;",
        replacement: "let first_split = first_of_tile;",
        part: Part::Attention,
    },
    Mutant {
        fault: "the last split is not joined",
        kernel: "join",
        text: "split < p.n_splits;",
        replacement: "split + 1u < p.n_splits;",
        part: Part::Attention,
    },
    Mutant {
        fault: "no barrier between scores and their largest",
        kernel: "attend",
        text: "workgroupBarrier();\n        for (var i = lid; i < QUERIES * 8u; i = i + 64u) {\n            var m = LEAST;",
        replacement: "for (var i = lid; i < QUERIES * 8u; i = i + 64u) {\n            var m = LEAST;",
        part: Part::Attention,
    },
    Mutant {
        fault: "the last elements are not stored",
        kernel: "store",
        text: "if (i >= p.n) {",
        replacement: "if (i + 1u >= p.n) {",
        part: Part::Attention,
    },
    Mutant {
        fault: "blocks are copied without their last word",
        kernel: "copy_blocks",
        text: "if (i >= p.n) {",
        replacement: "if (i >= p.n || word_of(i) == p.block_words - 1u) {",
        part: Part::Attention,
    },
    Mutant {
        fault: "the state before a step is forgotten",
        kernel: "scan",
        text: "if (origin != 0u) {",
        replacement: "if (origin != 0u && entry > chains[chain]) {",
        part: Part::Recurrent,
    },
    Mutant {
        fault: "another expert of equal rank",
        kernel: "route",
        text: "(v == values[lid] && other < indices[lid])",
        replacement: "v > values[lid] - 0.05",
        part: Part::Experts,
    },
];

#[test]
fn planted_faults_are_noticed() {
    let Some(adapter) = adapter() else { return };
    for mutant in MUTANTS {
        let &Mutant { fault, kernel, text, replacement, part } = &mutant;
        let device = Device::open_with_edits(&adapter, move |name, source| {
            if name != kernel {
                return source;
            }
            assert!(source.contains(text), "{fault}: {kernel} has no text {text:?}");
            let word_of = "fn word_of(i: u32) -> u32 { return i % p.block_words; }\n";
            let helper = if replacement.contains("word_of") { word_of } else { "" };
            format!("{}{helper}", source.replace(text, replacement))
        })
        .expect("the device opens");
        let backend = || GpuBackend::new(&device).expect("a backend");
        let checked = catch_unwind(AssertUnwindSafe(|| check_part(part, |_| backend())));
        let message = checked.expect_err(fault);
        let message = message.downcast_ref::<String>().map_or("", String::as_str);
        println!("{fault}: {}", message.chars().take(160).collect::<String>());
        assert!(!message.contains("Validation Error"), "{fault}: {message}");
        assert!(!message.contains("has no text"), "{message}");
    }
}
