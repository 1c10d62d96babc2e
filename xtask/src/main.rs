//! What a developer of hipflex types: `cargo xtask demo`, `cargo xtask test`, ...

mod bench;
mod capture;
mod cargo;
mod check;
mod coverage;
mod demo;
mod machine;
mod mutations;
mod node;
mod prove;
mod rocm;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, try and test hipflex")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show the main job: a program under a limit, a second one, and the death of one
    Demo(demo::Arguments),
    /// Run every test that this machine can run
    Test {
        /// Only the tests which this nextest filter expression selects
        #[arg(short = 'E', long, value_name = "EXPRESSION")]
        filter: Option<String>,
        /// Run llama.cpp, too, which is fetched (0.5 GB)
        #[arg(long)]
        llama: bool,
    },
    /// Measure what hipflex costs, beside what cannot be done for less
    Bench(bench::Arguments),
    /// Make the captured texts in the documentation anew
    Capture,
    /// Prove the account: models of every order of threads, processes killed at every step
    Prove(prove::Arguments),
    /// Check format, lints, documentation and licences
    Check,
    /// Make docs/hook-coverage.md: which functions of HIP are hooked, and why others are not
    Coverage(coverage::Arguments),
    /// Run a command on the emulated node: a machine with AMD GPUs that do not exist
    Node(node::Arguments),
    /// Fetch AMD's HIP runtimes from Debian's packages into target/rocm
    Rocm {
        /// A version such as 6.4.3, or the beginning of one, or `all`; or `llama`: llama.cpp with its HIP backend and the
        /// runtime that it uses (0.5 GB, into target/llama)
        #[arg(default_value = "all")]
        version: String,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Demo(arguments) => demo::demo(&arguments),
        Task::Test { filter, llama } => test::test(filter.as_deref(), llama),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Capture => capture::capture(),
        Task::Prove(arguments) => prove::prove(&arguments),
        Task::Check => check::check(),
        Task::Coverage(arguments) => coverage::coverage(&arguments),
        Task::Node(arguments) => node::node(&arguments),
        Task::Rocm { version } if version == "llama" => {
            let runtime = rocm::llama::fetch()?;
            let folder = runtime.root.display();
            println!("llama.cpp with {} is in {folder}", runtime.package);
            Ok(())
        }
        Task::Rocm { version } => {
            let fetched = rocm::fetch(&version)?;
            for runtime in &fetched.runtimes {
                let folder = runtime.root.display();
                println!("HIP {:8} {:32} {folder}", runtime.version, runtime.package);
            }
            for why in &fetched.skipped {
                println!("SKIPPED: {why}");
            }
            if fetched.runtimes.is_empty() {
                anyhow::bail!("no runtime is there");
            }
            Ok(())
        }
    }
}
