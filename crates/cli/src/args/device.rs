//! The device that computes, as flags and files name it. Does not know which devices there are.

use std::fmt;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// Device that computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Cpu,
    /// A GPU where a measurement says that it is faster than the processor, else the processor.
    Auto,
    /// The Vulkan device of this number, as `throng devices` counts them.
    Vulkan(usize),
    /// The GPU of an Apple machine.
    Metal,
}

/// Number of layers that a GPU computes; the processor computes those before them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GpuLayersChoice {
    /// Maximum number of layers that fits into the GPU's memory.
    #[default]
    Auto,
    /// All layers.
    All,
    /// The last layers; 0: the processor computes all.
    Last(usize),
}

/// Place of the matrices of experts, where they are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExpertsOn {
    /// With the other weights of their layer
    #[default]
    Device,
    /// The processor
    Cpu,
}

/// Flags of the device that computes a model.
#[derive(Debug, Clone, Default, Args)]
pub struct ComputeArgs {
    /// The device that computes: cpu, vulkan:N, metal, or auto: a GPU where it is measured to be faster
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["reference", "isa"])]
    pub device: Option<DeviceChoice>,
    /// Layers that --device computes, the last ones of the model, or all; the processor computes the others
    #[arg(long, alias = "n-gpu-layers", value_name = "N", value_parser = str::parse::<GpuLayersChoice>)]
    pub gpu_layers: Option<GpuLayersChoice>,
    /// Where experts are computed, with --device: on it, or by the processor, which then has their memory
    #[arg(long, value_enum, ignore_case = true, value_name = "PLACE")]
    pub experts_on: Option<ExpertsOn>,
}

/// `throng devices`.
#[derive(Debug, Clone, Args)]
pub struct DevicesArgs {
    /// Describe the devices as JSON, or compute on the one of this number: in a process of its own, which a
    /// driver may crash
    #[arg(long, hide = true, value_name = "N", num_args = 0..=1)]
    pub probe: Option<Option<usize>>,
    /// Try all drivers again, in place of showing what an earlier start has found
    #[arg(long)]
    pub probe_again: bool,
}

impl FromStr for GpuLayersChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            number => number.parse().map(Self::Last).map_err(|_| "must be a number of layers, all or auto"),
        }
    }
}

impl<'de> Deserialize<'de> for GpuLayersChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = GpuLayersChoice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of layers, \"all\" or \"auto\"")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<GpuLayersChoice, E> {
                n.to_string().parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, n: u64) -> Result<GpuLayersChoice, E> {
                n.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<GpuLayersChoice, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        let number = |number: &str| number.parse().map(Self::Vulkan).ok();
        match text.as_str() {
            "cpu" => Some(Self::Cpu),
            "auto" => Some(Self::Auto),
            "metal" => Some(Self::Metal),
            "vulkan" => Some(Self::Vulkan(0)),
            _ => text.strip_prefix("vulkan:").and_then(number),
        }
        .ok_or_else(|| "a device is cpu, auto, vulkan:N or metal; throng devices lists them".to_owned())
    }
}

impl TryFrom<String> for DeviceChoice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Auto => f.write_str("auto"),
            Self::Vulkan(number) => write!(f, "vulkan:{number}"),
            Self::Metal => f.write_str("metal"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for device in [DeviceChoice::Cpu, DeviceChoice::Auto, DeviceChoice::Vulkan(3), DeviceChoice::Metal] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("Vulkan".parse(), Ok(DeviceChoice::Vulkan(0)));
        assert!("cuda:0".parse::<DeviceChoice>().expect_err("unknown").contains("throng devices"));
        for (text, layers) in [
            ("all", GpuLayersChoice::All),
            ("Auto", GpuLayersChoice::Auto),
            ("0", GpuLayersChoice::Last(0)),
            ("99", GpuLayersChoice::Last(99)),
        ] {
            assert_eq!(text.parse(), Ok(layers));
            assert_eq!(serde_json::from_value(serde_json::json!(text)).ok(), Some(layers));
        }
        assert_eq!(serde_json::from_str("7").ok(), Some(GpuLayersChoice::Last(7)));
        assert!(
            "-1".parse::<GpuLayersChoice>().is_err()
                && serde_json::from_str::<GpuLayersChoice>("-1").is_err()
        );
        assert!("vulkan:x".parse::<DeviceChoice>().is_err());
    }
}
