//! Builds the agent: a static library of `farpage-agent`, linked to one shared object that needs
//! nothing and exports nothing. Builds the library of streams, `farpage-stdio`, too. `launch` carries
//! the bytes of both.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::elf;
use object::read::elf::{Dyn, ElfFile64, FileHeader, ProgramHeader, Rela, SectionHeader, Sym};
use object::{Endianness, Object};

/// The crates that the agent and the library of streams are made of.
const CRATES: [&str; 7] = [
    "pagers/default-pager",
    "core/kernel",
    "faces/mapio",
    "core/object",
    "run/agent",
    "faces/stdio",
    "core/sys",
];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let own = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let root = own.join("../../..");
    for name in CRATES {
        println!(
            "cargo::rerun-if-changed={}",
            root.join("crates").join(name).display()
        );
    }
    println!(
        "cargo::rerun-if-changed={}",
        root.join("Cargo.lock").display()
    );
    println!("cargo::rerun-if-changed=build.rs");
    let library = compile(&root, &out.join("agent"));
    let agent = out.join("agent.so");
    link(&library, &agent, &out);
    check(&fs::read(&agent).expect("the agent was just linked"));
    let stdio = streams(&root, &out.join("agent"));
    fs::copy(stdio, out.join("stdio.so")).expect("OUT_DIR can be written");
}

/// Runs cargo for the library of streams, likewise.
fn streams(root: &Path, target_dir: &Path) -> PathBuf {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    cargo
        .current_dir(root)
        .args(["rustc", "--package", "farpage-stdio", "--lib", "--release"])
        .args(["--crate-type", "cdylib", "--target-dir"])
        .arg(target_dir)
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_LTO", "thin")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_STRIP", "true")
        .env("RUSTFLAGS", "");
    without_wrappers(&mut cargo);
    run(&mut cargo);
    target_dir.join("release/libfarpage_stdio.so")
}

/// Runs cargo for the static library: optimised whatever this build is, checked where this one is,
/// and without the wrappers and flags of this build.
fn compile(root: &Path, target_dir: &Path) -> PathBuf {
    let mut cargo = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"));
    let checked = match env::var_os("CARGO_CFG_DEBUG_ASSERTIONS") {
        Some(_) => "true",
        None => "false",
    };
    cargo
        .current_dir(root)
        .args(["rustc", "--package", "farpage-agent", "--lib", "--release"])
        .args(["--features", "standalone", "--crate-type", "staticlib"])
        .arg("--target-dir")
        .arg(target_dir)
        .env("CARGO_PROFILE_RELEASE_PANIC", "abort")
        .env("CARGO_PROFILE_RELEASE_LTO", "thin")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", checked)
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env(
            "RUSTFLAGS",
            "-C relocation-model=pic -C force-unwind-tables=no",
        );
    without_wrappers(&mut cargo);
    run(&mut cargo);
    target_dir.join("release/libfarpage_agent.a")
}

fn without_wrappers(cargo: &mut Command) {
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        let foreign = name_text.contains("WRAPPER")
            || name_text == "CARGO_ENCODED_RUSTFLAGS"
            || name_text == "CARGO_TARGET_DIR"
            || name_text == "CARGO_BUILD_TARGET";
        if foreign {
            cargo.env_remove(&name);
        }
    }
}

fn link(library: &Path, agent: &Path, out: &Path) {
    let exports = out.join("exports");
    fs::write(
        &exports,
        "{ global: farpage_agent_init; farpage_agent_entry; local: *; };\n",
    )
    .expect("OUT_DIR can be written");
    let mut cc = Command::new(env::var_os("CC").as_deref().unwrap_or(OsStr::new("cc")));
    cc.args([
        "-shared",
        "-nostdlib",
        "-nostartfiles",
        "-Wl,--gc-sections",
        "-Wl,-z,initfirst",
    ])
    .args([
        "-Wl,-z,now",
        "-Wl,-z,noseparate-code",
        "-Wl,-z,max-page-size=4096",
    ])
    .args([
        "-Wl,-Bsymbolic",
        "-Wl,-z,defs",
        "-Wl,--build-id=none",
        "-Wl,-z,noexecstack",
    ])
    .args([
        "-Wl,-soname,farpage-agent",
        "-Wl,-init=farpage_agent_init",
        "-Wl,-z,norelro",
        "-Wl,-s",
    ])
    .args(["-Wl,-z,nodynamic-undefined-weak"])
    .args(["-Wl,-u,farpage_agent_init", "-Wl,-u,farpage_agent_entry"])
    .arg(format!("-Wl,--version-script={}", exports.display()))
    .arg("-o")
    .arg(agent)
    .arg(library);
    run(&mut cc);
}

fn run(command: &mut Command) {
    let status = command
        .status()
        .unwrap_or_else(|why| panic!("cannot run {command:?}: {why}"));
    assert!(status.success(), "{command:?} failed: {status}");
}

/// What the agent's ways into programs rely on: it needs no library, no symbol, no thread-local
/// storage, and is relocated by adding its address to some words.
fn check(bytes: &[u8]) {
    let file = ElfFile64::<Endianness>::parse(bytes).expect("the linker makes ELF files");
    let endian = file.endianness();
    let header = file.elf_header();
    let segments = header.program_headers(endian, bytes).expect("has segments");
    for segment in segments {
        assert_ne!(
            segment.p_type(endian),
            elf::PT_TLS,
            "the agent has thread-local storage"
        );
        assert_ne!(
            segment.p_type(endian),
            elf::PT_INTERP,
            "the agent has an interpreter"
        );
        let dynamic = segment.dynamic(endian, bytes).expect("readable");
        for entry in dynamic.into_iter().flatten() {
            assert_ne!(
                entry.d_tag(endian),
                elf::DT_NEEDED,
                "the agent needs a library"
            );
        }
    }
    let sections = header.sections(endian, bytes).expect("has sections");
    for section in sections.iter() {
        let Some((entries, _)) = section.rela(endian, bytes).expect("readable") else {
            continue;
        };
        for entry in entries {
            let kind = Rela::r_type(entry, endian, false);
            assert_eq!(
                kind,
                elf::R_X86_64_RELATIVE,
                "the agent has a relocation of another kind"
            );
        }
    }
    let symbols = sections
        .symbols(endian, bytes, elf::SHT_DYNSYM)
        .expect("readable");
    for symbol in symbols.iter().skip(1) {
        let name = symbol.name(endian, symbols.strings()).unwrap_or_default();
        let name = String::from_utf8_lossy(name);
        assert!(
            !symbol.is_undefined(endian),
            "the agent lacks the symbol {name}"
        );
    }
}
