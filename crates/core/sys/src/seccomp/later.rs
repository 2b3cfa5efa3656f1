//! Filters that a process adds when it turns out to need them.
//!
//! The first filter knows descriptors of mapped files and of shared memory by their numbers, and managed memory by its address,
//! so that other calls cost nothing. A program may want such a descriptor at another number, or shared memory
//! at another address: then its process, and what it makes and executes, gets a filter that traps what
//! concerns that. Such a filter is never taken away; what it traps in vain is let pass by the agent.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use linux_raw_sys::general as g;
use linux_raw_sys::ptrace as p;

use super::assembler::{Assembler, Instruction, Label, Test, data};
use super::rules::{self, Rule};
use super::{TRAP_MARK, set};
use crate::raw::Result;
use crate::syscall;

/// What the first filter does not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// Transfers by this descriptor.
    Descriptor(u32),
    /// What is done to memory anywhere.
    Memory,
    /// Private memory that is made, however little.
    SmallMemory,
}

/// The `whence` of the question whether there is such a filter: without one Linux knows no such
/// descriptor.
const QUESTION: u32 = 0x4641_5245;
/// No descriptor has this number.
const NOBODY: u32 = u32::MAX;
/// Nor this, which asks for the filter of [`Unseen::SmallMemory`].
const SMALL: u32 = u32::MAX - 2;
/// Asks for any such filter.
const ANY: u32 = u32::MAX - 1;
/// The descriptor of anonymous memory that the supervisor maps into a program, where there is no agent yet.
/// Linux does not look at it.
pub const BY_SUPERVISOR: i32 = -2;

const OF_MEMORY: [u32; 8] = [
    g::__NR_munmap,
    g::__NR_madvise,
    g::__NR_mremap,
    g::__NR_mprotect,
    g::__NR_pkey_mprotect,
    g::__NR_mlock,
    g::__NR_mlock2,
    g::__NR_munlock,
];

/// Has all threads of this process see `what` from now on.
///
/// # Errors
/// As `seccomp(2)`: when threads have filters of their own, or too many filters are there.
pub fn see(what: Unseen) -> Result<()> {
    if is_seen(what) {
        return Ok(());
    }
    set(
        &filter(what),
        p::SECCOMP_FILTER_FLAG_TSYNC | p::SECCOMP_FILTER_FLAG_TSYNC_ESRCH,
    )
}

/// True when this thread has the filter for `what`, perhaps from who executed its program.
pub fn is_seen(what: Unseen) -> bool {
    has(name(what))
}

/// True when this thread has any such filter. Where it executes a program the agent must be there from the start:
/// the dynamic linker may use the number, too.
pub fn are_there() -> bool {
    has(ANY)
}

fn has(name: u32) -> bool {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_lseek, NOBODY, name, QUESTION) }.is_ok()
}

fn name(what: Unseen) -> u32 {
    match what {
        Unseen::Descriptor(number) => number,
        Unseen::Memory => NOBODY,
        Unseen::SmallMemory => SMALL,
    }
}

/// The filter for `what`.
pub(super) fn filter(what: Unseen) -> Vec<Instruction> {
    let mut judged: BTreeMap<u32, Rule> = BTreeMap::new();
    match what {
        Unseen::Descriptor(_) => {
            let uses = |rule| matches!(rule, Rule::Opened(_) | Rule::Either(..) | Rule::Seek);
            judged.extend(
                rules::SHM_RULES
                    .iter()
                    .filter(|(_, rule)| uses(*rule))
                    .copied(),
            );
            judged.insert(g::__NR_mmap, Rule::Opened(4));
            judged.insert(g::__NR_dup2, Rule::Duplicate);
            judged.insert(g::__NR_dup3, Rule::Duplicate);
            judged.insert(g::__NR_fcntl, Rule::Fcntl);
        }
        Unseen::Memory => {
            judged.extend(OF_MEMORY.map(|number| (number, Rule::Always)));
            judged.insert(g::__NR_mmap, Rule::Map);
        }
        Unseen::SmallMemory => {
            judged.insert(g::__NR_mmap, Rule::MapSmall);
        }
    }
    judged.entry(g::__NR_lseek).or_insert(Rule::Plain);
    let mut a = Assembler::default();
    let (allow, trap, yes) = (a.label(), a.label(), a.label());
    let labels: BTreeMap<Rule, Label> = judged.values().map(|&rule| (rule, a.label())).collect();
    let entries: Vec<(u32, Label)> = judged
        .iter()
        .map(|(&nr, rule)| (nr, labels[rule]))
        .collect();
    a.load(data::ARCH);
    a.unless(Test::Equal(rules::ARCH_X86_64), allow);
    a.load(data::NR);
    rules::search(&mut a, &entries, allow);
    for (&rule, &label) in &labels {
        a.place(label);
        if matches!(rule, Rule::Seek | Rule::Plain) {
            answer_question(&mut a, what, yes);
        }
        rules::exempt_gate(&mut a, allow);
        if what == Unseen::Memory {
            rules::allow_making_the_gate(&mut a, allow);
        }
        emit(&mut a, rule, name(what), trap);
        a.goto(allow);
    }
    let answers = [
        (allow, p::SECCOMP_RET_ALLOW),
        (trap, p::SECCOMP_RET_TRAP | u32::from(TRAP_MARK)),
        (yes, p::SECCOMP_RET_ERRNO),
    ];
    for (label, answer) in answers {
        a.place(label);
        a.ret(answer);
    }
    a.finish()
}

fn answer_question(a: &mut Assembler, what: Unseen, yes: Label) {
    let other = a.label();
    for (argument, value) in [(0, NOBODY), (2, QUESTION)] {
        a.load(data::low(argument));
        a.unless(Test::Equal(value), other);
    }
    a.load(data::low(1));
    a.when(Test::Equal(name(what)), yes);
    a.when(Test::Equal(ANY), yes);
    a.place(other);
}

/// Goes to `trap` when the call concerns descriptor `number`, or memory.
fn emit(a: &mut Assembler, rule: Rule, number: u32, trap: Label) {
    let used = |a: &mut Assembler, argument| {
        a.load(data::low(argument));
        a.when(Test::Equal(number), trap);
    };
    let other = a.label();
    match rule {
        Rule::Always => a.goto(trap),
        Rule::Map => {
            a.load(data::low(4));
            a.when(Test::Equal(BY_SUPERVISOR as u32), other);
            a.load(data::low(3));
            a.when(Test::AnyBit(rules::MAP_FIXED), trap);
        }
        Rule::MapSmall => {
            // Who says where wants it there: code beside other code, say.
            rules::when_given(a, 0, other);
            rules::unless_private(a, other);
            a.goto(trap);
        }
        Rule::Opened(argument) => used(a, argument),
        Rule::Either(one, two) => {
            used(a, one);
            used(a, two);
        }
        Rule::Seek => {
            a.load(data::low(2));
            a.unless(Test::AtLeast(g::SEEK_DATA), other);
            used(a, 0);
        }
        Rule::Fcntl => {
            let matters = a.label();
            a.load(data::low(1));
            for command in rules::OF_SHARED {
                a.when(Test::Equal(command), matters);
            }
            a.goto(other);
            a.place(matters);
            used(a, 0);
        }
        Rule::Duplicate => used(a, 0),
        _ => {}
    }
    a.place(other);
}
