//! The fields of an Arrow schema, as far as they decide which buffers a column has.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use polars_arrow_format::ipc::{
    DateUnit, Endianness, FieldRef, IntRef, IntervalUnit, Precision, SchemaRef, TimeUnit, TypeRef,
    UnionMode,
};

use super::{damaged, invalid};
use crate::dtype::{Dtype, Element, Order};
use crate::error::FormatError;

/// Deepest nesting of fields.
const DEPTH_MAX: usize = 64;
/// Most bytes of all fields, each counted wherever it stands: its name, and as much as below.
const FIELDS_MAX: usize = 16 << 20;
const FIELD_BYTES: usize = 64;

/// Which buffers a column has, after the one that says which elements are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Nothing at all.
    Null,
    /// Elements.
    Fixed(Element),
    /// Eight elements a byte.
    Bits,
    /// Offsets and bytes; `wide`: of 64 bits.
    Bytes { wide: bool },
    /// Views of 16 bytes, and any number of buffers with bytes.
    Views,
    /// Offsets into the child.
    List { wide: bool },
    /// Offsets and sizes.
    ListView { wide: bool },
    /// So many elements of the child each.
    FixedList(u64),
    /// Children alone.
    Struct,
    /// Which child each element is of, and where there if `dense`.
    Union { dense: bool },
    /// Children alone, not even a buffer that says what is there.
    RunEnds,
}

/// A field with what it is made of.
#[derive(Clone, Debug)]
pub(super) struct Field {
    pub(super) name: String,
    /// Of the values, also when these are in a dictionary.
    pub(super) form: Form,
    pub(super) children: Vec<Field>,
    /// The dictionary's number, and what its indices are.
    pub(super) dictionary: Option<(i64, Element)>,
}

/// The columns of a schema.
pub(super) struct Schema {
    pub(super) order: Order,
    pub(super) columns: Vec<Field>,
}

impl Schema {
    pub(super) fn read(schema: SchemaRef<'_>) -> Result<Self, FormatError> {
        let order = match schema.endianness().map_err(damaged)? {
            Endianness::Little => Order::Little,
            Endianness::Big => Order::Big,
        };
        let mut reader = Reader {
            order,
            left: FIELDS_MAX,
        };
        let mut columns = Vec::new();
        for field in schema.fields().map_err(damaged)?.into_iter().flatten() {
            columns.push(reader.field(field.map_err(damaged)?, 0)?);
        }
        Ok(Self { order, columns })
    }

    /// The field whose values are in dictionary `id`.
    pub(super) fn dictionary(&self, id: i64) -> Option<&Field> {
        fn within(fields: &[Field], id: i64) -> Option<&Field> {
            fields.iter().find_map(|field| match &field.dictionary {
                Some((found, _)) if *found == id => Some(field),
                _ => within(&field.children, id),
            })
        }
        within(&self.columns, id)
    }
}

struct Reader {
    order: Order,
    left: usize,
}

impl Reader {
    fn field(&mut self, field: FieldRef<'_>, depth: usize) -> Result<Field, FormatError> {
        if depth > DEPTH_MAX {
            return Err(invalid(format!("fields nested deeper than {DEPTH_MAX}")));
        }
        let name = field.name().map_err(damaged)?.unwrap_or_default();
        // Fields may stand in several places at once, so depth alone is no limit.
        let left = self.left.checked_sub(FIELD_BYTES + name.len());
        self.left = left.ok_or_else(|| invalid("a schema of too many fields"))?;
        let name = name.to_string();
        let Some(kind) = field.type_().map_err(damaged)? else {
            return Err(invalid(format!("column {name:?} has no type")));
        };
        let form = self
            .form(kind)
            .map_err(|why| invalid(format!("column {name:?}: {why}")))?;
        let mut children = Vec::new();
        for child in field.children().map_err(damaged)?.into_iter().flatten() {
            children.push(self.field(child.map_err(damaged)?, depth + 1)?);
        }
        let wanted = match form {
            Form::List { .. } | Form::ListView { .. } | Form::FixedList(_) => Some(1),
            Form::RunEnds => Some(2),
            Form::Struct | Form::Union { .. } => None,
            _ => Some(0),
        };
        if wanted.is_some_and(|wanted| wanted != children.len()) {
            let why = format!("column {name:?} has {} children", children.len());
            return Err(invalid(why));
        }
        let dictionary = match field.dictionary().map_err(damaged)? {
            None => None,
            Some(encoding) => {
                let index = match encoding.index_type().map_err(damaged)? {
                    None => self.number(Dtype::I32),
                    Some(int) => self.int(int).map_err(invalid)?,
                };
                Some((encoding.id().map_err(damaged)?, index))
            }
        };
        Ok(Field {
            name,
            form,
            children,
            dictionary,
        })
    }

    fn number(&self, dtype: Dtype) -> Element {
        let order = match dtype.bytes() {
            1 => Order::Little,
            _ => self.order,
        };
        Element::Number { dtype, order }
    }

