//! gzip, decoded from the beginning or from a boundary between two blocks.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY,
    TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};

use super::corrupt;
use super::input::Input;
use crate::{Source, SourceError};

/// How far back a match reaches.
pub(super) const WINDOW_BYTES: usize = 32 << 10;
/// Bytes that are decoded between two looks at the rest.
const SPACE_BYTES: usize = 256 << 10;

/// A place where decoding can begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Boundary {
    /// The next byte of the compressed source.
    pub(super) at: u64,
    /// Bits of the byte before that belong to the next block, and how many.
    pub(super) bit_buffer: u8,
    pub(super) bits: u8,
}

/// What comes out, in order.
pub(super) enum Event<'a> {
    Bytes(&'a [u8]),
    /// Here decoding can begin, given these bytes before it.
    Boundary(Boundary, &'a [u8]),
}

/// What a call of the decoder came to.
enum Step {
    /// There is no space any more.
    Full,
    Boundary,
    End,
}

/// Decodes on into `out[from..]`; returns how many bytes came.
fn step(
    source: &dyn Source,
    input: &mut Input<'_>,
    decoder: &mut DecompressorOxide,
    out: &mut [u8],
    from: usize,
) -> Result<(Step, usize), SourceError> {
    let flags = TINFL_FLAG_HAS_MORE_INPUT
        | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY
        | TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
    let mut to = from;
    loop {
        let piece = input.some()?.unwrap_or(&[]);
        let is_end = piece.is_empty();
        let (status, taken, given) = decompress(decoder, piece, out, to, flags);
        input.take(taken);
        to += given;
        let step = match status {
            TINFLStatus::NeedsMoreInput if is_end => {
                input.more()?;
                continue;
            }
            TINFLStatus::NeedsMoreInput => continue,
            TINFLStatus::HasMoreOutput => Step::Full,
            TINFLStatus::BlockBoundary => Step::Boundary,
            TINFLStatus::Done => Step::End,
            // The library may add ways to fail.
            _ => {
                let cause = "no deflate block is like this";
                return Err(corrupt(source, input.position(), cause));
            }
        };
        return Ok((step, to - from));
    }
}

/// Reads the header of a member (RFC 1952).
fn header(source: &dyn Source, input: &mut Input<'_>) -> Result<(), SourceError> {
    let at = input.position();
    let fixed: [u8; 10] = input.array()?;
    let flags = fixed[3];
    if fixed[..3] != [0x1f, 0x8b, 8] || flags & 0b1110_0000 != 0 {
        return Err(corrupt(source, at, "no gzip member begins here"));
    }
    if flags & 0b100 != 0 {
        let length = u16::from_le_bytes(input.array()?);
        for _ in 0..length {
            input.byte()?;
        }
    }
    for text in [0b1000, 0b1_0000] {
        if flags & text != 0 {
            while input.byte()? != 0 {}
        }
    }
    if flags & 0b10 != 0 {
        input.array::<2>()?;
    }
    Ok(())
}

/// True when another member follows, to which it goes on. Zeros may be before it: they come from tapes and
/// disks.
fn has_next(input: &mut Input<'_>) -> Result<bool, SourceError> {
    while let Some(piece) = input.some()? {
        let zeros = piece.iter().take_while(|byte| **byte == 0).count();
        let is_next = zeros < piece.len();
        input.take(zeros);
        if is_next {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Decodes all members, and checks their sums. `each` says whether to go on.
pub(super) fn inflate_all(
    source: &dyn Source,
    progress: &mut dyn FnMut(u64, u64),
    each: &mut dyn FnMut(Event<'_>) -> Result<bool, SourceError>,
) -> Result<bool, SourceError> {
    let mut input = Input::new(source, 0, None);
    let mut out = vec![0; WINDOW_BYTES + SPACE_BYTES];
    loop {
        header(source, &mut input)?;
        let mut decoder = Box::<DecompressorOxide>::default();
        let mut sum = crc32fast::Hasher::new();
        let (mut filled, mut total) = (0, 0u32);
        let start = Boundary {
            at: input.position(),
            bit_buffer: 0,
            bits: 0,
        };
        let mut go_on = each(Event::Boundary(start, &[]))?;
        let mut is_end = false;
        while go_on && !is_end {
            let (step, given) = step(source, &mut input, &mut decoder, &mut out, filled)?;
            let bytes = &out[filled..filled + given];
            filled += given;
            sum.update(bytes);
            total = total.wrapping_add(given as u32);
            go_on = each(Event::Bytes(bytes))?;
            let window = filled.saturating_sub(WINDOW_BYTES)..filled;
            match step {
                Step::End => is_end = true,
                Step::Boundary => {
                    let boundary = boundary(&decoder, input.position());
                    go_on = go_on && each(Event::Boundary(boundary, &out[window]))?;
                }
                Step::Full => {
                    out.copy_within(window, 0);
                    filled = WINDOW_BYTES;
                    progress(input.position(), source.size());
                }
            }
        }
        if !go_on {
            return Ok(false);
        }
        let at = input.position();
        let (right, length) = (u32::from_le_bytes(input.array()?), input.array()?);
        if right != sum.finalize() || u32::from_le_bytes(length) != total {
            return Err(corrupt(
                source,
                at,
                "the member does not match its checksum",
            ));
        }
        if !has_next(&mut input)? {
            progress(source.size(), source.size());
            return Ok(true);
        }
    }
}

fn boundary(decoder: &DecompressorOxide, at: u64) -> Boundary {
    let state = decoder.block_boundary_state();
    let state = state.expect("the decoder has just come to one");
    Boundary {
        at,
        bit_buffer: state.bit_buf,
        bits: state.num_bits,
    }
}

/// Decodes from a boundary on into `out[from..]`, all of it; before that is what matches reach
/// back to. Sums of members are not checked: the beginning of the first may not be here.
pub(super) fn inflate_from(
    source: &dyn Source,
    boundary: Boundary,
    end: u64,
    out: &mut [u8],
    from: usize,
) -> Result<(), SourceError> {
    let mut input = Input::new(source, boundary.at, Some(end));
    let mut decoder = Box::new(DecompressorOxide::from_block_boundary_state(
        &BlockBoundaryState {
            num_bits: boundary.bits,
            bit_buf: boundary.bit_buffer,
            ..BlockBoundaryState::default()
        },
    ));
    let mut filled = from;
    while filled < out.len() {
        let (step, given) = step(source, &mut input, &mut decoder, out, filled)?;
        filled += given;
        if matches!(step, Step::End) && filled < out.len() {
            input.array::<8>()?;
            has_next(&mut input)?;
            header(source, &mut input)?;
            *decoder = DecompressorOxide::default();
        }
    }
    Ok(())
}
