//! What must hold whatever a file says about itself.

use std::collections::HashSet;

use farpage_format::{DIMENSIONS_MAX, Layout, OpenError};

/// Opens `input` as a file, and as the beginning of a file that says it is far larger.
pub(crate) fn open_as(name: &str, input: &[u8], size: u64) {
    let mut read = |at: u64, bytes: usize| {
        assert!(bytes > 0, "nothing is asked for");
        let end = at.checked_add(bytes as u64).expect("a range");
        assert!(end <= size, "{at}..{end} is outside");
        let range = usize::try_from(at)
            .ok()
            .and_then(|at| input.get(at..at.checked_add(bytes)?));
        range.map(<[u8]>::to_vec).ok_or("beyond the input")
    };
    match farpage_format::open(size, Some(name), &mut read) {
        Ok(layout) => check(&layout, size),
        Err(OpenError::Format(error)) => assert!(!error.to_string().is_empty()),
        Err(OpenError::Read { error, .. }) => assert_eq!(error, "beyond the input"),
    }
}

/// Opens `input` both ways.
pub(crate) fn open(name: &str, input: &[u8]) {
    open_as(name, input, input.len() as u64);
    open_as(name, input, 1 << 62);
}

/// Checks a layout anew.
pub(crate) fn check(layout: &Layout, size: u64) {
    let mut names = HashSet::new();
    for tensor in &layout.tensors {
        assert!(names.insert(&tensor.name), "{:?} stands twice", tensor.name);
        assert!(tensor.shape.len() <= DIMENSIONS_MAX);
        let elements: u128 = match tensor.shape.contains(&0) {
            true => 0,
            false => tensor.shape.iter().map(|&n| u128::from(n)).product(),
        };
        assert_eq!(elements, u128::from(tensor.elements()));
        assert_eq!(
            elements * u128::from(tensor.element.bytes()),
            u128::from(tensor.bytes)
        );
        let end = u128::from(tensor.offset) + u128::from(tensor.bytes);
        assert!(
            end <= u128::from(size),
            "{:?} ends at {end} of {size}",
            tensor.name
        );
    }
}
