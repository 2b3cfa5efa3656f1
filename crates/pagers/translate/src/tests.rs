use std::collections::HashSet;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const LITTLE: Order = Order::Little;

fn of(from: Dtype, order: Order, to: Dtype) -> Translation {
    Translation::new((from, order), (to, LITTLE)).unwrap()
}

/// Every translation between two types.
fn all() -> Vec<Translation> {
    let mut found = Vec::new();
    for from in Dtype::all() {
        for to in Dtype::all() {
            for order in [LITTLE, Order::Big] {
                found.extend(Translation::new((from, order), (to, LITTLE)).ok());
            }
        }
    }
    found
}

fn page_in(translation: Translation, file: &[u8]) -> (Vec<u8>, bool) {
    let elements = file.len() / translation.from_size();
    let mut memory = vec![0xaa; elements * translation.to_size()];
    let same = translation.translate_in(file, &mut memory);
    (memory, same)
}

fn page_out(translation: Translation, memory: &[u8]) -> Result<Vec<u8>, NotExact> {
    let elements = memory.len() / translation.to_size();
    let mut file = vec![0xaa; elements * translation.from_size()];
    translation.translate_out(memory, &mut file).map(|()| file)
}

/// The bits of a VAX number given as longwords, as tables of constants print them.
fn longwords(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn f32_of(translation: Translation, file: &[u8]) -> f32 {
    f32::from_le_bytes(page_in(translation, file).0.try_into().unwrap())
}

fn f64_of(translation: Translation, file: &[u8]) -> f64 {
    f64::from_le_bytes(page_in(translation, file).0.try_into().unwrap())
}

/// What an f16 means, by arithmetic.
fn f16_by_definition(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-14),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction) * 2f64.powi(exponent - 15),
    };
    (sign * magnitude) as f32
}

#[test]
fn every_f16_comes_in_right_and_leaves_as_it_was() {
    let bits: Vec<u16> = (0..=u16::MAX).collect();
    for order in [LITTLE, Order::Big] {
        let write = |bits: &u16| match order {
            Order::Little => bits.to_le_bytes(),
            Order::Big => bits.to_be_bytes(),
        };
        let file: Vec<u8> = bits.iter().flat_map(write).collect();
        let half = of(Dtype::F16, order, Dtype::F32);
        let (memory, same) = page_in(half, &file);
        assert!(same);
        for (&bits, number) in bits.iter().zip(memory.as_chunks::<4>().0) {
            let (number, right) = (f32::from_le_bytes(*number), f16_by_definition(bits));
            if right.is_nan() {
                let payload = u32::from(bits & 1023) << 13 | u32::from(bits & 0x8000) << 16;
                assert_eq!(number.to_bits(), 0x7f80_0000 | payload, "{bits:04x}");
            } else {
                assert_eq!(number.to_bits(), right.to_bits(), "{bits:04x}");
            }
        }
        assert_eq!(page_out(half, &memory).unwrap(), file);
    }
}

#[test]
fn every_bf16_is_the_upper_half_of_an_f32_and_leaves_as_it_was() {
    let file: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let brain = of(Dtype::Bf16, LITTLE, Dtype::F32);
    let (memory, same) = page_in(brain, &file);
    assert!(same);
    for (bits, number) in memory.as_chunks::<4>().0.iter().enumerate() {
        assert_eq!(u32::from_le_bytes(*number), (bits as u32) << 16);
    }
    assert_eq!(page_out(brain, &memory).unwrap(), file);
    let big: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_be_bytes).collect();
    let brain = of(Dtype::Bf16, Order::Big, Dtype::F32);
    assert_eq!(page_in(brain, &big), (memory.clone(), true));
    assert_eq!(page_out(brain, &memory).unwrap(), big);
}

#[test]
fn an_f32_leaves_as_f16_or_bf16_exactly_when_one_is_the_same_number() {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        let translation = of(dtype, LITTLE, Dtype::F32);
        let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let memory = page_in(translation, &every).0;
        let there: HashSet<[u8; 4]> = memory.as_chunks::<4>().0.iter().copied().collect();
        // All over f32, and around each number that is there.
        let sampled = (0..u32::MAX).step_by(10_007);
        let near = there.iter().flat_map(|&number| {
            let bits = u32::from_le_bytes(number);
            [
                bits,
                bits.wrapping_add(1),
                bits.wrapping_sub(1),
                bits ^ 0x1000,
            ]
        });
        for bits in sampled.chain(near) {
            let number = bits.to_le_bytes();
            let result = page_out(translation, &number);
            assert_eq!(
                result.is_ok(),
                there.contains(&number),
                "{bits:08x} as {dtype}"
            );
            if let Ok(file) = result {
                assert_eq!(page_in(translation, &file), (number.to_vec(), true));
            }
        }
    }
}

