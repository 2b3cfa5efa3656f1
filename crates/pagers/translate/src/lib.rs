//! Numbers of other machines and formats, translated when a page comes in and back when it leaves.
//!
//! A program sees an array in the form that its processor computes with; the file keeps its own. A
//! [`Translation`] goes from one to the other at about the speed of memory.
//!
//! The law of page-out: what is written, read again, is bit for bit what the program had. Where
//! that cannot be, nothing is rounded in silence: [`Translation::translate_out`] names the element.
//! Page-in always succeeds, and says whether page-out would give the same bytes back.
//!
//! | file | memory | page-in | page-out |
//! |---|---|---|---|
//! | any type of IEEE or integers, big-endian | the same, little-endian | exact | exact |
//! | bf16, f16 | f32 | exact, payloads of NaN too | exact or refused |
//! | VAX F, G | f32, f64 | exact; rounded at the smallest two exponents | exact or refused |
//! | VAX D | f64 | rounded, from 56 bits to 53 | exact or refused |
//!
//! Rounding is to the nearest, ties to even.
//!
//! A VAX has no infinities, no negative zero and no NaN. Its reserved operand (sign 1, exponent 0)
//! becomes the quiet NaN with the sign set and no payload, which is what x86 computes for 0/0, and
//! that NaN alone becomes the reserved operand again. A dirty zero (exponent 0, some fraction)
//! becomes 0. VAX numbers are expected as a VAX keeps them: words of 16 bits, each little-endian,
//! the one with the sign first.
//!
//! ```
//! use farpage_format::{Dtype, Order};
//! use farpage_translate::Translation;
//!
//! let half = Translation::new((Dtype::F16, Order::Big), (Dtype::F32, Order::Little))?;
//! let mut memory = [0; 4];
//! assert!(half.translate_in(&[0x3c, 0x00], &mut memory));
//! assert_eq!(f32::from_le_bytes(memory), 1.0);
//! let mut file = [0; 2];
//! let refused = half.translate_out(&1e30_f32.to_le_bytes(), &mut file).unwrap_err();
//! assert!(refused.to_string().starts_with("1e30 at element 0 cannot be represented as f16"));
//! # Ok::<(), farpage_translate::Unsupported>(())
//! ```
#![no_std]

#[cfg(test)]
extern crate std;

mod number;
mod step;
#[cfg_attr(not(target_arch = "x86_64"), path = "narrow.rs")]
mod wide;

use core::fmt;

use farpage_format::{Dtype, Order};
use thiserror::Error;

use step::Step;
use wide::Vectors;

/// How the numbers of a file become those of memory, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    from: (Dtype, Order),
    to: (Dtype, Order),
    step: Step,
}

/// No translation between two types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "cannot translate {} {} in a file to {} {} in memory: there are bf16 and f16 to f32, vax_f to \
     f32, vax_d and vax_g to f64, and either byte order to little-endian; ask for one of these",
    from.1, from.0, to.1, to.0
)]
pub struct Unsupported {
    /// In the file.
    pub from: (Dtype, Order),
    /// In memory.
    pub to: (Dtype, Order),
}

/// A number that the file's type does not have.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error(
    "{value} at element {element} cannot be represented as {dtype}: {}; \
     round or replace it before it is paged out, or keep the array in another dtype",
    why(*value, *dtype)
)]
pub struct NotExact {
    /// Its index in the buffer that was to be translated; the first of them.
    pub element: u64,
    /// What it is.
    pub value: Value,
    /// The type of the file.
    pub dtype: Dtype,
}

/// A number in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Of single precision.
    F32(f32),
    /// Of double precision.
    F64(f64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32(value) => write!(f, "{value:?}"),
            Self::F64(value) => write!(f, "{value:?}"),
        }
    }
}

