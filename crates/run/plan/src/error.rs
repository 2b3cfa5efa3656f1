//! What can be wrong with a program.

use alloc::string::String;

use thiserror::Error;

/// Why a file cannot be loaded: what it is, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LoadError {
    /// Nothing is in it.
    #[error("it is empty; fetch it again")]
    Empty,
    /// It begins with `#!`.
    #[error(
        "it is a script for '{0}', and only programs are loaded; start '{0}' and give the script \
         as its argument"
    )]
    Script(String),
    /// It is something else.
    #[error("it is no ELF program: it does not begin with 7f 45 4c 46; check the address")]
    NotElf,
    /// It is for 32-bit processors.
    #[error("it is a 32-bit program; only 64-bit ones are loaded; get the one for x86-64")]
    NotWide,
    /// Its numbers have another byte order.
    #[error("it is big-endian, and this machine is not; get the one for x86-64")]
    BigEndian,
    /// It is for another processor.
    #[error(
        "it is for another machine (ELF number {0}; x86-64 is 62); get the one for this machine"
    )]
    Machine(u16),
    /// It is neither a program nor a library.
    #[error("it is {0}, no program; link it first")]
    Type(&'static str),
    /// A number of the header cannot be.
    #[error("its {what} cannot be ({value}): it is damaged; fetch it again")]
    Header {
        /// Which.
        what: &'static str,
        /// It.
        value: u64,
    },
    /// A part of it is not there.
    #[error(
        "its {what} lies at bytes {begin}..{end}, but only {size} are there: it is cut off or \
         damaged; fetch it again"
    )]
    Outside {
        /// Which part.
        what: &'static str,
        /// First byte.
        begin: u64,
        /// One past the last.
        end: u64,
        /// Bytes of the file.
        size: u64,
    },
    /// Nothing of it is mapped.
    #[error("it has nothing to map (no PT_LOAD): it is damaged; fetch it again")]
    Nothing,
    /// A segment is impossible.
    #[error("its segment {number} {why}: it is damaged; fetch it again")]
    Segment {
        /// Counted among the program headers.
        number: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The first instruction is nowhere.
    #[error(
        "its first instruction, at {0:#x}, is not in memory that can be executed: it is damaged; fetch it again"
    )]
    Entry(u64),
    /// The dynamic linker's name is wrong.
    #[error("the name of its dynamic linker {0}: it is damaged; fetch it again")]
    Interpreter(&'static str),
    /// The dynamic section is wrong.
    #[error("its dynamic section {0}: it is damaged; fetch it again")]
    Dynamic(&'static str),
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError<E> {
    /// The file cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A range cannot be read.
    #[error("cannot read bytes {offset}..{} of it", offset + *bytes as u64)]
    Read {
        /// First byte.
        offset: u64,
        /// How many.
        bytes: usize,
        /// Why.
        #[source]
        error: E,
    },
    /// Another number of bytes came than was asked for.
    #[error("{got} bytes came from byte {offset} on instead of {asked}")]
    ShortRead {
        /// First byte.
        offset: u64,
        /// How many were asked for.
        asked: usize,
        /// How many came.
        got: usize,
    },
}
