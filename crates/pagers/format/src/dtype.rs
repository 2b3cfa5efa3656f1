//! Types of elements and their names in the formats.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

/// The type of one number. VAX types are in the order in which a VAX keeps them in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// One byte, 0 or 1.
    Bool,
    /// Signed, 8 bits.
    I8,
    /// Signed, 16 bits.
    I16,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 8 bits.
    U8,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 64 bits.
    U64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an [`Dtype::F32`].
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Two [`Dtype::F32`]: real, imaginary.
    C64,
    /// Two [`Dtype::F64`]: real, imaginary.
    C128,
    /// 8 bits, 4 of exponent and 3 of fraction, no infinities.
    F8E4m3,
    /// 8 bits, 5 of exponent and 2 of fraction.
    F8E5m2,
    /// VAX F_floating, 32 bits, 24 of precision.
    VaxF,
    /// VAX D_floating, 64 bits, 56 of precision, the range of F.
    VaxD,
    /// VAX G_floating, 64 bits, 53 of precision.
    VaxG,
}

/// The order of the bytes of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Least significant byte first; also types of one byte, and VAX types as a VAX keeps them.
    Little,
    /// Most significant byte first.
    Big,
}

/// What one element of an array is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// A number.
    Number {
        /// Its type.
        dtype: Dtype,
        /// Its byte order.
        order: Order,
    },
    /// Something that only its own library takes apart: a record, text, a date.
    Opaque {
        /// For npy and Arrow a Python literal, for npy as it stands in the file: it is for
        /// `ast.literal_eval` and then `numpy.lib.format.descr_to_dtype`. For safetensors the name
        /// there.
        descr: String,
        /// The bytes of one element.
        bytes: u64,
    },
}

/// Every type: its own name, the name in NumPy (of the library ml_dtypes for some), the letters of
/// a NumPy `descr`, the name in safetensors.
type Names = (
    Dtype,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

const NAMES: [Names; 20] = [
    (Dtype::Bool, "bool", "bool", "b1", "BOOL"),
    (Dtype::I8, "i8", "int8", "i1", "I8"),
    (Dtype::I16, "i16", "int16", "i2", "I16"),
    (Dtype::I32, "i32", "int32", "i4", "I32"),
    (Dtype::I64, "i64", "int64", "i8", "I64"),
    (Dtype::U8, "u8", "uint8", "u1", "U8"),
    (Dtype::U16, "u16", "uint16", "u2", "U16"),
    (Dtype::U32, "u32", "uint32", "u4", "U32"),
    (Dtype::U64, "u64", "uint64", "u8", "U64"),
    (Dtype::F16, "f16", "float16", "f2", "F16"),
    (Dtype::Bf16, "bf16", "bfloat16", "", "BF16"),
    (Dtype::F32, "f32", "float32", "f4", "F32"),
    (Dtype::F64, "f64", "float64", "f8", "F64"),
    (Dtype::C64, "c64", "complex64", "c8", "C64"),
    (Dtype::C128, "c128", "complex128", "c16", ""),
    (Dtype::F8E4m3, "f8_e4m3", "float8_e4m3fn", "", "F8_E4M3"),
    (Dtype::F8E5m2, "f8_e5m2", "float8_e5m2", "", "F8_E5M2"),
    (Dtype::VaxF, "vax_f", "", "", ""),
    (Dtype::VaxD, "vax_d", "", "", ""),
    (Dtype::VaxG, "vax_g", "", "", ""),
];

impl Dtype {
    /// Every type.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|names| names.0)
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 | Self::F8E4m3 | Self::F8E5m2 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 | Self::VaxF => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::C64 | Self::VaxD | Self::VaxG => 8,
            Self::C128 => 16,
        }
    }

    fn names(self) -> &'static Names {
        let found = NAMES.iter().find(|names| names.0 == self);
        found.unwrap_or(&NAMES[0]) // every type has its line: a test says so
    }

    /// The short name: `f32`, `bf16`, `vax_d`.
    pub fn name(self) -> &'static str {
        self.names().1
    }

    /// The type called `name`, in short (`f32`) or as in NumPy (`float32`, `bfloat16`).
    ///
    /// Short names win: `i8` and `u8` have 8 bits here, as everywhere but in NumPy's `descr`.
    pub fn from_name(name: &str) -> Option<Self> {
        let named = |names: &&Names| !name.is_empty() && (names.1 == name || names.2 == name);
        NAMES.iter().find(named).map(|names| names.0)
    }

    /// The name in NumPy, or in ml_dtypes, which adds `bfloat16`, `float8_e4m3fn` and
    /// `float8_e5m2`. VAX types have none.
    pub fn numpy_name(self) -> Option<&'static str> {
        Some(self.names().2).filter(|name| !name.is_empty())
    }

    /// The `descr` of NumPy, `<f4` or `|u1`, for the types that NumPy itself knows.
    pub fn descr(self, order: Order) -> Option<String> {
        let letters = self.names().3;
        let sign = match order {
            _ if self.bytes() == 1 => '|',
            Order::Little => '<',
            Order::Big => '>',
        };
        (!letters.is_empty()).then(|| format!("{sign}{letters}"))
    }

    /// The type and order of a NumPy `descr`: `<f4`, `>i8`, `|u1`. Without a sign, or with `=`, it
    /// is little-endian, the order of all machines that Farpage runs on.
    pub fn from_descr(descr: &str) -> Option<(Self, Order)> {
        let (order, letters) = match descr.as_bytes().first()? {
            b'<' | b'=' | b'|' => (Order::Little, descr.get(1..)?),
            b'>' => (Order::Big, descr.get(1..)?),
            _ => (Order::Little, descr),
        };
        let named = |names: &&Names| !letters.is_empty() && names.3 == letters;
        let dtype = NAMES.iter().find(named)?.0;
        let order = match dtype.bytes() {
            1 => Order::Little,
            _ => order,
        };
        Some((dtype, order))
    }

    /// The name in safetensors: `F32`, `BF16`. [`Dtype::C128`] and the VAX types have none.
    pub fn safetensors_name(self) -> Option<&'static str> {
        Some(self.names().4).filter(|name| !name.is_empty())
    }

    /// The type that safetensors calls `name`.
    pub fn from_safetensors(name: &str) -> Option<Self> {
        let named = |names: &&Names| !name.is_empty() && names.4 == name;
        NAMES.iter().find(named).map(|names| names.0)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Little => "little-endian",
            Self::Big => "big-endian",
        })
    }
}