fn why(value: Value, dtype: Dtype) -> &'static str {
    let wide = match value {
        Value::F32(value) => f64::from(value),
        Value::F64(value) => value,
    };
    // The largest finite and the smallest normal magnitude.
    let (most, least) = match dtype {
        Dtype::F16 => (65504.0, f64::from_bits(0x3f10_0000_0000_0000)),
        Dtype::Bf16 => (
            f64::from_bits(0x47ef_e000_0000_0000),
            f64::from(f32::MIN_POSITIVE),
        ),
        Dtype::VaxG => (f64::MAX / 2.0, f64::MIN_POSITIVE / 4.0),
        _ => (
            f64::from(f32::MAX / 2.0),
            f64::from(f32::MIN_POSITIVE) / 4.0,
        ),
    };
    let magnitude = f64::from_bits(wide.to_bits() & !(1 << 63));
    if wide.is_nan() {
        "this NaN has no counterpart"
    } else if wide.is_infinite() {
        "it has no infinity"
    } else if wide == 0.0 {
        "it has no negative zero"
    } else if magnitude > most {
        "too large"
    } else if magnitude < least {
        "too small"
    } else {
        "too many digits"
    }
}

impl Translation {
    /// A translation of numbers that are `from` in the file and `to` in memory. Both may be the
    /// same: then it copies.
    ///
    /// # Errors
    /// [`Unsupported`] for any other pair than those of the table above.
    pub fn new(from: (Dtype, Order), to: (Dtype, Order)) -> Result<Self, Unsupported> {
        let step = Step::of(from, to).ok_or(Unsupported { from, to })?;
        Ok(Self { from, to, step })
    }

    /// Bytes of one number in the file.
    pub fn from_size(&self) -> usize {
        self.from.0.bytes()
    }

    /// Bytes of one number in memory.
    pub fn to_size(&self) -> usize {
        self.to.0.bytes()
    }

    /// Translates bytes of the file into bytes of memory. `false`: they are the closest numbers,
    /// but [`Translation::translate_out`] would not give the same bytes back (VAX only).
    ///
    /// # Panics
    /// When `from` or `to` is not a whole number of elements, or they are not as many.
    pub fn translate_in(&self, from: &[u8], to: &mut [u8]) -> bool {
        same_count(from.len(), self.from_size(), to.len(), self.to_size());
        Vectors::best().run_in(self.step, from, to) == 0
    }

    /// Translates bytes of memory into bytes of the file.
    ///
    /// # Errors
    /// [`NotExact`] for the first number that the file's type does not have; what is then in `to`
    /// must not be used.
    ///
    /// # Panics
    /// When `from` or `to` is not a whole number of elements, or they are not as many.
    pub fn translate_out(&self, from: &[u8], to: &mut [u8]) -> Result<(), NotExact> {
        same_count(from.len(), self.to_size(), to.len(), self.from_size());
        if Vectors::best().run_out(self.step, from, to) == 0 {
            return Ok(());
        }
        let pairs = from
            .chunks_exact(self.to_size())
            .zip(to.chunks_exact_mut(self.from_size()));
        let inexact = |(memory, file): (&[u8], &mut [u8])| self.step.run_out(memory, file) != 0;
        let at = pairs.into_iter().position(inexact).unwrap_or(0);
        let number = &from[at * self.to_size()..][..self.to_size()];
        Err(NotExact {
            element: at as u64,
            value: match *number {
                [a, b, c, d] => Value::F32(f32::from_le_bytes([a, b, c, d])),
                _ => Value::F64(f64::from_bits(
                    number
                        .iter()
                        .rev()
                        .fold(0, |bits, &byte| bits << 8 | u64::from(byte)),
                )),
            },
            dtype: self.from.0,
        })
    }
}

fn same_count(from: usize, from_size: usize, to: usize, to_size: usize) {
    assert!(
        from.is_multiple_of(from_size) && to.is_multiple_of(to_size),
        "buffers of {from} and {to} bytes are not whole elements of {from_size} and {to_size}"
    );
    let (given, wanted) = (from / from_size, to / to_size);
    assert!(
        given == wanted,
        "a buffer of {given} elements cannot become one of {wanted}"
    );
}

#[cfg(test)]
mod tests;
