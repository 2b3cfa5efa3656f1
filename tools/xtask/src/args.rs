//! Command-line arguments: options may stand anywhere, what nobody asked for is an error.

use anyhow::{Result, anyhow, bail};

/// The arguments that are still to be looked at.
#[derive(Clone)]
pub(crate) struct Args {
    left: Vec<String>,
}

impl Args {
    pub(crate) fn new(args: impl Iterator<Item = String>) -> Self {
        Self {
            left: args.collect(),
        }
    }

    /// Takes the next word that is not an option.
    pub(crate) fn word(&mut self) -> Option<String> {
        let first = self.left.first()?;
        (!first.starts_with('-')).then(|| self.left.remove(0))
    }

    /// Takes `--help` or `-h` if it is there.
    pub(crate) fn wants_help(&mut self) -> bool {
        self.flag("--help") || self.flag("-h")
    }

    /// Takes `--name` if it is there.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        let at = self.left.iter().position(|a| a == name);
        at.map(|i| self.left.remove(i)).is_some()
    }

    /// Takes every `--name VALUE`.
    pub(crate) fn values(&mut self, name: &str) -> Result<Vec<String>> {
        let mut found = Vec::new();
        while let Some(i) = self.left.iter().position(|a| a == name) {
            self.left.remove(i);
            if i >= self.left.len() {
                bail!("{name} needs a value");
            }
            found.push(self.left.remove(i));
        }
        Ok(found)
    }

    /// Takes the last `--name VALUE`.
    pub(crate) fn value(&mut self, name: &str) -> Result<Option<String>> {
        Ok(self.values(name)?.pop())
    }

    /// Takes the last `--name NUMBER`, or gives `default`.
    pub(crate) fn number<T: std::str::FromStr>(&mut self, name: &str, default: T) -> Result<T> {
        Ok(self.given(name)?.unwrap_or(default))
    }

    /// Takes the last `--name NUMBER`.
    pub(crate) fn given<T: std::str::FromStr>(&mut self, name: &str) -> Result<Option<T>> {
        let parse = |v: String| {
            v.parse()
                .map_err(|_| anyhow!("{name} {v}: not a number of its kind"))
        };
        self.value(name)?.map(parse).transpose()
    }

    /// Refuses what is left.
    pub(crate) fn finish(self) -> Result<()> {
        match self.left.first() {
            Some(a) => bail!("unknown argument {a}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Args;

    fn args(line: &str) -> Args {
        Args::new(line.split_whitespace().map(String::from))
    }

    #[test]
    fn options_may_stand_anywhere() {
        let mut a = args("corpus --full x --only a --only b");
        assert_eq!(a.word().as_deref(), Some("corpus"));
        assert!(a.flag("--full"));
        assert_eq!(a.values("--only").unwrap(), ["a", "b"]);
        assert_eq!(a.word().as_deref(), Some("x"));
        assert!(a.finish().is_ok());
    }

    #[test]
    fn help_is_never_taken_for_a_word() {
        let mut a = args("test --help");
        assert_eq!(a.word().as_deref(), Some("test"));
        assert_eq!(a.word(), None);
        assert!(a.wants_help());
        assert!(args("-h").wants_help());
        assert!(!args("test helps").wants_help());
    }

    #[test]
    fn unknown_arguments_and_missing_values_are_refused() {
        assert!(args("--nonsense").finish().is_err());
        assert!(args("--runs").value("--runs").is_err());
        assert!(args("--runs many").number("--runs", 5_u32).is_err());
    }
}
