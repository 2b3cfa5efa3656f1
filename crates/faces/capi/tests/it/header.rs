//! `farpage.h` is what cbindgen makes of the sources.

use std::path::Path;
use std::{env, fs};

/// The files that declare something, in the order in which the header has it.
const FILES: [&str; 13] = [
    "error.rs",
    "options.rs",
    "memory.rs",
    "arrays.rs",
    "map_fd.rs",
    "locks.rs",
    "registrations.rs",
    "shared_locks.rs",
    "pager.rs",
    "serve.rs",
    "heap.rs",
    "sync.rs",
    "shared.rs",
];

#[test]
fn the_header_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in FILES {
        builder = builder.with_src(root.join("src").join(file));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = root.join("include/farpage.h");
    if env::var_os("FARPAGE_WRITE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == kept,
        "include/farpage.h is not current; write it: \
         FARPAGE_WRITE_HEADER=1 cargo test -p farpage-capi --test it header::"
    );
}