#[test]
#[allow(clippy::approx_constant, reason = "the tables have 3.14159")]
fn published_vax_constants_are_read_and_written() {
    let f = of(Dtype::VaxF, LITTLE, Dtype::F32);
    let cases: [(u32, f32); 12] = [
        (0x0000_4080, 1.0),
        (0x0000_c080, -1.0),
        (0x0000_4160, 3.5),
        (0x0000_c160, -3.5),
        (0x0fd0_4149, 3.14159),
        (0x0fd0_c149, -3.14159),
        (0xbdc2_7df0, 1e37),
        (0xbdc2_fdf0, -1e37),
        (0x1cea_0308, 1e-37),
        (0x1cea_8308, -1e-37),
        (0x0652_409e, 1.234_567_9),
        (0x0652_c09e, -1.234_567_9),
    ];
    for (bits, number) in cases {
        let file = longwords(&[bits]);
        assert_eq!(f32_of(f, &file), number);
        assert_eq!(page_out(f, &number.to_le_bytes()).unwrap(), file);
    }
    let pi = core::f64::consts::PI;
    let doubles: [(Dtype, [u32; 2], f64); 7] = [
        (Dtype::VaxD, [0x0000_4080, 0], 1.0),
        (Dtype::VaxD, [0x0000_c080, 0], -1.0),
        (Dtype::VaxD, [0x0000_4160, 0], 3.5),
        (Dtype::VaxG, [0x0000_4010, 0], 1.0),
        (Dtype::VaxG, [0x0000_c010, 0], -1.0),
        (Dtype::VaxG, [0x0000_402c, 0], 3.5),
        (Dtype::VaxG, [0x21fb_4029, 0x2d18_5444], pi),
    ];
    for (dtype, bits, number) in doubles {
        let (file, vax) = (longwords(&bits), of(dtype, LITTLE, Dtype::F64));
        assert_eq!(f64_of(vax, &file), number);
        assert_eq!(page_out(vax, &number.to_le_bytes()).unwrap(), file);
    }
    // Pi in D has bits that f64 has not: octal 040511 007732 121041 064302.
    let d = of(Dtype::VaxD, LITTLE, Dtype::F64);
    let file: Vec<u8> = [0o040511_u16, 0o007732, 0o121041, 0o064302]
        .into_iter()
        .flat_map(u16::to_le_bytes)
        .collect();
    assert_eq!(page_in(d, &file), (pi.to_le_bytes().to_vec(), false));
    let shorter = longwords(&[0x0fda_4149, 0x68c0_a221]);
    assert_eq!(page_out(d, &pi.to_le_bytes()).unwrap(), shorter);
}

/// What VAX bits, sign first, mean: sign, fraction as a whole number, and the power of two for it.
fn vax_by_definition(bits: u64, width: u32, fraction: u32) -> Option<(f64, u64, i32)> {
    let exponent = (bits >> fraction & ((1 << (width - 1 - fraction)) - 1)) as i32;
    let negative = bits >> (width - 1) & 1 == 1;
    let bias = 1 << (width - 2 - fraction);
    let hidden = 1 << fraction | bits & ((1 << fraction) - 1);
    match (exponent, negative) {
        (0, true) => None,
        (0, false) => Some((1.0, 0, 0)),
        (_, _) => {
            let sign = if negative { -1.0 } else { 1.0 };
            Some((sign, hidden, exponent - bias - fraction as i32 - 1))
        }
    }
}

/// `whole * 2^power` with one rounding.
fn scaled(whole: u64, power: i32) -> f64 {
    match power {
        ..-1000 => whole as f64 * 2f64.powi(power + 200) * 2f64.powi(-200),
        _ => whole as f64 * 2f64.powi(power),
    }
}

