//! A pager: the n-th word of its object is n squared, and none of them is anywhere before somebody
//! looks.
//!
//!     farpage up &
//!     farpage pager serve target/debug/examples/squares

use std::process::ExitCode;
use std::sync::Arc;

use farpage_client::pager::{About, MemoryObject, PageRequest};
use farpage_client::{Host, default_socket};

const WORD_BYTES: u64 = 8;
const PAGE_WORDS: u64 = 4096 / WORD_BYTES;

struct Squares;

impl MemoryObject for Squares {
    fn about(&self) -> About {
        About {
            name: "squares".into(),
            bytes: 1 << 30,
            writable: false,
            cluster_pages: 16,
        }
    }

    fn data_request(&self, request: PageRequest) {
        let pages = request.pages();
        let words = pages.start.0 * PAGE_WORDS..pages.end.0 * PAGE_WORDS;
        request.supply(words.flat_map(|n| (n * n).to_le_bytes()).collect());
    }
}

fn main() -> ExitCode {
    let offered = Host::connect(&default_socket())
        .and_then(|host| Ok((host.offer(Arc::new(Squares), None)?, host)));
    match offered {
        Ok((offered, _host)) => {
            println!("squares: 1 GiB, computed as it is read");
            let _ = offered.wait(None);
            eprintln!("squares: the host kernel is gone");
        }
        Err(error) => eprintln!("squares: {error}"),
    }
    // `farpage pager serve` starts it again.
    ExitCode::FAILURE
}
