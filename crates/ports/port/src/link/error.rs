//! What can go wrong, and whose fault it is.

use farpage_sys::Errno;

use super::ring::Lie;

/// What the peer did that no honest peer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// An index of a ring is not where it can be.
    #[error("it wrote ring index {index} while this side is at {own}")]
    Index {
        /// What it wrote.
        index: u32,
        /// Where this side is.
        own: u32,
    },
    /// A frame is longer than a frame can be, or than what was sent of it.
    #[error("a frame claims {bytes} bytes, of which {slots} slots are there")]
    Length {
        /// What its header says.
        bytes: u32,
        /// Slots that are filled.
        slots: u32,
    },
    /// A frame is of no known kind, or its header has bits set that mean nothing.
    #[error("a frame begins with {0:#x}, which means nothing")]
    Frame(u64),
    /// The descriptors that came are not those that were announced.
    #[error("a frame announces {announced} descriptors as number {number}; {came} came as {other}")]
    Descriptors {
        /// How many, by the frame.
        announced: usize,
        /// Its number for them.
        number: u64,
        /// How many came.
        came: usize,
        /// The number that they came with.
        other: u64,
    },
    /// Memory is not sealed as agreed, or not as long as announced.
    #[error("the memory that it sent is not sealed or sized as agreed: {0}")]
    Memory(Errno),
    /// A region or a range of one that it never announced, or too many regions.
    #[error("it names bytes {offset} to {offset} + {bytes} of region {region}")]
    Region {
        /// Its number.
        region: u64,
        /// The first byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
    /// It returned a loan that it does not have.
    #[error("it returned loan {0}, which it does not have")]
    Loan(u64),
    /// It shut half of the socket.
    #[error("it shut its socket down and goes on")]
    Shutdown,
}

impl From<Lie> for Violation {
    fn from(lie: Lie) -> Self {
        Self::Index {
            index: lie.index,
            own: lie.own,
        }
    }
}

/// Why a Link is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The peer closed it.
    #[error("the peer closed the Link")]
    Closed,
    /// The peer is dead, or gave its socket up without a word, which is as good.
    #[error("the peer died; what it had sent was received")]
    Died,
    /// The peer broke the rules.
    #[error("the peer broke the rules of the Link: {0}; the Link is closed")]
    Violation(#[from] Violation),
    /// This side could not go on.
    #[error("cannot {doing}: {errno}; the Link is closed")]
    Failed {
        /// What it tried.
        doing: &'static str,
        /// Why it could not.
        errno: Errno,
    },
}

/// Why a frame was not sent. Nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The peer has not received enough yet.
    #[error("the Link is full; send again when the peer has received something")]
    Full,
    /// There is nobody to send to.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// More descriptors than a frame may bring.
    #[error("{0} descriptors in one frame; send at most 16, or several frames")]
    TooManyDescriptors(usize),
    /// More bytes than may go along with memory.
    #[error("{0} bytes beside memory; send at most 4160, or put them into the memory")]
    TooLong(usize),
    /// A region that this Link cannot take.
    #[error("a peer keeps at most 16 regions; lend ranges of fewer, larger ones")]
    TooManyRegions,
    /// Linux refused.
    #[error("cannot {doing}: {errno}")]
    Failed {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        errno: Errno,
    },
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// Nothing came before the deadline.
    #[error("nothing came in time")]
    TimedOut,
    /// Nothing will come any more.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// Why there is no Link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The peer said nothing before the deadline.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer went away.
    #[error("the peer closed the connection instead of answering")]
    Closed,
    /// The peer speaks another version.
    #[error(
        "the peer speaks version {theirs} of the Link protocol, this program {ours}: update the older"
    )]
    Version {
        /// Of this program.
        ours: u16,
        /// Of the peer.
        theirs: u16,
    },
    /// The peer does not speak the protocol, or not honestly.
    #[error("the peer's greeting is refused: {0}")]
    Greeting(&'static str),
    /// Linux refused.
    #[error("cannot {doing}: {errno}")]
    Failed {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        errno: Errno,
    },
}

/// Turns an error of Linux into one that says what was tried.
pub(super) fn connecting<E: Into<std::io::Error>>(
    doing: &'static str,
) -> impl FnOnce(E) -> ConnectError {
    move |error| ConnectError::Failed {
        doing,
        errno: errno(error),
    }
}

/// The number of an error.
pub(super) fn errno<E: Into<std::io::Error>>(error: E) -> Errno {
    Errno(error.into().raw_os_error().unwrap_or(Errno::EIO.0))
}