impl Element {
    /// A number in little-endian order.
    pub fn little(dtype: Dtype) -> Self {
        let order = Order::Little;
        Self::Number { dtype, order }
    }

    /// Bytes of one element.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Number { dtype, .. } => dtype.bytes() as u64,
            Self::Opaque { bytes, .. } => *bytes,
        }
    }

    /// The type, if it is a number.
    pub fn dtype(&self) -> Option<Dtype> {
        match self {
            Self::Number { dtype, .. } => Some(*dtype),
            Self::Opaque { .. } => None,
        }
    }

    /// The byte order, if it is a number.
    pub fn order(&self) -> Option<Order> {
        match self {
            Self::Number { order, .. } => Some(*order),
            Self::Opaque { .. } => None,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { dtype, order } => {
                f.write_str(&dtype.descr(*order).unwrap_or_else(|| dtype.to_string()))
            }
            Self::Opaque { descr, .. } => f.write_str(descr),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn every_type_has_its_own_line_of_names() {
        let all: Vec<Dtype> = Dtype::all().collect();
        for (at, dtype) in all.iter().enumerate() {
            assert_eq!(dtype.names().0, *dtype);
            assert!(!all[..at].contains(dtype));
            assert_eq!(Dtype::from_name(dtype.name()), Some(*dtype));
            let numpy = dtype.numpy_name().map(Dtype::from_name);
            assert!(numpy.is_none_or(|named| named == Some(*dtype)));
        }
    }

    #[test]
    fn descr_and_safetensors_names_go_both_ways() {
        for dtype in Dtype::all() {
            for order in [Order::Little, Order::Big] {
                let Some(descr) = dtype.descr(order) else {
                    continue;
                };
                let read = Dtype::from_descr(&descr).unwrap();
                assert_eq!(read.0, dtype);
                assert!(dtype.bytes() == 1 || read.1 == order);
            }
            if let Some(name) = dtype.safetensors_name() {
                assert_eq!(Dtype::from_safetensors(name), Some(dtype));
            }
        }
        assert_eq!(Dtype::from_descr(">i8"), Some((Dtype::I64, Order::Big)));
        assert_eq!(Dtype::from_descr("|u1"), Some((Dtype::U8, Order::Little)));
        assert_eq!(Dtype::Bool.descr(Order::Big).as_deref(), Some("|b1"));
    }

    #[test]
    fn short_names_and_descr_letters_are_told_apart() {
        assert_eq!(Dtype::from_name("i8"), Some(Dtype::I8));
        assert_eq!(Dtype::from_descr("i8").unwrap().0, Dtype::I64);
        assert_eq!(Dtype::from_name("float8_e4m3fn"), Some(Dtype::F8E4m3));
        for unknown in ["", "<", "<f3", "f", "<x4", "é"] {
            assert_eq!(Dtype::from_descr(unknown), None, "{unknown}");
        }
        assert_eq!(Dtype::from_name(""), None);
        assert_eq!(Dtype::from_safetensors(""), None);
    }
}
