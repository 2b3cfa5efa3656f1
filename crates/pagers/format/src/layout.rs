//! What a file holds and where.

use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::dtype::Element;
use crate::error::{FormatError, array};
use crate::source::little;

/// Most dimensions of an array: as many as NumPy has.
pub const DIMENSIONS_MAX: usize = 64;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One array of NumPy.
    Npy,
    /// A zip archive of such.
    Npz,
    /// Named tensors under one JSON header.
    Safetensors,
    /// An Arrow IPC file, also called Feather version 2.
    Arrow,
    /// Nothing but numbers.
    Raw,
}

/// The arrays of a file. All lie inside it, and no two have the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The format.
    pub kind: Kind,
    /// In the order of the file's own table of contents.
    pub tensors: Vec<Tensor>,
}

/// One array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name; empty where the format has none (npy, raw).
    pub name: String,
    /// What one element is.
    pub element: Element,
    /// Elements in each dimension; none for a single element.
    pub shape: Vec<u64>,
    /// Whether the first dimension is the one that varies fastest, as in Fortran, not the last.
    pub fortran: bool,
    /// Where it begins in the file, in bytes; of no particular alignment.
    pub offset: u64,
    /// Its length in bytes: that of an element times the product of `shape`.
    pub bytes: u64,
}

impl Kind {
    /// What a file is by its first bytes. `None`: they are of no format that is known.
    pub(crate) fn of_bytes(head: &[u8], size: u64) -> Option<Self> {
        let begins = |magic: &[u8]| head.starts_with(magic);
        if begins(b"\x93NUMPY") {
            return Some(Self::Npy);
        }
        if begins(b"PK\x03\x04") || begins(b"PK\x05\x06") {
            return Some(Self::Npz);
        }
        if begins(b"ARROW1") {
            return Some(Self::Arrow);
        }
        // No magic: a length that fits, then a JSON object.
        let length = little::<8>(head, 0)?;
        let fits = length >= 2 && length <= size.saturating_sub(8);
        (fits && head.get(8) == Some(&b'{')).then_some(Self::Safetensors)
    }

    /// What a file should be by the extension of its name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let name = name.split(['?', '#']).next().unwrap_or(name);
        let (_, extension) = name.rsplit_once('.')?;
        match extension.to_ascii_lowercase().as_str() {
            "npy" => Some(Self::Npy),
            "npz" => Some(Self::Npz),
            "safetensors" => Some(Self::Safetensors),
            "arrow" | "feather" | "ipc" => Some(Self::Arrow),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::Safetensors => "safetensors",
            Self::Arrow => "Arrow",
            Self::Raw => "raw",
        })
    }
}

impl Layout {
    /// The array called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Checks what holds in every format.
    pub(crate) fn checked(
        kind: Kind,
        size: u64,
        tensors: Vec<Tensor>,
    ) -> Result<Self, FormatError> {
        let mut names = BTreeSet::new();
        for tensor in &tensors {
            tensor.check(size)?;
            if !names.insert(tensor.name.as_str()) {
                let name = tensor.name.clone();
                return Err(FormatError::Duplicate { name });
            }
        }
        Ok(Self { kind, tensors })
    }
}

impl Tensor {
    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    fn check(&self, size: u64) -> Result<(), FormatError> {
        let bytes = length(&self.name, &self.shape, self.element.bytes())?;
        if bytes != self.bytes {
            let why = alloc::format!("it takes {bytes} bytes, and {} are there", self.bytes);
            return Err(FormatError::shape(&*self.name, why));
        }
        let end = self.offset.saturating_add(self.bytes);
        if end > size {
            return Err(FormatError::Outside {
                what: array(&self.name),
                begin: self.offset,
                end,
                size,
            });
        }
        Ok(())
    }
}

