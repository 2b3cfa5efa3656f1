//! Arrays of files whose format is understood, and raw numbers.

use std::ffi::{CString, c_char, c_void};

use farpage::{Array, Dtype, Element, Loaded, Order};

use crate::error::{Failure, FpError, c_text, call, text};
use crate::memory::FpMemory;
use crate::options::{FpOptions, options};

/// The arrays of a file, mapped.
pub struct FpArrays {
    memory: FpMemory,
    kind: CString,
    arrays: Box<[FpArray]>,
    /// What `arrays` point to.
    kept: Vec<Kept>,
}

struct Kept {
    name: CString,
    dtype: CString,
    shape: Box<[u64]>,
    strides: Box<[i64]>,
}

/// One array. It lives as long as what it was got from. Later versions may have more fields at the
/// end.
#[repr(C)]
pub struct FpArray {
    /// Its name; empty where the format has none.
    pub name: *const c_char,
    /// The type of its elements: "f32", "i64", "bf16" and so on; for what is no number the words of
    /// the file.
    pub dtype: *const c_char,
    /// 1 when the elements are numbers of a known type, in the order of bytes that `big_endian`
    /// says.
    pub is_number: i32,
    /// 1 when the most significant byte is first: only with fp_options.as_stored.
    pub big_endian: i32,
    /// Number of dimensions; 0: a single element.
    pub dimensions: usize,
    /// Elements in each dimension.
    pub shape: *const u64,
    /// Bytes from one element to the next, in each dimension.
    pub strides: *const i64,
    /// The first element. Not aligned in every file.
    pub data: *mut c_void,
    /// Where it is in fp_arrays_memory, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Bytes of one element.
    pub element_bytes: u64,
}

fn strides(array: &Array) -> Box<[i64]> {
    let tensor = &array.tensor;
    let mut strides = vec![0; tensor.shape.len()];
    let mut step = tensor.element.bytes();
    let mut set = |at: usize| {
        strides[at] = step as i64;
        step = step.wrapping_mul(tensor.shape[at]);
    };
    if tensor.fortran {
        (0..tensor.shape.len()).for_each(&mut set);
    } else {
        (0..tensor.shape.len()).rev().for_each(&mut set);
    }
    strides.into()
}

fn kept(array: &Array) -> Kept {
    let dtype = match &array.tensor.element {
        Element::Number { dtype, .. } => dtype.name(),
        Element::Opaque { descr, .. } => descr,
    };
    Kept {
        name: c_text(&array.tensor.name),
        dtype: c_text(dtype),
        shape: array.tensor.shape.clone().into(),
        strides: strides(array),
    }
}

fn shown(array: &Array, kept: &Kept) -> FpArray {
    let tensor = &array.tensor;
    FpArray {
        name: kept.name.as_ptr(),
        dtype: kept.dtype.as_ptr(),
        is_number: i32::from(tensor.element.dtype().is_some()),
        big_endian: i32::from(tensor.element.order() == Some(Order::Big)),
        dimensions: tensor.shape.len(),
        shape: kept.shape.as_ptr(),
        strides: kept.strides.as_ptr(),
        data: array.as_ptr().cast(),
        offset: tensor.offset,
        bytes: tensor.bytes,
        element_bytes: tensor.element.bytes(),
    }
}

fn boxed(loaded: Loaded) -> *mut FpArrays {
    let all: Vec<Kept> = loaded.arrays.iter().map(kept).collect();
    let arrays = loaded.arrays.iter().zip(&all);
    Box::into_raw(Box::new(FpArrays {
        arrays: arrays.map(|(array, kept)| shown(array, kept)).collect(),
        memory: FpMemory(loaded.memory),
        kind: c_text(&loaded.kind.to_string()),
        kept: all,
    }))
}

/// Maps the arrays of the file at `address`, a path or an URL: npy, npz, safetensors, Arrow.
/// `options` may be NULL. Returns NULL when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_load(
    address: *const c_char,
    options: *const FpOptions,
    error: *mut FpError,
) -> *mut FpArrays {
    let load = || {
        // SAFETY: the header asks for text.
        let address = unsafe { text(address, "address") }?;
        // SAFETY: and for NULL or options.
        let options = unsafe { self::options(options) }?;
        Ok(boxed(farpage::load(address, &options)?))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), load) }
}

