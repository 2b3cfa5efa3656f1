//! safetensors: the length of a header, the header in JSON, then the numbers without a gap.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::dtype::{Dtype, Element};
use crate::error::{FormatError, OpenError};
use crate::layout::{Kind, Tensor, length};
use crate::source::{Source, little};

/// Longest header of the format.
const HEADER_MAX: u64 = 100_000_000;
/// The entry of the header that is no tensor.
const METADATA: &str = "__metadata__";

/// Reads the header.
pub(crate) fn open<E>(source: &mut Source<'_, E>) -> Result<Vec<Tensor>, OpenError<E>> {
    let invalid = |why: String| FormatError::invalid(Kind::Safetensors, why);
    let start = source.bytes("the length of the header", 0, 8)?;
    let bytes = little::<8>(&start, 0).unwrap_or(0);
    if bytes > HEADER_MAX {
        let why = format!("a header of {bytes} bytes; {HEADER_MAX} are the most");
        return Err(invalid(why).into());
    }
    let header = source.bytes("the header", 8, bytes as usize)?;
    if header.first() != Some(&b'{') {
        return Err(invalid("the header does not begin with {".to_string()).into());
    }
    let header: Header<'_> = serde_json::from_slice(&header)
        .map_err(|error| invalid(format!("the header cannot be read: {error}")))?;
    let begin = 8 + bytes;
    Ok(header.tensors(begin, source.size - begin)?)
}

/// The tensors in the order of the header; a name may still stand twice.
struct Header<'a>(Vec<(String, Info<'a>)>);

/// One entry of the header.
#[derive(Deserialize)]
struct Info<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header<'de>, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(Header(tensors))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl Header<'_> {
    /// The tensors, if their data fill `data` bytes exactly.
    fn tensors(self, begin: u64, data: u64) -> Result<Vec<Tensor>, FormatError> {
        let mut places = Vec::with_capacity(self.0.len());
        let mut tensors = Vec::with_capacity(self.0.len());
        for (name, info) in self.0 {
            let (from, to) = info.data_offsets;
            let element = element(&name, &info.dtype)?;
            let bytes = length(&name, &info.shape, element.bytes())?;
            if to < from || to - from != bytes {
                let why = format!("it takes {bytes} bytes, its place is {from}..{to}");
                return Err(FormatError::shape(name, why));
            }
            if to > data {
                return Err(FormatError::Outside {
                    what: format!("array {name:?}"),
                    begin: begin.saturating_add(from),
                    end: begin.saturating_add(to),
                    size: begin + data,
                });
            }
            places.push((from, to, tensors.len()));
            tensors.push(Tensor {
                name,
                element,
                shape: info.shape,
                fortran: false,
                offset: begin + from,
                bytes,
            });
        }
        places.sort_unstable();
        let mut expected = 0;
        for (from, to, at) in places {
            if from != expected {
                return Err(FormatError::Overlap {
                    name: core::mem::take(&mut tensors[at].name),
                    begin: from,
                    expected,
                    why: match from < expected {
                        true => "so two arrays share bytes; get or write the file again",
                        false => "which safetensors forbids; get or write the file again",
                    },
                });
            }
            expected = to;
        }
        if expected != data {
            let why = format!("{} bytes after the last tensor", data - expected);
            return Err(FormatError::invalid(Kind::Safetensors, why));
        }
        Ok(tensors)
    }
}

