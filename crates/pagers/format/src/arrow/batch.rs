//! The arrays of one record batch.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use polars_arrow_format::ipc::{CompressionType, RecordBatchRef};

use super::schema::{Field, Form};
use super::{damaged, invalid};
use crate::dtype::{Dtype, Element, Order};
use crate::error::FormatError;
use crate::layout::{Kind, Tensor, length};

/// Longest name of an array within a column.
const PATH_MAX: usize = 4096;

/// A batch that is being taken apart: its columns claim nodes and buffers in turn.
pub(super) struct Batch {
    /// Length and number of absent elements of each field.
    nodes: Vec<(u64, u64)>,
    /// Where each buffer begins in the body, and its length.
    buffers: Vec<(u64, u64)>,
    /// How many more buffers each column of views has.
    variadic: Vec<u64>,
    next_node: usize,
    next_buffer: usize,
    next_variadic: usize,
    /// Where the body begins in the file, and its length.
    body: (u64, u64),
    order: Order,
    /// Whether unions have a buffer that says what is there, as before version 5.
    old_unions: bool,
    tensors: Vec<Tensor>,
}

impl Batch {
    pub(super) fn read(
        name: &str,
        batch: RecordBatchRef<'_>,
        body: (u64, u64),
        order: Order,
        old_unions: bool,
    ) -> Result<Self, FormatError> {
        if let Some(compression) = batch.compression().map_err(damaged)? {
            let how = match compression.codec().map_err(damaged)? {
                CompressionType::Lz4Frame => "lz4",
                CompressionType::Zstd => "zstd",
            };
            return Err(FormatError::Compressed {
                name: format!("batch {name}"),
                how: how.to_string(),
                remedy: "write it with pyarrow.feather.write_feather(..., \
                         compression='uncompressed')",
            });
        }
        let positive = |number: i64| {
            u64::try_from(number).map_err(|_| invalid(format!("batch {name} with {number}")))
        };
        let nodes = batch.nodes().map_err(damaged)?.into_iter().flatten();
        let buffers = batch.buffers().map_err(damaged)?.into_iter().flatten();
        let variadic = batch
            .variadic_buffer_counts()
            .map_err(damaged)?
            .into_iter()
            .flatten();
        Ok(Self {
            nodes: nodes
                .map(|node| Ok((positive(node.length())?, positive(node.null_count())?)))
                .collect::<Result<_, FormatError>>()?,
            buffers: buffers
                .map(|buffer| Ok((positive(buffer.offset())?, positive(buffer.length())?)))
                .collect::<Result<_, FormatError>>()?,
            variadic: variadic.map(positive).collect::<Result<_, _>>()?,
            next_node: 0,
            next_buffer: 0,
            next_variadic: 0,
            body,
            order,
            old_unions,
            tensors: Vec::new(),
        })
    }

    /// The arrays, when all nodes and buffers have been claimed.
    pub(super) fn finish(self) -> Result<Vec<Tensor>, FormatError> {
        let left = (
            self.nodes.len() - self.next_node,
            self.buffers.len() - self.next_buffer,
        );
        match left {
            (0, 0) => Ok(self.tensors),
            (nodes, buffers) => Err(invalid(format!(
                "a batch with {nodes} nodes and {buffers} buffers more than its columns have"
            ))),
        }
    }

    /// Takes what belongs to `field` and calls it `path`.
    pub(super) fn column(&mut self, path: &str, field: &Field) -> Result<(), FormatError> {
        match &field.dictionary {
            None => self.values(path, field),
            Some((_, index)) => self.fixed(path, index),
        }
    }

