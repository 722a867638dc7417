//! The targets of the benchmark. A target is an upper limit; it is reached if the measured value is at most the limit.

/// A measured value and its upper limit. `what` describes the value, and names the unit of the value and of the limit.
#[derive(Debug)]
struct Target {
    what: String,
    value: f64,
    limit: f64,
}

#[derive(Debug, Default)]
pub(crate) struct Targets {
    targets: Vec<Target>,
    /// The number of leases that were lost during the benchmark.
    pub(crate) lost: u64,
}

impl Targets {
    pub(crate) fn at_most(&mut self, limit: f64, what: impl Into<String>, value: f64) {
        let what = what.into();
        self.targets.push(Target { what, value, limit });
    }

    pub(crate) fn print(&self) {
        println!("\ntargets");
        for Target { what, value, limit } in &self.targets {
            let verdict = if value <= limit {
                "reached"
            } else {
                "NOT reached"
            };
            println!("  {what:<60} {value:>10.3}   at most {limit:<9} {verdict}");
        }
        if self.lost > 0 {
            eprintln!("{} leases were lost", self.lost);
        }
    }
}
