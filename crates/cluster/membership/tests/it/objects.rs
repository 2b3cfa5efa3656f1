//! Objects: names, holders, with a real etcd.

use std::thread;

use farpage_membership::{Control, ControlError, Event, ObjectId};

use crate::support;
use crate::support::{Etcd, LONG, SOON, description, join, wait_for, wait_until};

fn two(etcd: &Etcd) -> (Control, Control) {
    let endpoint = etcd.endpoint();
    (join(&endpoint, "a", LONG), join(&endpoint, "b", LONG))
}

fn removed(host: &Control) -> ObjectId {
    wait_for(host, "an object is removed", |event| match event {
        Event::Removed(id) => Some(*id),
        _ => None,
    })
}

#[test]
fn of_hosts_that_race_for_a_name_one_has_it_and_the_others_are_told() {
    let Some(etcd) = Etcd::start() else { return };
    let endpoint = etcd.endpoint();
    let hosts: Vec<Control> = (0..4)
        .map(|n| join(&endpoint, &n.to_string(), LONG))
        .collect();
    let made: Vec<_> = thread::scope(|scope| {
        let make = |host: &Control| host.make(Some("grid"), description(host));
        let makes: Vec<_> = hosts
            .iter()
            .chain(&hosts)
            .map(|host| scope.spawn(move || make(host)))
            .collect();
        makes
            .into_iter()
            .map(|make| make.join().expect("no panic"))
            .collect()
    });
    let ids: Vec<ObjectId> = made
        .iter()
        .filter_map(|made| made.as_ref().ok().copied())
        .collect();
    assert_eq!(ids.len(), 1, "{made:?}");
    for made in &made {
        assert!(!matches!(made, Err(ControlError::Exists(id)) if *id != ids[0]));
    }
    let (id, object) = hosts[0].find("grid").expect("it is there");
    assert_eq!((id, object.name.as_deref()), (ids[0], Some("grid")));
    let another = hosts[0]
        .make(Some("other"), description(&hosts[0]))
        .expect("made");
    assert_ne!(another, id);
    let all = hosts[3].list().expect("they are listed");
    assert_eq!(
        all.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [id, another]
    );
}

#[test]
fn an_object_lives_while_it_has_a_name_or_a_holder_and_is_removed_once() {
    let Some(etcd) = Etcd::start() else { return };
    let (a, b) = two(&etcd);
    let id = a.make(Some("grid"), description(&a)).expect("made");
    a.release(id).expect("released");
    b.hold(id).expect("its name keeps it");
    assert_eq!(b.remove("grid").expect("named"), id);
    let gone = a.find("grid").expect_err("it has no name").to_string();
    assert!(gone.contains("grid"), "{gone}");
    a.hold(id).expect("its holder keeps it");
    b.release(id).expect("released");
    assert_eq!(a.list().expect("listed").len(), 1);
    a.release(id).expect("released");
    assert_eq!((removed(&a), removed(&b)), (id, id));
    assert!(matches!(a.hold(id), Err(ControlError::NoObject(gone)) if gone == id));
    let again = a
        .make(Some("grid"), description(&a))
        .expect("the name is free");
    assert_ne!(again, id);
    // The next that is removed is another: the first was removed once.
    a.remove("grid").expect("named");
    a.leave().expect("it leaves");
    assert_eq!(removed(&b), again);
}

#[test]
fn an_object_changes_its_name_and_its_note_and_all_hear_of_it_in_order() {
    let Some(etcd) = Etcd::start() else { return };
    let (a, b) = two(&etcd);
    let id = a.make(Some("before"), description(&a)).expect("made");
    let other = a.make(Some("other"), description(&a)).expect("made");
    b.rename(id, "after").expect("it has a name");
    b.rename(id, "after").expect("it has it already");
    b.note(id, "4096 bytes").expect("it is there");
    let taken = a.rename(id, "other").expect_err("it is another's");
    assert!(matches!(taken, ControlError::Exists(by) if by == other));
    assert!(matches!(a.find("before"), Err(ControlError::NoName(_))));
    let (found, object) = a.find("after").expect("its name now");
    assert_eq!((found, &*object.description.note), (id, "4096 bytes"));
    let long = "x".repeat(farpage_membership::NOTE_MAX + 1);
    assert!(matches!(
        a.note(id, &long),
        Err(ControlError::Description(_))
    ));
    a.remove("after").expect("named");
    assert!(matches!(
        a.rename(id, "again"),
        Err(ControlError::NoObject(_))
    ));
    for host in [&a, &b] {
        let changes = std::iter::from_fn(|| host.next_event(SOON));
        let changes = changes.filter_map(|event| match event {
            Event::Changed(changed, object) => {
                assert_eq!(changed, id);
                Some((object.name, object.description.note))
            }
            _ => None,
        });
        let seen: Vec<_> = changes.take(3).collect();
        let name = |name: &str| Some(String::from(name));
        let note = String::from("4096 bytes");
        let first = description(&a).note;
        assert_eq!(
            seen,
            [
                (name("after"), first),
                (name("after"), note.clone()),
                (None, note)
            ]
        );
        assert!(host.revision().expect("it is not fenced") > 0);
    }
    assert!(matches!(
        a.rename(farpage_membership::ObjectId(999), "x"),
        Err(ControlError::NoObject(_))
    ));
}

