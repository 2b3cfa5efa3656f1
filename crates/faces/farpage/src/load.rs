//! Arrays: files whose format is understood, and raw numbers.

use std::ops::Range;
use std::sync::Arc;

use farpage_format::{Dtype, Element, Kind, Layout, Order, Tensor};
use farpage_source::Source;
use farpage_source::open::{self, OpenedSource};
use farpage_translate::Translation;

use crate::fork::Reopen;
use crate::typed::{Part, Typed};
use crate::{Error, Memory, Mode, OpenOptions, Place, Places};

/// Where translated arrays begin: a multiple of what vector instructions like.
const ALIGN: u64 = 64;

/// How arrays are opened and presented.
#[derive(Clone)]
pub struct LoadOptions {
    /// How the source is opened.
    pub open: OpenOptions,
    /// Numbers of another byte order, and those of VAX, as the processor's own.
    pub native: bool,
    /// bf16 as f32.
    pub bf16_as_f32: bool,
    /// f16 as f32.
    pub f16_as_f32: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            open: OpenOptions::default(),
            native: true,
            bf16_as_f32: false,
            f16_as_f32: false,
        }
    }
}

/// Opens the source at an address, or that which [`Places`] make: with what its options say of it,
/// but not mapped. (A private copy, [`Mode::Copy`], begins where it is mapped.) What is written to
/// an object in a store is there after [`Source::sync`].
///
/// # Errors
/// [`Error::Source`]; [`Error::Argument`] when something would be written that is neither a local
/// file nor an object in a store, for a part that does not lie inside, and where parts would have
/// to be made or to grow.
pub fn open_source(
    places: impl Into<Places>,
    options: &OpenOptions,
) -> Result<Arc<dyn Source>, Error> {
    Ok(open::open_source(places, options)?)
}

/// A file of arrays, mapped.
#[derive(Clone)]
pub struct Loaded {
    /// All of them.
    pub memory: Memory,
    /// The format.
    pub kind: Kind,
    /// In the file's order.
    pub arrays: Vec<Array>,
}

/// One array, mapped.
#[derive(Clone)]
pub struct Array {
    /// What it lies in.
    pub memory: Memory,
    /// Its name, shape and type, as presented; its offset in [`Array::memory`].
    pub tensor: Tensor,
}

impl Array {
    /// Its first element; not aligned in every file.
    pub fn as_ptr(&self) -> *mut u8 {
        // Inside the mapping, or just behind it when it is empty.
        self.memory
            .as_ptr()
            .wrapping_add(self.tensor.offset as usize)
    }

    /// Its bytes in [`Array::memory`].
    pub fn range(&self) -> Range<u64> {
        self.tensor.offset..self.tensor.offset + self.tensor.bytes
    }
}

impl Loaded {
    /// The array of that name.
    pub fn array(&self, name: &str) -> Option<&Array> {
        self.arrays.iter().find(|array| array.tensor.name == name)
    }
}

/// What is made of a source before it is mapped: parts of it, translated; or all of it as it is.
#[derive(Clone, Default)]
pub(crate) struct Plan(Option<Vec<Part>>);

impl Plan {
    pub(crate) fn apply(&self, source: Arc<dyn Source>) -> Arc<dyn Source> {
        match &self.0 {
            None => source,
            Some(parts) => Arc::new(Typed::new(source, parts.clone())),
        }
    }
}

/// Maps the arrays of the file at an address, or of that which [`Places`] make together: npy, npz
/// (stored), safetensors, Arrow.
///
/// # Errors
/// [`Error::Source`]; [`Error::Format`] when it is of no format that is known, or damaged;
/// [`Error::Argument`] for a mode that makes a new file.
pub fn load(places: impl Into<Places>, options: &LoadOptions) -> Result<Loaded, Error> {
    let places = places.into();
    if options.open.mode == Mode::Create || options.open.size.is_some() {
        return Err(Error::Argument {
            what: "mode",
            why: "a new file, or one that grows, has no arrays yet".into(),
            remedy: "give its dtype and shape",
        });
    }
    let opened = places.open(&options.open)?;
    let source = opened.source();
    let name = source.name().to_owned();
    let retry = options.open.retry();
    let mut read = |offset: u64, bytes: usize| {
        let mut buffer = vec![0; bytes];
        let read = || source.read_at(offset, &mut buffer);
        retry.run(read).map(|()| buffer)
    };
    let layout = farpage_format::open(source.size(), Some(&name), &mut read);
    let layout = layout.map_err(|error| Error::open(&name, error))?;
    if layout.kind == Kind::Npz && options.open.mode == Mode::Write {
        return Err(Error::Argument {
            what: "mode",
            why: "an npz archive has a sum of each array, which writing would make wrong".into(),
            remedy: "open it for a private copy, or keep the arrays as npy or safetensors",
        });
    }
    map(&places, opened, layout, options)
}

