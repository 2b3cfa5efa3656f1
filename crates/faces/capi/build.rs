//! The name that programs ask the dynamic linker for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libfarpage.so.0");
}
