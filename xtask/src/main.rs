//! What a developer of hipflex types: `cargo xtask demo`, `cargo xtask test`, ...

mod rocm;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, try and test hipflex")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Fetch AMD's HIP runtimes from Debian's packages into target/rocm
    Rocm {
        /// A version such as 6.4.3, or the beginning of one, or `all`
        #[arg(default_value = "all")]
        version: String,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Rocm { version } => {
            let fetched = rocm::fetch(&version)?;
            for runtime in &fetched.runtimes {
                println!(
                    "HIP {:8} {:28} {}",
                    runtime.version,
                    runtime.package,
                    runtime.root.display()
                );
            }
            for why in &fetched.skipped {
                println!("SKIPPED: {why}");
            }
            Ok(())
        }
    }
}
