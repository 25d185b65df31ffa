//! Fetches the files of a worker's model that its gateway needs: vocabulary and chat templates. Their size
//! is bounded and their digest checked. Does not read them.

use std::time::Duration;

use bytes::Bytes;
use throng_wire::{ARTIFACTS, Artifact, ArtifactKind, Description, MAX_ARTIFACT_BYTES};

use crate::replica::Connection;

/// Timeout for fetching an artifact.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Fetches all artifacts from a worker.
///
/// # Errors
/// When one cannot be fetched; the message names it.
pub(super) async fn fetch_all(
    connection: &Connection,
    description: &Description,
) -> Result<Vec<(ArtifactKind, Bytes)>, String> {
    let mut artifacts = Vec::new();
    for artifact in description.artifacts.iter().filter(|artifact| artifact.kind != ArtifactKind::Unknown) {
        artifacts.push((artifact.kind, fetch(connection, artifact).await?));
    }
    Ok(artifacts)
}

async fn fetch(connection: &Connection, artifact: &Artifact) -> Result<Bytes, String> {
    let Artifact { digest, n_bytes, kind } = artifact;
    if *n_bytes > MAX_ARTIFACT_BYTES as u64 {
        return Err(format!("its {kind:?} is larger than {MAX_ARTIFACT_BYTES} bytes"));
    }
    if digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(format!("the digest of its {kind:?} is none"));
    }
    let path = format!("{ARTIFACTS}{digest}");
    let fetched = tokio::time::timeout(FETCH_TIMEOUT, connection.bytes(&path, *n_bytes as usize)).await;
    let bytes = fetched.map_err(|_| format!("its {kind:?} did not come in time"))??;
    if throng_wire::digest(&bytes) != *digest {
        return Err(format!("its {kind:?} does not have the digest that it was described with"));
    }
    Ok(bytes)
}
