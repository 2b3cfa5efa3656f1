//! What programs find shared memory by, and how the store has it.

use std::path::Path;

use super::super::FOLDER;

/// What programs find shared memory by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Name {
    /// A file, by its path in the folder.
    File(String),
    /// A segment of System V, by its key.
    Segment(u32),
}

impl Name {
    /// As the store has it.
    pub(super) fn stored(&self) -> String {
        match self {
            Self::File(path) => {
                format!("shm:{}", path.replace('%', "%25").replace('/', "%2F"))
            }
            Self::Segment(key) => format!("sysv:{key:#010x}"),
        }
    }

    /// As it is stored, if it is one of these.
    pub(super) fn from_stored(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("shm:") {
            let path = path.replace("%2F", "/").replace("%25", "%");
            let is_inside = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
            return is_inside.then_some(Self::File(path));
        }
        let key = text.strip_prefix("sysv:0x")?;
        u32::from_str_radix(key, 16).ok().map(Self::Segment)
    }

    /// Of a file in the folder.
    pub(super) fn of_path(path: &Path) -> Option<Self> {
        let path = path.strip_prefix(FOLDER).ok()?.to_str()?;
        Self::from_stored(&Self::File(path.into()).stored())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stored_without_slashes_and_come_back() {
        for name in [
            Name::File("psm_1".into()),
            Name::File("a folder/50%2F/x".into()),
            Name::Segment(0xdead_beef),
            Name::Segment(1),
        ] {
            let stored = name.stored();
            assert!(!stored.contains('/'), "{stored}");
            assert_eq!(Name::from_stored(&stored), Some(name));
        }
        for none in [
            "grid",
            "shm:",
            "shm:..%2Fetc",
            "shm:a%2F%2Fb",
            "sysv:7",
            "sysv:0xg",
        ] {
            assert_eq!(Name::from_stored(none), None, "{none}");
        }
    }
}
