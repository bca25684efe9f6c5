//! Gives the shared library its soname: the major version, and before 1.0 the minor one, too.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let part = |name: &str| std::env::var(name).unwrap_or_default();
    let (major, minor) = (part("CARGO_PKG_VERSION_MAJOR"), part("CARGO_PKG_VERSION_MINOR"));
    let version = if major == "0" { format!("{major}.{minor}") } else { major };
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liblockwright.so.{version}");
}
