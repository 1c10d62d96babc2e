//! The view for people: from [`Status`] to text, nothing else.

use hipflex_ledger::{Alive, Limit, size};

use crate::status::model::{
    Board, Budget, GpuAccount, Holding, Owner, Pid, Process, Refusal, Status, Why,
};
use crate::status::table::{Align, Table};
use crate::text;

/// What is not known. Never 0.
const UNKNOWN: &str = "–";
/// Behind a PID that is valid only inside the process's own PID namespace.
const INSIDE_MARK: &str = "*";

/// The whole view.
pub(crate) fn render(status: &Status) -> String {
    // A column that nothing fills says nothing.
    let accounts = status.budgets.iter().flat_map(|budget| &budget.gpus);
    let overhead = accounts
        .into_iter()
        .any(|account| account.overhead.is_some());
    let mut sections: Vec<String> = status
        .budgets
        .iter()
        .map(|budget| render_budget(budget, status.now, overhead))
        .collect();
    if sections.is_empty() {
        sections.push(nothing(status));
    }
    let pids = status
        .budgets
        .iter()
        .flat_map(|budget| &budget.processes)
        .map(|process| process.pid);
    if pids.into_iter().any(|pid| matches!(pid, Pid::Inside(_))) {
        sections.push(format!(
            "{INSIDE_MARK} PID as the process itself has it, in another PID namespace (a container)\n"
        ));
    }
    if status.only.is_none() && !status.boards.is_empty() {
        let table = boards(&status.boards).render("  ");
        sections.push(format!("GPUs of this machine:\n{table}"));
    }
    sections.join("\n")
}

/// That there is no budget to show, as far as this user may see.
fn nothing(status: &Status) -> String {
    const OTHERS: &str = "(those of other users are shown to root)";
    match (&status.only, status.sees_all) {
        (None, true) => {
            String::from("No budget is in use. Start one: hipflex run --memory 4GiB -- CMD\n")
        }
        (None, false) => format!(
            "You have no budget in use {OTHERS}.\nStart one: hipflex run --memory 4GiB -- CMD\n"
        ),
        (Some(name), true) => {
            format!("No budget {name} is in use. All budgets: hipflex status\n")
        }
        (Some(name), false) => {
            format!("You have no budget {name} {OTHERS}. All of yours: hipflex status\n")
        }
    }
}

fn boards(boards: &[Board]) -> Table {
    let mut table = Table::new(&[
        ("GPU", Align::Left),
        ("NAME", Align::Left),
        ("VRAM", Align::Right),
        ("USED", Align::Right),
    ]);
    for board in boards {
        let name = match text::printable(&board.name) {
            name if name.is_empty() => UNKNOWN.to_owned(),
            name => name,
        };
        table.row([
            board.key.to_string(),
            name,
            known(board.vram),
            known(board.used),
        ]);
    }
    table
}

fn render_budget(budget: &Budget, now: u64, overhead: bool) -> String {
    let mut text = format!(
        "{}: {}\n",
        title(&budget.name, &budget.owner),
        users(budget.processes.len())
    );
    text.push_str(&accounts(&budget.gpus, overhead).render("  "));
    if !budget.processes.is_empty() {
        text.push('\n');
        text.push_str(&processes(budget, now).render("  "));
    }
    text
}

/// The budget by its name, and whose it is where that is not plain.
pub(crate) fn title(name: &str, owner: &Owner) -> String {
    let name = text::printable(name);
    if owner.shared {
        return format!("Budget {name} for all users");
    }
    match (&owner.name, owner.is_me) {
        (_, true) => format!("Budget {name}"),
        (Some(user), false) => format!("Budget {name} of {}", text::printable(user)),
        (None, false) => format!("Budget {name} of user {}", owner.uid),
    }
}

fn users(count: usize) -> String {
    match count {
        0 => String::from("no process"),
        1 => String::from("1 process"),
        more => format!("{more} processes"),
    }
}