/// Maps nothing but numbers: `shape` of them, where one dimension may be -1: as many as there are.
/// With [`Mode::Create`] the file is made, with [`Mode::Write`] it grows if it must.
///
/// # Errors
/// [`Error::Source`]; [`Error::Format`] when the file does not have that shape; [`Error::Argument`]
/// as [`crate::open_source`].
pub fn raw(
    places: impl Into<Places>,
    (dtype, order): (Dtype, Order),
    shape: &[i64],
    options: &LoadOptions,
) -> Result<Loaded, Error> {
    let (mut places, mut open) = (places.into(), options.open.clone());
    let fixed = shape.iter().all(|length| *length >= 0);
    let makes = matches!(open.mode, Mode::Create | Mode::Write) && open.size.is_none();
    let begins = matches!(
        places.0.as_slice(),
        [Place {
            offset: Some(_),
            size: None,
            ..
        }]
    );
    if fixed && (makes || begins) {
        let size = shape.iter().try_fold(dtype.bytes() as u64, |size, length| {
            size.checked_mul(*length as u64)
        });
        let size = Some(size.ok_or_else(|| Error::Argument {
            what: "shape",
            why: "it has too many elements".into(),
            remedy: "give a smaller one",
        })?);
        match begins {
            true => places.0[0].size = size,
            false => open.size = size,
        }
    }
    if open.mode == Mode::Create && open.size.is_none() {
        return Err(Error::Argument {
            what: "shape",
            why: "a new file has no length that -1 could follow from".into(),
            remedy: "give each dimension, or the size in bytes",
        });
    }
    let opened = places.open(&open)?;
    let source = opened.source();
    let layout = farpage_format::raw(source.size(), dtype, order, shape);
    let layout = layout.map_err(|error| Error::format(source.name(), error))?;
    let options = LoadOptions {
        open,
        ..options.clone()
    };
    map(&places, opened, layout, &options)
}

/// As [`raw`], of a source of the caller's own, which is there as it is.
///
/// # Errors
/// As [`raw`].
pub fn raw_of_source(
    source: Arc<dyn Source>,
    (dtype, order): (Dtype, Order),
    shape: &[i64],
    options: &LoadOptions,
) -> Result<Loaded, Error> {
    let layout = farpage_format::raw(source.size(), dtype, order, shape);
    let mut layout = layout.map_err(|error| Error::format(source.name(), error))?;
    let plan = present(&mut layout.tensors, options);
    loaded(layout, plan.apply(source), Reopen::Same, options)
}

fn map(
    places: &Places,
    opened: OpenedSource,
    mut layout: Layout,
    options: &LoadOptions,
) -> Result<Loaded, Error> {
    let plan = present(&mut layout.tensors, options);
    let reopen = Reopen::of(places, &opened, plan.clone());
    loaded(layout, plan.apply(opened.into_source()), reopen, options)
}

fn loaded(
    Layout { kind, tensors }: Layout,
    source: Arc<dyn Source>,
    reopen: Reopen,
    options: &LoadOptions,
) -> Result<Loaded, Error> {
    let extents = match kind {
        Kind::Safetensors => tensors
            .iter()
            .map(|t| t.offset..t.offset + t.bytes)
            .collect(),
        Kind::Npy | Kind::Npz | Kind::Arrow | Kind::Raw => Vec::new(),
    };
    let memory = Memory::map(source, &options.open, reopen, extents)?;
    let array = |tensor| Array {
        memory: memory.clone(),
        tensor,
    };
    Ok(Loaded {
        arrays: tensors.into_iter().map(array).collect(),
        memory: memory.clone(),
        kind,
    })
}

/// The translation of one array, if it needs one.
fn translation(element: &Element, options: &LoadOptions) -> Option<(Translation, Dtype)> {
    let (dtype, order) = (element.dtype()?, element.order()?);
    let to = match dtype {
        Dtype::Bf16 if options.bf16_as_f32 => Dtype::F32,
        Dtype::F16 if options.f16_as_f32 => Dtype::F32,
        Dtype::VaxF if options.native => Dtype::F32,
        Dtype::VaxD | Dtype::VaxG if options.native => Dtype::F64,
        same if options.native && order == Order::Big => same,
        _ => return None,
    };
    let translation = Translation::new((dtype, order), (to, Order::Little));
    Some((translation.ok()?, to))
}

/// Says where arrays are presented, and as what. When one is translated all are placed anew.
fn present(tensors: &mut [Tensor], options: &LoadOptions) -> Plan {
    if tensors
        .iter()
        .all(|tensor| translation(&tensor.element, options).is_none())
    {
        return Plan::default();
    }
    let (mut parts, mut end) = (Vec::with_capacity(tensors.len()), 0u64);
    for tensor in tensors {
        let (from, start) = (tensor.offset, end.next_multiple_of(ALIGN));
        let found = translation(&tensor.element, options);
        if let Some((translation, to)) = found {
            let elements = tensor.bytes / translation.from_size() as u64;
            tensor.bytes = elements * translation.to_size() as u64;
            tensor.element = Element::little(to);
        }
        tensor.offset = start;
        end = start + tensor.bytes;
        parts.push(Part {
            name: tensor.name.clone(),
            start,
            bytes: tensor.bytes,
            from,
            translation: found.map(|(translation, _)| translation),
        });
    }
    Plan(Some(parts))
}
