//! How full paging space is, as it is told.

use serde::{Deserialize, Serialize};

/// Where pages go that do not fit into memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingSpace {
    /// Compressed pages in RAM.
    pub compressed_bytes: u64,
    /// The most that they may take.
    pub compressed_max_bytes: u64,
    /// Paging files.
    pub files: Vec<PagingFile>,
    /// The process that is the default pager. `None`: the host kernel itself is.
    pub process: Option<PagingProcess>,
    /// Pages still move to it from the one before.
    pub is_moving: bool,
    /// Processes that were the default pager and died with pages, which are lost.
    pub died: Vec<u32>,
    /// Pages that could not be read when they were to move, and are lost.
    pub unreadable_pages: u64,
}

/// A process that is the default pager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingProcess {
    /// Its number.
    pub pid: u32,
    /// How far it is wired, in words.
    pub wired: String,
    /// It owes an answer for seconds.
    pub is_late: bool,
}

/// A paging file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingFile {
    /// The folder that it is in.
    pub folder: String,
    /// What pages take in it.
    pub used_bytes: u64,
    /// What it may take. `None`: as its disk allows.
    pub limit_bytes: Option<u64>,
    /// Its disk took nothing more when it was last tried.
    pub is_full: bool,
    /// The system error of that, unless the disk was full.
    #[serde(default)]
    pub write_error: Option<i32>,
}
