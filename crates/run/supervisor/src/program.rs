//! Finding the program as a shell does, and saying what is wrong with it as a shell does.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Why a program can't be run.
#[derive(Debug, PartialEq, Eq)]
pub enum Unusable {
    /// No such file, or none in `PATH`: exit status 127.
    NotFound(String),
    /// A file that can't be executed: exit status 126.
    NotExecutable(String),
}

impl Unusable {
    /// The exit status that shells give for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
        }
    }
}

impl std::error::Error for Unusable {}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound(what) | Self::NotExecutable(what) => f.write_str(what),
        }
    }
}

/// The file that running `name` means, when `PATH` is `path`.
///
/// # Errors
/// When there is none, or none that may be executed.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Unusable> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name)).map_err(|why| match why {
            Fault::Missing => Unusable::NotFound(format!(
                "cannot run '{shown}': there is no such file; check the path"
            )),
            Fault::Unusable(why) => Unusable::NotExecutable(format!("cannot run '{shown}': {why}")),
        });
    }
    let mut refused = None;
    let default = OsStr::new("/usr/local/bin:/usr/bin:/bin");
    for dir in std::env::split_paths(path.unwrap_or(default)) {
        let dir = if dir.as_os_str().is_empty() {
            PathBuf::from(".")
        } else {
            dir
        };
        let file = dir.join(name);
        if file.is_dir() {
            continue;
        }
        match check(&file) {
            Ok(file) => return Ok(file),
            Err(Fault::Missing) => {}
            Err(Fault::Unusable(why)) => {
                refused.get_or_insert(format!("cannot run '{}': {why}", file.display()));
            }
        }
    }
    Err(match refused {
        Some(refused) => Unusable::NotExecutable(refused),
        None => Unusable::NotFound(format!(
            "cannot run '{shown}': no directory of PATH has it; \
             check the spelling or give its path"
        )),
    })
}

enum Fault {
    Missing,
    Unusable(String),
}

fn check(file: &Path) -> Result<PathBuf, Fault> {
    let meta = match file.metadata() {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let why = "a directory on the way may not be searched; ask its owner";
            return Err(Fault::Unusable(why.to_string()));
        }
        Err(_) => return Err(Fault::Missing),
    };
    if meta.is_dir() {
        let why = "it is a directory; give the program in it";
        return Err(Fault::Unusable(why.to_string()));
    }
    if access(file, Access::EXEC_OK).is_err() {
        let why = match meta.mode() & 0o111 {
            0 => format!(
                "it is not executable; if it is a program, run: chmod +x {}",
                file.display()
            ),
            _ => "this user may not execute it; ask its owner".to_owned(),
        };
        return Err(Fault::Unusable(why));
    }
    Ok(file.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_path_and_by_path() {
        let path = Some(OsStr::new("/nowhere:/bin"));
        assert_eq!(find(OsStr::new("sh"), path), Ok(PathBuf::from("/bin/sh")));
        let direct = find(OsStr::new("/bin/sh"), None);
        assert_eq!(direct, Ok(PathBuf::from("/bin/sh")));
    }

    #[test]
    fn missing_programs_are_127_and_unusable_ones_126() {
        let path = Some(OsStr::new("/bin"));
        for name in ["no-such-program", "/no/such/program", ""] {
            let refused = find(OsStr::new(name), path).unwrap_err();
            assert_eq!(refused.exit_code(), 127, "{refused}");
        }
        for name in ["/etc/passwd", "/tmp"] {
            let refused = find(OsStr::new(name), path).unwrap_err();
            assert_eq!(refused.exit_code(), 126, "{refused}");
        }
        let in_path = find(OsStr::new("passwd"), Some(OsStr::new("/etc"))).unwrap_err();
        assert_eq!(in_path.exit_code(), 126);
    }
}
