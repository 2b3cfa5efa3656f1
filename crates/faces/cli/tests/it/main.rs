//! The `farpage` command, tested as users have it.

#[path = "../../../../cluster/server/tests/it/support/history.rs"]
mod checker;

mod calls;
mod chaos;
mod cli;
mod cluster;
mod default_pager;
mod exec;
mod forbidden;
mod full;
mod host;
mod interpreters;
mod limits;
mod machine;
mod maps;
mod open;
mod pager;
mod pressure;
mod programs;
mod replay;
mod run;
mod shm;
mod stdio;
mod support;
mod tasks;
