//! Files that the crate arrow-ipc writes.

use std::sync::Arc;
use std::vec;

use arrow_array::builder::{FixedSizeListBuilder, Float32Builder, StringViewBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BooleanArray, DictionaryArray, Float32Array, Int32Array, LargeStringArray, ListArray,
    NullArray, RecordBatch, StringArray, StructArray, TimestampMicrosecondArray, UInt8Array,
};
use arrow_ipc::CompressionType as Compression;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_schema::{DataType, Field as Column};
use polars_arrow_format::ipc as written;

use super::*;
use crate::dtype::{Dtype, Element, Order};
use crate::layout::Kind;
use crate::testing::{named, opened, ranges};

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

fn file_as(batches: &[RecordBatch], options: IpcWriteOptions) -> Vec<u8> {
    let mut file = Vec::new();
    let schema = batches[0].schema();
    let mut writer = FileWriter::try_new_with_options(&mut file, &schema, options).unwrap();
    batches
        .iter()
        .for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    drop(writer);
    file
}

fn file(batches: &[RecordBatch]) -> Vec<u8> {
    file_as(batches, IpcWriteOptions::default())
}

fn names(tensors: &[Tensor]) -> Vec<&str> {
    tensors.iter().map(|tensor| tensor.name.as_str()).collect()
}

/// The arrays of one column `c`.
fn of(column: ArrayRef) -> (Vec<u8>, Vec<Tensor>) {
    let file = file(&[batch(vec![("c", column)])]);
    let layout = opened(&file).unwrap();
    assert_eq!(layout.kind, Kind::Arrow);
    (file, layout.tensors)
}

fn bytes<'a>(file: &'a [u8], tensor: &Tensor) -> &'a [u8] {
    &file[tensor.offset as usize..][..tensor.bytes as usize]
}

fn numbers(file: &[u8], tensor: &Tensor) -> Vec<i32> {
    assert_eq!(tensor.element, Element::little(Dtype::I32));
    let all = bytes(file, tensor).as_chunks().0;
    all.iter()
        .map(|&number| i32::from_le_bytes(number))
        .collect()
}

#[test]
fn columns_without_gaps_are_arrays_of_each_batch() {
    let ints = |numbers: &[i32]| Arc::new(Int32Array::from(numbers.to_vec())) as ArrayRef;
    let floats = || Arc::new(Float32Array::from(vec![1.5; 3])) as ArrayRef;
    let file = file(&[
        batch(vec![("a", ints(&[1, 2, 3])), ("b", floats())]),
        batch(vec![("a", ints(&[4, 5, 6])), ("b", floats())]),
    ]);
    let tensors = opened(&file).unwrap().tensors;
    assert_eq!(names(&tensors), ["0/a", "0/b", "1/a", "1/b"]);
    assert_eq!(numbers(&file, &tensors[0]), [1, 2, 3]);
    assert_eq!(numbers(&file, &tensors[2]), [4, 5, 6]);
    assert_eq!(tensors[3].element, Element::little(Dtype::F32));
    assert_eq!(tensors[3].shape, [3]);
}

#[test]
fn columns_with_gaps_have_their_validity_beside_their_data() {
    let (file, tensors) = of(Arc::new(Int32Array::from(vec![Some(7), None, Some(9)])));
    assert_eq!(names(&tensors), ["0/c/validity", "0/c/data"]);
    assert_eq!(bytes(&file, &tensors[0]), [0b101]);
    assert_eq!(numbers(&file, &tensors[1])[2], 9);
}

#[test]
fn text_is_offsets_and_bytes() {
    let (file, tensors) = of(Arc::new(StringArray::from(vec!["ab", "", "cde"])));
    assert_eq!(names(&tensors), ["0/c/offsets", "0/c/data"]);
    assert_eq!(numbers(&file, &tensors[0]), [0, 2, 2, 5]);
    assert!(bytes(&file, &tensors[1]).starts_with(b"abcde"));
    let (_, tensors) = of(Arc::new(LargeStringArray::from(vec!["ab"])));
    assert_eq!(tensors[0].element, Element::little(Dtype::I64));
    let (_, tensors) = of(Arc::new(StringArray::from(Vec::<&str>::new())));
    assert_eq!(tensors[1].bytes, 0);
}

