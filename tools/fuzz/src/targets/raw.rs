//! Sizes and shapes that a caller gives.

use farpage_format::{Dtype, Order, raw};

use super::format;

/// The input is a byte for the dtype, one for the order, the size, and the shape.
pub(crate) fn run(input: &[u8]) {
    let (Some((&[dtype, order], rest)), dtypes) = (input.split_first_chunk(), Dtype::all()) else {
        return;
    };
    let Some((size, rest)) = rest.split_first_chunk() else {
        return;
    };
    let dtypes: Vec<Dtype> = dtypes.collect();
    let dtype = dtypes[usize::from(dtype) % dtypes.len()];
    let order = if order & 1 == 0 {
        Order::Little
    } else {
        Order::Big
    };
    let size = u64::from_le_bytes(*size);
    let shape: Vec<i64> = rest
        .as_chunks()
        .0
        .iter()
        .map(|&n| i64::from_le_bytes(n))
        .collect();
    match raw(size, dtype, order, &shape) {
        Ok(layout) => {
            format::check(&layout, size);
            let tensor = &layout.tensors[0];
            assert_eq!(
                (tensor.offset, tensor.bytes, tensor.shape.len()),
                (0, size, shape.len())
            );
            for (&given, &found) in shape.iter().zip(&tensor.shape) {
                assert!(given == -1 || given as u64 == found);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Shapes that fit, with and without a -1.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let seed = |dtype: u8, size: u64, shape: &[i64]| {
        let mut input = vec![dtype, 0];
        input.extend(size.to_le_bytes());
        shape.iter().for_each(|n| input.extend(n.to_le_bytes()));
        input
    };
    vec![
        seed(5, 24, &[2, 3, 4]),
        seed(11, 24, &[2, -1]),
        seed(12, 0, &[-1, 0]),
        seed(13, 8, &[]),
        seed(14, 1 << 40, &[1 << 18, 1 << 18]),
    ]
}
