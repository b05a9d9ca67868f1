//! Gives the shared library the name under which programs look for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libevermap.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