proptest! {
    #[test]
    fn vax_numbers_mean_what_the_handbook_says(bits: u64, exponent in 0u64..2100) {
        // Any bits, and any fraction with every exponent.
        for bits in [bits, bits & !(0x7ff << 52) | (exponent & 0x7ff) << 52] {
            let f = (bits >> 32) as u32;
            let got = f32_of(of(Dtype::VaxF, LITTLE, Dtype::F32), &f.rotate_left(16).to_le_bytes());
            match vax_by_definition(u64::from(f), 32, 23) {
                None => prop_assert_eq!(got.to_bits(), 0xffc0_0000),
                Some((sign, whole, power)) => {
                    prop_assert_eq!(got, (sign * scaled(whole, power)) as f32);
                }
            }
            for (dtype, fraction) in [(Dtype::VaxD, 55), (Dtype::VaxG, 52)] {
                let file = crate::number::words(bits).to_le_bytes();
                let got = f64_of(of(dtype, LITTLE, Dtype::F64), &file);
                match vax_by_definition(bits, 64, fraction) {
                    None => prop_assert_eq!(got.to_bits(), 0xfff8_0000_0000_0000),
                    Some((sign, whole, power)) => {
                        prop_assert_eq!(got, sign * scaled(whole, power));
                    }
                }
            }
        }
    }

    #[test]
    fn what_leaves_is_what_was_there_and_what_came_says_if_it_would(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
    ) {
        for translation in all() {
            let size = translation.from_size();
            let file = &bytes[..bytes.len() / size * size];
            let (memory, same) = page_in(translation, file);
            prop_assert_eq!(page_out(translation, &memory).unwrap() == file, same);
            let size = translation.to_size();
            let memory = &bytes[..bytes.len() / size * size];
            match page_out(translation, memory) {
                Ok(file) => prop_assert_eq!(page_in(translation, &file).0, memory),
                Err(refused) => {
                    let first = refused.element as usize * size;
                    prop_assert!(page_out(translation, &memory[..first]).is_ok());
                    prop_assert!(page_out(translation, &memory[first..][..size]).is_err());
                }
            }
        }
    }

    #[test]
    fn vectors_and_single_numbers_agree(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        small in prop::collection::vec(0u8..3, 2000),
    ) {
        for bytes in [&bytes, &small] {
            for translation in all() {
                let step = translation.step;
                let (a, b) = (translation.from_size(), translation.to_size());
                let file = &bytes[..bytes.len() / a * a];
                let mut one = vec![0; file.len() / a * b];
                let mut lost = 0;
                for (from, to) in file.chunks_exact(a).zip(one.chunks_exact_mut(b)) {
                    lost |= step.run_in(from, to);
                }
                for vectors in Vectors::all() {
                    let mut many = vec![0xaa; one.len()];
                    prop_assert_eq!(vectors.run_in(step, file, &mut many), lost);
                    prop_assert_eq!(&many, &one);
                }
                let memory = &bytes[..bytes.len() / b * b];
                let mut one = vec![0; memory.len() / b * a];
                lost = 0;
                for (from, to) in memory.chunks_exact(b).zip(one.chunks_exact_mut(a)) {
                    lost |= step.run_out(from, to);
                }
                for vectors in Vectors::all() {
                    let mut many = vec![0xaa; one.len()];
                    prop_assert_eq!(vectors.run_out(step, memory, &mut many), lost);
                    prop_assert_eq!(&many, &one);
                }
            }
        }
    }
}

#[test]
fn the_ends_of_the_vax_ranges_are_kept() {
    let f = of(Dtype::VaxF, LITTLE, Dtype::F32);
    let goes = |number: f32| page_out(f, &number.to_le_bytes()).is_ok();
    let most = f32::MAX / 2.0;
    assert!(goes(most) && goes(-most) && goes(0.0));
    assert!(!goes(most * 2.0) && !goes(2f32.powi(127)) && !goes(f32::INFINITY));
    assert!(goes(2f32.powi(-128)) && goes(-(2f32.powi(-128))));
    assert!(goes(2f32.powi(-126)) && goes(2f32.powi(-127)));
    assert!(!goes(f32::from_bits(2f32.powi(-128).to_bits() - 1)));
    assert!(!goes(f32::from_bits(1)) && !goes(-0.0));
    let g = of(Dtype::VaxG, LITTLE, Dtype::F64);
    let goes = |number: f64| page_out(g, &number.to_le_bytes()).is_ok();
    assert!(goes(f64::MAX / 2.0) && !goes(f64::MAX) && !goes(2f64.powi(1023)));
    assert!(goes(f64::MIN_POSITIVE / 4.0) && !goes(f64::MIN_POSITIVE / 8.0) && !goes(-0.0));
    let d = of(Dtype::VaxD, LITTLE, Dtype::F64);
    let goes = |number: f64| page_out(d, &number.to_le_bytes()).is_ok();
    let below = f64::from_bits(2f64.powi(127).to_bits() - 1);
    assert!(goes(below) && !goes(2f64.powi(127)) && !goes(1e300));
    assert!(goes(2f64.powi(-128)) && !goes(2f64.powi(-129)) && !goes(-0.0));
}