    /// Something that NumPy knows by these letters.
    fn opaque(&self, letters: &str, bytes: u64) -> Element {
        let sign = match self.order {
            Order::Little => '<',
            Order::Big => '>',
        };
        let descr = format!("'{sign}{letters}'");
        Element::Opaque { descr, bytes }
    }

    fn void(&self, bytes: u64) -> Element {
        let descr = format!("'|V{bytes}'");
        Element::Opaque { descr, bytes }
    }

    fn int(&self, int: IntRef<'_>) -> Result<Element, String> {
        let wrong = |error| format!("{error}");
        let (bits, signed) = (
            int.bit_width().map_err(wrong)?,
            int.is_signed().map_err(wrong)?,
        );
        Ok(self.number(match (bits, signed) {
            (8, true) => Dtype::I8,
            (16, true) => Dtype::I16,
            (32, true) => Dtype::I32,
            (64, true) => Dtype::I64,
            (8, false) => Dtype::U8,
            (16, false) => Dtype::U16,
            (32, false) => Dtype::U32,
            (64, false) => Dtype::U64,
            _ => return Err(format!("integers of {bits} bits")),
        }))
    }

    fn form(&self, kind: TypeRef<'_>) -> Result<Form, String> {
        let wrong = |error: polars_arrow_format::ipc::planus::Error| error.to_string();
        let length =
            |number: i32| u64::try_from(number).map_err(|_| format!("a length of {number}"));
        Ok(match kind {
            TypeRef::Null(_) => Form::Null,
            TypeRef::Int(int) => Form::Fixed(self.int(int)?),
            TypeRef::FloatingPoint(float) => {
                Form::Fixed(self.number(match float.precision().map_err(wrong)? {
                    Precision::Half => Dtype::F16,
                    Precision::Single => Dtype::F32,
                    Precision::Double => Dtype::F64,
                }))
            }
            TypeRef::Bool(_) => Form::Bits,
            TypeRef::Binary(_) | TypeRef::Utf8(_) => Form::Bytes { wide: false },
            TypeRef::LargeBinary(_) | TypeRef::LargeUtf8(_) => Form::Bytes { wide: true },
            TypeRef::BinaryView(_) | TypeRef::Utf8View(_) => Form::Views,
            TypeRef::List(_) | TypeRef::Map(_) => Form::List { wide: false },
            TypeRef::LargeList(_) => Form::List { wide: true },
            TypeRef::ListView(_) => Form::ListView { wide: false },
            TypeRef::LargeListView(_) => Form::ListView { wide: true },
            TypeRef::FixedSizeList(list) => {
                Form::FixedList(length(list.list_size().map_err(wrong)?)?)
            }
            TypeRef::FixedSizeBinary(binary) => {
                Form::Fixed(self.void(length(binary.byte_width().map_err(wrong)?)?))
            }
            TypeRef::Struct(_) => Form::Struct,
            TypeRef::Union(union) => {
                let dense = union.mode().map_err(wrong)? == UnionMode::Dense;
                Form::Union { dense }
            }
            TypeRef::RunEndEncoded(_) => Form::RunEnds,
            TypeRef::Decimal(decimal) => match decimal.bit_width().map_err(wrong)? {
                bits @ (32 | 64 | 128 | 256) => Form::Fixed(self.void(bits as u64 / 8)),
                bits => return Err(format!("decimals of {bits} bits")),
            },
            TypeRef::Date(date) => Form::Fixed(match date.unit().map_err(wrong)? {
                DateUnit::Day => self.number(Dtype::I32),
                DateUnit::Millisecond => self.opaque("M8[ms]", 8),
            }),
            TypeRef::Time(time) => match time.bit_width().map_err(wrong)? {
                32 => Form::Fixed(self.number(Dtype::I32)),
                64 => Form::Fixed(self.number(Dtype::I64)),
                bits => return Err(format!("times of {bits} bits")),
            },
            TypeRef::Timestamp(stamp) => {
                let unit = unit(stamp.unit().map_err(wrong)?);
                Form::Fixed(self.opaque(&format!("M8[{unit}]"), 8))
            }
            TypeRef::Duration(duration) => {
                let unit = unit(duration.unit().map_err(wrong)?);
                Form::Fixed(self.opaque(&format!("m8[{unit}]"), 8))
            }
            TypeRef::Interval(interval) => Form::Fixed(match interval.unit().map_err(wrong)? {
                IntervalUnit::YearMonth => self.number(Dtype::I32),
                IntervalUnit::DayTime => self.void(8),
                IntervalUnit::MonthDayNano => self.void(16),
            }),
        })
    }
}

fn unit(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_endian_schemas_have_big_endian_numbers() {
        let (order, left) = (Order::Big, 0);
        let reader = Reader { order, left };
        let dtype = Dtype::I32;
        assert_eq!(reader.number(dtype), Element::Number { dtype, order });
        assert_eq!(reader.number(Dtype::U8), Element::little(Dtype::U8));
        assert_eq!(reader.opaque("M8[s]", 8).to_string(), "'>M8[s]'");
    }
}
