//! What `hipflex status --json` says, as far as the suites look at it.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::bench::Bench;

/// All budgets of the node.
pub struct Status {
    /// The budgets in use.
    pub budgets: Vec<Budget>,
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
    /// Its processes.
    pub processes: Vec<Process>,
}

/// One process of a budget.
pub struct Process {
    /// Its PID on the host; 0: not known.
    pub pid: u32,
    /// What it has allocated, in bytes.
    pub booked: u64,
    /// How many allocations it was refused.
    pub refusals: u64,
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
        processes: processes.iter().map(process).collect::<Result<_>>()?,
    })
}

fn process(value: &Value) -> Result<Process> {
    Ok(Process {
        // One that ends in another namespace has none any more.
        pid: value["pid"].as_u64().unwrap_or(0).try_into()?,
        booked: number(&value["gpus"][0], "booked_bytes")?,
        refusals: number(value, "refusals")?,
    })
}

fn number(value: &Value, field: &str) -> Result<u64> {
    value[field]
        .as_u64()
        .with_context(|| format!("{field} is no number: {value}"))
}
