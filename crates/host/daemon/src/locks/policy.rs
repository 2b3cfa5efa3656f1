//! Who is told which frames memory lies in.

use farpage_sys::linux::general::CAP_SYS_ADMIN;

use super::caller::Caller;

/// Who is told the frames of what it has locked: as long as nobody is named, who may read them itself
/// (`CAP_SYS_ADMIN`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FramesTold {
    /// Nobody.
    pub nobody: bool,
    /// Also these users.
    pub users: Vec<u32>,
    /// Also who is in one of these groups.
    pub groups: Vec<u32>,
}

impl FramesTold {
    pub(super) fn allows(&self, caller: &Caller) -> bool {
        let is_named = || {
            self.users.contains(&caller.uid) || self.groups.iter().any(|group| caller.is_in(*group))
        };
        !self.nobody && (is_named() || caller.has(CAP_SYS_ADMIN))
    }
}

impl std::fmt::Display for FramesTold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nobody {
            return f.write_str("nobody");
        }
        f.write_str("processes with CAP_SYS_ADMIN")?;
        let users = self.users.iter().map(|user| format!(", user {user}"));
        let groups = self.groups.iter().map(|group| format!(", group {group}"));
        users.chain(groups).try_for_each(|one| f.write_str(&one))
    }
}