    /// Takes what the values of `field` are in, be it in a batch or in a dictionary.
    pub(super) fn values(&mut self, path: &str, field: &Field) -> Result<(), FormatError> {
        if let Some((element, inner)) = self.whole(field) {
            let outer = self.nodes[self.next_node].0;
            // A list of fixed length has a node and a buffer of its own, which say nothing here.
            for &each in &inner {
                let (length, _) = self.node(path)?;
                self.buffer(path)?;
                fits(path, length, each, self.nodes[self.next_node].0)?;
            }
            return self.all_there(path, &element, outer, &inner);
        }
        match &field.form {
            Form::Fixed(element) => self.fixed(path, element),
            Form::Null => self.node(path).map(|_| ()),
            Form::Bits => {
                let (length, absent) = self.node(path)?;
                self.validity(path, length, absent)?;
                let bytes = length.div_ceil(8);
                self.array(format!("{path}/data"), &byte(), &[bytes])
            }
            Form::Bytes { wide } => {
                let (length, absent) = self.node(path)?;
                self.validity(path, length, absent)?;
                self.offsets(path, length, *wide)?;
                self.rest(format!("{path}/data"))
            }
            Form::Views => self.views(path),
            Form::List { wide } => {
                let (length, absent) = self.node(path)?;
                self.validity(path, length, absent)?;
                self.offsets(path, length, *wide)?;
                self.children(path, field)
            }
            Form::ListView { wide } => {
                let (length, absent) = self.node(path)?;
                self.validity(path, length, absent)?;
                let number = self.index(*wide);
                self.array(format!("{path}/offsets"), &number, &[length])?;
                self.array(format!("{path}/sizes"), &number, &[length])?;
                self.children(path, field)
            }
            Form::FixedList(_) | Form::Struct => {
                let (length, absent) = self.node(path)?;
                self.validity(path, length, absent)?;
                self.children(path, field)
            }
            Form::Union { dense } => self.union(path, field, *dense),
            Form::RunEnds => {
                self.node(path)?;
                self.children(path, field)
            }
        }
    }

    /// The element of `field`, if it and what it consists of have fixed lengths and are all there;
    /// and the lengths of the lists on the way, at least one. Takes nothing.
    fn whole(&self, field: &Field) -> Option<(Element, Vec<u64>)> {
        let (mut field, mut inner, mut at) = (field, Vec::new(), self.next_node);
        loop {
            let (_, absent) = self.nodes.get(at)?;
            if *absent != 0 {
                return None;
            }
            let top = inner.is_empty();
            match (&field.form, &field.dictionary) {
                (Form::FixedList(length), None) => inner.push(*length),
                (Form::FixedList(length), Some(_)) if top => inner.push(*length),
                (Form::Fixed(element), None) if !top => {
                    return Some((element.clone(), inner));
                }
                _ => return None,
            }
            field = field.children.first()?;
            at += 1;
        }
    }

    /// Elements of a fixed length: one array if all are there.
    fn fixed(&mut self, path: &str, element: &Element) -> Result<(), FormatError> {
        let (length, absent) = self.node(path)?;
        if absent == 0 {
            self.next_node -= 1;
            return self.all_there(path, element, length, &[]);
        }
        self.validity(path, length, absent)?;
        self.array(format!("{path}/data"), element, &[length])
    }

    /// Elements that are all there, as an array of `outer` times `inner`.
    fn all_there(
        &mut self,
        path: &str,
        element: &Element,
        outer: u64,
        inner: &[u64],
    ) -> Result<(), FormatError> {
        self.node(path)?;
        self.buffer(path)?;
        let shape: Vec<u64> = core::iter::once(outer)
            .chain(inner.iter().copied())
            .collect();
        self.array(path.to_string(), element, &shape)
    }

    fn views(&mut self, path: &str) -> Result<(), FormatError> {
        let (length, absent) = self.node(path)?;
        self.validity(path, length, absent)?;
        let descr = "'|V16'".to_string();
        let view = Element::Opaque { descr, bytes: 16 };
        self.array(format!("{path}/views"), &view, &[length])?;
        let more = self.variadic.get(self.next_variadic).copied();
        self.next_variadic += 1;
        let more = more.ok_or_else(|| invalid(format!("no count of buffers for {path:?}")))?;
        (0..more).try_for_each(|number| self.rest(format!("{path}/data{number}")))
    }

    fn union(&mut self, path: &str, field: &Field, dense: bool) -> Result<(), FormatError> {
        let (length, absent) = self.node(path)?;
        if self.old_unions {
            self.validity(path, length, absent)?;
        }
        self.array(
            format!("{path}/types"),
            &Element::little(Dtype::I8),
            &[length],
        )?;
        if dense {
            let number = self.index(false);
            self.array(format!("{path}/offsets"), &number, &[length])?;
        }
        self.children(path, field)
    }

