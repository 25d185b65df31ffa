//! Low-rank products against the reference, on every ISA, with the same bits whatever the other rows are.

use crate::support::{Random, bits, distance};
use throng_kernels::Isa;
use throng_kernels::low_rank::{LowRank, LowRankPart, RowGroups, add_low_rank};
use throng_kernels::quant::Format;
use throng_kernels::reference;
use throng_kernels::threads::ThreadPool;

/// The matrices of one adapter for one layer.
struct Adapter {
    /// First column, rank, A and B of each part.
    parts: Vec<(usize, usize, Vec<f32>, Vec<f32>)>,
}

impl Adapter {
    fn random(random: &mut Random, cols: usize, parts: &[(usize, usize, usize)]) -> Self {
        let mut part = |&(first_col, n_cols, rank): &(usize, usize, usize)| {
            // Exact in bfloat16, so that both formats compute the same.
            let mut numbers = |n| random.normals(n).iter().map(|x| (x * 16.0).round() / 16.0).collect();
            (first_col, rank, numbers(rank * cols), numbers(n_cols * rank))
        };
        Self { parts: parts.iter().map(&mut part).collect() }
    }

    fn pack(&self, cols: usize, format: Format) -> LowRank {
        let part = |(first_col, rank, a, b): &'_ (usize, usize, Vec<f32>, Vec<f32>)| {
            (*first_col, *rank, a.clone(), b.clone())
        };
        let parts: Vec<_> = self.parts.iter().map(part).collect();
        let parts: Vec<_> = parts
            .iter()
            .map(|(first_col, rank, a, b)| LowRankPart {
                first_col: *first_col,
                a,
                b,
                rank: *rank,
                scale: 0.5,
            })
            .collect();
        LowRank::pack(cols, &parts, format).expect("there is memory")
    }
}

#[test]
fn products_are_near_the_reference_and_do_not_depend_on_other_rows() {
    let mut random = Random(71);
    for (cols, stride) in [(64, 160), (1024, 200), (37, 93), (5, 3)] {
        // Whole panels, tails of panels, ranks that are no multiple of four.
        let shapes: [&[(usize, usize, usize)]; 4] = [
            &[(0, stride, 8)],
            &[(0, stride / 3, 1), (stride / 3, stride / 3, 16)],
            &[(stride - 1, 1, 5)],
            &[(0, 1, 64), (2, 1, 3)],
        ];
        let adapters = shapes.map(|parts| Adapter::random(&mut random, cols, parts));
        let n_rows = 75;
        let x = random.normals(n_rows * cols);
        let before = random.normals(n_rows * stride);
        // Every fifth row has no adapter; one adapter has one row, another none.
        let group_of: Vec<Option<usize>> = (0..n_rows)
            .map(|row| (row % 5 > 0).then_some(if row == 7 { 2 } else { usize::from(row > 40) }))
            .collect();
        let mut want = before.clone();
        for (row, group) in group_of.iter().enumerate() {
            for (first_col, rank, a, b) in group.iter().flat_map(|&group| &adapters[group].parts) {
                let out = &mut want[row * stride + first_col..][..b.len() / rank];
                reference::add_low_rank(&x[row * cols..][..cols], a, b, 0.5, out);
            }
        }
        let mut all_bits = Vec::new();
        for (isa, format) in
            Isa::available().into_iter().flat_map(|isa| [(isa, Format::F32), (isa, Format::BF16)])
        {
            let pool = ThreadPool::with_isa(2, isa);
            let packed = adapters.each_ref().map(|adapter| adapter.pack(cols, format));
            let run = |group_of: &[Option<usize>], x: &[f32], out: &mut [f32]| {
                let mut groups = RowGroups::default();
                groups.set(4, group_of);
                add_low_rank(x, cols, &groups, |group| packed.get(group), out, stride, &pool);
            };
            let mut out = before.clone();
            run(&group_of, &x, &mut out);
            let off = distance(&out, &want);
            assert!(off < 1e-5, "{} {} {cols}: off by {off}", isa.name(), format.name());
            all_bits.push(bits(&out));
            for row in [0, 7, 8, 39, 74] {
                let mut alone = before[row * stride..][..stride].to_vec();
                run(&group_of[row..=row], &x[row * cols..][..cols], &mut alone);
                assert_eq!(bits(&alone), bits(&out[row * stride..][..stride]), "{} row {row}", isa.name());
            }
        }
        assert!(all_bits.windows(2).all(|pair| pair[0] == pair[1]), "{cols}: the instruction sets disagree");
    }
}

#[test]
fn groups_without_matrices_change_nothing() {
    let pool = ThreadPool::new(2);
    let mut groups = RowGroups::default();
    groups.set(2, &[Some(1), None, Some(0)]);
    assert_eq!((groups.rows(0), groups.rows(1), groups.end_row()), (&[2][..], &[0][..], 3));
    let mut out = vec![1.0; 12];
    add_low_rank(&[2.0; 9], 3, &groups, |_| None, &mut out, 4, &pool);
    assert_eq!(out, vec![1.0; 12]);
    groups.set(0, &[]);
    assert!(groups.is_empty());
}

#[test]
#[should_panic(expected = "rows of the groups")]
fn a_row_that_is_not_there_is_refused() {
    let mut groups = RowGroups::default();
    groups.set(1, &[None, Some(0)]);
    let low_rank = LowRank::pack(
        3,
        &[LowRankPart { first_col: 0, a: &[1.0; 3], b: &[1.0; 4], rank: 1, scale: 1.0 }],
        Format::F32,
    );
    add_low_rank(&[0.0; 3], 3, &groups, |_| low_rank.as_ref(), &mut [0.0; 8], 4, &ThreadPool::new(1));
}
