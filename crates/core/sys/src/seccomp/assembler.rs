//! Classic BPF with labels.

use alloc::vec::Vec;

/// One instruction, as the kernel wants it (`struct sock_filter`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// Instructions skipped when its condition holds.
    pub jt: u8,
    /// Instructions skipped when it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

pub(super) const LOAD: u16 = 0x20;
pub(super) const AND: u16 = 0x54;
pub(super) const JUMP: u16 = 0x05;
pub(super) const JEQ: u16 = 0x15;
pub(super) const JGT: u16 = 0x25;
pub(super) const JGE: u16 = 0x35;
pub(super) const JSET: u16 = 0x45;
pub(super) const RETURN: u16 = 0x06;

/// Byte offsets in `struct seccomp_data`.
pub(super) mod data {
    pub(in super::super) const NR: u32 = 0;
    pub(in super::super) const ARCH: u32 = 4;
    pub(in super::super) const IP_LOW: u32 = 8;
    pub(in super::super) const IP_HIGH: u32 = 12;

    pub(in super::super) const fn low(argument: u32) -> u32 {
        16 + 8 * argument
    }

    pub(in super::super) const fn high(argument: u32) -> u32 {
        low(argument) + 4
    }
}

/// A comparison of the accumulator with a constant.
#[derive(Clone, Copy)]
pub(super) enum Test {
    Equal(u32),
    Above(u32),
    AtLeast(u32),
    AnyBit(u32),
}

impl Test {
    fn parts(self) -> (u16, u32) {
        match self {
            Self::Equal(k) => (JEQ, k),
            Self::Above(k) => (JGT, k),
            Self::AtLeast(k) => (JGE, k),
            Self::AnyBit(k) => (JSET, k),
        }
    }
}

/// A place in the program, known or still to come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

#[derive(Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    pub(super) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    pub(super) fn place(&mut self, label: Label) {
        assert!(self.places[label.0].is_none(), "a label is placed once");
        self.places[label.0] = Some(self.code.len());
    }

    pub(super) fn load(&mut self, offset: u32) {
        self.emit(LOAD, 0, 0, offset);
    }

    pub(super) fn and(&mut self, mask: u32) {
        self.emit(AND, 0, 0, mask);
    }

    pub(super) fn ret(&mut self, value: u32) {
        self.emit(RETURN, 0, 0, value);
    }

    pub(super) fn goto(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.emit(JUMP, 0, 0, 0);
    }

    /// Goes to `label` when `test` holds. The target may be any distance away.
    pub(super) fn when(&mut self, test: Test, label: Label) {
        let (code, k) = test.parts();
        self.emit(code, 0, 1, k);
        self.goto(label);
    }

    /// Goes to `label` when `test` does not hold.
    pub(super) fn unless(&mut self, test: Test, label: Label) {
        let (code, k) = test.parts();
        self.emit(code, 1, 0, k);
        self.goto(label);
    }

    /// The program, with its jumps resolved.
    ///
    /// # Panics
    /// When a label was used and not placed, or lies behind its jump: BPF goes forward only.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let to = self.places[label.0].expect("a label that is used is placed");
            assert!(to > at, "filters jump forward");
            self.code[at].k = (to - at - 1) as u32;
        }
        assert!(self.code.len() <= 4096, "the kernel's limit on filters");
        self.code
    }

    fn emit(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.code.push(Instruction { code, jt, jf, k });
    }
}
