//! Programs that forbid themselves what the agent would do in their threads.

use crate::programs::{compile, expect_within};

#[test]
fn a_filter_for_all_threads_is_in_each_of_them_whatever_it_forbids() {
    forbidden("everywhere");
}

#[test]
fn memory_grows_moves_and_is_replaced_under_a_filter_that_forbids_to_manage_more() {
    forbidden("without_ioctl");
}

#[test]
fn limits_are_asked_for_under_a_filter() {
    forbidden("limits");
}

#[test]
fn more_may_be_populated_than_the_budget_has() {
    forbidden("populate");
}

#[test]
fn a_handler_runs_on_the_stack_that_it_asked_for() {
    forbidden("deep");
}

#[test]
fn no_call_is_lost_while_a_filter_is_installed_in_all_threads() {
    forbidden("meanwhile");
}

#[test]
fn a_filter_for_all_threads_is_installed_though_the_first_has_ended() {
    forbidden("outlived");
}

fn forbidden(part: &str) {
    for (name, flags) in [
        ("forbidden", &[][..]),
        ("forbidden-static", &["-static"][..]),
    ] {
        let program = compile("forbidden.c", &format!("{name}-{part}"), flags);
        expect_within("24M", &[&program, part], 5);
    }
}
