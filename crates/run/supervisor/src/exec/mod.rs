//! Programs that are not on this machine, or not all of them: the program is a mapped file, and
//! Linux executes the memory file that has what there is of it.

mod load;
mod shared;

pub use load::{ahead, below, is_missing, load, missing, other_path, refused};
pub use shared::{is_shared, open as open_shared};
