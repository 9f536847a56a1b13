//! Names the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    // Without a name a program that links it by its path looks for it there, wherever it is installed.
    if target("FAMILY") == "unix" && target("VENDOR") != "apple" {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libamla.so");
    }
}