#[test]
fn the_reserved_operand_is_one_nan_and_dirty_zeros_are_zero() {
    for (dtype, to) in [
        (Dtype::VaxF, Dtype::F32),
        (Dtype::VaxD, Dtype::F64),
        (Dtype::VaxG, Dtype::F64),
    ] {
        let vax = of(dtype, LITTLE, to);
        let mut file = vec![0; vax.from_size()];
        file[1] = 0x80;
        let (memory, same) = page_in(vax, &file);
        assert!(same, "{dtype}");
        assert_eq!(page_out(vax, &memory).unwrap(), file);
        let mut other = memory.clone();
        other[vax.to_size() - 1] = 0x7f; // without the sign
        let refused = page_out(vax, &other).unwrap_err();
        assert!(refused.to_string().contains("this NaN"), "{refused}");
        file[3] = 1; // some fraction
        assert_eq!(page_in(vax, &file), (memory, false));
        file[1] = 0;
        assert_eq!(page_in(vax, &file), (vec![0; vax.to_size()], false));
    }
}

#[test]
fn orders_are_swapped_within_each_number_and_part() {
    let bytes: Vec<u8> = (0..32).collect();
    let swapped = |dtype, size: usize| {
        let translation = of(dtype, Order::Big, dtype);
        let right: Vec<u8> = bytes
            .chunks(size)
            .flat_map(|part| part.iter().rev().copied())
            .collect();
        assert_eq!(
            page_in(translation, &bytes),
            (right.clone(), true),
            "{dtype}"
        );
        assert_eq!(page_out(translation, &right).unwrap(), bytes, "{dtype}");
    };
    swapped(Dtype::U8, 1);
    swapped(Dtype::F16, 2);
    swapped(Dtype::I32, 4);
    swapped(Dtype::F64, 8);
    swapped(Dtype::C64, 4);
    swapped(Dtype::C128, 8);
}

#[test]
fn the_error_names_element_value_and_type() {
    let half = of(Dtype::F16, LITTLE, Dtype::F32);
    let mut numbers = vec![1.5_f32; 1000];
    numbers[17] = 1e30;
    numbers[900] = 0.1;
    let text = |numbers: &[f32]| {
        let memory: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        page_out(half, &memory).unwrap_err().to_string()
    };
    let begins = "1e30 at element 17 cannot be represented as f16: too large;";
    assert!(text(&numbers).starts_with(begins), "{}", text(&numbers));
    numbers[17] = 0.0;
    let begins = "0.1 at element 900 cannot be represented as f16: too many digits;";
    assert!(text(&numbers).starts_with(begins), "{}", text(&numbers));
}

#[test]
fn other_pairs_are_refused() {
    for (from, to) in [
        ((Dtype::F32, LITTLE), (Dtype::F16, LITTLE)),
        ((Dtype::F16, LITTLE), (Dtype::F64, LITTLE)),
        ((Dtype::F32, LITTLE), (Dtype::F32, Order::Big)),
        ((Dtype::VaxF, Order::Big), (Dtype::F32, LITTLE)),
        ((Dtype::VaxF, LITTLE), (Dtype::F64, LITTLE)),
        ((Dtype::I16, LITTLE), (Dtype::U16, LITTLE)),
    ] {
        assert_eq!(Translation::new(from, to), Err(Unsupported { from, to }));
    }
    let same = of(Dtype::VaxD, LITTLE, Dtype::VaxD);
    assert_eq!(page_in(same, &[1; 8]), (vec![1; 8], true));
}

#[test]
#[should_panic(expected = "elements cannot become")]
fn buffers_of_different_counts_are_refused() {
    of(Dtype::F16, LITTLE, Dtype::F32).translate_in(&[0; 4], &mut [0; 4]);
}

#[test]
#[should_panic(expected = "not whole elements")]
fn halves_of_elements_are_refused() {
    of(Dtype::F16, LITTLE, Dtype::F32).translate_in(&[0; 3], &mut [0; 4]);
}
