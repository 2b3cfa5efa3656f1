//! Translations of whole buffers, each beside a copy of as many bytes as it writes.

use std::hint::black_box;
use std::time::Instant;

use farpage_format::{Dtype, Order};
use farpage_translate::Translation;

/// What is measured: its name, the type in the file and the one in memory.
const KINDS: &[(&str, (Dtype, Order), Dtype)] = &[
    ("bf16-f32", (Dtype::Bf16, Order::Little), Dtype::F32),
    ("f16-f32", (Dtype::F16, Order::Little), Dtype::F32),
    ("f16-big-f32", (Dtype::F16, Order::Big), Dtype::F32),
    ("swap-2", (Dtype::U16, Order::Big), Dtype::U16),
    ("swap-4", (Dtype::F32, Order::Big), Dtype::F32),
    ("swap-8", (Dtype::F64, Order::Big), Dtype::F64),
    ("vax-f-f32", (Dtype::VaxF, Order::Little), Dtype::F32),
    ("vax-d-f64", (Dtype::VaxD, Order::Little), Dtype::F64),
    ("vax-g-f64", (Dtype::VaxG, Order::Little), Dtype::F64),
];

/// Translates `mib` MiB of memory in and out, `runs` times, and prints a line for each.
pub fn run(runs: usize, mib: usize) {
    let bytes = mib << 20;
    for &(name, from, to) in KINDS {
        let translation = Translation::new(from, (to, Order::Little)).expect("a pair of the table");
        let (a, b) = (translation.from_size(), translation.to_size());
        let mut file = random(bytes / b * a);
        let mut memory = vec![1; bytes];
        let mut copy = vec![1; bytes];
        // The first round warms up.
        for round in 0..=runs {
            let copied = timed(|| copy.copy_from_slice(black_box(&memory)));
            let took = timed(|| {
                black_box(translation.translate_in(black_box(&file), &mut memory));
            });
            if round > 0 {
                println!("{name} in {} {bytes} {took} {copied}", file.len());
            }
            let out = file.len();
            let copied = timed(|| copy[..out].copy_from_slice(black_box(&memory[..out])));
            let took = timed(|| {
                let exact = translation.translate_out(black_box(&memory), &mut file);
                exact.expect("what came in can leave");
            });
            if round > 0 {
                println!("{name} out {bytes} {out} {took} {copied}");
            }
        }
    }
}

/// Nanoseconds.
fn timed(work: impl FnOnce()) -> u128 {
    let began = Instant::now();
    work();
    began.elapsed().as_nanos()
}

/// Bytes by a generator with a fixed seed (xorshift).
fn random(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut number = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes / 8).flat_map(|_| number()).collect()
}
