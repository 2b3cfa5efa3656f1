//! The files that are packed, below a prefix: `bin`, `lib`, `include`, `share`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::names::listed;
use super::source::Source;
use crate::proc;

/// Where each shell looks for completions below `share`.
const SHELLS: &[(&str, &str)] = &[
    ("bash", "bash-completion/completions/farpage"),
    ("zsh", "zsh/site-functions/_farpage"),
    ("fish", "fish/vendor_completions.d/farpage.fish"),
];

/// What is packed.
pub(crate) struct Parts<'a> {
    /// Programs, stripped, and what [`fill`] adds.
    pub(crate) prefix: &'a Path,
    /// The clone.
    pub(crate) source: &'a Source,
    /// The licences of all that is linked.
    pub(crate) notices: &'a str,
}

/// Adds the command, its manual pages and its completions to the library for C, which is below
/// `prefix` already, and takes away the libraries for static linking: they are several times larger
/// than all the rest, and `cargo xtask install-c` makes them for those who want them.
pub(crate) fn fill(prefix: &Path, built: &Path) -> Result<()> {
    for archive in listed(&prefix.join("lib"))? {
        if archive.extension().is_some_and(|kind| kind == "a") {
            fs::remove_file(archive)?;
        }
    }
    let command = prefix.join("bin/farpage");
    put(built, &command)?;
    let man = prefix.join("share/man/man1");
    fs::create_dir_all(&man)?;
    proc::output(Command::new(&command).arg("man").arg(&man), "farpage man")?;
    for (shell, at) in SHELLS {
        let mut ask = Command::new(&command);
        let script = proc::output(ask.args(["completions", shell]), "farpage completions")?;
        write(&prefix.join("share").join(at), &script)?;
    }
    Ok(())
}

impl Parts<'_> {
    /// Our own licences and those of what is linked, into `folder`.
    pub(crate) fn licences(&self, folder: &Path) -> Result<()> {
        for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
            put(&self.source.root.join(name), &folder.join(name))?;
        }
        write(&folder.join("LICENSES-THIRD-PARTY"), self.notices)
    }
}

/// What lies where in the tar file.
const README: &str = "\
Farpage VERSION for 64-bit x86 Linux. Nothing has to be installed: run bin/farpage doctor.
To install it for all users: cp -r bin lib include share /usr/local/ && ldconfig

bin/farpage              the command
lib/, include/           the library for C, with files for pkg-config
share/man/               manual pages: man -M share/man farpage-run
share/bash-completion/, share/zsh/, share/fish/     completions
LICENSE-MIT, LICENSE-APACHE, LICENSES-THIRD-PARTY   licences, of Farpage and of what it is made of

Symbols for debuggers and backtraces: farpage-VERSION-debug.tar.gz, to be put beside a program.
";

/// A copy of the prefix at `root` that works wherever it is unpacked, with licences and a README.
pub(crate) fn relocatable(parts: &Parts<'_>, root: &Path) -> Result<()> {
    copy_tree(parts.prefix, root)?;
    for file in listed(&root.join("lib/pkgconfig"))? {
        // Where the file itself lies, of which pkg-config knows.
        set_prefix(&file, "${pcfiledir}/../..", "lib")?;
    }
    parts.licences(root)?;
    write(
        &root.join("README"),
        &README.replace("VERSION", super::VERSION),
    )
}

/// Has the pkg-config file say that everything is below `prefix`, and the libraries in `lib` there.
pub(crate) fn set_prefix(file: &Path, prefix: &str, lib: &str) -> Result<()> {
    let text = fs::read_to_string(file)?;
    fs::write(file, with_prefix(&text, prefix, lib)?)?;
    Ok(())
}

fn with_prefix(text: &str, prefix: &str, lib: &str) -> Result<String> {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    if !first.starts_with("prefix=") {
        bail!("a file for pkg-config begins with {first:?}, and not with its prefix");
    }
    let rest = rest.replace("${prefix}/lib", &format!("${{prefix}}/{lib}"));
    Ok(format!("prefix={prefix}\n{rest}"))
}

/// An empty folder.
pub(crate) fn anew(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Copies a file, and makes the folders that it lies in. Anybody may read it, and run it if it can
/// be run.
pub(crate) fn put(from: &Path, to: &Path) -> Result<()> {
    parent(to)?;
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    let mode = fs::metadata(from)?.permissions().mode();
    let mode = if mode & 0o100 != 0 { 0o755 } else { 0o644 };
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Writes a file, and makes the folders that it lies in.
pub(crate) fn write(to: &Path, text: &str) -> Result<()> {
    parent(to)?;
    fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))
}

fn parent(of: &Path) -> Result<()> {
    let folder = of.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Copies all files and links below `from` to an empty folder `to`.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    anew(to)?;
    for path in files(from)? {
        let at = to.join(path.strip_prefix(from)?);
        if path.is_symlink() {
            parent(&at)?;
            symlink(fs::read_link(&path)?, &at)?;
        } else {
            put(&path, &at)?;
        }
    }
    Ok(())
}

/// All files and links below `folder`, in order.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in listed(folder)? {
        if path.is_dir() && !path.is_symlink() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pkg_config_is_told_where_the_library_lies() {
        let pc = "prefix=/usr/local\nlibdir=${prefix}/lib\nCflags: -I${prefix}/include\n";
        let moved = with_prefix(pc, "/usr", "lib/x86_64-linux-gnu").unwrap();
        assert_eq!(
            moved,
            "prefix=/usr\nlibdir=${prefix}/lib/x86_64-linux-gnu\nCflags: -I${prefix}/include\n"
        );
        assert!(with_prefix("Name: farpage\n", "/usr", "lib").is_err());
    }

    #[test]
    fn the_readme_of_the_tar_file_is_short() {
        assert!(README.lines().count() <= 11);
    }
}
