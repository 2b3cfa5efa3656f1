//! safetensors files.

/// Files of none, one and several tensors.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
        "a\n":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
        "c":{"dtype":"F8_E8M0","shape":[0,5],"data_offsets":[16,16]}}  "#;
    let one = r#"{"x":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}}"#;
    vec![file("{}", 0), file(one, 4), file(header, 16)]
}

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}
