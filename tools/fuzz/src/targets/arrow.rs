//! Arrow IPC files.

use polars_arrow_format::ipc::planus::{Builder, WriteAsOffset};
use polars_arrow_format::ipc::*;

/// A field, and its nodes (elements, absent) and buffers (bytes) in a batch.
struct Column {
    field: Field,
    nodes: Vec<(i64, i64)>,
    buffers: Vec<i64>,
    variadic: Vec<i64>,
}

/// A file for each kind of column, and one with all of them.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = columns().into_iter().map(|c| file(&[c], None, 2)).collect();
    seeds.push(file(&columns(), None, 1));
    seeds.push(file(&columns()[..2], Some(Box::default()), 1));
    seeds.push(file(&[], None, 0));
    seeds
}

fn columns() -> Vec<Column> {
    let mut columns = flat_columns();
    columns.extend(nested_columns());
    columns.push(dictionary(field("q", Type::Utf8(Box::default()), None)));
    columns
}

fn int() -> Type {
    Type::Int(Box::new(Int {
        bit_width: 32,
        is_signed: true,
    }))
}

fn flat_columns() -> Vec<Column> {
    let binary = Type::FixedSizeBinary(Box::new(FixedSizeBinary { byte_width: 5 }));
    let of = |name, kind, absent, buffers| column(field(name, kind, None), &[(3, absent)], buffers);
    vec![
        of("a", int(), 0, &[0, 12]),
        of("b", int(), 1, &[1, 12]),
        of("c", Type::Utf8(Box::default()), 0, &[0, 16, 9]),
        of("d", Type::LargeUtf8(Box::default()), 2, &[1, 32, 9]),
        of("e", Type::Bool(Box::default()), 0, &[0, 1]),
        of("i", binary, 0, &[0, 15]),
        of("l", Type::Null(Box::default()), 3, &[]),
        of("m", Type::Timestamp(Box::default()), 0, &[0, 24]),
        Column {
            variadic: vec![2],
            ..of("p", Type::Utf8View(Box::default()), 0, &[0, 48, 5, 6])
        },
    ]
}

fn nested_columns() -> Vec<Column> {
    let list = Type::FixedSizeList(Box::new(FixedSizeList { list_size: 2 }));
    let union = |mode| {
        Type::Union(Box::new(Union {
            mode,
            type_ids: Some(vec![0, 1]),
        }))
    };
    let one = |name, kind, child, buffers| {
        let children = Some(vec![field("item", int(), None)]);
        column(field(name, kind, children), &[(3, 0), (child, 0)], buffers)
    };
    let two = |name, kind, buffers| {
        let children = Some(vec![field("x", int(), None), field("y", int(), None)]);
        column(field(name, kind, children), &[(3, 0); 3], buffers)
    };
    vec![
        one("f", list, 6, &[0, 0, 24]),
        one("g", Type::List(Box::default()), 4, &[0, 16, 0, 16]),
        one("n", Type::ListView(Box::default()), 3, &[0, 12, 12, 0, 12]),
        two("h", Type::Struct(Box::default()), &[0, 0, 12, 0, 12]),
        two("j", union(UnionMode::Sparse), &[3, 0, 12, 0, 12]),
        two("k", union(UnionMode::Dense), &[3, 12, 0, 12, 0, 12]),
        two("o", Type::RunEndEncoded(Box::default()), &[0, 12, 0, 12]),
    ]
}

fn field(name: &str, kind: Type, children: Option<Vec<Field>>) -> Field {
    Field {
        name: Some(name.into()),
        nullable: true,
        type_: Some(kind),
        dictionary: None,
        children,
        custom_metadata: None,
    }
}

fn column(field: Field, nodes: &[(i64, i64)], buffers: &[i64]) -> Column {
    let (nodes, buffers) = (nodes.to_vec(), buffers.to_vec());
    Column {
        field,
        nodes,
        buffers,
        variadic: Vec::new(),
    }
}

