//! npy files.

/// One file of each version, and of each kind of dtype.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let dtypes = [
        "'<f4'",
        "'>i8'",
        "'|b1'",
        "'<c16'",
        "'<U3'",
        "'<M8[ns]'",
        "'|O'",
        "[('a', '<i4'), (('t', 'b'), '<f8', (2,)), ('', '|V4'), ('n', [('x', '|u1')])]",
        "('<f4', (2, 2))",
    ];
    let files = dtypes.iter().zip((1..=3).cycle());
    files
        .map(|(descr, version)| file(version, descr, "(2, 3)", 200))
        .collect()
}

/// A file of `version` with `bytes` of data.
pub(crate) fn file(version: u8, descr: &str, shape: &str, bytes: usize) -> Vec<u8> {
    let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    match version {
        1 => file.extend((header.len() as u16).to_le_bytes()),
        _ => file.extend((header.len() as u32).to_le_bytes()),
    }
    file.extend(header.as_bytes());
    file.resize(file.len() + bytes, 0);
    file
}
