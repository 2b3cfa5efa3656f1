//! The simple scheduler of a page: a server that has the contents, and asks for them back.
