//! npy: a Python dictionary with dtype, order and shape, then the numbers.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::dtype::{Dtype, Element};
use crate::error::{FormatError, OpenError};
use crate::layout::{Kind, Tensor, length};
use crate::literal::{Literal, dictionary};
use crate::source::{Source, little};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header that is believed. NumPy warns from 10,000 bytes on.
const HEADER_MAX: u64 = 1 << 20;
/// NumPy keeps the size of an element in a C `int`.
const ELEMENT_MAX: u64 = i32::MAX as u64;

/// Where in a file an array with its header lies, and what it is called.
pub(crate) struct Place<'a> {
    pub(crate) name: &'a str,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

impl Place<'_> {
    /// What messages call it.
    fn what(&self, part: &str) -> String {
        match self.name {
            "" => format!("the {part}"),
            name => format!("the {part} of array {name:?}"),
        }
    }

    /// Reads `bytes` at `at` of this place, which must not reach past its end.
    fn bytes<E>(
        &self,
        source: &mut Source<'_, E>,
        at: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, OpenError<E>> {
        let begin = self.begin.saturating_add(at);
        let end = begin.saturating_add(bytes as u64);
        self.has("header", begin, end)?;
        source.bytes(&self.what("header"), begin, bytes)
    }

    /// That `part`, at `begin .. end` of the file, does not reach past the end of this place.
    fn has(&self, part: &str, begin: u64, end: u64) -> Result<(), FormatError> {
        if end <= self.end {
            return Ok(());
        }
        Err(FormatError::Outside {
            what: self.what(part),
            begin,
            end,
            size: self.end,
        })
    }

    fn invalid(&self, why: &str) -> FormatError {
        let of = match self.name {
            "" => String::new(),
            name => format!("array {name:?}: "),
        };
        FormatError::invalid(Kind::Npy, of + why)
    }
}

/// Reads the header at `place`, the beginning of which was read ahead.
pub(crate) fn open<E>(
    source: &mut Source<'_, E>,
    place: &Place<'_>,
) -> Result<Tensor, OpenError<E>> {
    let start = place.bytes(source, 0, 8)?;
    if !start.starts_with(MAGIC) {
        return Err(place.invalid("it does not begin with \\x93NUMPY").into());
    }
    let (fields, length) = match start[6] {
        1 => (10, little::<2>(&place.bytes(source, 0, 10)?, 8)),
        2 | 3 => (12, little::<4>(&place.bytes(source, 0, 12)?, 8)),
        version => {
            let why = format!("version {version} of the format is not known");
            return Err(place.invalid(&why).into());
        }
    };
    let length = length.unwrap_or(0);
    if length > HEADER_MAX {
        let why = format!("a header of {length} bytes; {HEADER_MAX} are the most");
        return Err(place.invalid(&why).into());
    }
    let header = place.bytes(source, fields, length as usize)?;
    let header = Header::read(place, start[6], &header)?;
    let begin = place.begin + fields + length;
    let (bytes, end) = (header.bytes, begin.saturating_add(header.bytes));
    place.has("data", begin, end)?;
    Ok(Tensor {
        name: place.name.to_string(),
        element: header.element,
        shape: header.shape,
        fortran: header.fortran,
        offset: begin,
        bytes,
    })
}

/// What a header says.
struct Header {
    element: Element,
    fortran: bool,
    shape: Vec<u64>,
    bytes: u64,
}

impl Header {
    fn read(place: &Place<'_>, version: u8, header: &[u8]) -> Result<Self, FormatError> {
        let text = match version {
            3 => core::str::from_utf8(header).map(String::from).ok(),
            _ => Some(header.iter().map(|&byte| char::from(byte)).collect()), // Latin-1
        };
        let text = text.ok_or_else(|| place.invalid("a header that is not UTF-8"))?;
        let entries = dictionary(&text).map_err(|why| place.invalid(&why))?;
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        for (key, value, text) in entries {
            let again = match (key.as_str(), value) {
                ("descr", value) => descr.replace((value, text)).is_some(),
                ("fortran_order", Literal::Bool(value)) => fortran.replace(value).is_some(),
                ("shape", Literal::Tuple(value)) => shape.replace(value).is_some(),
                (key, _) => {
                    return Err(place.invalid(&format!("a header with {key:?}: {text}")));
                }
            };
            if again {
                return Err(place.invalid(&format!("a header with {key:?} twice")));
            }
        }
        let (Some((descr, text)), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
            return Err(place.invalid("a header without descr, fortran_order or shape"));
        };
        let element = element(place, &descr, text)?;
        let dimension = |value: &Literal| match value {
            Literal::Number(number) => Ok(*number),
            _ => Err(place.invalid("a shape of other things than numbers")),
        };
        let shape = shape.iter().map(dimension).collect::<Result<Vec<_>, _>>()?;
        let bytes = length(place.name, &shape, element.bytes())?;
        Ok(Self {
            element,
            fortran,
            shape,
            bytes,
        })
    }
}

