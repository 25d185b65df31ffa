//! A decoder divided over devices: the sizes of its shards sum to the whole, and what cannot be divided is
//! refused.

use std::ops::Range;
use std::path::Path;

use throng_model::config::{DecoderConfig, FeedForward, Mixer, ShardBlocks, ShardError};
use throng_model::{LoadOptions, load};

/// What is divided in each layer: query heads, key and value heads, columns of feed-forward networks. Latent
/// attention has one key for all heads.
fn sizes(config: &DecoderConfig) -> Vec<[usize; 4]> {
    let layers = config.layers.iter().map(|layer| {
        let [n_heads, n_kv_heads] = match &layer.mixer {
            Mixer::Attention(attention) => [attention.n_heads, attention.n_kv_heads],
            Mixer::Latent(latent) => [latent.n_heads, 0],
            Mixer::Hybrid(hybrid) => [hybrid.attention.n_heads, hybrid.attention.n_kv_heads],
            _ => [0, 0],
        };
        match layer.feed_forward {
            FeedForward::None => [n_heads, n_kv_heads, 0, 0],
            FeedForward::Dense { width } => [n_heads, n_kv_heads, width, 0],
            FeedForward::Experts { width, shared, .. } => {
                [n_heads, n_kv_heads, width, shared.map_or(0, |shared| shared.width)]
            }
        }
    });
    layers.collect()
}

#[test]
fn the_sizes_of_shards_sum_to_the_whole() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let (mut n_divided, mut n_refused) = (0, 0);
    let folders = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    for folder in folders.filter(|path| path.join("expected.safetensors").exists()) {
        let model = load(&folder, &options, &mut |_| {}).unwrap();
        assert_eq!(model.config.shard(0, 1, ShardBlocks::SINGLE).as_ref(), Ok(&*model.config));
        for n_ranks in 2..=4 {
            let shards = (0..n_ranks).map(|rank| model.config.shard(rank, n_ranks, ShardBlocks::SINGLE));
            let Ok(shards) = shards.collect::<Result<Vec<_>, _>>() else {
                n_refused += 1;
                continue;
            };
            n_divided += 1;
            let mut sums = vec![[0; 4]; model.config.layers.len()];
            for (sums, layer_idx) in sums.iter_mut().zip(0..) {
                for shard in &shards {
                    let split = &shard.split.as_ref().expect("it is divided").layers[layer_idx];
                    let mut sizes = sizes(shard)[layer_idx];
                    // Groups of heads are on several devices where there are too few.
                    sizes[1] *= usize::from(split.attention.is_first);
                    sums.iter_mut().zip(sizes).for_each(|(sum, size)| *sum += size);
                }
            }
            assert_eq!(sums, sizes(&model.config), "{} over {n_ranks}", model.name);
            let rows: usize = shards.iter().map(DecoderConfig::n_table_rows).sum();
            assert_eq!(rows, model.config.vocabulary_size, "{}", model.name);
            // What every device has whole.
            let undivided = shards.iter().all(|shard| {
                (shard.hidden_size, shard.vocabulary_size)
                    == (model.config.hidden_size, model.config.vocabulary_size)
            });
            assert!(undivided, "{}", model.name);
        }
    }
    assert!(n_divided > 150 && n_refused > 3, "{n_divided} were divided, {n_refused} refused");
}

/// Heads of queries, and heads of keys and values, that each of some ranks has.
fn heads(
    config: &DecoderConfig,
    n_ranks: usize,
    mixer: usize,
) -> Result<Vec<(Range<usize>, Range<usize>)>, ShardError> {
    let blocks = ShardBlocks { mixer, ..ShardBlocks::SINGLE };
    let of_rank = |rank| {
        let split = config.shard(rank, n_ranks, blocks)?.split.expect("it is divided");
        let heads = &split.layers[0].attention;
        Ok((heads.heads.clone(), heads.groups.clone()))
    };
    (0..n_ranks).map(of_rank).collect()
}

#[test]
fn heads_are_divided_in_whole_groups_and_blocks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama");
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let config = (*load(&folder, &options, &mut |_| {}).unwrap().config).clone();
    let with_heads = |n_heads, n_kv_heads| {
        config.clone().with_attention(|attention| {
            (attention.n_heads, attention.n_kv_heads, attention.head_dim) = (n_heads, n_kv_heads, 64);
        })
    };
    // Uneven shares of whole groups.
    assert_eq!(heads(&with_heads(10, 5), 2, 1), Ok(vec![(0..4, 0..2), (4..10, 2..5)]));
    assert_eq!(heads(&with_heads(7, 7), 3, 32), Ok(vec![(0..2, 0..2), (2..4, 2..4), (4..7, 4..7)]));
    // Fewer groups than ranks: some have the same one.
    assert_eq!(heads(&with_heads(4, 2), 3, 1), Ok(vec![(0..1, 0..1), (1..2, 0..1), (2..4, 1..2)]));
    assert_eq!(
        heads(&with_heads(6, 1), 4, 1),
        Ok(vec![(0..1, 0..1), (1..3, 0..1), (3..4, 0..1), (4..6, 0..1)])
    );
    // Blocks of 256 are four heads of 64.
    assert_eq!(heads(&with_heads(8, 4), 2, 256), Ok(vec![(0..4, 0..2), (4..8, 2..4)]));
    let too_few =
        |n, n_ranks, block| Err(ShardError::TooFew { layer_idx: 0, what: "heads", n, n_ranks, block });
    assert_eq!(heads(&with_heads(8, 4), 3, 256), too_few(4, 3, 256));
    assert_eq!(heads(&with_heads(14, 2), 4, 256), too_few(14, 4, 256));
    assert_eq!(heads(&with_heads(2, 1), 3, 1), too_few(2, 3, 1));
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let config = |name: &str| (*load(&root.join(name), &options, &mut |_| {}).unwrap().config).clone();
    let llama = config("llama");
    let single = ShardBlocks::SINGLE;
    assert_eq!(llama.shard(2, 2, single), Err(ShardError::Rank { rank: 2, n_ranks: 2 }));
    assert_eq!(llama.shard(0, 0, single), Err(ShardError::Rank { rank: 0, n_ranks: 0 }));
    let mut narrow = llama.clone();
    narrow.layers[0].feed_forward = FeedForward::Dense { width: 33 };
    let blocks = ShardBlocks { feed_forward: 32, ..single };
    assert!(narrow.shard(1, 2, blocks).is_ok());
    let what = "hidden columns";
    let too_few = ShardError::TooFew { layer_idx: 0, what, n: 33, n_ranks: 3, block: 32 };
    assert_eq!(narrow.shard(0, 3, blocks), Err(too_few));
    let encoder = config("embeddinggemma").shard(0, 2, single);
    assert!(matches!(encoder, Err(ShardError::Encoder { .. })));
}