#[test]
fn text_by_views_has_any_number_of_buffers() {
    let mut builder = StringViewBuilder::new();
    builder.append_value("short");
    builder.append_value("a text that is longer than twelve bytes");
    let (file, tensors) = of(Arc::new(builder.finish()));
    assert_eq!(names(&tensors), ["0/c/views", "0/c/data0"]);
    assert_eq!(tensors[0].shape, [2]);
    assert!(bytes(&file, &tensors[1]).starts_with(b"a text that"));
}

#[test]
fn truth_values_are_bits() {
    let (file, tensors) = of(Arc::new(BooleanArray::from(vec![true; 9])));
    assert_eq!(names(&tensors), ["0/c/data"]);
    assert_eq!(bytes(&file, &tensors[0])[0], 0xff);
    assert_eq!(tensors[0].bytes, 2);
}

#[test]
fn lists_of_a_fixed_length_are_another_dimension() {
    let list = |gap: bool| {
        let mut lists = FixedSizeListBuilder::new(Float32Builder::new(), 3);
        for row in 0..4 {
            lists.values().append_slice(&[row as f32; 3]);
            lists.append(!gap || row != 2);
        }
        Arc::new(lists.finish()) as ArrayRef
    };
    let (file, tensors) = of(list(false));
    assert_eq!(names(&tensors), ["0/c"]);
    assert_eq!(tensors[0].shape, [4, 3]);
    assert_eq!(bytes(&file, &tensors[0])[12..16], 1f32.to_le_bytes());
    let (_, tensors) = of(list(true));
    assert_eq!(names(&tensors), ["0/c/validity", "0/c/item"]);
    assert_eq!(tensors[1].shape, [12]);
}

#[test]
fn lists_and_records_have_their_children_within() {
    let lists = [
        Some(vec![Some(1), Some(2)]),
        Some(vec![]),
        Some(vec![Some(3)]),
    ];
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
    let ids = Arc::new(UInt8Array::from(vec![7, 8, 9])) as ArrayRef;
    let record = StructArray::from(vec![
        (Arc::new(Column::new("id", DataType::UInt8, false)), ids),
        (
            Arc::new(Column::new(
                "l",
                arrow_array::Array::data_type(&lists).clone(),
                true,
            )),
            Arc::new(lists) as ArrayRef,
        ),
    ]);
    let (file, tensors) = of(Arc::new(record));
    assert_eq!(names(&tensors), ["0/c/id", "0/c/l/offsets", "0/c/l/item"]);
    assert_eq!(bytes(&file, &tensors[0]), [7, 8, 9]);
    assert_eq!(numbers(&file, &tensors[1]), [0, 2, 2, 3]);
    assert_eq!(numbers(&file, &tensors[2]), [1, 2, 3]);
}

#[test]
fn dictionaries_stand_apart_from_their_indices() {
    let words: DictionaryArray<Int32Type> = ["x", "yy", "x"].into_iter().collect();
    let (file, tensors) = of(Arc::new(words));
    assert_eq!(
        names(&tensors),
        ["dictionary-0/offsets", "dictionary-0/data", "0/c"]
    );
    assert_eq!(numbers(&file, &tensors[2]), [0, 1, 0]);
    assert!(bytes(&file, &tensors[1]).starts_with(b"xyy"));
}

#[test]
fn dates_are_what_numpy_calls_them_and_nothing_is_nothing() {
    let (_, tensors) = of(Arc::new(TimestampMicrosecondArray::from(vec![1, 2])));
    let (descr, bytes) = ("'<M8[us]'".to_string(), 8);
    assert_eq!(tensors[0].element, Element::Opaque { descr, bytes });
    let columns = vec![
        ("n", Arc::new(NullArray::new(2)) as ArrayRef),
        ("c", Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef),
    ];
    let file = file(&[batch(columns)]);
    assert_eq!(names(&opened(&file).unwrap().tensors), ["0/c"]);
}