/// The element that `descr` describes; `text` is its source.
fn element(place: &Place<'_>, descr: &Literal, text: String) -> Result<Element, FormatError> {
    if let Literal::Text(letters) = descr
        && let Some((dtype, order)) = Dtype::from_descr(letters)
    {
        return Ok(Element::Number { dtype, order });
    }
    let bytes = element_bytes(place, descr)?;
    Ok(Element::Opaque { descr: text, bytes })
}

/// Bytes of an element of any `descr` of NumPy: letters, a list of fields, or a type with a shape.
fn element_bytes(place: &Place<'_>, descr: &Literal) -> Result<u64, FormatError> {
    let wrong = || place.invalid("a descr that NumPy does not know");
    let bytes = match descr {
        Literal::Text(letters) => letters_bytes(letters).ok_or_else(|| match object(letters) {
            true => FormatError::Pickled {
                name: place.name.to_string(),
            },
            false => place.invalid(&format!("dtype {letters:?} is not known")),
        })?,
        Literal::List(fields) => fields.iter().try_fold(0u64, |sum, field| {
            let Literal::Tuple(field) = field else {
                return Err(wrong());
            };
            let bytes = match field.as_slice() {
                [name, descr] if is_name(name) => element_bytes(place, descr)?,
                [name, descr, shape] if is_name(name) => {
                    times(element_bytes(place, descr)?, shape).ok_or_else(wrong)?
                }
                _ => return Err(wrong()),
            };
            sum.checked_add(bytes).ok_or_else(wrong)
        })?,
        Literal::Tuple(pair) => match pair.as_slice() {
            [descr, shape] => times(element_bytes(place, descr)?, shape).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        },
        Literal::Number(_) | Literal::Bool(_) => return Err(wrong()),
    };
    match bytes <= ELEMENT_MAX {
        true => Ok(bytes),
        false => Err(place.invalid("elements of more than 2 GiB")),
    }
}

/// A field's name, or its title and name.
fn is_name(literal: &Literal) -> bool {
    match literal {
        Literal::Text(_) => true,
        Literal::Tuple(both) => matches!(both.as_slice(), [Literal::Text(_), Literal::Text(_)]),
        _ => false,
    }
}

fn times(bytes: u64, shape: &Literal) -> Option<u64> {
    let dimension = |literal: &Literal| match literal {
        Literal::Number(number) => Some(*number),
        _ => None,
    };
    let one = core::slice::from_ref(shape);
    let shape = match shape {
        Literal::Tuple(shape) => shape.as_slice(),
        _ => one,
    };
    let mut shape = shape.iter();
    shape.try_fold(bytes, |all, literal| all.checked_mul(dimension(literal)?))
}

fn unsigned(letters: &str) -> &str {
    letters
        .strip_prefix(['<', '>', '=', '|'])
        .unwrap_or(letters)
}

fn object(letters: &str) -> bool {
    unsigned(letters).starts_with('O')
}

