//! Names the shared library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    // Without a name a program that links it by its path looks for it there, wherever it is installed. Before 1.0 a program
    // works with later patches of the minor version that it was linked with, and with no other.
    if target("FAMILY") == "unix" && target("VENDOR") != "apple" {
        let [major, minor] = ["MAJOR", "MINOR"]
            .map(|part| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default());
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libamla.so.{major}.{minor}");
    }
}
