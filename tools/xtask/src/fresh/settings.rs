//! What a fresh machine takes over from this one: how to reach the package registries, and which
//! certificates to trust. All of it is copied, so nothing that runs there can change it here.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::proc;

/// Files and folders that are taken where they exist.
const FILES: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/pip.conf",
    "/etc/npmrc",
    "/etc/apt/apt.conf",
    "/etc/apt/auth.conf",
    "/etc/apt/auth.conf.d",
    "/etc/apt/keyrings",
    "/usr/local/share/ca-certificates",
];

/// The same, where this machine is of the Debian release that the fresh one is.
const SOURCES: &[&str] = &[
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/debian.sources",
];

/// The same, in the home of a user.
const HOME_FILES: &[&str] = &[
    ".cargo/config.toml",
    ".npmrc",
    ".config/pip/pip.conf",
    ".config/go/env",
];

/// Packages that cargo has downloaded before, so that a slow network does not matter. Each is
/// checked against `Cargo.lock`, and nothing that was built is among them.
const DOWNLOADS: &[&str] = &["registry/index", "registry/cache"];

/// Variables that are taken: these, and what begins with one of the prefixes.
const VARIABLES: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "GOPROXY",
    "GONOPROXY",
    "GOPRIVATE",
    "GOSUMDB",
    "GONOSUMDB",
];

const PREFIXES: &[&str] = &[
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTRY_",
    "CARGO_REGISTRIES_",
    "CARGO_SOURCE_",
    "PIP_",
    "npm_config_",
];

/// Copies what the whole machine has into `root`.
pub(crate) fn system(root: &Path, release: &str) -> Result<()> {
    let taken = FILES.iter().map(PathBuf::from).chain(apt_options());
    let same = fs::read_to_string("/etc/os-release")
        .is_ok_and(|text| text.contains(&format!("VERSION_CODENAME={release}")));
    let sources: Vec<PathBuf> = SOURCES
        .iter()
        .map(PathBuf::from)
        .filter(|path| same && path.exists())
        .collect();
    if !sources.is_empty() {
        // The same list in two files makes apt complain.
        fs::remove_file(root.join("etc/apt/sources.list"))?;
    }
    for from in taken.chain(sources).filter(|path| path.exists()) {
        copy(&from, &root.join(from.strip_prefix("/")?))?;
    }
    fs::write(
        root.join("etc/hosts"),
        "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 fresh\n",
    )?;
    Ok(())
}

/// Options of apt that say how to download. Others are for programs that are not there.
fn apt_options() -> Vec<PathBuf> {
    let options = fs::read_dir("/etc/apt/apt.conf.d").into_iter().flatten();
    let downloads = |path: &PathBuf| {
        fs::read_to_string(path).is_ok_and(|text| {
            text.lines()
                .any(|line| line.trim_start().starts_with("Acquire"))
        })
    };
    options
        .flatten()
        .map(|entry| entry.path())
        .filter(downloads)
        .collect()
}

/// Copies what this user has into `home`, which belongs to `owner` then.
pub(crate) fn home(home: &Path, owner: u32) -> Result<()> {
    let here = PathBuf::from(env::var_os("HOME").context("HOME is not set")?);
    let cargo = env::var_os("CARGO_HOME").map_or(here.join(".cargo"), PathBuf::from);
    let settings = HOME_FILES.iter().map(|file| (here.join(file), *file));
    for (from, file) in settings.filter(|(from, _)| from.exists()) {
        copy(&from, &home.join(file))?;
    }
    for folder in DOWNLOADS {
        let from = cargo.join(folder);
        if from.exists() {
            copy(&from, &home.join(".cargo").join(folder))?;
        }
    }
    let mut chown = Command::new("chown");
    chown.args(["-R", &format!("{owner}:{owner}")]).arg(home);
    proc::output(&mut chown, "chown").map(drop)
}

/// The variables of this process that are taken. One that names a file which is not in `root` would
/// only break something.
pub(crate) fn variables(root: &Path) -> Vec<(String, String)> {
    let wanted = |name: &str| {
        VARIABLES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let there = |value: &str| match value.strip_prefix('/') {
        Some(path) => root.join(path).exists(),
        None => true,
    };
    env::vars()
        .filter(|(name, value)| wanted(name) && there(value))
        .collect()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut cp = Command::new("cp");
    cp.args(["-aLT", "--"]).args([from, to]);
    proc::output(&mut cp, &format!("cp {}", from.display())).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_names_a_missing_file_stays_behind() {
        // The variables of this process cannot be set here: what is taken is looked at instead.
        for (name, value) in variables(Path::new("/nowhere")) {
            assert!(!value.starts_with('/'), "{name}={value}");
        }
    }

    #[test]
    fn options_of_apt_that_say_how_to_download_are_taken() {
        for path in apt_options() {
            assert!(fs::read_to_string(path).unwrap().contains("Acquire"));
        }
    }
}