#[test]
fn compressed_batches_are_refused_with_the_remedy() {
    let ints = Arc::new(Int32Array::from(vec![1; 1000])) as ArrayRef;
    let options = IpcWriteOptions::default();
    let options = options
        .try_with_compression(Some(Compression::LZ4_FRAME))
        .unwrap();
    let error = opened(&file_as(&[batch(vec![("c", ints)])], options)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("batch 0") && text.contains("lz4"), "{text}");
    assert!(text.contains("compression='uncompressed'"), "{text}");
}

#[test]
fn the_footer_and_each_batch_take_one_read() {
    let ints = || Arc::new(Int32Array::from(vec![1; 5000])) as ArrayRef;
    let file = file(&[batch(vec![("c", ints())]), batch(vec![("c", ints())])]);
    let asked = ranges(&file);
    // The beginning, the end, and two headers, the first of which may be read already.
    assert_eq!(asked[..2], [(0, 4096), (file.len() - 4096, 4096)]);
    assert!(asked.len() <= 4, "{asked:?}");
    assert!(asked[2..].iter().all(|range| range.1 < 1000), "{asked:?}");
}

#[test]
fn files_cut_off_or_damaged_anywhere_do_not_panic() {
    let words: DictionaryArray<Int32Type> = ["x", "yy", "x"].into_iter().collect();
    let ints = Arc::new(Int32Array::from(vec![Some(7), None, Some(9)]));
    let file = file(&[batch(vec![("a", Arc::new(words)), ("b", ints)])]);
    for length in 0..file.len() {
        assert!(named(&file[..length], Some("x.arrow")).is_err(), "{length}");
    }
    for at in 0..file.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut file = file.clone();
            file[at] = value;
            let _ = named(&file, Some("x.arrow"));
        }
    }
}

#[test]
fn a_stream_is_told_from_a_file() {
    let error = named(&[0xff; 40], Some("x.arrow")).unwrap_err();
    assert!(error.to_string().contains("stream"), "{error}");
    let error = named(b"ARROW1", None).unwrap_err();
    assert!(matches!(error, FormatError::Outside { .. }), "{error}");
}

#[test]
fn batches_that_share_bytes_are_refused() {
    let block = |begin| Block {
        begin,
        header: 8,
        body: 8,
    };
    assert!(in_order(&[block(8), block(24)]).is_ok());
    assert!(in_order(&[block(8), block(23)]).is_err());
    assert!(in_order(&[block(8), block(8)]).is_err());
    assert!(in_order(&[block(24), block(8)]).is_err());
}

/// A schema whose columns nest `depth` times, each of two children that are the same one.
fn doubled(depth: usize) -> Vec<u8> {
    let mut builder = planus::Builder::new();
    let name = builder.create_string("x");
    let mut field = written::Field::create(
        &mut builder,
        Some(name),
        true,
        Some(written::Type::Null(Default::default())),
        (),
        (),
        (),
    );
    for _ in 0..depth {
        let children = builder.create_vector([field, field]);
        let kind = Some(written::Type::Struct(Default::default()));
        field =
            written::Field::create(&mut builder, Some(name), true, kind, (), Some(children), ());
    }
    let fields = builder.create_vector([field]);
    let schema =
        written::Schema::create(&mut builder, written::Endianness::Big, Some(fields), (), ());
    builder.finish(schema, None).to_vec()
}

#[test]
fn fields_that_stand_in_many_places_are_counted_in_each() {
    let read = |depth| {
        let file = doubled(depth);
        Schema::read(written::SchemaRef::read_as_root(&file).unwrap()).map(|schema| schema.order)
    };
    assert_eq!(read(10), Ok(Order::Big));
    assert!(
        read(40)
            .unwrap_err()
            .to_string()
            .contains("too many fields")
    );
    assert!(read(70).unwrap_err().to_string().contains("nested deeper"));
}
