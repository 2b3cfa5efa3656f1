//! One of those that keep pages.

use std::sync::Arc;

use crate::manager::{Keeper, Outside};

/// Who keeps pages.
#[derive(Clone)]
pub(crate) enum Member {
    /// The one of the kernel itself.
    Inside(Arc<dyn Keeper>),
    Outside(Arc<Outside>),
}

impl Member {
    pub(crate) fn keeper(&self) -> &dyn Keeper {
        match self {
            Self::Inside(keeper) => keeper.as_ref(),
            Self::Outside(outside) => outside.as_ref(),
        }
    }

    pub(crate) fn outside(&self) -> Option<&Arc<Outside>> {
        match self {
            Self::Inside(_) => None,
            Self::Outside(outside) => Some(outside),
        }
    }

    pub(crate) fn is(&self, other: &Arc<Outside>) -> bool {
        self.outside().is_some_and(|own| Arc::ptr_eq(own, other))
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Inside(own), Self::Inside(other)) => Arc::ptr_eq(own, other),
            (own, Self::Outside(other)) => own.is(other),
            (Self::Outside(_), Self::Inside(_)) => false,
        }
    }

    /// It asked for its end, or is dead: it is not to have pages.
    pub(crate) fn ends(&self) -> bool {
        self.outside().is_some_and(|outside| outside.ends())
    }

    /// Nothing of it is needed any more.
    pub(crate) fn may_end(&self) {
        if let Self::Outside(outside) = self {
            outside.may_end();
        }
    }
}
