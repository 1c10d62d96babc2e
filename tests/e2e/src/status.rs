//! What `hipflex status --json` says, as far as the suites look at it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::Bench;

/// All budgets of the node.
pub struct Status {
    /// The budgets in use.
    pub budgets: Vec<Budget>,
    /// The boards of the node.
    pub boards: Vec<Board>,
    /// What it warned of.
    pub messages: String,
}

/// One budget; sizes are in bytes and those of its first GPU.
pub struct Budget {
    /// Its name.
    pub name: String,
    /// The limit; `None`: there is no limit.
    pub limit: Option<u64>,
    /// What its processes have allocated.
    pub booked: u64,
    /// What is reserved for allocations under way.
    pub pending: u64,
    /// What the driver holds for its processes besides; 0 also where that is not known.
    pub overhead: u64,
    /// Bookings that did not add up.
    pub anomalies: u64,
    /// All its GPUs.
    pub gpus: Vec<Account>,
    /// Its processes.
    pub processes: Vec<Process>,
}

/// The account of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The GPU's PCI address.
    pub bdf: String,
    /// The limit; `None`: there is no limit.
    pub limit: Option<u64>,
    /// What is allocated.
    pub booked: u64,
    /// What the driver holds besides; 0 also where that is not known.
    pub overhead: u64,
}

/// A board of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Board {
    /// Its PCI address.
    pub bdf: String,
    /// Its VRAM.
    pub vram: u64,
    /// The sum of the limits on it.
    pub limits: u64,
    /// Whether that is more than it has.
    pub overcommitted: bool,
}

/// One process of a budget.
pub struct Process {
    /// Its PID on the host; 0: not known.
    pub pid: u32,
    /// What it has allocated, in bytes.
    pub booked: u64,
    /// How many of its hooks are in place by which engine.
    pub hooks: BTreeMap<String, u64>,
    /// How many allocations it was granted.
    pub allocations: u64,
    /// How many of them it has freed.
    pub frees: u64,
    /// What the driver holds for it besides; `None`: that is not known.
    pub overhead: Option<u64>,
    /// How many allocations it was refused.
    pub refusals: u64,
    /// What it has allocated on each GPU.
    pub gpus: Vec<Account>,
}

/// Asks `hipflex status` in the node.
///
/// # Errors
/// It fails, or says something that its documentation does not.
pub fn of(bench: &Bench) -> Result<Status> {
    let output = bench.hipflex(&["status", "--json"]).output()?;
    ensure!(
        output.status.success(),
        "hipflex status: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let document: Value =
        serde_json::from_slice(&output.stdout).context("hipflex status --json")?;
    let budgets = document["budgets"].as_array().context("no budgets")?;
    Ok(Status {
        budgets: budgets.iter().map(budget).collect::<Result<_>>()?,
        boards: list(&document, "boards", board)?,
        messages: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

impl Status {
    /// The budget of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn budget(self, name: &str) -> Result<Budget> {
        let names: Vec<_> = self.budgets.iter().map(|b| b.name.clone()).collect();
        match self.budgets.into_iter().find(|b| b.name == name) {
            Some(budget) => Ok(budget),
            None => bail!("no budget {name} among {names:?}"),
        }
    }
}

impl Budget {
    /// What all processes have allocated on each GPU, in the order of the driver.
    pub fn booked(&self) -> Vec<u64> {
        self.gpus.iter().map(|gpu| gpu.booked).collect()
    }

    /// The process with this PID.
    ///
    /// # Errors
    /// It is not in the budget.
    pub fn process(&self, pid: u32) -> Result<&Process> {
        self.processes
            .iter()
            .find(|p| p.pid == pid)
            .with_context(|| format!("no process {pid}"))
    }
}

impl Process {
    /// What it has allocated on all GPUs.
    pub fn booked_sum(&self) -> u64 {
        self.gpus.iter().map(|gpu| gpu.booked).sum()
    }
}

fn budget(value: &Value) -> Result<Budget> {
    let gpu = &value["gpus"][0];
    let processes = value["processes"].as_array().context("no processes")?;
    Ok(Budget {
        name: value["name"].as_str().context("no name")?.into(),
        limit: gpu["limit_bytes"].as_u64(),
        booked: number(gpu, "booked_bytes")?,
        pending: number(gpu, "pending_bytes")?,
        overhead: gpu["overhead_bytes"].as_u64().unwrap_or(0),
        anomalies: number(value, "anomalies")?,
        gpus: list(value, "gpus", account)?,
        processes: processes.iter().map(process).collect::<Result<_>>()?,
    })
}

fn process(value: &Value) -> Result<Process> {
    Ok(Process {
        // One that ends in another namespace has none any more.
        pid: value["pid"].as_u64().unwrap_or(0).try_into()?,
        booked: number(&value["gpus"][0], "booked_bytes")?,
        hooks: hooks(&value["hooks"])?,
        allocations: number(value, "allocations")?,
        frees: number(value, "frees")?,
        overhead: value["gpus"][0]["overhead_bytes"].as_u64(),
        refusals: number(value, "refusals")?,
        gpus: list(value, "gpus", account)?,
    })
}

fn hooks(value: &Value) -> Result<BTreeMap<String, u64>> {
    let counts = value.as_object().context("hooks is no object")?.iter();
    counts
        .map(|(engine, count)| Ok((engine.clone(), count.as_u64().context("no count of hooks")?)))
        .collect()
}

fn account(value: &Value) -> Result<Account> {
    Ok(Account {
        bdf: text(value, "bdf")?,
        limit: value["limit_bytes"].as_u64(),
        booked: number(value, "booked_bytes")?,
        overhead: value["overhead_bytes"].as_u64().unwrap_or(0),
    })
}

fn board(value: &Value) -> Result<Board> {
    Ok(Board {
        bdf: text(value, "bdf")?,
        vram: number(value, "vram_bytes")?,
        limits: number(value, "limits_bytes")?,
        overcommitted: value["overcommitted"]
            .as_bool()
            .context("overcommitted is no truth value")?,
    })
}

fn list<T>(value: &Value, field: &str, read: fn(&Value) -> Result<T>) -> Result<Vec<T>> {
    let items = value[field]
        .as_array()
        .with_context(|| format!("no {field}"))?;
    items.iter().map(read).collect()
}

fn text(value: &Value, field: &str) -> Result<String> {
    let text = value[field].as_str();
    Ok(text
        .with_context(|| format!("{field} is no text: {value}"))?
        .into())
}

fn number(value: &Value, field: &str) -> Result<u64> {
    value[field]
        .as_u64()
        .with_context(|| format!("{field} is no number: {value}"))
}
