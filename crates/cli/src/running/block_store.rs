//! Settings of the places for keys and values of a model outside of its memory. Does not know files.

use std::path::Path;

use anyhow::Result;
use throng_engine::{Peers, StoreSettings, Tiers};
use throng_model::load::LoadedModel;

use super::fingerprint::fingerprint;
use super::{Compute, isa, kv_dtype};
use crate::config::ModelSection;

/// Default bytes of keys and values that a folder keeps for one model.
const KV_OFFLOAD_BYTES: u64 = 10 << 30;

/// The places that are asked for. The model then knows its fingerprint.
///
/// # Errors
/// When the program's own file is not found.
pub(super) fn tiers(
    section: &ModelSection,
    (model, compute): (&LoadedModel, &Compute),
    names: &[String],
    peers: Option<Peers>,
) -> Result<Tiers> {
    if section.kv_offload_dir.is_none() && peers.is_none() {
        return Ok(Tiers::default());
    }
    if model.is_part() {
        if section.kv_offload_dir.is_some() {
            tracing::warn!(
                "a divided model has its keys and values in several processes: none are kept on disk"
            );
        }
        return Ok(Tiers::default());
    }
    let computed_by = compute.fingerprint(isa(section));
    model.set_fingerprint(fingerprint(model, kv_dtype(section, model), &computed_by).into());
    Ok(Tiers { disk: disk(section, model, names)?, peers })
}

fn disk(section: &ModelSection, model: &LoadedModel, names: &[String]) -> Result<Option<StoreSettings>> {
    let Some(folder) = &section.kv_offload_dir else { return Ok(None) };
    // The fingerprint reads samples of the weights; their files tell of every change.
    let mut identity = written_at(&std::env::current_exe()?);
    identity += &written_at(&model.path);
    if let Ok(entries) = std::fs::read_dir(&model.path) {
        let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        files.iter().for_each(|file| identity += &written_at(file));
    }
    Ok(Some(StoreSettings {
        folder: folder.clone(),
        name: names.first().cloned().unwrap_or_default(),
        max_bytes: section.kv_offload_bytes.unwrap_or(KV_OFFLOAD_BYTES),
        identity,
    }))
}

/// The length of a file and the time at which it was written.
fn written_at(path: &Path) -> String {
    let Ok(found) = std::fs::metadata(path) else { return String::new() };
    format!("{} {:?}\n", found.len(), found.modified().ok())
}
