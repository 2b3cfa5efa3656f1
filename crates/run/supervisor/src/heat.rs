//! A heat map of the address space: what happened to which memory when, of bounded size.
//!
//! Time goes in columns, addresses in rows. When either gets too many, two neighbours become one.
//! Rows are kept only for addresses where something happened, so the holes of the address space
//! cost nothing. Tasks are not told apart: processes of one tree mostly share their layout.

use std::collections::BTreeMap;

use farpage_object::{PAGE_SHIFT, TraceEvent, TraceKind};
use serde::{Deserialize, Serialize};

/// Columns that a map holds before they are merged in pairs.
const COLUMNS_MAX: u64 = 480;
/// Rows that a map holds before they are merged in pairs.
const ROWS_MAX: usize = 384;
/// Width of a column, to begin with, in microseconds.
const COLUMN_US: u64 = 25_000;
/// log2 of the bytes that a row stands for, to begin with: 256 KiB.
const ROW_SHIFT: u32 = 18;

/// Pages that each kind of event touched, in one cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatCell {
    /// Filled with zeros.
    pub filled: u64,
    /// Brought in, or taken back from aside.
    pub ins: u64,
    /// Taken out.
    pub outs: u64,
    /// Written for the first time since they were clean.
    pub writes: u64,
}

impl HeatCell {
    fn add(&mut self, other: Self) {
        self.filled += other.filled;
        self.ins += other.ins;
        self.outs += other.outs;
        self.writes += other.writes;
    }

    fn of(event: &TraceEvent, pages: u64) -> Self {
        let mut cell = Self::default();
        match event.kind {
            TraceKind::ZeroFill => cell.filled = pages,
            TraceKind::PageIn | TraceKind::Refault => cell.ins = pages,
            TraceKind::PageOut => cell.outs = pages,
            TraceKind::WriteFault => cell.writes = pages,
        }
        cell
    }
}

/// Aggregates trace events.
pub struct HeatMap {
    column_us: u64,
    row_shift: u32,
    /// Row number (address >> `row_shift`) to column number to cell.
    rows: BTreeMap<u64, BTreeMap<u64, HeatCell>>,
    events: u64,
}

/// A heat map as the statistics file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeatJson {
    /// Width of a column, milliseconds.
    pub column_ms: u64,
    /// Height of a row, bytes.
    pub row_bytes: u64,
    /// Address of each row, hexadecimal, ascending; rows without events are left out.
    pub rows: Vec<String>,
    /// Cells with events: row, column, pages filled, brought in, taken out, written first.
    pub cells: Vec<[u64; 6]>,
    /// Events that went into it.
    pub events: u64,
    /// Events that were lost because they came faster than they were read.
    pub lost: u64,
}

impl Default for HeatMap {
    /// An empty map.
    fn default() -> Self {
        Self {
            column_us: COLUMN_US,
            row_shift: ROW_SHIFT,
            rows: BTreeMap::new(),
            events: 0,
        }
    }
}

impl HeatMap {
    /// Adds an event, spread over the rows that its pages lie in.
    pub fn add(&mut self, event: &TraceEvent) {
        self.events += 1;
        while event.at_us / self.column_us >= COLUMNS_MAX {
            self.halve_columns();
        }
        let mut page = event.page;
        let end = page + u64::from(event.pages);
        while page < end {
            let shift = self.row_shift - PAGE_SHIFT;
            let row = page >> shift;
            let stop = end.min((row + 1) << shift);
            let column = event.at_us / self.column_us;
            let cells = self.rows.entry(row).or_default();
            let cell = cells.entry(column).or_default();
            cell.add(HeatCell::of(event, stop - page));
            page = stop;
        }
        while self.rows.len() > ROWS_MAX {
            self.halve_rows();
        }
    }

    fn halve_columns(&mut self) {
        self.column_us *= 2;
        for cells in self.rows.values_mut() {
            let mut merged: BTreeMap<u64, HeatCell> = BTreeMap::new();
            for (column, cell) in std::mem::take(cells) {
                merged.entry(column / 2).or_default().add(cell);
            }
            *cells = merged;
        }
    }

    fn halve_rows(&mut self) {
        self.row_shift += 1;
        let mut merged: BTreeMap<u64, BTreeMap<u64, HeatCell>> = BTreeMap::new();
        for (row, cells) in std::mem::take(&mut self.rows) {
            let into = merged.entry(row / 2).or_default();
            for (column, cell) in cells {
                into.entry(column).or_default().add(cell);
            }
        }
        self.rows = merged;
    }

    /// The map for the statistics file; `lost` events never arrived here.
    pub fn to_json(&self, lost: u64) -> HeatJson {
        let mut cells = Vec::new();
        for (at, columns) in self.rows.values().enumerate() {
            for (&column, cell) in columns {
                cells.push([
                    at as u64,
                    column,
                    cell.filled,
                    cell.ins,
                    cell.outs,
                    cell.writes,
                ]);
            }
        }
        HeatJson {
            column_ms: self.column_us / 1000,
            row_bytes: 1 << self.row_shift,
            rows: self
                .rows
                .keys()
                .map(|row| format!("{:#x}", row << self.row_shift))
                .collect(),
            cells,
            events: self.events,
            lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_us: u64, page: u64, pages: u16, kind: TraceKind) -> TraceEvent {
        TraceEvent {
            at_us,
            kind,
            page,
            pages,
            task: 0,
        }
    }

    #[test]
    fn an_event_is_spread_over_the_rows_it_touches() {
        let mut map = HeatMap::default();
        map.add(&event(30_000, 60, 10, TraceKind::PageIn));
        map.add(&event(10, 1 << 20, 1, TraceKind::PageOut));
        let json = map.to_json(3);
        assert_eq!(json.rows, ["0x0", "0x40000", "0x100000000"]);
        let expected = [[0, 1, 0, 4, 0, 0], [1, 1, 0, 6, 0, 0], [2, 0, 0, 0, 1, 0]];
        assert_eq!(json.cells, expected);
        assert_eq!((json.events, json.lost), (2, 3));
    }

    #[test]
    fn a_map_stays_bounded_and_loses_nothing() {
        let mut map = HeatMap::default();
        let mut pages = 0;
        for at in 0..200_000u64 {
            let kind = if at % 2 == 0 {
                TraceKind::PageIn
            } else {
                TraceKind::PageOut
            };
            map.add(&event(at * 977, at * 7919 % (1 << 22), 3, kind));
            pages += 3;
        }
        let json = map.to_json(0);
        assert!(json.rows.len() <= ROWS_MAX);
        assert!(json.cells.iter().all(|cell| cell[1] < COLUMNS_MAX));
        let counted: u64 = json.cells.iter().map(|cell| cell[3] + cell[4]).sum();
        assert_eq!(counted, pages);
        assert_eq!(json.events, 200_000);
    }
}
