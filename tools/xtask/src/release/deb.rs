//! The package for Debian.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::VERSION;
use super::strip::programs;
use super::tree::{self, Parts, files, put, write};
use crate::proc;

/// Where Debian keeps libraries of this machine.
const LIB: &str = "lib/x86_64-linux-gnu";

/// Which package has a library that is needed, and whether its version follows from the symbols.
const LIBRARIES: &[(&str, &str, bool)] = &[
    ("libc.so.6", "libc6", true),
    ("libm.so.6", "libc6", true),
    ("libdl.so.2", "libc6", true),
    ("libpthread.so.0", "libc6", true),
    ("ld-linux-x86-64.so.2", "libc6", true),
    // The versions of its symbols are those of GCC before 5, older than any that is in use.
    ("libgcc_s.so.1", "libgcc-s1", false),
];

/// Packs what is below the prefix, and the units for systemd, as `deb`. `root` is where it is laid
/// out.
pub(crate) fn build(parts: &Parts<'_>, root: &Path, deb: &Path) -> Result<()> {
    lay_out(parts, root)?;
    let needed = programs(parts.prefix)?.into_iter().map(|program| {
        let mut objdump = Command::new("objdump");
        let said = proc::output(objdump.arg("-p").arg(&program), "objdump")?;
        needs(&said).with_context(|| format!("of {}", program.display()))
    });
    let needed = needed.collect::<Result<Vec<_>>>()?.concat();
    let mut bytes = 0;
    for file in files(root)? {
        bytes += fs::symlink_metadata(&file)?.len().next_multiple_of(1024);
    }
    let control = control(VERSION, bytes / 1024, &depends(&needed)?);
    write(&root.join("DEBIAN/control"), &control)?;
    // The dynamic linker's cache learns of the libraries.
    write(&root.join("DEBIAN/triggers"), "activate-noawait ldconfig\n")?;
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "-Zxz", "--build"]);
    pack.arg(root).arg(deb);
    pack.env("SOURCE_DATE_EPOCH", &parts.source.epoch);
    proc::output(&mut pack, "dpkg-deb").map(drop)
}

/// Everything where Debian wants it.
fn lay_out(parts: &Parts<'_>, root: &Path) -> Result<()> {
    tree::anew(root)?;
    let usr = root.join("usr");
    for path in files(parts.prefix)? {
        let at = path.strip_prefix(parts.prefix)?;
        let at = usr.join(debian_place(at));
        if path.is_symlink() {
            fs::create_dir_all(at.parent().context("a link lies in a folder")?)?;
            symlink(fs::read_link(&path)?, &at)?;
            continue;
        }
        put(&path, &at)?;
        if at.starts_with(usr.join("share/man")) {
            gzip(&at)?;
        }
        if at.extension().is_some_and(|kind| kind == "pc") {
            tree::set_prefix(&at, "/usr", LIB)?;
        }
        if at.to_string_lossy().contains(".so.") {
            // Debian's policy: a library that cannot be run is not executable.
            fs::set_permissions(&at, fs::Permissions::from_mode(0o644))?;
        }
    }
    let units = parts.source.root.join("packaging/systemd");
    for unit in files(&units)? {
        let at = usr.join("lib/systemd").join(unit.strip_prefix(&units)?);
        put(&unit, &at)?;
    }
    let doc = usr.join("share/doc/farpage");
    let changes = doc.join("changelog");
    put(&parts.source.root.join("CHANGELOG.md"), &changes)?;
    gzip(&changes)?;
    write(&doc.join("copyright"), &copyright(parts)?)?;
    let notices = doc.join("LICENSES-THIRD-PARTY");
    write(&notices, parts.notices)?;
    gzip(&notices)
}

/// Where below `/usr` a file goes that is `at` below a prefix.
fn debian_place(at: &Path) -> PathBuf {
    if let Ok(library) = at.strip_prefix("lib") {
        return Path::new(LIB).join(library);
    }
    if let Ok(completion) = at.strip_prefix("share/zsh/site-functions") {
        return Path::new("share/zsh/vendor-completions").join(completion);
    }
    at.to_owned()
}

/// Compresses a file, without its date and name.
fn gzip(file: &Path) -> Result<()> {
    let mut gzip = Command::new("gzip");
    proc::output(gzip.arg("-9n").arg(file), "gzip").map(drop)
}

fn control(version: &str, kib: u64, depends: &str) -> String {
    format!(
        "Package: farpage\n\
         Version: {version}\n\
         Architecture: amd64\n\
         Maintainer: The Farpage authors\n\
         Installed-Size: {kib}\n\
         Depends: {depends}\n\
         Section: utils\n\
         Priority: optional\n\
         Description: runs programs with more memory than there is RAM\n \
         The command farpage runs an unmodified program within a budget of RAM, and\n \
         keeps the rest of its memory compressed or in a paging file. It opens files,\n \
         HTTP and S3 addresses and compressed files as memory. No root, swap, daemon\n \
         or kernel module is needed.\n \
         .\n \
         The library for C and its header are in this package, too.\n"
    )
}

