//! Files that several processes write to by descriptors, or read beside a writer: nothing is lost, as
//! without Farpage.

use std::process::Command;

use super::{compile, expect, may_mount, text};

fn behaves(what: &str) {
    let program = compile("writers.c", &format!("writers-{what}"), &[]);
    let bare = Command::new(&program).arg(what).output().unwrap();
    assert_eq!(text(&bare.stdout), "as it should be\n", "{bare:?}");
    if may_mount() {
        expect("32M", &[&program, what]);
    }
}

#[test]
fn processes_that_append_to_one_file_lose_nothing() {
    behaves("append");
}

#[test]
fn processes_that_have_one_open_file_write_behind_one_another() {
    behaves("offset");
}

#[test]
fn room_that_is_asked_for_beside_a_writer_takes_nothing_away() {
    behaves("allocate");
}

#[test]
fn a_reader_sees_no_size_without_the_bytes() {
    behaves("beside");
}

#[test]
fn processes_that_have_one_open_file_read_each_byte_once() {
    behaves("parted");
}

#[test]
fn a_file_that_is_emptied_beside_a_writer_has_whole_lines() {
    behaves("emptied");
}

#[test]
fn who_waits_for_a_writer_that_was_stopped_gets_its_signals() {
    behaves("stopped");
}

#[test]
fn nobody_waits_for_a_writer_that_was_killed() {
    behaves("killed");
}

#[test]
fn nobody_waits_for_a_child_of_a_writer_that_was_killed() {
    behaves("orphan");
}

#[test]
fn a_file_is_written_from_its_own_mapping_and_no_further_than_what_can_be_read() {
    behaves("itself");
}
