//! Text for people: sizes, durations and tables, and where it is printed.
//!
//! ```
//! use farpage_text::size::{Size, human, human_time};
//!
//! assert_eq!(Size::parse("--ram", "1.5G").unwrap(), Size::Bytes(3 << 29));
//! assert_eq!(human(3 << 29), "1.50 GiB");
//! assert_eq!(human_time(125_000_000_000), "2 min 05 s");
//! ```

pub mod columns;
pub mod output;
pub mod size;
pub mod time;
