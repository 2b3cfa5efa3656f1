//! Clean-up that happens even when this process is killed: a shell waits on a pipe from us, and
//! when the pipe closes, for whatever reason, it runs its script.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Runs its script when dropped, or when this process dies.
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// `script` sees `args` as `$1`, `$2` and so on.
    ///
    /// # Errors
    /// When there is no shell.
    pub fn new(script: &str, args: &[&str]) -> Result<Self> {
        Self::start(script, args, Stdio::inherit())
    }

    /// As [`Guard::new`]. The file stays locked until the script has ended: it is where the script would
    /// print to.
    pub(crate) fn with_lock(script: &str, args: &[&str], locked: &File) -> Result<Self> {
        let locked = locked
            .try_clone()
            .context("cannot duplicate a descriptor")?;
        Self::start(script, args, locked.into())
    }

    fn start(script: &str, args: &[&str], output: Stdio) -> Result<Self> {
        let shell = Command::new("/bin/sh")
            .args(["-c", &format!("read _; {script}"), "sh"])
            .args(args)
            // It outlives the test that it cleans up after, when all that have the first two are killed, and all for
            // which the test's folder is mounted, but for those that have the last.
            .env_remove("FARPAGE_TEST_CELL")
            .env_remove("FARPAGE_TEST_RUN")
            .env("FARPAGE_TEST_GUARD", "1")
            .process_group(0) // a ^C is not for it
            .stdin(Stdio::piped())
            .stdout(output)
            .spawn()
            .context("cannot start sh")?;
        Ok(Self { shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        if let Err(e) = self.shell.wait() {
            eprintln!("clean-up: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Guard;

    #[test]
    fn the_script_runs_at_drop_and_not_before() {
        let file = std::env::temp_dir().join(format!("guard-{}", std::process::id()));
        let guard = Guard::new(r#"echo done > "$1""#, &[&file.display().to_string()]).unwrap();
        assert!(!file.exists());
        drop(guard);
        assert!(file.exists());
        std::fs::remove_file(file).unwrap();
    }
}
