//! Arrow IPC files: record batches, and behind them a footer that says where they are.
//!
//! A column whose elements have a fixed length and are all there is one array, `batch/column`;
//! lists of a fixed length add a dimension. Any other column is the arrays that Arrow keeps it in:
//! `batch/column/validity` (bits), `/offsets`, `/data` and so on, and its children by their names.
//! A dictionary is a batch called `dictionary-NUMBER`, or `dictionary-NUMBER-TIMES` when it comes
//! again.

mod batch;
mod schema;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use polars_arrow_format::ipc::planus::{self, ReadAsRoot};
use polars_arrow_format::ipc::{
    BlockRef, FooterRef, MessageHeaderRef, MessageRef, MetadataVersion,
};

use crate::error::{FormatError, OpenError};
use crate::layout::Tensor;
use crate::source::{HEAD, Source, little};
use batch::{Batch, of_file as invalid};
use schema::Schema;

const MAGIC: &[u8] = b"ARROW1";
/// The magic and its padding at the beginning.
const BEGIN_BYTES: u64 = 8;
/// The length of the footer and the magic at the end.
const END_BYTES: u64 = 10;
/// Longest footer, and header of a batch, that is believed.
const HEADER_MAX: u64 = 64 << 20;

/// What the flatbuffers say that cannot be.
fn damaged(error: planus::Error) -> FormatError {
    invalid(error.to_string())
}

/// One batch in the file: where its header and its body lie.
struct Block {
    begin: u64,
    header: u64,
    body: u64,
}

/// Reads the footer and the header of each batch.
pub(crate) fn open<E>(source: &mut Source<'_, E>) -> Result<Vec<Tensor>, OpenError<E>> {
    let (bytes, limit) = footer(source)?;
    let footer = FooterRef::read_as_root(&bytes).map_err(damaged)?;
    let Some(schema) = footer.schema().map_err(damaged)? else {
        return Err(invalid("a footer without a schema").into());
    };
    let old_unions = match footer.version().map_err(damaged)? {
        MetadataVersion::V5 => false,
        MetadataVersion::V4 => true,
        version => return Err(invalid(format!("version {version:?} of the format")).into()),
    };
    let schema = Schema::read(schema)?;
    let dictionaries = blocks(footer.dictionaries(), limit)?;
    let batches = blocks(footer.record_batches(), limit)?;
    let mut reader = Reader {
        source,
        schema,
        old_unions,
        times: BTreeMap::new(),
    };
    let mut tensors = Vec::new();
    for block in &dictionaries {
        tensors.extend(reader.message(block, None)?);
    }
    for (number, block) in batches.iter().enumerate() {
        tensors.extend(reader.message(block, Some(number))?);
    }
    Ok(tensors)
}

/// The footer, and where it begins.
fn footer<E>(source: &mut Source<'_, E>) -> Result<(Vec<u8>, u64), OpenError<E>> {
    let (size, least) = (source.size, BEGIN_BYTES + END_BYTES);
    if size < least {
        let (what, begin) = ("an Arrow file".to_string(), 0);
        return Err(FormatError::Outside {
            what,
            begin,
            end: least,
            size,
        }
        .into());
    }
    if !source
        .bytes("the magic", 0, MAGIC.len())?
        .starts_with(MAGIC)
    {
        let why = "it does not begin with ARROW1, as a stream of batches or Feather version 1 does \
                   not either; write it with pyarrow.ipc.new_file";
        return Err(invalid(why).into());
    }
    source.ahead(size.saturating_sub(HEAD as u64).max(BEGIN_BYTES), HEAD)?;
    let end = source.bytes("the end", size - END_BYTES, END_BYTES as usize)?;
    if !end.ends_with(MAGIC) {
        return Err(invalid("it does not end with ARROW1; the file is cut off").into());
    }
    let bytes = little::<4>(&end, 0).unwrap_or(0);
    let most = (size - least).min(HEADER_MAX);
    if bytes > most {
        let why = format!("a footer of {bytes} bytes; {most} are the most");
        return Err(invalid(why).into());
    }
    let begin = size - END_BYTES - bytes;
    Ok((source.bytes("the footer", begin, bytes as usize)?, begin))
}

/// The batches that the footer tells of, all before `limit`.
fn blocks(
    blocks: planus::Result<Option<planus::Vector<'_, BlockRef<'_>>>>,
    limit: u64,
) -> Result<Vec<Block>, FormatError> {
    let blocks = blocks.map_err(damaged)?.into_iter().flatten();
    let blocks: Vec<Block> = blocks
        .map(|block| Block::read(block, limit))
        .collect::<Result<_, _>>()?;
    in_order(&blocks)?;
    Ok(blocks)
}

