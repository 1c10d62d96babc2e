//! What was measured, line by line, with targets and verdicts.

use std::fmt;

use super::statistics::Summary;

/// A line of the table.
pub(super) struct Row {
    what: String,
    value: f64,
    noise: Option<f64>,
    unit: &'static str,
    target: Option<f64>,
    note: String,
}

impl Row {
    pub(super) fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Row {
        Row {
            what: what.into(),
            value,
            noise: None,
            unit,
            target: None,
            note: String::new(),
        }
    }

    /// The median of many rounds.
    pub(super) fn of(what: impl Into<String>, summary: Summary, unit: &'static str) -> Row {
        let mut row = Row::new(what, summary.median, unit);
        row.noise = Some(summary.noise);
        row
    }

    /// It must not be more than this.
    pub(super) fn at_most(mut self, target: f64) -> Row {
        self.target = Some(target);
        self
    }

    /// What is said beside it.
    pub(super) fn note(mut self, note: impl Into<String>) -> Row {
        self.note = note.into();
        self
    }

    fn verdict(&self) -> &'static str {
        match self.target {
            Some(target) if self.value <= target => "met",
            Some(_) => "MISSED",
            None => "-",
        }
    }
}

/// All lines, and what could not be measured.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Row>,
    skipped: Vec<String>,
}

impl Table {
    pub(super) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// A measurement that this machine does not allow.
    pub(super) fn skip(&mut self, what: impl Into<String>) {
        self.skipped.push(what.into());
    }

    /// Whether a target was missed.
    pub(super) fn is_missed(&self) -> bool {
        self.rows.iter().any(|row| row.verdict() == "MISSED")
    }
}

/// Zero decimals for what is large, so that figures can be compared at a glance.
fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.rows.iter().map(|row| row.what.chars().count()).max();
        let width = widest.unwrap_or_default();
        writeln!(
            f,
            "{:width$}  {:>8} {:>7}  {:14} {:>6}  {:7}",
            "what", "measured", "noise", "unit", "target", "verdict"
        )?;
        for row in &self.rows {
            let noise = row.noise.map(|noise| format!("±{}", figure(noise)));
            let target = row.target.map(|target| format!("{target}"));
            let line = format!(
                "{:width$}  {:>8} {:>7}  {:14} {:>6}  {:7}  {}",
                row.what,
                figure(row.value),
                noise.unwrap_or_default(),
                row.unit,
                target.unwrap_or_default(),
                row.verdict(),
                row.note,
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        for what in &self.skipped {
            writeln!(f, "SKIPPED: {what}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_exceeds_a_target_is_missed() {
        let mut table = Table::default();
        table.push(Row::new("a", 4.0, "ns").at_most(4.0));
        table.push(Row::new("b", 900.0, "ns"));
        assert!(!table.is_missed());
        table.push(Row::new("c", 4.1, "ns").at_most(4.0));
        assert!(table.is_missed());
        assert!(
            table
                .to_string()
                .lines()
                .any(|line| line.contains("MISSED"))
        );
    }
}
