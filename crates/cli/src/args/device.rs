//! The device that computes, as flags and files name it. Does not know which devices there are.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use serde::Deserialize;

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

/// `throng devices`.
#[derive(Debug, Clone, Args)]
pub struct DevicesArgs {
    /// Describe the devices as JSON, or compute on the one of this number: in a process of its own, which a
    /// driver may crash
    #[arg(long, hide = true, value_name = "N", num_args = 0..=1)]
    pub probe: Option<Option<usize>>,
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
        assert!("vulkan:x".parse::<DeviceChoice>().is_err());
    }
}