/// The accounts; with the column for the overhead only where some is measured.
fn accounts(gpus: &[GpuAccount], overhead: bool) -> Table {
    let mut headings = vec![
        ("GPU", Align::Left),
        ("LIMIT", Align::Right),
        ("BOOKED", Align::Right),
        ("PENDING", Align::Right),
    ];
    headings.extend(overhead.then_some(("OVERHEAD", Align::Right)));
    headings.extend([("CHARGED", Align::Right), ("FREE", Align::Right)]);
    let mut table = Table::new(&headings);
    for gpu in gpus {
        let mut cells = vec![
            gpu.key.to_string(),
            limit_text(gpu.limit),
            bytes_text(gpu.booked),
            bytes_text(gpu.pending),
        ];
        cells.extend(overhead.then(|| known(gpu.overhead)));
        cells.extend([bytes_text(gpu.charged), known(gpu.free)]);
        table.row(cells);
    }
    table
}

fn processes(budget: &Budget, now: u64) -> Table {
    let mut table = Table::new(&[
        ("PID", Align::Right),
        ("COMMAND", Align::Left),
        ("AGE", Align::Right),
        ("BOOKED", Align::Right),
        ("PEAK", Align::Right),
        ("ALLOCS", Align::Right),
        ("FREES", Align::Right),
        ("REFUSED", Align::Right),
    ]);
    for process in &budget.processes {
        let (booked, peak) = totals(&process.gpus);
        table.row([
            pid(process.pid),
            command(process),
            age(process.since, now),
            bytes_text(booked),
            peak,
            process.allocations.to_string(),
            process.frees.to_string(),
            process.refusals.to_string(),
        ]);
        let several = process.gpus.len() > 1;
        for (gpu, holding) in budget.gpus.iter().zip(&process.gpus) {
            if several && holding.is_used() {
                let (booked, peak) = (bytes_text(holding.booked), bytes_text(holding.peak));
                table.row([
                    String::new(),
                    format!("  {}", gpu.key),
                    String::new(),
                    booked,
                    peak,
                ]);
            }
            if let Some(limit) = holding.own_limit {
                let on = if several {
                    format!(" on {}", gpu.key)
                } else {
                    String::new()
                };
                table.note(
                    1,
                    format!("limit of this process{on}: {}", limit_text(limit)),
                );
            }
        }
        if let Some(cus) = &process.compute_units {
            table.note(1, format!("compute units: {cus}"));
        }
        if let Some(refusal) = &process.last_refusal {
            table.note(1, refused(refusal, budget.gpus.len() > 1, now));
            if let Some(why) = why(refusal.why) {
                table.note(1, format!("  {why}"));
            }
        }
    }
    table
}

/// The sum of what is booked, and the peak. Peaks of several GPUs need not have been at one time, so
/// there is no sum of those.
fn totals(gpus: &[Holding]) -> (u64, String) {
    let booked = gpus
        .iter()
        .fold(0_u64, |sum, holding| sum.saturating_add(holding.booked));
    let peak = match gpus {
        [] => UNKNOWN.to_owned(),
        [only] => bytes_text(only.peak),
        _ => String::new(),
    };
    (booked, peak)
}

fn pid(pid: Pid) -> String {
    match pid {
        Pid::Here(pid) => pid.to_string(),
        Pid::Inside(pid) => format!("{pid}{INSIDE_MARK}"),
    }
}

fn command(process: &Process) -> String {
    let name = match text::printable(&process.comm) {
        name if name.is_empty() => UNKNOWN.to_owned(),
        name => name,
    };
    match process.alive {
        Alive::Yes => name,
        Alive::No => format!("{name} (ended)"),
        Alive::Unknown => format!("{name} (ended?)"),
    }
}

