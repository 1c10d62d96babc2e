//! How `libhipflex.so` is linked. Kept here so that a plain `cargo build` makes the right library.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    // Programs hold addresses of our entries (dlsym answers with them), so a dlclose of the library
    // must not unmap it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // "Our entry" must mean ours, also when another preload exports a function of the same name
    // before us.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    if env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
        link_the_unwinder_statically(Path::new(&env::var("OUT_DIR").map_err(io::Error::other)?))?;
    }
    Ok(())
}

/// The standard library asks for `-lgcc_s`. A preload is inherited by every child process, and
/// loading a further shared library costs each of them more than all the rest of this one does. The
/// linker takes the first `libgcc_s.so` on its path, and accepts a script in its place: this one
/// hands it the static unwinder that comes with the C compiler.
fn link_the_unwinder_statically(out: &Path) -> io::Result<()> {
    fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh)\n")?;
    println!("cargo:rustc-link-search=native={}", out.display());
    Ok(())
}