/// Maps a file of nothing but numbers as one array: `dtype` as fp_array has it, or as NumPy's descr
/// (">f4"), and `shape`, where one dimension may be -1: as many as there are. With FP_CREATE the
/// file is made, with FP_WRITE it grows if it must. Returns NULL when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_load_raw(
    address: *const c_char,
    dtype: *const c_char,
    shape: *const i64,
    dimensions: usize,
    options: *const FpOptions,
    error: *mut FpError,
) -> *mut FpArrays {
    let load = || {
        // SAFETY: the header asks for text.
        let address = unsafe { text(address, "address") }?;
        // SAFETY: as above.
        let dtype = unsafe { text(dtype, "dtype") }?;
        let named = Dtype::from_name(dtype).map(|dtype| (dtype, Order::Little));
        let dtype = named.or_else(|| Dtype::from_descr(dtype)).ok_or_else(|| {
            Failure::argument(format!(
                "dtype: '{dtype}' is none; give one like f32 or >f4"
            ))
        })?;
        if shape.is_null() && dimensions > 0 {
            return Err(Failure::argument("shape: it is NULL; give the dimensions"));
        }
        let shape = match dimensions {
            0 => &[],
            // SAFETY: the header asks for so many.
            _ => unsafe { std::slice::from_raw_parts(shape, dimensions) },
        };
        // SAFETY: the header asks for NULL or options.
        let options = unsafe { self::options(options) }?;
        Ok(boxed(farpage::raw(address, dtype, shape, &options)?))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), load) }
}

/// The memory that all the arrays lie in, for the functions of memory; NULL of NULL. It is not
/// closed: fp_arrays_close does that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_arrays_memory(arrays: *const FpArrays) -> *const FpMemory {
    // SAFETY: the header asks for NULL or what was loaded.
    let arrays = unsafe { arrays.as_ref() };
    arrays.map_or(std::ptr::null(), |arrays| &raw const arrays.memory)
}

/// The format: "npy", "npz", "safetensors", "Arrow" or "raw"; NULL of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_arrays_kind(arrays: *const FpArrays) -> *const c_char {
    // SAFETY: as in `fp_arrays_memory`.
    let arrays = unsafe { arrays.as_ref() };
    arrays.map_or(std::ptr::null(), |arrays| arrays.kind.as_ptr())
}

/// Number of arrays; 0 of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_array_count(arrays: *const FpArrays) -> usize {
    // SAFETY: as in `fp_arrays_memory`.
    let arrays = unsafe { arrays.as_ref() };
    arrays.map_or(0, |arrays| arrays.arrays.len())
}

/// The array number `index`, in the file's order; NULL when there are not so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_array_at(arrays: *const FpArrays, index: usize) -> *const FpArray {
    // SAFETY: as in `fp_arrays_memory`.
    let arrays = unsafe { arrays.as_ref() };
    let array = arrays.and_then(|arrays| arrays.arrays.get(index));
    array.map_or(std::ptr::null(), std::ptr::from_ref)
}

/// The array called `name`; NULL when there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_array_named(
    arrays: *const FpArrays,
    name: *const c_char,
) -> *const FpArray {
    // SAFETY: as in `fp_arrays_memory`.
    let arrays = unsafe { arrays.as_ref() };
    // SAFETY: the header asks for text.
    let (Some(arrays), Ok(name)) = (arrays, unsafe { text(name, "name") }) else {
        return std::ptr::null();
    };
    let all = arrays.kept.iter().zip(&arrays.arrays);
    let mut found = all.filter(|(kept, _)| kept.name.to_bytes() == name.as_bytes());
    found
        .next()
        .map_or(std::ptr::null(), |(_, array)| std::ptr::from_ref(array))
}

/// Unmaps all of it, as fp_close. Takes NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_arrays_close(arrays: *mut FpArrays) {
    let close = || {
        if !arrays.is_null() {
            // SAFETY: the header asks for what was loaded and not closed.
            drop(unsafe { Box::from_raw(arrays) });
        }
        Ok(())
    };
    // SAFETY: NULL is allowed.
    unsafe { call(std::ptr::null_mut(), (), close) }
}