/// Bytes of an array of `shape`.
pub(crate) fn length(name: &str, shape: &[u64], element: u64) -> Result<u64, FormatError> {
    if shape.len() > DIMENSIONS_MAX {
        let why = alloc::format!("{} dimensions, more than {DIMENSIONS_MAX}", shape.len());
        return Err(FormatError::shape(name, why));
    }
    // Zeros are left out, so that the result does not depend on where they stand.
    let product = |all: u64, &one: &u64| all.checked_mul(one.max(1));
    let most = shape.iter().try_fold(element.max(1), product);
    let Some(most) = most.filter(|&most| most <= i64::MAX as u64) else {
        let why = "more bytes than can be addressed".to_string();
        return Err(FormatError::shape(name, why));
    };
    let empty = element == 0 || shape.contains(&0);
    Ok(if empty { 0 } else { most })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use alloc::vec;

    fn tensor(name: &str, shape: &[u64], offset: u64, bytes: u64) -> Tensor {
        Tensor {
            name: name.to_string(),
            element: Element::little(Dtype::F32),
            shape: shape.to_vec(),
            fortran: false,
            offset,
            bytes,
        }
    }

    #[test]
    fn lengths_that_overflow_are_refused_wherever_the_zero_stands() {
        assert_eq!(length("", &[3, 5], 4), Ok(60));
        assert_eq!(length("", &[], 4), Ok(4));
        assert_eq!(length("", &[7, 0], 4), Ok(0));
        assert_eq!(length("", &[7], 0), Ok(0));
        assert!(length("", &[1 << 32, 1 << 32], 4).is_err());
        assert!(length("", &[0, 1 << 32, 1 << 32], 4).is_err());
        assert!(length("", &[1 << 32, 1 << 32, 0], 4).is_err());
        assert!(length("", &[1 << 61], 4).is_err());
        assert!(length("", &[1; 64], 4).is_ok());
        assert!(length("", &[1; 65], 4).is_err());
    }

    #[test]
    fn a_layout_lies_inside_its_file() {
        let checked = |tensors| Layout::checked(Kind::Raw, 100, tensors);
        assert!(checked(vec![tensor("a", &[5, 5], 0, 100)]).is_ok());
        let outside = checked(vec![tensor("a", &[5, 5], 1, 100)]);
        assert!(matches!(
            outside,
            Err(FormatError::Outside { end: 101, .. })
        ));
        let outside = checked(vec![tensor("a", &[5], u64::MAX, 20)]);
        assert!(matches!(outside, Err(FormatError::Outside { .. })));
        let short = checked(vec![tensor("a", &[5, 5], 0, 96)]);
        assert!(matches!(short, Err(FormatError::Shape { .. })));
    }

    #[test]
    fn names_that_stand_twice_are_refused() {
        let two = |a, b| {
            let tensors = vec![tensor(a, &[1], 0, 4), tensor(b, &[1], 4, 4)];
            Layout::checked(Kind::Raw, 8, tensors)
        };
        assert!(two("a", "b").is_ok());
        let name = "a".to_string();
        assert_eq!(two("a", "a"), Err(FormatError::Duplicate { name }));
    }

    #[test]
    fn the_first_bytes_say_what_a_file_is() {
        let of = |head: &[u8]| Kind::of_bytes(head, 1000);
        assert_eq!(of(b"\x93NUMPY\x01\x00"), Some(Kind::Npy));
        assert_eq!(of(b"PK\x03\x04"), Some(Kind::Npz));
        assert_eq!(of(b"ARROW1\0\0"), Some(Kind::Arrow));
        assert_eq!(of(b"\x02\0\0\0\0\0\0\0{}"), Some(Kind::Safetensors));
        assert_eq!(of(b"\xe1\x03\0\0\0\0\0\0{}"), None); // longer than the file
        assert_eq!(of(b"\x02\0\0\0\0\0\0\0[]"), None);
        assert_eq!(of(b""), None);
    }

    #[test]
    fn extensions_are_found_in_addresses_too() {
        assert_eq!(Kind::of_name("a/b.NPY"), Some(Kind::Npy));
        assert_eq!(
            Kind::of_name("http://x/y.safetensors?v=1.2"),
            Some(Kind::Safetensors)
        );
        assert_eq!(Kind::of_name("x.feather"), Some(Kind::Arrow));
        assert_eq!(Kind::of_name("x.bin"), None);
        assert_eq!(Kind::of_name("npy"), None);
    }
}