    fn children(&mut self, path: &str, field: &Field) -> Result<(), FormatError> {
        for child in &field.children {
            let path = format!("{path}/{}", child.name);
            if path.len() > PATH_MAX {
                return Err(invalid(format!(
                    "the name of a column has {} bytes",
                    path.len()
                )));
            }
            self.column(&path, child)?;
        }
        Ok(())
    }

    fn node(&mut self, path: &str) -> Result<(u64, u64), FormatError> {
        let node = self.nodes.get(self.next_node).copied();
        let (length, absent) = node.ok_or_else(|| invalid(format!("no node for {path:?}")))?;
        self.next_node += 1;
        if absent > length {
            let why = format!("{absent} of {length} elements of {path:?} are absent");
            return Err(invalid(why));
        }
        Ok((length, absent))
    }

    /// The next buffer: where it begins in the file, and its length.
    fn buffer(&mut self, path: &str) -> Result<(u64, u64), FormatError> {
        let buffer = self.buffers.get(self.next_buffer).copied();
        let (begin, bytes) = buffer.ok_or_else(|| invalid(format!("no buffer for {path:?}")))?;
        self.next_buffer += 1;
        let (end, size) = (begin.saturating_add(bytes), self.body.1);
        if end > size {
            let what = format!("a buffer of {path:?} in its batch");
            return Err(FormatError::Outside {
                what,
                begin,
                end,
                size,
            });
        }
        Ok((self.body.0 + begin, bytes))
    }

    /// The buffer that says which elements are there, an array only if some are not.
    fn validity(&mut self, path: &str, length: u64, absent: u64) -> Result<(), FormatError> {
        match absent {
            0 => self.buffer(path).map(|_| ()),
            _ => self.array(format!("{path}/validity"), &byte(), &[length.div_ceil(8)]),
        }
    }

    fn index(&self, wide: bool) -> Element {
        let dtype = if wide { Dtype::I64 } else { Dtype::I32 };
        let order = self.order;
        Element::Number { dtype, order }
    }

    /// One more than elements; none, if there are no elements, may be an empty buffer.
    fn offsets(&mut self, path: &str, length: u64, wide: bool) -> Result<(), FormatError> {
        let empty = self
            .buffers
            .get(self.next_buffer)
            .is_some_and(|buffer| buffer.1 == 0);
        let count = match (length, empty) {
            (0, true) => 0,
            (length, _) => length.saturating_add(1),
        };
        let number = self.index(wide);
        self.array(format!("{path}/offsets"), &number, &[count])
    }

    /// All bytes of the next buffer.
    fn rest(&mut self, name: String) -> Result<(), FormatError> {
        let bytes = self
            .buffers
            .get(self.next_buffer)
            .map_or(0, |buffer| buffer.1);
        self.array(name, &byte(), &[bytes])
    }

    /// An array at the beginning of the next buffer, which may be padded.
    fn array(&mut self, name: String, element: &Element, shape: &[u64]) -> Result<(), FormatError> {
        let (offset, there) = self.buffer(&name)?;
        let bytes = length(&name, shape, element.bytes())?;
        if bytes > there {
            let why = format!("it takes {bytes} bytes, and its buffer has {there}");
            return Err(FormatError::shape(name, why));
        }
        self.tensors.push(Tensor {
            name,
            element: element.clone(),
            shape: shape.to_vec(),
            fortran: false,
            offset,
            bytes,
        });
        Ok(())
    }
}

/// Refuses a child of another length than that of `length` lists of `each` elements.
fn fits(path: &str, length: u64, each: u64, child: u64) -> Result<(), FormatError> {
    if length.checked_mul(each) == Some(child) {
        return Ok(());
    }
    let why = format!("{length} lists of {each} elements in an array of {child}");
    Err(FormatError::shape(path, why))
}

fn byte() -> Element {
    Element::little(Dtype::U8)
}

/// What an error says that is not about one array.
pub(super) fn of_file(why: impl Into<String>) -> FormatError {
    FormatError::invalid(Kind::Arrow, why)
}
