//! What can be wrong with a file.

use alloc::string::String;

use thiserror::Error;

use crate::layout::Kind;

/// Why [`crate::open`] found no layout. `E` is the error of the function that reads ranges.
#[derive(Debug, Error)]
pub enum OpenError<E> {
    /// A range could not be read.
    #[error("cannot read {bytes} bytes at offset {offset}: {error}")]
    Read {
        /// Where the range begins.
        offset: u64,
        /// Its length.
        bytes: usize,
        /// What the reader says.
        error: E,
    },
    /// The file is not what it should be.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// Neither the first bytes nor the name say what the file is.
    #[error(
        "the file is neither npy, npz, safetensors nor Arrow, by its first bytes and its name; \
         give its dtype to read it as raw numbers"
    )]
    Unknown,
    /// The file breaks the rules of its format.
    #[error("not a valid {kind} file: {why}; get or write it again")]
    Invalid {
        /// The format.
        kind: Kind,
        /// The rule.
        why: String,
    },
    /// Something lies beyond the end.
    #[error(
        "{what} should be at bytes {begin}..{end}, but only {size} are there: \
         the file is cut off or damaged; get it again"
    )]
    Outside {
        /// What it is.
        what: String,
        /// Its first byte.
        begin: u64,
        /// The byte after its last.
        end: u64,
        /// The bytes that are there.
        size: u64,
    },
    /// A shape and a number of bytes that do not belong together.
    #[error(
        "{} cannot have this shape: {why}; get or write the file again",
        array(name)
    )]
    Shape {
        /// The array.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// Two arrays of one name.
    #[error("two arrays are called {name:?}, so neither can be asked for; rename one")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// Bytes that belong to two arrays, or to none where the format forbids it.
    #[error("array {name:?} begins at byte {begin} of the data and not at {expected}, {why}")]
    Overlap {
        /// The second array.
        name: String,
        /// Where it begins.
        begin: u64,
        /// Where the array before it ends.
        expected: u64,
        /// What that means.
        why: &'static str,
    },
    /// Python objects, which cannot be mapped, and loading which runs code.
    #[error(
        "{} holds Python objects (a pickle), not numbers; \
         save it with a numeric dtype: array.astype(float)",
        array(name)
    )]
    Pickled {
        /// The array.
        name: String,
    },
    /// Contents that are not stored byte by byte.
    #[error("{name:?} is compressed ({how}), so it cannot be mapped; {remedy}")]
    Compressed {
        /// The array or entry.
        name: String,
        /// The method.
        how: String,
        /// How to write a file that can.
        remedy: &'static str,
    },
    /// Something valid that is not implemented.
    #[error("{name:?} {what}, which cannot be mapped; {remedy}")]
    Unsupported {
        /// The array, entry or file.
        name: String,
        /// What it has.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The caller's shape and the size of a raw file do not belong together.
    #[error("cannot read {size} bytes as {element} of shape {shape}: {why}")]
    RawShape {
        /// Bytes of the file.
        size: u64,
        /// What one element is.
        element: String,
        /// The shape asked for.
        shape: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The function that reads ranges gave another number of bytes than asked for.
    #[error(
        "the reader gave {got} bytes for the {asked} at offset {offset}: \
         the file changed, or the reader is wrong; open it again"
    )]
    ShortRead {
        /// Where the range begins.
        offset: u64,
        /// Its length.
        asked: usize,
        /// What came.
        got: usize,
    },
}

/// What messages call an array, which may have no name.
pub(crate) fn array(name: &str) -> String {
    match name {
        "" => String::from("the array"),
        name => alloc::format!("array {name:?}"),
    }
}

impl FormatError {
    pub(crate) fn invalid(kind: Kind, why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Invalid { kind, why }
    }

    pub(crate) fn shape(name: impl Into<String>, why: impl Into<String>) -> Self {
        let (name, why) = (name.into(), why.into());
        Self::Shape { name, why }
    }
}
