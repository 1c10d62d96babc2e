//! What a node is made of, on the command line and in the builder.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::inject::Inject;
use crate::profile::PartitionIds;
use crate::state::Options;

/// A node.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Kind of GPU: mi210, mi300x, rx7900xtx, or a gfx name
    #[arg(long, default_value = "mi210", value_name = "PROFILE")]
    pub gpu: String,
    /// Number of GPUs [default: 8 for mi300x, else 1]
    #[arg(long, value_name = "N")]
    pub gpus: Option<usize>,
    /// VRAM of each GPU, such as 4GiB or 512MiB; `64GiB,16GiB`: of the first and the second [default: what the
    /// board has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, value_delimiter = ',')]
    pub vram: Vec<u64>,
    /// Partitions that each board is split into, such as 8 for CPX of mi300x
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub partitions: u32,
    /// How the topology tells partitions apart: by the PCI function, by the location, or by a unique id as well
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub partition_ids: PartitionIds,
    /// How programs get descriptors from ioctls: seccomp, preload or none
    #[arg(long, default_value_t = Inject::Seccomp, value_name = "HOW")]
    pub inject: Inject,
    /// Write every ioctl to this file, a line of JSON each
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Minor version of the KFD interface
    #[arg(long, default_value_t = Options::default().kfd_minor, value_name = "N")]
    pub kfd_minor: u32,
    /// Have the IPC ioctls that only AMD's DKMS driver has
    #[arg(long)]
    pub dkms_ipc: bool,
    /// The CPU does not reach all VRAM through the PCI BAR
    #[arg(long)]
    pub small_bar: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            gpu: "mi210".to_owned(),
            gpus: None,
            vram: Vec::new(),
            partitions: 1,
            partition_ids: PartitionIds::default(),
            inject: Inject::default(),
            trace: None,
            kfd_minor: Options::default().kfd_minor,
            dkms_ipc: false,
            small_bar: false,
        }
    }
}

impl Config {
    /// The arguments that give this configuration.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            format!("--gpu={}", self.gpu).into(),
            format!("--inject={}", self.inject).into(),
            format!("--kfd-minor={}", self.kfd_minor).into(),
        ];
        if let Some(gpus) = self.gpus {
            arguments.push(format!("--gpus={gpus}").into());
        }
        if !self.vram.is_empty() {
            let sizes: Vec<_> = self.vram.iter().map(u64::to_string).collect();
            arguments.push(format!("--vram={}", sizes.join(",")).into());
        }
        if self.partitions != 1 {
            arguments.push(format!("--partitions={}", self.partitions).into());
            if let Some(ids) = self.partition_ids.to_possible_value() {
                arguments.push(format!("--partition-ids={}", ids.get_name()).into());
            }
        }
        if let Some(trace) = &self.trace {
            arguments.extend(["--trace".into(), trace.clone().into_os_string()]);
        }
        if self.dkms_ipc {
            arguments.push("--dkms-ipc".into());
        }
        if self.small_bar {
            arguments.push("--small-bar".into());
        }
        arguments
    }
}

/// Reads a size: bytes, or a number with a binary unit (`4GiB`, `512M`, `16 KiB`).
///
/// # Errors
/// Tells what was read, and what would be understood.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit
        .trim_start()
        .trim_end_matches('B')
        .trim_end_matches('i');
    let shift = ["", "K", "M", "G", "T"]
        .iter()
        .position(|known| *known == unit);
    let parsed: Option<u64> = number.parse().ok();
    parsed
        .zip(shift)
        .and_then(|(number, shift)| number.checked_mul(1 << (10 * shift)))
        .ok_or_else(|| format!("{text:?} is not a size; try 4GiB, 512MiB or a number of bytes"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        config: Config,
    }

    #[test]
    fn the_arguments_give_the_configuration_back() {
        let all = Config {
            gpu: "mi300x".to_owned(),
            gpus: Some(2),
            vram: vec![1 << 30, 2 << 30],
            partitions: 4,
            partition_ids: PartitionIds::Function,
            inject: Inject::Preload,
            trace: Some("/tmp/a b".into()),
            kfd_minor: 9,
            dkms_ipc: true,
            small_bar: true,
        };
        for config in [all, Config::default()] {
            let arguments = config.arguments();
            let parsed = Program::parse_from([OsString::from("x")].into_iter().chain(arguments));
            assert_eq!(parsed.config, config);
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4GiB", 4 << 30),
            ("512M", 512 << 20),
            ("16 KiB", 16 << 10),
            ("1TB", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "GiB", "1.5GiB", "-1", "4GX", "99999999999T", "4 5"] {
            assert!(
                parse_size(text).is_err_and(|e| e.contains("4GiB")),
                "{text}"
            );
        }
    }
}
