//! Compiles the runtimes. They are C: only so can they have the symbol versions, the stubs and the calls
//! through the PLT that the real ones have (README).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt::Write as _, fs, io};

/// The version nodes that the real libraries define, oldest first: 5.2.3 has the first 7, 5.7.1 10,
/// 6.4.3 14, 7.2.4 all. Each inherits the one before it.
const NODES: [&str; 17] = [
    "hip_4.2", "hip_4.3", "hip_4.4", "hip_4.5", "hip_5.0", "hip_5.1", "hip_5.2", "hip_5.3",
    "hip_5.5", "hip_5.6", "hip_6.0", "hip_6.1", "hip_6.2", "hip_6.4", "hip_6.5", "hip_7.1",
    "hip_7.2",
];

/// One library to build.
struct Build {
    directory: &'static str,
    generation: u32,
    /// Of the release that it is modelled on.
    minor: u32,
    nodes: usize,
    arguments: &'static [&'static str],
}

const ENDBR: &str = "-fcf-protection=full";
const BUILDS: [Build; 5] = [
    Build {
        directory: "5",
        generation: 5,
        minor: 7,
        nodes: 10,
        arguments: &["-DREGISTERS=0", ENDBR, "-Wl,-z,now"],
    },
    Build {
        directory: "5-plain",
        generation: 5,
        minor: 2,
        nodes: 7,
        arguments: &["-DREGISTERS=0", "-fcf-protection=none", "-Wl,-z,lazy"],
    },
    Build {
        directory: "6",
        generation: 6,
        minor: 4,
        nodes: 14,
        arguments: &["-DREGISTERS=0", ENDBR, "-Wl,-z,now"],
    },
    Build {
        directory: "6r",
        generation: 6,
        minor: 4,
        nodes: 14,
        arguments: &["-DREGISTERS=1", ENDBR, "-Wl,-z,now"],
    },
    Build {
        directory: "7",
        generation: 7,
        minor: 2,
        nodes: 17,
        arguments: &["-DREGISTERS=0", ENDBR, "-Wl,-z,now"],
    },
];

/// A row of `functions.h`.
struct Function {
    since: (u32, u32),
    version: String,
    name: String,
}

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=runtime");
    println!("cargo:rerun-if-changed=profiler");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=CC");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let sources = root.join("runtime");
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    let functions = functions(&fs::read_to_string(sources.join("functions.h"))?)?;
    for build in &BUILDS {
        compile(build, &sources, &out, &functions)?;
    }
    let directory = out.join("profiler");
    fs::create_dir_all(&directory)?;
    let register = "librocprofiler-register.so.0";
    cc(Command::new(compiler())
        .args([
            "-std=gnu11",
            "-O2",
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .arg(format!("-Wl,-soname,{register}"))
        .arg("-o")
        .arg(directory.join(register))
        .arg(root.join("profiler/register.c")))
}

fn compiler() -> OsString {
    env::var_os("CC").unwrap_or_else(|| "cc".into())
}

fn cc(command: &mut Command) -> io::Result<()> {
    let output = command
        .output()
        .map_err(|error| io::Error::other(format!("the C compiler, {:?}: {error}", compiler())))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }
}

fn functions(table: &str) -> io::Result<Vec<Function>> {
    let mut rows = Vec::new();
    for macro_name in ["FUNCTION(", "DIRECT(", "SPECIAL("] {
        for row in table.split(&format!("\n{macro_name}")).skip(1) {
            let fields: Vec<&str> = row.splitn(6, ',').map(str::trim).collect();
            let name = if macro_name == "SPECIAL(" { 4 } else { 3 };
            let (Some(since), Some(version), Some(name)) =
                (fields.first(), fields.get(1), fields.get(name))
            else {
                return Err(io::Error::other(format!("functions.h: no row: {row:.80}")));
            };
            rows.push(Function {
                since: release(since)?,
                version: (*version).to_owned(),
                name: (*name).to_owned(),
            });
        }
    }
    Ok(rows)
}

/// `6`, or `5_7`: since 5.7.
fn release(since: &str) -> io::Result<(u32, u32)> {
    let (generation, minor) = since.split_once('_').unwrap_or((since, "0"));
    let number = |text: &str| text.parse().map_err(io::Error::other);
    Ok((number(generation)?, number(minor)?))
}

/// The linker's version script. The last node is the stand-in's own.
fn version_script(build: &Build, functions: &[Function]) -> io::Result<String> {
    let mut script = String::new();
    let mut before = "";
    for node in NODES.into_iter().take(build.nodes) {
        let names: Vec<&str> = functions
            .iter()
            .filter(|function| {
                function.since <= (build.generation, build.minor) && function.version == node
            })
            .map(|function| function.name.as_str())
            .collect();
        let mut line = format!("{node} {{ ");
        if !names.is_empty() {
            line += &format!("global: {}; ", names.join("; "));
        }
        if before.is_empty() {
            line += "local: *; ";
        }
        writeln!(script, "{line}}} {before};").map_err(io::Error::other)?;
        before = node;
    }
    script += "hip_standin { global: hip_standin_*; };\n";
    Ok(script)
}

fn compile(build: &Build, sources: &Path, out: &Path, functions: &[Function]) -> io::Result<()> {
    let directory = out.join(build.directory);
    fs::create_dir_all(&directory)?;
    let script = directory.join("versions.map");
    fs::write(&script, version_script(build, functions)?)?;
    let mut files: Vec<PathBuf> = fs::read_dir(sources)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    files.sort();
    let soname = format!("libamdhip64.so.{}", build.generation);
    cc(Command::new(compiler())
        .args(["-std=gnu11", "-O2", "-g1", "-fPIC", "-shared", "-pthread"])
        .args([
            "-fvisibility=hidden",
            // What a test is called back for may throw.
            "-fexceptions",
            "-fno-omit-frame-pointer",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .arg(format!("-DGENERATION={}", build.generation))
        .arg(format!("-DMINOR={}", build.minor))
        .args(build.arguments)
        .arg(format!("-Wl,-soname,{soname}"))
        .arg(format!("-Wl,--version-script,{}", script.display()))
        .arg("-o")
        .arg(directory.join(&soname))
        .args(files))
}
