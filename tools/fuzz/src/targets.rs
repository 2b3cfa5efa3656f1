//! What can be fuzzed. A new target is a module here and a line in [`TARGETS`].

mod arrow;
mod compressed;
mod control;
mod format;
mod headers;
mod host;
mod interface;
mod link;
mod network;
mod node;
mod npy;
mod npz;
mod pager;
mod program;
mod raw;
mod rights;
mod safetensors;
mod share;
mod trace;

/// One parser.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Gives it an input; panics when it does what it must not.
    pub(crate) run: fn(&[u8]),
    /// Inputs to begin with: valid ones of every kind.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
}

pub(crate) const TARGETS: &[Target] = &[
    Target {
        name: "npy",
        run: |input| format::open("x.npy", input),
        seeds: npy::seeds,
    },
    Target {
        name: "npz",
        run: |input| format::open("x.npz", input),
        seeds: npz::seeds,
    },
    Target {
        name: "safetensors",
        run: |input| format::open("x.safetensors", input),
        seeds: safetensors::seeds,
    },
    Target {
        name: "arrow",
        run: |input| format::open("x.arrow", input),
        seeds: arrow::seeds,
    },
    Target {
        name: "raw",
        run: raw::run,
        seeds: raw::seeds,
    },
    Target {
        name: "zstd",
        run: compressed::zstd,
        seeds: compressed::zstd_seeds,
    },
    Target {
        name: "gzip-index",
        run: compressed::gzip_index,
        seeds: compressed::gzip_index_seeds,
    },
    Target {
        name: "headers",
        run: headers::run,
        seeds: headers::seeds,
    },
    Target {
        name: "trace",
        run: trace::run,
        seeds: trace::seeds,
    },
    Target {
        name: "program",
        run: program::run,
        seeds: program::seeds,
    },
    Target {
        name: "rights",
        run: rights::run,
        seeds: rights::seeds,
    },
    Target {
        name: "link",
        run: link::run,
        seeds: link::seeds,
    },
    Target {
        name: "node",
        run: node::run,
        seeds: node::seeds,
    },
    Target {
        name: "interface",
        run: interface::run,
        seeds: interface::seeds,
    },
    Target {
        name: "pager",
        run: pager::run,
        seeds: pager::seeds,
    },
    Target {
        name: "share",
        run: share::run,
        seeds: share::seeds,
    },
    Target {
        name: "control",
        run: control::run,
        seeds: control::seeds,
    },
    Target {
        name: "host",
        run: host::run,
        seeds: host::seeds,
    },
    Target {
        name: "greeting",
        run: network::greeting,
        seeds: network::greeting_seeds,
    },
    Target {
        name: "session",
        run: network::session,
        seeds: network::session_seeds,
    },
];
