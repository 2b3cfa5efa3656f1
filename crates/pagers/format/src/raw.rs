//! Files that are nothing but numbers.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::dtype::{Dtype, Element, Order};
use crate::error::FormatError;
use crate::layout::{Kind, Layout, Tensor, length};

/// The layout of a file of `size` bytes that holds one array, row by row, and nothing else.
///
/// One dimension of `shape` may be -1: as long as the file makes it.
///
/// # Errors
/// [`FormatError::RawShape`] when the file is not exactly that long, [`FormatError::Shape`] when
/// nothing could be.
pub fn raw(size: u64, dtype: Dtype, order: Order, shape: &[i64]) -> Result<Layout, FormatError> {
    let element = Element::Number { dtype, order };
    let wrong = |why: String| FormatError::RawShape {
        size,
        element: format!("{order} {dtype}"),
        shape: format!("{shape:?}"),
        why,
    };
    let open = shape.iter().filter(|&&dimension| dimension == -1).count();
    if open > 1 || shape.iter().any(|&dimension| dimension < -1) {
        let why = "a dimension is a length, and one of them may be -1; name the others";
        return Err(wrong(why.to_string()));
    }
    let known: Vec<u64> = shape
        .iter()
        .filter_map(|&n| u64::try_from(n).ok())
        .collect();
    let unit = length("", &known, element.bytes())?;
    let found = match (open, unit) {
        (1, 0) if size == 0 => 0,
        (1, 1..) if size.is_multiple_of(unit) => size / unit,
        (1, _) => {
            let why = format!("not a whole number of {unit} bytes; give another shape");
            return Err(wrong(why));
        }
        (_, _) if unit != size => {
            let part = match unit < size {
                true => ", or the offset where it begins",
                false => "",
            };
            return Err(wrong(format!(
                "that takes {unit} bytes; give -1 for a dimension{part}"
            )));
        }
        _ => 0, // every dimension is known
    };
    let shape = shape.iter().map(|&n| u64::try_from(n).unwrap_or(found));
    let tensor = Tensor {
        name: String::new(),
        element,
        shape: shape.collect(),
        fortran: false,
        offset: 0,
        bytes: size,
    };
    Layout::checked(Kind::Raw, size, Vec::from([tensor]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: u64, shape: &[i64]) -> Option<Vec<u64>> {
        let layout = raw(size, Dtype::F32, Order::Big, shape).ok()?;
        let tensor = layout.tensors.into_iter().next()?;
        assert_eq!((tensor.offset, tensor.bytes), (0, size));
        assert_eq!(tensor.element.order(), Some(Order::Big));
        Some(tensor.shape)
    }

    #[test]
    fn a_shape_that_fits_is_taken_and_minus_one_found() {
        assert_eq!(shape(24, &[2, 3]), Some(Vec::from([2, 3])));
        assert_eq!(shape(24, &[-1]), Some(Vec::from([6])));
        assert_eq!(shape(24, &[2, -1, 1]), Some(Vec::from([2, 3, 1])));
        assert_eq!(shape(4, &[]), Some(Vec::from([])));
        assert_eq!(shape(0, &[-1, 4]), Some(Vec::from([0, 4])));
        assert_eq!(shape(0, &[-1, 0]), Some(Vec::from([0, 0])));
    }

    #[test]
    fn a_shape_that_does_not_fit_is_refused() {
        assert_eq!(shape(24, &[2, 2]), None);
        assert_eq!(shape(24, &[7]), None);
        assert_eq!(shape(24, &[-1, -1]), None);
        assert_eq!(shape(24, &[-2, -3]), None);
        assert_eq!(shape(24, &[5, -1]), None);
        assert_eq!(shape(24, &[0, -1]), None);
        assert_eq!(shape(23, &[-1]), None);
        assert_eq!(shape(24, &[i64::MAX, i64::MAX]), None);
        assert_eq!(shape(24, &[i64::MIN]), None);
    }

    #[test]
    fn the_message_says_what_would_fit() {
        let error = raw(24, Dtype::F32, Order::Little, &[7]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("24 bytes as little-endian f32 of shape [7]"),
            "{text}"
        );
        assert!(
            text.ends_with("takes 28 bytes; give -1 for a dimension"),
            "{text}"
        );
        let error = raw(24, Dtype::F32, Order::Little, &[5]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.ends_with("for a dimension, or the offset where it begins"),
            "{text}"
        );
    }
}
