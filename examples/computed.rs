//! A picture of 64 GiB that is computed where somebody looks: the Mandelbrot set, 262,144 points
//! high and wide, one byte a point. Nothing of it is stored; a page that left is computed again.
//!
//! Run with `cargo run --release -p farpage-kernel --example computed`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farpage_kernel::embed::Embedded;
use farpage_object::{DataRequest, ObjectId, PAGE_BYTES, PageOut, Pager, PagerError, Supplied};

/// Points in a row, and rows. A row is `SIDE / PAGE_BYTES` pages.
const SIDE: usize = 1 << 18;
/// What the picture may take of RAM.
const RAM_BYTES: u64 = 4 << 20;

/// Steps until the point escapes, at most 255: the byte at `row`, `column`.
fn steps(row: usize, column: usize) -> u8 {
    let (x, y) = (column as f64 / SIDE as f64, row as f64 / SIDE as f64);
    let (real, imaginary) = (x * 3.0 - 2.25, y * 3.0 - 1.5);
    let (mut a, mut b) = (0.0, 0.0);
    for step in 0..255 {
        if a * a + b * b > 4.0 {
            return step;
        }
        (a, b) = (a * a - b * b + real, 2.0 * a * b + imaginary);
    }
    255
}

/// The pager. It counts the pages that it computes.
#[derive(Default)]
struct Mandelbrot(AtomicU64);

impl Pager for Mandelbrot {
    /// Somebody touched a page that is not in memory: fill it. The kernel may ask for more pages
    /// than the one that is waited for; one is enough, and computing is expensive.
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let (first, needed) = (request.pages().start.0 as usize, request.needed());
        let bytes = needed as usize * PAGE_BYTES;
        for (i, byte) in request.buffer()[..bytes].iter_mut().enumerate() {
            let point = first * PAGE_BYTES + i;
            *byte = steps(point / SIDE, point % SIDE);
        }
        self.0.fetch_add(needed, Ordering::Relaxed);
        Ok(Supplied::clean(needed))
    }

    /// Somebody wrote to the picture, and the page should leave. It is refused: the page stays.
    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Err(PagerError::Write(30)) // EROFS
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let kernel = Embedded::start(RAM_BYTES)?;
    let pager = Arc::new(Mandelbrot::default());
    let picture = kernel.object(pager.clone(), SIDE * SIDE)?;
    let memory = picture.map()?;

    // Plain reads, as of any array: 32 rows of 72 points.
    for line in 0..32 {
        let mut text = String::new();
        for column in 0..72 {
            let mut point = [0];
            memory.read((line * SIDE / 32) * SIDE + column * SIDE / 72, &mut point)?;
            text.push(b" .,:;-=+*oO#%@"[usize::from(point[0].min(26)) / 2] as char);
        }
        println!("{}", text.trim_end());
    }
    let (computed, resident) = (&pager.0, memory.stats().resident_pages);
    println!("{computed:?} pages computed, {resident} of them in memory");
    Ok(())
}

#[test]
fn it_draws() {
    main().expect("userfaultfd");
}
