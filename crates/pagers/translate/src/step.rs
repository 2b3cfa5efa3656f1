//! Which translation it is, and the loop over its numbers.

use core::ops::BitOr;

use farpage_format::{Dtype, Order};

use crate::number::{VaxD, bf16_in, bf16_out, f16_in, f16_out, vax_f, vax_g, words};

/// A way from the file's numbers to those in memory. Memory is little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Copy,
    Swap2,
    Swap4,
    Swap8,
    Bf16,
    Bf16Big,
    F16,
    F16Big,
    VaxF,
    VaxD,
    VaxG,
}

impl Step {
    pub(crate) fn of(from: (Dtype, Order), to: (Dtype, Order)) -> Option<Self> {
        let vax = |dtype| matches!(dtype, Dtype::VaxF | Dtype::VaxD | Dtype::VaxG);
        if to.1 != Order::Little || (vax(from.0) && from.1 != Order::Little) {
            return None;
        }
        match (from, to.0) {
            ((same, Order::Little), to) if same == to => Some(Self::Copy),
            ((same, Order::Big), to) if same == to => Some(match same {
                Dtype::C64 => Self::Swap4, // each part for itself
                Dtype::C128 => Self::Swap8,
                _ => match same.bytes() {
                    1 => Self::Copy,
                    2 => Self::Swap2,
                    4 => Self::Swap4,
                    _ => Self::Swap8,
                },
            }),
            ((Dtype::Bf16, Order::Little), Dtype::F32) => Some(Self::Bf16),
            ((Dtype::Bf16, Order::Big), Dtype::F32) => Some(Self::Bf16Big),
            ((Dtype::F16, Order::Little), Dtype::F32) => Some(Self::F16),
            ((Dtype::F16, Order::Big), Dtype::F32) => Some(Self::F16Big),
            ((Dtype::VaxF, _), Dtype::F32) => Some(Self::VaxF),
            ((Dtype::VaxD, _), Dtype::F64) => Some(Self::VaxD),
            ((Dtype::VaxG, _), Dtype::F64) => Some(Self::VaxG),
            _ => None,
        }
    }

    /// Translates file to memory. 0: the way back gives the same bytes.
    #[inline(always)]
    pub(crate) fn run_in(self, from: &[u8], to: &mut [u8]) -> u64 {
        match self {
            Self::Bf16 => each(from, to, |x| {
                (bf16_in(u16::from_le_bytes(x)).to_le_bytes(), 0u32)
            }),
            Self::Bf16Big => each(from, to, |x| {
                (bf16_in(u16::from_be_bytes(x)).to_le_bytes(), 0u32)
            }),
            Self::F16 => each(from, to, |x| {
                (f16_in(u16::from_le_bytes(x)).to_le_bytes(), 0u32)
            }),
            Self::F16Big => each(from, to, |x| {
                (f16_in(u16::from_be_bytes(x)).to_le_bytes(), 0u32)
            }),
            Self::VaxF => each(from, to, |x| {
                let (number, lost) = vax_f::to_ieee(u32::from_le_bytes(x).rotate_left(16));
                (number.to_le_bytes(), lost)
            }),
            Self::VaxD => each(from, to, |x| {
                let (number, lost) = VaxD::to_ieee(words(u64::from_le_bytes(x)));
                (number.to_le_bytes(), lost)
            }),
            Self::VaxG => each(from, to, |x| {
                let (number, lost) = vax_g::to_ieee(words(u64::from_le_bytes(x)));
                (number.to_le_bytes(), lost)
            }),
            Self::Copy | Self::Swap2 | Self::Swap4 | Self::Swap8 => self.swap(from, to),
        }
    }

    /// Translates memory to file. 0: the way back gives the same bytes.
    #[inline(always)]
    pub(crate) fn run_out(self, from: &[u8], to: &mut [u8]) -> u64 {
        match self {
            Self::Bf16 => each(from, to, |x| {
                let (number, lost) = bf16_out(u32::from_le_bytes(x));
                (number.to_le_bytes(), lost)
            }),
            Self::Bf16Big => each(from, to, |x| {
                let (number, lost) = bf16_out(u32::from_le_bytes(x));
                (number.to_be_bytes(), lost)
            }),
            Self::F16 => each(from, to, |x| {
                let (number, lost) = f16_out(u32::from_le_bytes(x));
                (number.to_le_bytes(), lost)
            }),
            Self::F16Big => each(from, to, |x| {
                let (number, lost) = f16_out(u32::from_le_bytes(x));
                (number.to_be_bytes(), lost)
            }),
            Self::VaxF => each(from, to, |x| {
                let (number, lost) = vax_f::from_ieee(u32::from_le_bytes(x));
                (number.rotate_left(16).to_le_bytes(), lost)
            }),
            Self::VaxD => each(from, to, |x| {
                let (number, lost) = VaxD::from_ieee(u64::from_le_bytes(x));
                (words(number).to_le_bytes(), lost)
            }),
            Self::VaxG => each(from, to, |x| {
                let (number, lost) = vax_g::from_ieee(u64::from_le_bytes(x));
                (words(number).to_le_bytes(), lost)
            }),
            Self::Copy | Self::Swap2 | Self::Swap4 | Self::Swap8 => self.swap(from, to),
        }
    }

    /// Both ways are the same.
    #[inline(always)]
    fn swap(self, from: &[u8], to: &mut [u8]) -> u64 {
        match self {
            Self::Swap2 => each(from, to, |x| (u16::from_be_bytes(x).to_le_bytes(), 0u32)),
            Self::Swap4 => each(from, to, |x| (u32::from_be_bytes(x).to_le_bytes(), 0u32)),
            Self::Swap8 => each(from, to, |x| (u64::from_be_bytes(x).to_le_bytes(), 0u32)),
            _ => {
                to.copy_from_slice(from);
                0
            }
        }
    }
}

/// Puts each number through `one`, which also gives the bits that are lost; all of them, together.
#[inline(always)]
fn each<const A: usize, const B: usize, W>(
    from: &[u8],
    to: &mut [u8],
    one: impl Fn([u8; A]) -> ([u8; B], W),
) -> u64
where
    W: BitOr<Output = W> + Default + Into<u64>,
{
    let (from, to) = (from.as_chunks::<A>().0, to.as_chunks_mut::<B>().0);
    let mut lost = W::default();
    for (from, to) in from.iter().zip(to) {
        let (number, bits) = one(*from);
        *to = number;
        lost = lost | bits;
    }
    lost.into()
}
