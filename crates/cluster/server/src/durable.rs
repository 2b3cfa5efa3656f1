//! What it takes to flush an object.

use std::sync::mpsc::Sender;

use farpage_object::PagerError;

use crate::backing::BackingError;
use crate::object::LOST;

/// Who waits until a unit is in the journal, or cannot be had.
pub(crate) struct Flushed(Sender<Result<(), FlushError>>);

impl Flushed {
    pub(crate) fn by(waits: Sender<Result<(), FlushError>>) -> Self {
        Self(waits)
    }

    /// It is in the journal, or could not be written.
    pub(crate) fn is(self, written: std::io::Result<()>) {
        // Who has given up does not wait any more.
        let _ = self
            .0
            .send(written.map_err(|error| FlushError::File(BackingError::NotWritten(error))));
    }

    /// It cannot be had.
    pub(crate) fn fails(self, error: PagerError) {
        let _ = self.0.send(Err(FlushError::Page(error)));
    }
}

/// Why nothing was flushed.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// It has no file.
    #[error("it has no file; make it with one (farpage create --file FILE, fp.shared(..., file=))")]
    Volatile,
    /// Its home has gone.
    #[error("the host that has its file is not in the cluster any more")]
    Homeless,
    /// A page cannot be had.
    #[error(
        "{}, so nothing was flushed: its file is as of the last flush; to go back to that, take its name away \
         (farpage rm --cluster), and make it anew with the file",
        not_had(*.0)
    )]
    Page(PagerError),
    /// The file cannot be written.
    #[error("it could not be flushed: {0}")]
    File(#[from] BackingError),
}

fn not_had(error: PagerError) -> String {
    match error {
        LOST => "a page of it died with the host that had it".into(),
        error => format!("a page of it cannot be had ({error})"),
    }
}
