//! Prints where the arrays of a file lie: name, element, shape, order, offset and bytes, by tabs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("layout FILE");
        return ExitCode::from(2);
    };
    match print(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("layout: {path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let file = File::open(path)?;
    let mut read = |at: u64, bytes: usize| {
        let mut range = vec![0; bytes];
        file.read_exact_at(&mut range, at).map(|()| range)
    };
    let layout = farpage_format::open(file.metadata()?.len(), Some(path), &mut read)?;
    for tensor in layout.tensors {
        let order = if tensor.fortran { "F" } else { "C" };
        println!(
            "{:?}\t{}\t{:?}\t{order}\t{}\t{}",
            tensor.name, tensor.element, tensor.shape, tensor.offset, tensor.bytes
        );
    }
    Ok(())
}
