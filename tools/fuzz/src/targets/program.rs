//! Programs: what loading one takes.

use farpage_plan::{Command, PAGE_BYTES, Plan, PlanError};

/// Plans `input` as a file, and as the beginning of one that says it is far larger.
pub(crate) fn run(input: &[u8]) {
    plan_as(input, input.len() as u64);
    plan_as(input, 1 << 46);
}

fn plan_as(input: &[u8], size: u64) {
    let mut read = |at: u64, bytes: usize| {
        assert!(bytes > 0, "nothing is asked for");
        let end = at.checked_add(bytes as u64).expect("a range");
        assert!(end <= size, "{at}..{end} is outside");
        let range = usize::try_from(at)
            .ok()
            .and_then(|at| input.get(at..at.checked_add(bytes)?));
        range.map(<[u8]>::to_vec).ok_or("beyond the input")
    };
    match farpage_plan::plan(size, &mut read) {
        Ok(plan) => check(&plan, size),
        Err(PlanError::Load(error)) => assert!(!error.to_string().is_empty()),
        Err(PlanError::Read { error, .. }) => assert_eq!(error, "beyond the input"),
        Err(error @ PlanError::ShortRead { .. }) => panic!("{error}"),
    }
}

/// What is mapped, and fetched, lies in the file.
fn check(plan: &Plan, size: u64) {
    assert_eq!(plan.commands.last(), Some(&Command::EndLoad));
    for command in &plan.commands {
        match command {
            Command::ReadOnly { file, address, .. } | Command::Writeable { file, address, .. } => {
                assert!(file.start < file.end && file.end <= size);
                assert_eq!(file.start % PAGE_BYTES, address.start % PAGE_BYTES);
                assert_eq!(file.end - file.start, address.end - address.start);
            }
            Command::Relocate { file, .. } => assert!(file.start <= file.end && file.end <= size),
            Command::ZeroFill { address } => assert!(address.start < address.end),
            Command::Register { .. } | Command::LoadFile { .. } | Command::EndLoad => {}
        }
    }
    let mut end = None;
    for range in &plan.before_start {
        assert!(
            end.is_none_or(|end| range.start > end),
            "in order and apart"
        );
        assert!(range.start < range.end && range.end <= size);
        assert_eq!(range.start % PAGE_BYTES, 0);
        end = Some(range.end);
    }
}

const EXECUTABLE: u16 = 2;
const ANYWHERE: u16 = 3;

/// A static program, one with a dynamic linker and libraries, and a script.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut dynamic = file(ANYWHERE, 4);
    for (number, entry) in [(5, 0x30), (10, 16), (1, 1), (7, 0x80), (8, 24), (0, 0)]
        .iter()
        .enumerate()
    {
        let at = 0x150 + number * 16;
        let (tag, value): (u64, u64) = *entry;
        dynamic[at..at + 8].copy_from_slice(&tag.to_le_bytes());
        let value = if tag == 5 { 0x200 } else { value };
        dynamic[at + 8..at + 16].copy_from_slice(&value.to_le_bytes());
    }
    dynamic[0x200..0x210].copy_from_slice(b"\0libc.so.6\0/x:/\0");
    dynamic[0x220..0x22b].copy_from_slice(b"/lib/ld.so\0");
    header(&mut dynamic, 1, 1, 6, 0x1000, 0x1000, 0x100, 0x900);
    header(&mut dynamic, 2, 2, 6, 0x150, 0x150, 96, 96);
    header(&mut dynamic, 3, 3, 4, 0x220, 0x220, 11, 11);
    vec![
        file(EXECUTABLE, 1),
        dynamic,
        b"#!/bin/sh -e\necho\n".to_vec(),
    ]
}

/// A file of two pages with `headers` program headers, of which the first maps a page as code.
fn file(kind: u16, headers: u16) -> Vec<u8> {
    let mut file = vec![0; 8192];
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file[16..18].copy_from_slice(&kind.to_le_bytes());
    file[18..24].copy_from_slice(&[62, 0, 1, 0, 0, 0]);
    file[24..32].copy_from_slice(&0x400u64.to_le_bytes());
    file[32] = 64;
    file[52..58].copy_from_slice(&[64, 0, 56, 0, headers as u8, 0]);
    header(&mut file, 0, 1, 5, 0, 0, 0x1000, 0x1000);
    file
}

/// Writes program header `number`.
#[allow(clippy::too_many_arguments)]
fn header(
    file: &mut [u8],
    number: usize,
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    bytes: u64,
    memory: u64,
) {
    let at = 64 + number * 56;
    file[at..at + 4].copy_from_slice(&kind.to_le_bytes());
    file[at + 4..at + 8].copy_from_slice(&flags.to_le_bytes());
    for (place, value) in [(8, offset), (16, address), (32, bytes), (40, memory)] {
        file[at + place..at + place + 8].copy_from_slice(&value.to_le_bytes());
    }
}
