//! Options, as the Python side gives them: a dictionary whose values it has checked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farpage::{Cache, LoadOptions, Mode, OnFailure, OpenOptions, Trace, yet_to_be_recorded};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{argument, raised};

pub(crate) struct Options {
    pub(crate) load: LoadOptions,
    pub(crate) record: Option<PathBuf>,
}

impl Options {
    pub(crate) fn read(from: &Bound<'_, PyDict>) -> PyResult<Self> {
        let py = from.py();
        let mode = match of::<String>(from, "mode")?.as_deref() {
            None | Some("r") => Mode::Read,
            Some("r+") => Mode::Write,
            Some("w+") => Mode::Create,
            Some("c") => Mode::Copy,
            Some(other) => {
                let why = format!("mode '{other}' is not known");
                return Err(argument(py, &why, "give 'r', 'r+', 'w+' or 'c'"));
            }
        };
        let on_failure = match of::<String>(from, "on_failure")?.as_deref() {
            None | Some("error") => OnFailure::Error,
            Some("wait") => OnFailure::Wait,
            Some("zero") => OnFailure::Zero,
            Some(other) => {
                let why = format!("on_failure '{other}' is not known");
                return Err(argument(py, &why, "give 'error', 'wait' or 'zero'"));
            }
        };
        let cache = match of::<(PathBuf, u64)>(from, "cache")? {
            None => None,
            Some((folder, limit)) => {
                let cache = Cache::open(&folder, limit).map_err(farpage::Error::from);
                Some(cache.map_err(|error| raised(py, &error))?)
            }
        };
        let record = of::<PathBuf>(from, "record")?;
        let replay = of::<PathBuf>(from, "replay")?
            .filter(|path| !yet_to_be_recorded(path, record.as_deref()))
            .map(|path| Trace::read(&path).map(Arc::new))
            .transpose()
            .map_err(|error| raised(py, &error.into()))?;
        let flag = |name, otherwise| Ok::<_, PyErr>(of(from, name)?.unwrap_or(otherwise));
        let deadline = of::<f64>(from, "timeout")?.map(Duration::try_from_secs_f64);
        let open = OpenOptions {
            mode,
            size: of(from, "size")?,
            ram: of(from, "ram")?,
            cache,
            on_failure,
            deadline: match deadline {
                None => None,
                Some(Ok(deadline)) => Some(deadline),
                Some(Err(_)) => return Err(argument(py, "timeout is no time", "give seconds")),
            },
            headers: of(from, "headers")?.unwrap_or_default(),
            decompress: of(from, "decompress")?,
            replay,
        };
        Ok(Self {
            load: LoadOptions {
                open,
                native: flag("native", true)?,
                bf16_as_f32: flag("bf16_as_f32", false)?,
                f16_as_f32: flag("f16_as_f32", false)?,
            },
            record,
        })
    }
}

fn of<'py, T>(from: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    match from.get_item(name)?.filter(|value| !value.is_none()) {
        None => Ok(None),
        Some(value) => value.extract().map(Some).map_err(Into::into),
    }
}