#[test]
fn what_does_not_stay_goes_with_its_last_holder_and_its_name_is_free() {
    let Some(etcd) = Etcd::start() else { return };
    let (one, two) = two(&etcd);
    let passing = farpage_membership::Description {
        stays: false,
        ..description(&one)
    };
    let id = one.make(Some("grid"), passing.clone()).expect("made");
    let outlives = |one: &Control| one.outlives_this_host(id).expect("it is not fenced");
    assert!(!outlives(&one), "nobody else has it");
    two.hold(id).expect("it is there");
    wait_until("both know", || outlives(&one) && outlives(&two));
    one.release(id).expect("it was held");
    wait_until("two alone has it", || !outlives(&two));
    assert_eq!(two.find("grid").expect("two holds it").0, id);
    two.release(id).expect("it was held");
    assert_eq!((removed(&one), removed(&two)), (id, id));
    assert!(matches!(one.find("grid"), Err(ControlError::NoName(_))));
    let next = two.make(Some("grid"), passing).expect("the name is free");
    assert_ne!(next, id);
    let long = farpage_membership::Description {
        note: "x".repeat(farpage_membership::NOTE_MAX + 1),
        ..description(&one)
    };
    let refused = one.make(None, long).expect_err("too long");
    assert!(
        refused
            .to_string()
            .contains("a note has at most 1024 bytes"),
        "{refused}"
    );
}

#[test]
fn the_last_to_leave_takes_along_what_nobody_names() {
    let Some(etcd) = Etcd::start() else { return };
    let a = join(&etcd.endpoint(), "a", LONG);
    let kept = a.make(Some("kept"), description(&a)).expect("made");
    a.make(None, description(&a)).expect("made");
    a.leave().expect("it leaves");
    let b = join(&etcd.endpoint(), "b", LONG);
    let all = b.list().expect("listed");
    assert_eq!(all.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [kept]);
}

#[test]
fn what_cannot_be_made_is_refused_and_what_cannot_be_read_is_told() {
    let Some(etcd) = Etcd::start() else { return };
    let a = join(&etcd.endpoint(), "a", LONG);
    for name in ["", "a/b", "two\nlines"] {
        let refused = a.make(Some(name), description(&a));
        assert!(matches!(refused, Err(ControlError::Name(_))), "{refused:?}");
        assert!(matches!(a.find(name), Err(ControlError::Name(_))));
    }
    let mut bad = description(&a);
    bad.replicas = 4;
    let refused = a.make(None, bad).expect_err("too many").to_string();
    assert!(refused.contains("1 to 3 hosts, not 4"), "{refused}");
    etcd.put("test/now/object/77", r#"{"version":9,"value":0}"#);
    let why = wait_for(&a, "it is told", |event| match event {
        Event::Unreadable { key, why } if key == "test/now/object/77" => Some(why.to_string()),
        _ => None,
    });
    assert!(why.contains("version 9"), "{why}");
    etcd.put("test/name/bad", "{");
    let refused = a.find("bad").expect_err("no number").to_string();
    assert!(refused.contains("test/name/bad"), "{refused}");
    etcd.put("test/now/view", "{");
    wait_for_fence(&a, "cannot be read");
    assert!(matches!(a.list(), Err(ControlError::Fenced(_))));
}

fn wait_for_fence(host: &Control, word: &str) {
    loop {
        if let Event::Fenced(why) = host.next_event(support::SOON).expect("it is fenced") {
            assert!(why.contains(word), "{why}");
            assert!(host.is_fenced());
            return;
        }
    }
}