/// The element called `dtype`.
fn element(name: &str, dtype: &str) -> Result<Element, FormatError> {
    if let Some(dtype) = Dtype::from_safetensors(dtype) {
        return Ok(Element::little(dtype));
    }
    match dtype {
        "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => Ok(Element::Opaque {
            descr: dtype.to_string(),
            bytes: 1,
        }),
        _ => Err(FormatError::Unsupported {
            name: name.to_string(),
            what: format!("has the dtype {dtype}"),
            remedy: "save it as one whose elements are whole bytes, such as U8 or BF16",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{named, opened, ranges};
    use alloc::vec;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(vec![0; data]);
        file
    }

    fn entry(name: &str, dtype: &str, shape: &str, from: u64, to: u64) -> String {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    }

    fn of(entries: &[String], data: usize) -> Result<Vec<Tensor>, FormatError> {
        let header = format!("{{{}}}", entries.join(","));
        let layout = opened(&file(&header, data))?;
        assert_eq!(layout.kind, Kind::Safetensors);
        Ok(layout.tensors)
    }

    #[test]
    fn tensors_are_found_in_the_order_of_the_header() {
        let metadata = r#""__metadata__":{"format":"pt"}"#.to_string();
        let b = entry("b", "BF16", "[2,3]", 4, 16);
        let a = entry("a", "F32", "[]", 0, 4);
        let empty = entry("none", "I64", "[0,5]", 16, 16);
        let tensors = of(&[metadata, b, a, empty], 16).unwrap();
        let names: Vec<_> = tensors.iter().map(|t| (&*t.name, t.bytes)).collect();
        assert_eq!(names, [("b", 12), ("a", 4), ("none", 0)]);
        assert_eq!(tensors[0].element, Element::little(Dtype::Bf16));
        assert_eq!(tensors[0].offset, tensors[1].offset + 4);
    }

    #[test]
    fn a_short_header_takes_one_read_and_a_long_one_two() {
        let short = file(&format!("{{{}}}", entry("a", "F32", "[1]", 0, 4)), 4);
        assert_eq!(ranges(&short), [(0, short.len())]);
        let one = |at: u64| entry(&format!("t{at}"), "F32", "[1]", 4 * at, 4 * at + 4);
        let entries: Vec<_> = (0..1000).map(one).collect();
        let long = file(&format!("{{{}}}", entries.join(",")), 4000);
        let header = long.len() - 4000;
        assert_eq!(ranges(&long), [(0, 4096), (4096, header - 4096)]);
        assert_eq!(opened(&long).unwrap().tensors.len(), 1000);
    }

    #[test]
    fn spaces_around_the_header_are_allowed_only_behind() {
        assert!(opened(&file("{}   ", 0)).unwrap().tensors.is_empty());
        let before = named(&file(" {}", 0), Some("x.safetensors")).unwrap_err();
        assert!(before.to_string().contains("begin with {"), "{before}");
    }

    #[test]
    fn overlaps_gaps_and_leftovers_are_refused() {
        let two = |begin: u64, data: usize| {
            let a = entry("a", "U8", "[8]", 0, 8);
            of(&[a, entry("b", "U8", "[8]", begin, begin + 8)], data)
        };
        assert!(two(8, 16).is_ok());
        assert!(matches!(
            two(4, 12),
            Err(FormatError::Overlap { expected: 8, .. })
        ));
        assert!(matches!(two(0, 8), Err(FormatError::Overlap { .. })));
        assert!(matches!(
            two(9, 17),
            Err(FormatError::Overlap { begin: 9, .. })
        ));
        assert!(matches!(two(8, 17), Err(FormatError::Invalid { .. })));
        assert!(matches!(two(8, 15), Err(FormatError::Outside { .. })));
    }

    #[test]
    fn places_that_do_not_match_the_shape_are_refused() {
        for (shape, from, to) in [("[2]", 0, 7), ("[2]", 8, 0), ("[3]", 0, 8), ("[0]", 0, 8)] {
            let result = of(&[entry("a", "F32", shape, from, to)], 8);
            assert!(
                matches!(result, Err(FormatError::Shape { .. })),
                "{shape} {from} {to}"
            );
        }
        let huge = entry("a", "F32", "[4294967296,4294967296]", 0, 8);
        assert!(matches!(of(&[huge], 8), Err(FormatError::Shape { .. })));
    }

    #[test]
    fn names_and_fields_that_stand_twice_are_refused() {
        let twice = [entry("a", "U8", "[4]", 0, 4), entry("a", "U8", "[4]", 4, 8)];
        assert!(matches!(of(&twice, 8), Err(FormatError::Duplicate { .. })));
        let field = r#""a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
        assert!(of(&[field.to_string()], 1).is_err());
    }

    #[test]
    fn types_of_less_than_a_byte_are_named() {
        let error = of(&[entry("a", "F4", "[2]", 0, 1)], 1).unwrap_err();
        assert!(error.to_string().contains("F4"), "{error}");
        let scale = of(&[entry("a", "F8_E8M0", "[2]", 0, 2)], 2).unwrap();
        assert_eq!(
            (scale[0].element.bytes(), scale[0].element.dtype()),
            (1, None)
        );
    }

    #[test]
    fn headers_that_are_no_header_are_refused() {
        let name = Some("x.safetensors");
        for header in [
            "{",
            "[]",
            "{\"a\":1}",
            "{\"a\":{}}",
            "{} x",
            "{\"a\":{\"dtype\":1}}",
        ] {
            assert!(named(&file(header, 0), name).is_err(), "{header}");
        }
        let mut absurd = file("{}", 0);
        absurd[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(
            named(&absurd, name)
                .unwrap_err()
                .to_string()
                .contains("the most")
        );
        absurd[..8].copy_from_slice(&3_u64.to_le_bytes());
        assert!(matches!(
            named(&absurd, name),
            Err(FormatError::Outside { .. })
        ));
        assert!(matches!(
            named(b"1234", name),
            Err(FormatError::Outside { .. })
        ));
        assert_eq!(named(&absurd, None), Err(FormatError::Unknown));
    }
}
