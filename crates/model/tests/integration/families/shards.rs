//! A decoder divided over devices: the sizes of its shards sum to the whole, and what cannot be divided is
//! refused.

use std::path::Path;

use throng_model::config::{DecoderConfig, FeedForward, Mixer, ShardError};
use throng_model::kv_cache::{KvDtype, KvLayout};
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
        assert_eq!(model.config.shard(0, 1).as_ref(), Ok(&*model.config));
        for n_ranks in 2..=4 {
            let shards = (0..n_ranks).map(|rank| model.config.shard(rank, n_ranks));
            let Ok(shards) = shards.collect::<Result<Vec<_>, _>>() else {
                n_refused += 1;
                continue;
            };
            n_divided += 1;
            let mut sums = vec![[0; 4]; model.config.layers.len()];
            for shard in &shards {
                for (sums, sizes) in sums.iter_mut().zip(sizes(shard)) {
                    sums.iter_mut().zip(sizes).for_each(|(sum, size)| *sum += size);
                }
            }
            assert_eq!(sums, sizes(&model.config), "{} over {n_ranks}", model.name);
            if model.config.layers.iter().all(|layer| !matches!(layer.mixer, Mixer::Latent(_))) {
                let bytes = |config| KvLayout::new(config, KvDtype::F32, 7).bytes().unwrap();
                assert_eq!(shards.iter().map(bytes).sum::<usize>(), bytes(&model.config), "{}", model.name);
            }
            // What every device has whole.
            let undivided = shards.iter().all(|shard| {
                (shard.hidden_size, shard.vocabulary_size)
                    == (model.config.hidden_size, model.config.vocabulary_size)
            });
            assert!(undivided, "{}", model.name);
        }
    }
    assert!(n_divided > 30 && n_refused > 10, "{n_divided} were divided, {n_refused} refused");
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama");
    let options = LoadOptions { prepare: None, n_threads: 1, quantize: None };
    let config = (*load(&folder, &options, &mut |_| {}).unwrap().config).clone();
    let with_heads = |n_heads, n_kv_heads| {
        config
            .clone()
            .with_attention(|attention| (attention.n_heads, attention.n_kv_heads) = (n_heads, n_kv_heads))
    };
    assert_eq!(config.shard(2, 2), Err(ShardError::Rank { rank: 2, n_ranks: 2 }));
    assert_eq!(config.shard(0, 0), Err(ShardError::Rank { rank: 0, n_ranks: 0 }));
    let indivisible = |what, n| Err(ShardError::Indivisible { layer_idx: 0, what, n, n_ranks: 2 });
    assert_eq!(with_heads(5, 5).shard(0, 2), indivisible("query heads", 5));
    assert_eq!(with_heads(6, 3).shard(0, 2), indivisible("key and value heads", 3));
    let mut odd = with_heads(4, 2);
    odd.layers[0].feed_forward = FeedForward::Dense { width: 33 };
    assert_eq!(odd.shard(1, 2), indivisible("columns of the feed-forward", 33));
    let normed = with_heads(4, 2)
        .with_attention(|attention| attention.qk_norm = throng_model::config::QkNorm::WholeWidth);
    assert_eq!(normed.shard(0, 2), Err(ShardError::NormOfAllHeads { layer_idx: 0 }));
}
