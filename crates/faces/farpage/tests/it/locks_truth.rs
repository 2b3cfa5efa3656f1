//! What becomes of locked memory under all that Linux and others do to it is what docs/locked.md promises.

use std::collections::BTreeMap;

use farpage_testkit::truth::{
    CELL, Cell, Event, Matrix, Outcome, Program, hold_name, one, run, table,
};

/// Run in a process of its own for each kind of memory and each event.
#[test]
#[ignore = "is started by the next one"]
fn a_cell() {
    one(&std::env::var(CELL).unwrap());
}

#[test]
fn locked_memory_is_where_it_is_promised_to_be_whatever_happens() {
    let Some(cells) = measure(|event| event != Event::Migration) else {
        return;
    };
    // What is on every machine where there is a root was measured.
    let measured = |cell: &&Cell| !matches!(cell.outcome, Outcome::NotHere(_));
    assert!(
        cells.iter().filter(measured).count() >= 60,
        "most of it is not here"
    );
}

/// Needs a machine with several NUMA nodes.
#[test]
fn locked_memory_stays_in_memory_when_it_migrates_to_another_node() {
    measure(|event| event == Event::Migration);
}

/// Measures, and compares with what is promised.
fn measure(wanted: impl Fn(Event) -> bool) -> Option<Vec<Cell>> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may read frames, set swap up and have memory compacted");
        return None;
    }
    let arguments = ["--exact", "locks_truth::a_cell", "--ignored", "--nocapture"];
    let program = Program {
        path: std::env::current_exe().unwrap(),
        arguments: arguments.map(str::to_owned).to_vec(),
    };
    let Matrix { cells } = run(&program, wanted).unwrap();
    let (mut broken, mut missing) = (Vec::new(), BTreeMap::new());
    for cell in &cells {
        let (memory, event) = (cell.backing.name(), cell.event.name());
        let what = format!(
            "{} {memory}, {event}: {}",
            hold_name(cell.hold),
            cell.outcome
        );
        println!("{what}");
        if !cell.is_kept() {
            broken.push(what);
        }
        if let Outcome::NotHere(why) = &cell.outcome {
            *missing.entry(why.clone()).or_insert(0) += 1;
        }
    }
    for (why, cells) in missing {
        println!("skipped: {cells} cells: {why}");
    }
    assert!(
        broken.is_empty(),
        "against docs/locked.md:\n{}",
        broken.join("\n")
    );
    Some(cells)
}

#[test]
fn the_document_says_what_is_tested() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/locked.md");
    let document = std::fs::read_to_string(path).unwrap();
    let table = table();
    assert!(
        document.contains(&table),
        "docs/locked.md is to have this table:\n{table}"
    );
}
