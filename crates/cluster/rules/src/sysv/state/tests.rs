//! What is not Linux's own: hosts, users, and who is woken. The calls themselves are compared with Linux's
//! by a program (`crates/faces/cli/tests/it/cluster/sysv.rs`).

use super::*;

const CREATES: u32 = 0o1600;
const UNDO: u16 = 0x1000;

fn thread(host: u64, pid: u32) -> Thread {
    let process = Process { host, pid };
    Thread {
        process,
        number: pid,
    }
}

fn call(by: Thread, uid: u32, what: What) -> Command {
    Command::Call(Call {
        by,
        uid,
        gid: 0,
        time: 7,
        is_again: false,
        what,
    })
}

fn set(state: &mut State, by: Thread, uid: u32) -> Reply {
    let what = What::Set {
        key: 5,
        count: 2,
        flags: CREATES,
    };
    state.apply(&call(by, uid, what)).0
}

fn adds(state: &mut State, by: Thread, change: i16, flags: u16) -> (Reply, Vec<Thread>) {
    let operations = [Operation {
        number: 0,
        change,
        flags,
    }]
    .to_vec();
    let id = FIRST_ID;
    state.apply(&call(by, 0, What::Operate { id, operations }))
}

fn done(value: u32) -> Reply {
    Reply::Done(value, Vec::new())
}

#[test]
fn who_waits_is_woken_to_ask_again_and_has_taken_nothing() {
    let (mut state, one, two, three) = (State::default(), thread(1, 1), thread(2, 1), thread(2, 2));
    assert_eq!(set(&mut state, one, 0), done(FIRST_ID));
    assert_eq!(set(&mut state, two, 0), done(FIRST_ID));
    assert_eq!(adds(&mut state, two, -2, 0), (Reply::Waits, Vec::new()));
    assert_eq!(adds(&mut state, three, -3, 0), (Reply::Waits, Vec::new()));
    assert_eq!(adds(&mut state, one, 1, 0), (done(0), Vec::new()));
    assert_eq!(adds(&mut state, one, 1, 0), (done(0), [two].to_vec()));
    // It was not quick enough.
    assert_eq!(adds(&mut state, one, -2, 0), (done(0), Vec::new()));
    assert_eq!(adds(&mut state, two, -2, 0), (Reply::Waits, Vec::new()));
    let given_up = state.apply(&call(two, 0, What::GiveUp));
    assert_eq!(given_up, (done(0), Vec::new()));
    assert_eq!(adds(&mut state, one, 3, 0), (done(0), [three].to_vec()));
}

#[test]
fn what_a_host_that_is_gone_wanted_undone_is_and_a_set_goes_with_the_last() {
    let (mut state, one, two) = (State::default(), thread(1, 1), thread(2, 1));
    set(&mut state, one, 0);
    set(&mut state, two, 0);
    adds(&mut state, one, 1, 0);
    assert_eq!(adds(&mut state, one, -1, UNDO), (done(0), Vec::new()));
    assert_eq!(adds(&mut state, two, -1, UNDO), (Reply::Waits, Vec::new()));
    let gone = state.apply(&Command::Gone(1));
    assert_eq!(gone, (done(0), [two].to_vec()));
    assert_eq!(adds(&mut state, two, -1, UNDO), (done(0), Vec::new()));
    assert_eq!(adds(&mut state, one, -1, 0), (Reply::Waits, Vec::new()));
    let ended = state.apply(&Command::Ended(two.process));
    assert_eq!(ended, (done(0), [one].to_vec()));
    state.apply(&Command::Gone(2));
    assert_eq!(state.things, BTreeMap::new());
    let none = What::Set {
        key: 5,
        count: 0,
        flags: 0,
    };
    let found = state.apply(&call(one, 0, none)).0;
    assert_eq!(found, Reply::Failed(errno::ENOENT));
}

#[test]
fn a_key_of_another_user_is_another_key() {
    let (mut state, one) = (State::default(), thread(1, 1));
    assert_eq!(set(&mut state, one, 0), done(FIRST_ID));
    assert_eq!(set(&mut state, one, 9), done(FIRST_ID + 1));
    let id = FIRST_ID;
    let operations = Vec::new();
    let strangers = state.apply(&call(one, 9, What::Operate { id, operations }));
    assert_eq!(strangers.0, Reply::Failed(errno::EINVAL));
}
