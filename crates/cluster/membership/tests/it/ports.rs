//! Ports that are found by name, with a real etcd.

use farpage_membership::ControlError;

use crate::support::{Etcd, LONG, join, wait_until};

#[test]
fn a_name_is_one_ports_until_it_is_taken_away_or_its_host_is_gone() {
    let Some(etcd) = Etcd::start() else { return };
    let endpoint = etcd.endpoint();
    let (one, two) = (join(&endpoint, "a", LONG), join(&endpoint, "b", LONG));
    one.check_in("clock", 7, 1000).expect("it is free");
    let found = two.look_up("clock").expect("it is there");
    assert_eq!(
        (found.incarnation, found.number, found.uid),
        (one.incarnation(), 7, 1000)
    );
    let taken = two.check_in("clock", 8, 1000);
    assert!(matches!(taken, Err(ControlError::PortExists(name)) if name == "clock"));
    let none = two.look_up("clocks");
    assert!(matches!(none, Err(ControlError::NoPort(name)) if name == "clocks"));
    for name in ["", "a/b", &"x".repeat(201)] {
        assert!(
            matches!(one.check_in(name, 9, 0), Err(ControlError::Name(_))),
            "{name}"
        );
        assert!(
            matches!(two.look_up(name), Err(ControlError::Name(_))),
            "{name}"
        );
    }
    wait_until("the other host knows", || two.ports().unwrap().len() == 1);
    // Who is not meant is left alone.
    let mut other = found.clone();
    other.number = 9;
    one.check_out("clock", other).expect("nothing is done");
    assert_eq!(two.look_up("clock").expect("it is there"), found);
    one.check_out("clock", found).expect("it is this host's");
    assert!(matches!(two.look_up("clock"), Err(ControlError::NoPort(_))));
    // What a host leaves behind is no name any more, and another may have it at once.
    one.check_in("clock", 10, 1000).expect("it is free");
    one.leave().expect("the store answers");
    wait_until("the other host knows", || {
        two.view().unwrap().members.len() == 1
    });
    assert!(matches!(two.look_up("clock"), Err(ControlError::NoPort(_))));
    two.check_in("clock", 11, 1000).expect("it is free");
    wait_until("the other host knows", || two.ports().unwrap().len() == 1);
    assert_eq!(two.look_up("clock").expect("it is there").number, 11);
}
