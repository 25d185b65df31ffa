//! The flags about adapters (LoRA), with vLLM's names where a flag means the same. Does not read adapters.

use clap::Args;
use serde::Deserialize;

use super::values::parse_bytes;
use crate::bounds::{self, within};

/// Adapters over the model.
#[derive(Debug, Clone, Default, Args)]
pub struct AdapterArgs {
    /// An adapter (LoRA, a folder as PEFT saves it, or a hub id) that requests choose by its name: NAME=PATH,
    /// or {"name":"NAME","path":"PATH"}; may be repeated
    #[arg(long, num_args = 1.., value_name = "NAME=PATH", value_parser = lora_module)]
    pub lora_modules: Vec<LoraModule>,
    /// Most adapters in memory, 32 when absent; others make room for those that requests name
    #[arg(long, value_name = "N", value_parser = within(bounds::ADAPTERS))]
    pub max_loras: Option<usize>,
    /// The largest rank of an adapter, 64 when absent
    #[arg(long, value_name = "N", value_parser = within(bounds::ADAPTER_RANK))]
    pub max_lora_rank: Option<usize>,
    /// Most memory of all adapters, for example 2GiB
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub max_lora_memory: Option<u64>,
    /// Let everyone with a key load adapters from any folder of this machine, and unload them, while the
    /// server runs
    #[arg(long, env = "THRONG_ALLOW_RUNTIME_LORA_UPDATING")]
    pub allow_runtime_lora_updating: bool,
}

/// An adapter and its name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraModule {
    /// Name of the adapter in requests.
    pub name: String,
    /// Folder of the adapter's files, or a hub id.
    pub path: String,
    /// Base model of the adapter: accepted as in vLLM, and ignored, since one model is served.
    #[serde(default)]
    pub base_model_name: Option<String>,
}

impl LoraModule {
    /// Checks the name and the path.
    ///
    /// # Errors
    /// When the name or the path is invalid: a message about the first fault.
    pub fn check(&self) -> Result<(), String> {
        bounds::model_name(&self.name).map_err(|fault| format!("the name {:?} {fault}", self.name))?;
        if self.path.is_empty() { Err(format!("the adapter {:?} has no path", self.name)) } else { Ok(()) }
    }
}

/// Parses `NAME=PATH` or vLLM's JSON.
fn lora_module(text: &str) -> Result<LoraModule, String> {
    let module = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|error| error.to_string())?
    } else {
        let (name, path) = text.split_once('=').ok_or("must be NAME=PATH or a JSON object")?;
        LoraModule { name: name.to_owned(), path: path.to_owned(), base_model_name: None }
    };
    module.check()?;
    Ok(module)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::CommandLine;

    #[test]
    fn modules_are_given_as_in_vllm() {
        let line = [
            "throng",
            "model",
            "--lora-modules",
            "sql=/a=b",
            r#"{"name":"x","path":"y","base_model_name":"m"}"#,
        ];
        let line =
            CommandLine::try_parse_from([&line[..], &["--lora-modules", "third=z"]].concat()).expect("valid");
        let modules = line.serve.adapters.lora_modules.iter().map(|m| (m.name.as_str(), m.path.as_str()));
        assert_eq!(modules.collect::<Vec<_>>(), [("sql", "/a=b"), ("x", "y"), ("third", "z")]);
        for bad in ["name", "=path", "name=", r#"{"name":"x"}"#, r#"{"name":"x","path":"y","z":1}"#] {
            assert!(lora_module(bad).is_err(), "{bad}");
        }
    }
}
