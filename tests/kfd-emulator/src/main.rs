//! The emulator as a program.
fn main() {}