fn refused(refusal: &Refusal, name_gpu: bool, now: u64) -> String {
    let on = if name_gpu {
        format!(" on {}", refusal.gpu)
    } else {
        String::new()
    };
    let api = match text::printable(&refusal.api) {
        api if api.is_empty() => String::new(),
        api => format!(" by {api}"),
    };
    format!(
        "last refused: {}{api}{on}, {} ago",
        bytes_text(refusal.bytes),
        age(refusal.at, now)
    )
}

/// Overhead counts as held: it is the process's own.
fn why(why: Why) -> Option<String> {
    match why {
        Why::OverLimit(figures) => Some(format!(
            "limit {}: held here {}, by others {}, free {}",
            limit_text(figures.limit),
            bytes_text(figures.held.saturating_add(figures.overhead)),
            bytes_text(figures.others),
            known(figures.available)
        )),
        Why::TooLarge => Some(format!(
            "no request may be above {}",
            bytes_text(size::MAX_BYTES)
        )),
        Why::Unknown => None,
    }
}

fn limit_text(limit: Limit) -> String {
    match limit {
        Limit::Unlimited => String::from("none"),
        Limit::Bytes(bytes) => bytes_text(bytes),
    }
}

/// A size in binary units with one decimal.
pub(crate) fn bytes_text(bytes: u64) -> String {
    size::Display(bytes).to_string()
}

fn known(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_owned(), bytes_text)
}

/// The time between two moments in its two largest units.
fn age(from: u64, now: u64) -> String {
    // A clock that was set back makes no negative age.
    let seconds = now.saturating_sub(from);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if days > 0 {
        format!("{days}d{:02}h", hours % 24)
    } else if hours > 0 {
        format!("{hours}h{:02}m", minutes % 60)
    } else if minutes > 0 {
        format!("{minutes}m{:02}s", seconds % 60)
    } else {
        format!("{seconds}s")
    }
}

/// What `status` says besides the view, a line each: to standard error, so that it never stands in
/// JSON or in a table that a script reads.
pub(crate) fn messages(status: &Status) -> Vec<String> {
    let mut messages = Vec::new();
    for budget in &status.budgets {
        let returned = budget.returned;
        if returned.processes > 0 {
            let title = title(&budget.name, &budget.owner);
            messages.push(format!(
                "{title}: {}",
                returned_text(returned.bytes, returned.processes)
            ));
        }
        if budget.anomalies > 0 {
            let (title, count) = (title(&budget.name, &budget.owner), budget.anomalies);
            messages.push(format!(
                "warning: {title}: {count} bookings did not add up and were mended; please report this"
            ));
        }
    }
    for removed in &status.removed {
        let title = title(&removed.name, &removed.owner);
        let returned = match removed.returned {
            none if none.processes == 0 => String::new(),
            some => format!(" ({})", returned_text(some.bytes, some.processes)),
        };
        messages.push(format!(
            "{title}: tidied away, as no process uses it any more{returned}"
        ));
    }
    for unusable in &status.unusable {
        let path = unusable.path.display().to_string();
        messages.push(format!(
            "cannot show {}: {}",
            text::printable(&path),
            text::printable(&unusable.reason)
        ));
    }
    messages.extend(
        status
            .problems
            .iter()
            .map(|problem| text::printable(problem)),
    );
    for board in status
        .boards
        .iter()
        .filter(|board| board.is_overcommitted())
    {
        let (vram, promised) = (known(board.vram), bytes_text(board.promised));
        messages.push(format!(
            "warning: the limits on {} ({}) add up to {promised}, but it has {vram}: programs can run out of \
             memory inside their limits",
            board.key,
            text::printable(&board.name)
        ));
    }
    messages
}

fn returned_text(bytes: u64, processes: usize) -> String {
    let noun = if processes == 1 {
        "process"
    } else {
        "processes"
    };
    format!(
        "{} of {processes} ended {noun} given back",
        bytes_text(bytes)
    )
}

#[cfg(test)]
mod tests;
