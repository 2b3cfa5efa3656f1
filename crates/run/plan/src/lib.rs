//! What starting an ELF program takes, as a list of commands, found without reading the program.
//!
//! [`plan`] takes the size of a file and a function that reads ranges of it, and gives the
//! [`Plan`]: what is mapped from where to where, what is zeros, what else must be loaded, what is
//! relocated, and which pages Linux itself reads or writes to before the program's first
//! instruction. The commands are those of Mach's loader: `READ_ONLY`, `WRITEABLE`, `ZEROFILL`,
//! `REGISTER`, `LOADFILE`, `RELOCATE`, `END_LOAD`. It asks for few and small ranges, because the
//! file may be on another machine.
//!
//! What a file says about itself is a claim: every number is checked against the others and against
//! the size of the file. What a [`Plan`] maps lies inside the file.
//!
//! This crate is pure: no I/O, no clock, no threads, no unsafe code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod dynamic;
mod error;
mod parse;
mod ranges;

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use serde::Serialize;

pub use error::{LoadError, PlanError};
pub use parse::plan;

/// Bytes of a page: what is mapped, and fetched, at a time.
pub const PAGE_BYTES: u64 = 4096;

/// What an ELF file is, as far as loading it depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A program at a fixed address, started by a dynamic linker.
    Dynamic,
    /// A program at any address, started by a dynamic linker.
    DynamicPie,
    /// A program at a fixed address that needs nothing else.
    Static,
    /// A program at any address that needs nothing else.
    StaticPie,
    /// No program: it is loaded by one.
    Library,
}

impl Kind {
    /// True of what can be executed.
    pub fn is_program(self) -> bool {
        self != Self::Library
    }

    /// True when addresses are relative to where the file is loaded.
    pub fn is_relative(self) -> bool {
        matches!(self, Self::DynamicPie | Self::StaticPie | Self::Library)
    }
}

/// What may be done to a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Protection {
    /// It may be read.
    pub read: bool,
    /// It may be written to.
    pub write: bool,
    /// It may be executed.
    pub execute: bool,
}

/// Why another file is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Linux maps it and starts it: the dynamic linker.
    Interpreter,
    /// The dynamic linker looks for it and maps it.
    Library,
}

/// One step of loading. Addresses are relative when [`Kind::is_relative`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "command", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Command {
    /// Map a part of the file that is not written to: one copy for all tasks.
    ReadOnly {
        /// Bytes of the file.
        file: Range<u64>,
        /// Where they are.
        address: Range<u64>,
        /// What may be done there.
        protection: Protection,
    },
    /// Map a part of the file copy-on-write.
    Writeable {
        /// Bytes of the file.
        file: Range<u64>,
        /// Where they are.
        address: Range<u64>,
        /// What may be done there.
        protection: Protection,
    },
    /// Memory that begins as zeros.
    #[serde(rename = "ZEROFILL")]
    ZeroFill {
        /// Where.
        address: Range<u64>,
    },
    /// Start the first thread.
    Register {
        /// The program's own first instruction.
        entry: u64,
        /// Bytes of thread-local storage that every thread has.
        tls_bytes: u64,
        /// The stack can be executed.
        executable_stack: bool,
    },
    /// Map another file.
    #[serde(rename = "LOADFILE")]
    LoadFile {
        /// A path, or a name that is looked for.
        name: String,
        /// What it is for.
        role: Role,
    },
    /// Change addresses in what was mapped.
    Relocate {
        /// `RELA`, `JMPREL` or `RELR`.
        table: &'static str,
        /// Bytes of the file that say where and how.
        file: Range<u64>,
        /// How many entries.
        entries: u64,
    },
    /// All is there.
    EndLoad,
}

/// What loading a file takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What the file is.
    pub kind: Kind,
    /// Its size.
    pub bytes: u64,
    /// The steps, in their order.
    pub commands: Vec<Command>,
    /// Bytes of the file that Linux reads, or writes copies of, before the program's first
    /// instruction: whole pages, in order, apart from each other.
    pub before_start: Vec<Range<u64>>,
    /// Folders in which its libraries are looked for first, as it names them.
    pub search: Vec<String>,
}

impl Plan {
    /// The dynamic linker that it asks for.
    pub fn interpreter(&self) -> Option<&str> {
        self.files(Role::Interpreter).next()
    }

    /// The libraries that it asks for.
    pub fn libraries(&self) -> impl Iterator<Item = &str> {
        self.files(Role::Library)
    }

    fn files(&self, wanted: Role) -> impl Iterator<Item = &str> {
        self.commands
            .iter()
            .filter_map(move |command| match command {
                Command::LoadFile { name, role } if *role == wanted => Some(name.as_str()),
                _ => None,
            })
    }

    /// Bytes of the file that are mapped.
    pub fn mapped_bytes(&self) -> u64 {
        let bytes = self.commands.iter().map(|command| match command {
            Command::ReadOnly { file, .. } | Command::Writeable { file, .. } => {
                file.end - file.start
            }
            _ => 0,
        });
        bytes.sum()
    }

    /// Bytes fetched before the program's first instruction.
    pub fn bytes_before_start(&self) -> u64 {
        let ranges = self.before_start.iter();
        ranges.map(|range| range.end - range.start).sum()
    }
}