/// Bytes of an element by its letters. `None`: not fixed, or not known.
fn letters_bytes(letters: &str) -> Option<u64> {
    if let Some((dtype, _)) = Dtype::from_descr(letters) {
        return Some(dtype.bytes() as u64);
    }
    let letters = unsigned(letters);
    let kind = letters.chars().next().filter(char::is_ascii)?;
    let rest = &letters[1..];
    let number = || match rest.bytes().all(|byte| byte.is_ascii_digit()) {
        true => rest.parse::<u64>().ok(),
        false => None,
    };
    match kind {
        'S' | 'a' | 'V' => number(),
        'U' => number()?.checked_mul(4),
        'M' | 'm' => (rest == "8" || rest.starts_with("8[") && rest.ends_with(']')).then_some(8),
        'f' => number().filter(|&n| n == 16), // long double
        'c' => number().filter(|&n| n == 32),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Order;
    use crate::testing::{npy, opened, ranges};
    use alloc::vec;

    fn header(descr: &str, shape: &str) -> String {
        format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")
    }

    fn of(descr: &str, shape: &str, bytes: usize) -> Result<Tensor, FormatError> {
        let layout = opened(&npy(1, &header(descr, shape), &vec![0; bytes]))?;
        assert_eq!(layout.kind, Kind::Npy);
        Ok(layout.tensors.into_iter().next().unwrap())
    }

    #[test]
    fn all_versions_are_read() {
        for version in 1..=3 {
            let file = npy(version, &header("'>i8'", "(3, 5)"), &[0; 120]);
            let layout = opened(&file).unwrap();
            let tensor = &layout.tensors[0];
            let (dtype, order) = (Dtype::I64, Order::Big);
            assert_eq!(tensor.element, Element::Number { dtype, order });
            assert_eq!((tensor.shape.as_slice(), tensor.bytes), (&[3, 5][..], 120));
            assert_eq!(tensor.offset % 64, 0);
            assert!(!tensor.fortran);
        }
        let error = opened(&npy(9, &header("'<f4'", "()"), &[0; 4])).unwrap_err();
        assert!(error.to_string().contains("version 9"), "{error}");
    }

    #[test]
    fn a_usual_header_takes_one_read_and_a_long_one_two() {
        let file = npy(1, &header("'<f4'", "(2000,)"), &[0; 8000]);
        assert_eq!(ranges(&file), [(0, 4096)]);
        let fields: Vec<_> = (0..1000).map(|n| format!("('f{n}', '<f4')")).collect();
        let descr = format!("[{}]", fields.join(", "));
        let file = npy(1, &header(&descr, "(2,)"), &[0; 8000]);
        let header = file.len() - 8000;
        assert_eq!(ranges(&file), [(0, 4096), (4096, header - 4096)]);
    }

    #[test]
    fn fortran_order_and_scalars_are_kept() {
        let text = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }";
        let layout = opened(&npy(1, text, &[0; 48])).unwrap();
        assert!(layout.tensors[0].fortran);
        let scalar = of("'<f8'", "()", 8).unwrap();
        assert_eq!((scalar.elements(), scalar.bytes), (1, 8));
        assert_eq!(of("'<f8'", "(0, 3)", 0).unwrap().bytes, 0);
    }

    #[test]
    fn records_text_and_dates_stay_opaque_with_their_size() {
        let cases = [
            ("[('a', '<i4'), ('b', '<f8', (2,)), ('', '|V4')]", 24),
            (
                "[(('title', 'a'), '<f4'), ('n', [('x', '|u1'), ('y', '>u2')])]",
                7,
            ),
            ("('<f4', (2, 3))", 24),
            ("[('a', '<f4', 3)]", 12),
            ("'<U10'", 40),
            ("'|S5'", 5),
            ("'<M8[ns]'", 8),
            ("'<m8'", 8),
            ("'|V16'", 16),
            ("'<f16'", 16),
        ];
        for (descr, bytes) in cases {
            let tensor = of(descr, "(2,)", 2 * bytes).unwrap();
            let (descr, bytes) = (descr.to_string(), bytes as u64);
            assert_eq!(tensor.element, Element::Opaque { descr, bytes });
        }
    }

    #[test]
    fn objects_are_refused_wherever_they_stand() {
        for descr in [
            "'|O'",
            "'O8'",
            "[('a', '<f4'), ('b', '|O')]",
            "('|O', (2,))",
        ] {
            let error = of(descr, "(2,)", 100).unwrap_err();
            assert!(
                matches!(error, FormatError::Pickled { .. }),
                "{descr}: {error}"
            );
        }
    }

    #[test]
    fn headers_that_are_not_numpys_are_refused() {
        for descr in [
            "'<f3'",
            "'<f4x'",
            "3",
            "True",
            "[]]",
            "[('a',)]",
            "[(1, '<f4')]",
            "['<f4']",
            "('<f4',)",
            "('<f4', 'x')",
            "'<U+1'",
            "'|V99999999999'",
            "[('a', '|V2000000000')]*2",
            "('|V2000000000', (2,))",
            "'\u{e9}'",
            "''",
        ] {
            assert!(of(descr, "(2,)", 100).is_err(), "{descr}");
        }
        for shape in ["3", "(3)", "[3]", "(-1,)", "('3',)", "(1.0,)"] {
            assert!(of("'<f4'", shape, 100).is_err(), "{shape}");
        }
        for text in [
            "{'descr': '<f4', 'shape': (2,)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
            "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (2,)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}",
        ] {
            assert!(opened(&npy(1, text, &[0; 100])).is_err(), "{text}");
        }
    }

    #[test]
    fn data_that_are_cut_off_are_refused_and_more_is_not() {
        assert!(matches!(
            of("'<f4'", "(3,)", 11),
            Err(FormatError::Outside { .. })
        ));
        assert!(of("'<f4'", "(3,)", 12).is_ok());
        assert!(of("'<f4'", "(3,)", 13).is_ok()); // np.save twice into one file
        let file = npy(1, &header("'<f4'", "(3,)"), &[]);
        for length in 0..file.len() {
            assert!(opened(&file[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn absurd_lengths_are_refused_before_they_are_read() {
        let mut file = npy(2, &header("'<f4'", "(3,)"), &[0; 12]);
        file[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(opened(&file).unwrap_err().to_string().contains("the most"));
        file[8..12].copy_from_slice(&100_000_u32.to_le_bytes());
        assert!(matches!(opened(&file), Err(FormatError::Outside { .. })));
        assert_eq!(ranges(&file), [(0, file.len())]);
        let error = of("'<f4'", "(4294967296, 4294967296)", 12).unwrap_err();
        assert!(matches!(error, FormatError::Shape { .. }));
    }
}