/// Indices into a dictionary of texts.
fn dictionary(field: Field) -> Column {
    let encoding = DictionaryEncoding {
        id: 0,
        index_type: Some(Box::new(Int {
            bit_width: 8,
            is_signed: true,
        })),
        is_ordered: false,
        dictionary_kind: DictionaryKind::DenseArray,
    };
    let field = Field {
        dictionary: Some(Box::new(encoding)),
        ..field
    };
    column(field, &[(3, 0)], &[0, 3])
}

/// A batch, and the length of its body.
fn batch(columns: &[Column], compression: Option<Box<BodyCompression>>) -> (RecordBatch, i64) {
    let mut at = 0;
    let mut buffers = Vec::new();
    for &length in columns.iter().flat_map(|column| &column.buffers) {
        buffers.push(Buffer { offset: at, length });
        at += (length + 7) / 8 * 8;
    }
    let nodes = columns.iter().flat_map(|column| &column.nodes);
    let nodes = nodes.map(|&(length, null_count)| FieldNode { length, null_count });
    let variadic = columns.iter().flat_map(|column| &column.variadic).copied();
    let batch = RecordBatch {
        length: 3,
        nodes: Some(nodes.collect()),
        buffers: Some(buffers),
        compression,
        variadic_buffer_counts: Some(variadic.collect()),
    };
    (batch, at)
}

/// Appends a message with an empty body.
fn message(file: &mut Vec<u8>, header: MessageHeader, body: i64) -> Block {
    let version = MetadataVersion::V5;
    let header = Some(header);
    let message = Message {
        version,
        header,
        body_length: body,
        custom_metadata: None,
    };
    let mut flat = flat(message);
    flat.resize(flat.len().next_multiple_of(8), 0);
    let offset = file.len() as i64;
    file.extend([0xff; 4]);
    file.extend((flat.len() as i32).to_le_bytes());
    file.extend(&flat);
    let header = file.len() as i64 - offset;
    file.resize(file.len() + body as usize, 0);
    Block {
        offset,
        meta_data_length: header as i32,
        body_length: body,
    }
}

/// A file with so many batches of `columns`.
fn file(columns: &[Column], compression: Option<Box<BodyCompression>>, batches: usize) -> Vec<u8> {
    let mut file = b"ARROW1\0\0".to_vec();
    let mut dictionaries = Vec::new();
    if columns
        .iter()
        .any(|column| column.field.dictionary.is_some())
    {
        let texts = field("texts", Type::Utf8(Box::default()), None);
        let (data, body) = batch(&[column(texts, &[(2, 0)], &[0, 12, 4])], None);
        for is_delta in [false, true] {
            let dictionary = DictionaryBatch {
                id: 0,
                data: Some(Box::new(data.clone())),
                is_delta,
            };
            let header = MessageHeader::DictionaryBatch(Box::new(dictionary));
            dictionaries.push(message(&mut file, header, body));
        }
    }
    let (data, body) = batch(columns, compression);
    let header = || MessageHeader::RecordBatch(Box::new(data.clone()));
    let blocks = (0..batches)
        .map(|_| message(&mut file, header(), body))
        .collect();
    let schema = Schema {
        endianness: Endianness::Little,
        fields: Some(columns.iter().map(|column| column.field.clone()).collect()),
        custom_metadata: None,
        features: None,
    };
    let footer = flat(Footer {
        version: MetadataVersion::V5,
        schema: Some(Box::new(schema)),
        dictionaries: Some(dictionaries),
        record_batches: Some(blocks),
        custom_metadata: None,
    });
    file.extend(&footer);
    file.extend((footer.len() as i32).to_le_bytes());
    file.extend(b"ARROW1");
    file
}

fn flat<T>(root: impl WriteAsOffset<T>) -> Vec<u8> {
    Builder::new().finish(root, None).to_vec()
}