/// As Debian reads it: Apache's text lies on every Debian, MIT's does not.
fn copyright(parts: &Parts<'_>) -> Result<String> {
    let mit = fs::read_to_string(parts.source.root.join("LICENSE-MIT"))?;
    let holder = mit.lines().find(|line| line.starts_with("Copyright"));
    let holder = holder.context("LICENSE-MIT does not say whose the copyright is")?;
    let text = mit.split_once("\n\n").map_or("", |(_, text)| text);
    let text = text.split_once("\n\n").map_or("", |(_, text)| text);
    let indented: Vec<String> = text
        .lines()
        .map(|line| format!(" {}", if line.is_empty() { "." } else { line }))
        .collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: farpage\n\
         Comment: What is linked into the programs, and its licences, is in\n \
         LICENSES-THIRD-PARTY.gz beside this file.\n\
         \n\
         Files: *\n\
         {holder}\n\
         License: Expat or Apache-2.0\n\
         \n\
         License: Expat\n\
         {}\n\
         \n\
         License: Apache-2.0\n \
         The text is in /usr/share/common-licenses/Apache-2.0.\n",
        indented.join("\n")
    )
    .replace("Copyright (c) ", "Copyright: "))
}

/// Libraries that a program needs, each with the newest version of glibc's symbols that it wants
/// of it: what `objdump -p` says.
fn needs(objdump: &str) -> Result<Vec<(String, (u32, u32))>> {
    let mut found = Vec::new();
    for line in objdump.lines() {
        let mut words = line.split_whitespace();
        if let Some("NEEDED") = words.next() {
            let library = words.next().context("objdump names no library")?;
            found.push((library.to_owned(), (0, 0)));
        }
    }
    let mut of = None;
    for line in objdump.lines().map(str::trim) {
        if let Some(library) = line.strip_prefix("required from ") {
            let library = library.trim_end_matches(':');
            of = found.iter_mut().find(|(name, _)| name == library);
        } else if let Some((_, version)) = line.split_once("GLIBC_")
            && let Some((_, newest)) = &mut of
        {
            let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
            let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            *newest = version.max(*newest);
        }
    }
    Ok(found)
}

/// `Depends` of what needs these libraries.
fn depends(needed: &[(String, (u32, u32))]) -> Result<String> {
    let glibc = needed.iter().map(|(_, version)| *version).max();
    let mut packages = BTreeSet::new();
    for (library, _) in needed {
        let known = LIBRARIES.iter().find(|(name, ..)| name == library);
        let Some((_, package, versioned)) = known else {
            bail!(
                "a program needs {library}: say in tools/xtask/src/release/deb.rs \
                 which package has it"
            );
        };
        packages.insert(match glibc {
            Some((major, minor)) if *versioned => format!("{package} (>= {major}.{minor})"),
            _ => (*package).to_owned(),
        });
    }
    Ok(packages.into_iter().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJDUMP: &str = "\
Dynamic Section:
  NEEDED               libgcc_s.so.1
  NEEDED               libm.so.6
  NEEDED               libc.so.6
  SONAME               libfarpage.so.0

Version References:
  required from libm.so.6:
    0x06969185 0x00 09 GLIBC_2.29
  required from libgcc_s.so.1:
    0x0b792650 0x00 02 GCC_3.0
  required from libc.so.6:
    0x09691a75 0x00 10 GLIBC_2.2.5
    0x069691b4 0x00 04 GLIBC_2.34
";

    #[test]
    fn the_newest_symbol_says_which_c_library_is_needed() {
        let needed = needs(OBJDUMP).unwrap();
        assert_eq!(needed[1], ("libm.so.6".to_owned(), (2, 29)));
        assert_eq!(depends(&needed).unwrap(), "libc6 (>= 2.34), libgcc-s1");
    }

    #[test]
    fn a_library_of_no_known_package_is_refused() {
        let needed = needs("  NEEDED               libssl.so.3\n").unwrap();
        let refused = depends(&needed).unwrap_err().to_string();
        assert!(refused.contains("libssl.so.3"), "{refused}");
    }

    #[test]
    fn the_control_file_is_as_dpkg_reads_it() {
        let control = control("1.2.3", 20, "libc6 (>= 2.34)");
        assert!(control.starts_with("Package: farpage\nVersion: 1.2.3\n"));
        assert!(control.contains("\nDepends: libc6 (>= 2.34)\n"));
        let (fields, long) = control.split_once("\nDescription: ").unwrap();
        assert!(
            fields
                .lines()
                .all(|line| !line.starts_with(' ') && line.contains(": "))
        );
        assert!(long.lines().skip(1).all(|line| line.starts_with(' ')));
        assert!(control.ends_with('\n'));
    }

    #[test]
    fn files_go_where_debian_wants_them() {
        let place = |at: &str| debian_place(Path::new(at)).display().to_string();
        assert_eq!(place("lib/a.so.0"), "lib/x86_64-linux-gnu/a.so.0");
        assert_eq!(place("bin/farpage"), "bin/farpage");
        let zsh = place("share/zsh/site-functions/_farpage");
        assert_eq!(zsh, "share/zsh/vendor-completions/_farpage");
    }
}