impl Block {
    fn read(block: BlockRef<'_>, limit: u64) -> Result<Self, FormatError> {
        let (begin, header, body) = (
            block.offset(),
            block.meta_data_length(),
            block.body_length(),
        );
        let numbers = (
            u64::try_from(begin),
            u64::try_from(header),
            u64::try_from(body),
        );
        let (Ok(begin), Ok(header), Ok(body)) = numbers else {
            return Err(invalid(format!(
                "a batch at {begin} of {header} and {body} bytes"
            )));
        };
        let end = begin.saturating_add(header).saturating_add(body);
        if end > limit {
            let (what, size) = ("a batch".to_string(), limit);
            return Err(FormatError::Outside {
                what,
                begin,
                end,
                size,
            });
        }
        if header > HEADER_MAX {
            let why = format!("a header of {header} bytes; {HEADER_MAX} are the most");
            return Err(invalid(why));
        }
        Ok(Self {
            begin,
            header,
            body,
        })
    }

    fn end(&self) -> u64 {
        self.begin + self.header + self.body
    }
}

/// Refuses batches that share bytes: a small file could otherwise have any number of them.
fn in_order(blocks: &[Block]) -> Result<(), FormatError> {
    match blocks
        .windows(2)
        .find(|two| two[0].end() > two[1].begin || two[0].header == 0)
    {
        None => Ok(()),
        Some(two) => {
            let why = format!(
                "batches at {} and {} share bytes",
                two[0].begin, two[1].begin
            );
            Err(invalid(why))
        }
    }
}

struct Reader<'a, 'b, E> {
    source: &'a mut Source<'b, E>,
    schema: Schema,
    old_unions: bool,
    /// How often each dictionary has come.
    times: BTreeMap<i64, u64>,
}

impl<E> Reader<'_, '_, E> {
    /// The arrays of the batch `number`, or of a dictionary.
    fn message(
        &mut self,
        block: &Block,
        number: Option<usize>,
    ) -> Result<Vec<Tensor>, OpenError<E>> {
        let what = "the header of a batch";
        let bytes = self
            .source
            .bytes(what, block.begin, block.header as usize)?;
        let message = message(&bytes)?;
        let body = (block.begin + block.header, block.body);
        let (order, old) = (self.schema.order, self.old_unions);
        let tensors = match (message.header().map_err(damaged)?, number) {
            (Some(MessageHeaderRef::RecordBatch(batch)), Some(number)) => {
                let mut batch = Batch::read(&number.to_string(), batch, body, order, old)?;
                for column in &self.schema.columns {
                    batch.column(&format!("{number}/{}", column.name), column)?;
                }
                batch.finish()?
            }
            (Some(MessageHeaderRef::DictionaryBatch(dictionary)), None) => {
                let id = dictionary.id().map_err(damaged)?;
                let Some(data) = dictionary.data().map_err(damaged)? else {
                    return Err(invalid(format!("dictionary {id} has no data")).into());
                };
                let name = self.name(id);
                let Some(field) = self.schema.dictionary(id) else {
                    return Err(invalid(format!("no column has dictionary {id}")).into());
                };
                let mut batch = Batch::read(&name, data, body, order, old)?;
                batch.values(&name, field)?;
                batch.finish()?
            }
            _ => return Err(invalid("a message that is not what the footer says").into()),
        };
        Ok(tensors)
    }

    fn name(&mut self, id: i64) -> String {
        let times = self.times.entry(id).or_insert(0);
        *times += 1;
        match *times {
            1 => format!("dictionary-{id}"),
            times => format!("dictionary-{id}-{times}"),
        }
    }
}

/// The message in a header: behind its length, which since 2019 has a mark before it.
fn message(bytes: &[u8]) -> Result<MessageRef<'_>, FormatError> {
    let marked = bytes.starts_with(&[0xff; 4]);
    let at = if marked { 4 } else { 0 };
    let length = little::<4>(bytes, at).and_then(|length| usize::try_from(length).ok());
    let end = length.and_then(|length| length.checked_add(at + 4));
    let message = end.and_then(|end| bytes.get(at + 4..end));
    let message = message.ok_or_else(|| invalid("the header of a batch is cut off"))?;
    MessageRef::read_as_root(message).map_err(damaged)
}

#[cfg(test)]
mod tests;
