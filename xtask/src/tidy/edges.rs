//! The layers: which crate may import which. Read from `cargo metadata`, so that no import is missed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Finding;

/// For each crate, the crates it may import: only from lower layers.
const EDGES: &[(&str, &[&str])] = &[
    ("throng-core", &[]),
    ("throng-os", &[]),
    ("throng-kernels", &["throng-os"]),
    ("throng-comm", &["throng-os"]),
    ("throng-text", &[]),
    ("throng-images", &[]),
    ("throng-store", &[]),
    ("throng-http", &[]),
    ("throng-engine", &["throng-core"]),
    ("throng-sim", &["throng-core"]),
    ("throng-plan", &["throng-core", "throng-sim"]),
    ("throng-checkpoint", &["throng-kernels", "throng-os"]),
    ("throng-arch", &["throng-checkpoint", "throng-kernels"]),
    ("throng-hub", &["throng-checkpoint"]),
    (
        "throng-model",
        &["throng-arch", "throng-checkpoint", "throng-comm", "throng-core", "throng-kernels", "throng-os"],
    ),
    ("throng-wire", &["throng-core", "throng-text"]),
    ("throng-api", &["throng-core", "throng-text"]),
    (
        "throng-fleet",
        &["throng-api", "throng-core", "throng-engine", "throng-http", "throng-text", "throng-wire"],
    ),
    ("throng-cache", &["throng-core", "throng-fleet", "throng-text", "throng-wire"]),
    ("throng-fetch", &["throng-api", "throng-http"]),
    ("throng-auth", &["throng-api", "throng-core", "throng-fleet", "throng-http", "throng-store"]),
    ("throng-state", &["throng-api", "throng-store"]),
    ("throng-tools", &["throng-api", "throng-core"]),
    (
        "throng-metering",
        &["throng-api", "throng-cache", "throng-core", "throng-fleet", "throng-http", "throng-store"],
    ),
    (
        "throng-gateway",
        &[
            "throng-api",
            "throng-auth",
            "throng-cache",
            "throng-core",
            "throng-engine",
            "throng-fetch",
            "throng-fleet",
            "throng-http",
            "throng-images",
            "throng-metering",
            "throng-text",
            "throng-state",
            "throng-store",
            "throng-tools",
            "throng-wire",
        ],
    ),
    ("throng-vision", &["throng-checkpoint", "throng-core", "throng-kernels", "throng-model"]),
    ("throng-gpu", &["throng-checkpoint", "throng-core", "throng-kernels", "throng-model"]),
    ("throng-testkit", &["throng-checkpoint", "throng-core", "throng-kernels", "throng-model"]),
    (
        "throng-cli",
        &[
            "throng-checkpoint",
            "throng-comm",
            "throng-core",
            "throng-os",
            "throng-kernels",
            "throng-model",
            "throng-plan",
            "throng-sim",
            "throng-text",
            "throng-engine",
            "throng-fleet",
            "throng-gateway",
            "throng-gpu",
            "throng-hub",
            "throng-images",
            "throng-state",
            "throng-store",
            "throng-tools",
            "throng-vision",
            "throng-wire",
        ],
    ),
    ("throng-bench", &["throng-cli", "throng-core", "throng-engine", "throng-gateway", "throng-store"]),
    ("xtask", &[]),
];

/// May only be imported by tests.
const TESTS_ONLY: &str = "throng-testkit";

/// Finds imports between our crates that [`EDGES`] does not allow.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let metadata = metadata(root)?;
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = EDGES.iter().find(|(from, _)| *from == name) else {
            findings.push(Finding::new(
                name,
                "a crate without a layer: add it to ARCHITECTURE.md and to xtask/src/tidy/edges.rs",
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            let is_ours = dependency["path"].is_string();
            let is_test = dependency["kind"].as_str() == Some("dev");
            if is_ours && !is_test && !allowed.contains(&to) {
                findings.push(Finding::new(name, format!("imports {to}, which its layer may not")));
            }
            if is_ours && is_test && to != TESTS_ONLY && !allowed.contains(&to) && to != name {
                let reachable =
                    EDGES.iter().any(|(from, below)| allowed.contains(from) && below.contains(&to));
                if !reachable {
                    findings
                        .push(Finding::new(name, format!("its tests import {to}, which its layer may not")));
                }
            }
        }
    }
    Ok(findings)
}

fn metadata(root: &Path) -> Result<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}
