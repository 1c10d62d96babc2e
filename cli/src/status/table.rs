//! A plain table whose columns align, whatever the width of its letters.

use unicode_width::UnicodeWidthStr;

/// The space between two columns.
const GAP: &str = "  ";

/// On which side of a column the text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Names.
    Left,
    /// Figures.
    Right,
}

/// Rows under a line of headings.
pub(crate) struct Table {
    headings: Vec<(&'static str, Align)>,
    rows: Vec<Row>,
}

enum Row {
    Cells(Vec<String>),
    /// A line across the columns, from this column on.
    Note(usize, String),
}

impl Table {
    /// An empty table.
    pub(crate) fn new(headings: &[(&'static str, Align)]) -> Self {
        Self {
            headings: headings.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; cells that are missing at its end are empty.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(Row::Cells(cells.into_iter().collect()));
    }

    /// Adds a line that starts under column `from` and does not widen any column.
    pub(crate) fn note(&mut self, from: usize, text: String) {
        self.rows.push(Row::Note(from, text));
    }

    /// The lines, each behind `indent`, without spaces at their ends.
    pub(crate) fn render(&self, indent: &str) -> String {
        let widths: Vec<usize> = (0..self.headings.len())
            .map(|column| self.width(column))
            .collect();
        let headings: Vec<String> = self
            .headings
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .collect();
        let mut text = String::new();
        let mut line = |content: &str| {
            text.push_str(indent);
            text.push_str(content);
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        };
        line(&self.cells(&headings, &widths));
        for row in &self.rows {
            match row {
                Row::Cells(cells) => line(&self.cells(cells, &widths)),
                Row::Note(from, note) => {
                    let offset: usize = widths.iter().take(*from).map(|w| w + GAP.len()).sum();
                    line(&format!("{:offset$}{note}", ""));
                }
            }
        }
        text
    }

    fn width(&self, column: usize) -> usize {
        let heading = self
            .headings
            .get(column)
            .map_or(0, |(name, _)| name.width());
        let cells = self.rows.iter().filter_map(|row| match row {
            Row::Cells(cells) => cells.get(column).map(|cell| cell.width()),
            Row::Note(..) => None,
        });
        cells.chain([heading]).max().unwrap_or(0)
    }

    fn cells(&self, cells: &[String], widths: &[usize]) -> String {
        let padded =
            self.headings
                .iter()
                .zip(widths)
                .enumerate()
                .map(|(column, ((_, align), width))| {
                    let cell = cells.get(column).map_or("", String::as_str);
                    let space = " ".repeat(width.saturating_sub(cell.width()));
                    match align {
                        Align::Left => format!("{cell}{space}"),
                        Align::Right => format!("{space}{cell}"),
                    }
                });
        padded.collect::<Vec<_>>().join(GAP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_with_letters_of_any_width() {
        let mut table = Table::new(&[
            ("NAME", Align::Left),
            ("N", Align::Right),
            ("X", Align::Left),
        ]);
        for (name, number) in [
            ("plain", "1"),
            ("训练任务", "22"),
            ("🚀", "333"),
            ("e\u{301}te", "–"),
            ("", ""),
        ] {
            table.row([name.to_owned(), number.to_owned(), String::from("|")]);
        }
        table.row([String::from("short")]);
        table.note(
            1,
            String::from("a note that is longer than the columns under which it stands"),
        );
        insta::assert_snapshot!(table.render("  "));
        // The last column starts at the same place everywhere.
        for line in table.render("").lines().filter(|line| line.ends_with('|')) {
            assert_eq!(line.width(), 8 + 2 + 3 + 2 + 1, "{line}");
        }
    }

    #[test]
    fn no_line_ends_in_spaces() {
        let mut table = Table::new(&[("A", Align::Left), ("B", Align::Left)]);
        table.row([String::from("x"), String::new()]);
        assert_eq!(table.render(""), "A  B\nx\n");
    }
}
