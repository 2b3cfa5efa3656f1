//! One number at a time, as bits, without a branch: the compiler makes vectors of the loops.
//!
//! Each function also gives the bits that the way back would not restore; 0 when it is exact.

/// The same 64 bits with the order of their 16-bit words reversed.
#[inline(always)]
pub(crate) fn words(bits: u64) -> u64 {
    let halves = bits.rotate_left(32);
    (halves & 0x0000_ffff_0000_ffff) << 16 | (halves >> 16) & 0x0000_ffff_0000_ffff
}

#[inline(always)]
pub(crate) fn bf16_in(bits: u16) -> u32 {
    u32::from(bits) << 16
}

#[inline(always)]
pub(crate) fn bf16_out(bits: u32) -> (u16, u32) {
    ((bits >> 16) as u16, bits & 0xffff)
}

/// The processor's own conversion makes signalling NaNs quiet; this one keeps every bit.
#[inline(always)]
pub(crate) fn f16_in(bits: u16) -> u32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff);
    let tiny = (rest as i32 as f32 * f32::from_bits(0x3380_0000)).to_bits(); // times 2^-24, exact
    let bias = if rest < 0x7c00 { 112 << 23 } else { 224 << 23 };
    let usual = (rest << 13) + bias;
    sign | if rest < 0x400 { tiny } else { usual }
}

#[inline(always)]
pub(crate) fn f16_out(bits: u32) -> (u16, u32) {
    let sign = bits >> 16 & 0x8000;
    let rest = bits & 0x7fff_ffff;
    // In units of 2^-24, the last place of 0.5; what does not fit there is rounded away.
    let moved = f32::from_bits(rest) + 0.5;
    let tiny = moved.to_bits().wrapping_sub(0x3f00_0000);
    let tiny_lost = (moved - 0.5).to_bits() ^ rest;
    let (bias, finite) = if rest < 0x7f80_0000 {
        (112 << 23, 1)
    } else {
        (224 << 23, 0)
    };
    let usual = rest.wrapping_sub(bias) >> 13;
    let large = if rest < 0x4780_0000 { 0 } else { finite };
    let is_tiny = rest < 0x3880_0000;
    let half = sign | 0x7fff & if is_tiny { tiny } else { usual };
    (
        half as u16,
        if is_tiny {
            tiny_lost
        } else {
            rest & 0x1fff | large
        },
    )
}

/// The types whose fraction has as many bits as in IEEE, and whose exponent is 2 more: F beside
/// f32, G beside f64. Where the exponent is 1 or 2, IEEE has a subnormal with less of the fraction.
macro_rules! vax_like_ieee {
    ($name:ident, $bits:ty, $fraction:literal) => {
        pub(crate) mod $name {
            const FRACTION: u32 = $fraction;
            const MASK: $bits = (1 << FRACTION) - 1;
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            const NAN: $bits = SIGN | (SIGN - (1 << (FRACTION - 1)));

            /// `bits` with the sign first.
            #[inline(always)]
            pub(crate) fn to_ieee(bits: $bits) -> ($bits, $bits) {
                let (sign, rest) = (bits & SIGN, bits & !SIGN);
                let whole = bits & MASK | 1 << FRACTION;
                let half = (whole + (whole >> 1 & 1)) >> 1;
                let quarter = (whole + 1 + (whole >> 2 & 1)) >> 2;
                let none = if sign == 0 { 0 } else { NAN };
                let usual = sign | rest.wrapping_sub(2 << FRACTION);
                let second = if rest < 3 << FRACTION {
                    sign | half
                } else {
                    usual
                };
                let first = if rest < 2 << FRACTION {
                    sign | quarter
                } else {
                    second
                };
                let number = if rest < 1 << FRACTION { none } else { first };
                let second = if rest < 3 << FRACTION { bits & 1 } else { 0 };
                let first = if rest < 2 << FRACTION {
                    bits & 3
                } else {
                    second
                };
                (number, if rest < 1 << FRACTION { rest } else { first })
            }

            /// The bits with the sign first.
            #[inline(always)]
            pub(crate) fn from_ieee(bits: $bits) -> ($bits, $bits) {
                let (sign, rest) = (bits & SIGN, bits & !SIGN);
                let most: $bits = (SIGN >> FRACTION) - 2 << FRACTION;
                let usual = sign | rest.wrapping_add(2 << FRACTION);
                let half = sign | rest << 1 & MASK | 2 << FRACTION;
                let quarter = sign | rest << 2 & MASK | 1 << FRACTION;
                let first = if rest < 1 << (FRACTION - 1) {
                    quarter
                } else {
                    half
                };
                let number = if rest < 1 << FRACTION { first } else { usual };
                let fits = rest >= 1 << (FRACTION - 2) && rest < most;
                let none = if bits == NAN { SIGN } else { 0 };
                let lost = if bits == 0 || bits == NAN { 0 } else { 1 };
                (
                    if fits { number } else { none },
                    if fits { 0 } else { lost },
                )
            }
        }
    };
}

vax_like_ieee!(vax_f, u32, 23);
vax_like_ieee!(vax_g, u64, 52);

/// D: the exponent of F, and three bits of fraction more than f64.
pub(crate) struct VaxD;

impl VaxD {
    const SIGN: u64 = 1 << 63;
    const NAN: u64 = 0xfff8_0000_0000_0000;
    /// What an exponent of f64 has more, in its place.
    const BIAS: u64 = 894 << 52;

    /// `bits` with the sign first.
    #[inline(always)]
    pub(crate) fn to_ieee(bits: u64) -> (u64, u64) {
        let (sign, rest) = (bits & Self::SIGN, bits & !Self::SIGN);
        let rounded = (rest + 3 + (rest >> 3 & 1)) >> 3; // ties to even
        let none = if sign == 0 { 0 } else { Self::NAN };
        let absent = rest < 1 << 55;
        let number = sign | (rounded + Self::BIAS);
        (
            if absent { none } else { number },
            if absent { rest } else { rest & 7 },
        )
    }

    /// The bits with the sign first.
    #[inline(always)]
    pub(crate) fn from_ieee(bits: u64) -> (u64, u64) {
        let (sign, rest) = (bits & Self::SIGN, bits & !Self::SIGN);
        let number = sign | rest.wrapping_sub(Self::BIAS) << 3 & !Self::SIGN;
        let fits = (Self::BIAS + (1 << 52)..Self::BIAS + (256 << 52)).contains(&rest);
        let none = if bits == Self::NAN { Self::SIGN } else { 0 };
        let lost = if bits == 0 || bits == Self::NAN { 0 } else { 1 };
        (
            if fits { number } else { none },
            if fits { 0 } else { lost },
        )
    }
}
