//! What becomes of locked memory, line by line: how it is held, what it is, what happens, what became of it,
//! and whether that was promised.

use std::process::ExitCode;

use farpage_testkit::truth::{CELL, Program, hold_name, one, run};

fn main() -> anyhow::Result<ExitCode> {
    if let Ok(cell) = std::env::var(CELL) {
        one(&cell);
        return Ok(ExitCode::SUCCESS);
    }
    let program = Program {
        path: std::env::current_exe()?,
        arguments: Vec::new(),
    };
    let matrix = run(&program, |_| true)?;
    for cell in &matrix.cells {
        let kept = if cell.is_kept() { "kept" } else { "broken" };
        let (hold, outcome) = (hold_name(cell.hold), &cell.outcome);
        println!(
            "{hold}\t{}\t{}\t{outcome}\t{kept}",
            cell.backing.name(),
            cell.event.name()
        );
    }
    let is_kept = matrix.cells.iter().all(|cell| cell.is_kept());
    Ok(if is_kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
