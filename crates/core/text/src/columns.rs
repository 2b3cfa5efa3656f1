//! Tables for people: cells under one another.

/// Where the cells of a column are.
#[derive(Clone, Copy)]
pub enum Side {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A line for each row, two spaces between columns, which are as wide as their widest cell. What is
/// on the left of the last column ends its line.
pub fn columns<const N: usize>(
    sides: [Side; N],
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Vec<String> {
    let head = head.map(str::to_owned);
    let rows: Vec<[String; N]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(sides).zip(widths);
        let cells: Vec<String> = cells
            .map(|((cell, side), width)| match side {
                Side::Left => format!("{cell:<width$}"),
                Side::Right => format!("{cell:>width$}"),
            })
            .collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
