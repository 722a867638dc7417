//! The picture: how long buyers wait, and what a guard sends, a row for each guard, on logarithmic axes.

use std::fmt::Write as _;

use crate::{
    guard::Guard,
    rows::{Row, Waiting},
};

const WIDTH: f64 = 960.0;
const TOP: f64 = 84.0;
const ROW: f64 = 34.0;
const BOTTOM: f64 = 52.0;
/// Where the names of the guards end.
const NAMES_END: f64 = 158.0;

const INK: &str = "#1d2430";
const PALE: &str = "#5c6675";
const GRID: &str = "#d9dee6";
const OURS: &str = "#1763b6";
const OTHERS: &str = "#a4552a";

/// One of the two panels; what is to its right are its figures.
struct Panel {
    left: f64,
    right: f64,
    figures: f64,
    title: &'static str,
    legend: [&'static str; 2],
    unit: &'static str,
    /// The axis, in powers of ten.
    from: i32,
    to: i32,
}

impl Panel {
    /// A value below the axis stands at its begin.
    fn x(&self, value: f64) -> f64 {
        let power = value.max(f64::MIN_POSITIVE).log10();
        let share = (power - f64::from(self.from)) / f64::from(self.to - self.from);
        self.left + share.clamp(0.0, 1.0) * (self.right - self.left)
    }

    fn frame(&self, svg: &mut String, rows: usize) {
        let end = TOP + ROW * rows as f64;
        text(svg, self.left, 28.0, "start", 15, INK, self.title);
        // Above each legend's word stands its mark.
        text(
            svg,
            self.left,
            48.0,
            "start",
            12,
            PALE,
            &format!("● {}", self.legend[0]),
        );
        text(
            svg,
            self.left,
            65.0,
            "start",
            12,
            PALE,
            &format!("○ {}", self.legend[1]),
        );
        for power in self.from..=self.to {
            let x = self.x(10_f64.powi(power));
            line(svg, (x, TOP), (x, end), GRID, 1.0);
            text(
                svg,
                x,
                end + 18.0,
                "middle",
                12,
                PALE,
                &format!("{}", 10_i64.pow(power.unsigned_abs())),
            );
        }
        let middle = f64::midpoint(self.left, self.right);
        text(svg, middle, end + 38.0, "middle", 12, PALE, self.unit);
    }
}

/// The power of ten that nothing here exceeds.
fn power_above(values: impl Iterator<Item = f64>) -> i32 {
    values.fold(1.0, f64::max).log10().ceil().max(1.0) as i32
}

/// Draws a run.
pub(crate) fn draw(rows: &[Row], waits: &[Waiting]) -> String {
    let held = |guard: Guard| waits.iter().find(|waiting| waiting.guard == guard);
    let sent = |row: &Row| {
        let held = held(row.guard).map(|waiting| waiting.crowd.per_acquisition());
        [Some(row.rush.per_acquisition()), held]
    };
    let wait = |row: &Row| [0.5, 0.99, 1.0].map(|share| row.rush.wait(share).as_secs_f64() * 1e3);
    let waited = Panel {
        left: NAMES_END + 12.0,
        right: 430.0,
        figures: 548.0,
        title: "How long a buyer waits in the rush",
        legend: ["half of them at most", "all of them; the stroke: 99 of 100"],
        unit: "ms",
        from: 0,
        to: power_above(rows.iter().flat_map(wait)),
    };
    let commands = Panel {
        left: 590.0,
        right: 840.0,
        figures: WIDTH - 16.0,
        title: "What the guard sends for it",
        legend: ["in the rush", "where each of 100 is inside for 300 ms"],
        unit: "commands per acquisition",
        from: 0,
        to: power_above(rows.iter().flat_map(sent).flatten()),
    };

    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for panel in [&waited, &commands] {
        panel.frame(&mut svg, rows.len());
    }
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + ROW * (number as f64 + 0.5);
        let colour = if row.guard.is_ours() { OURS } else { OTHERS };
        text(
            &mut svg,
            NAMES_END,
            y + 4.0,
            "end",
            13,
            colour,
            row.guard.name(),
        );

        let [half, most, all] = wait(row);
        let [from, stroke, to] = [half, most, all].map(|value| waited.x(value));
        line(&mut svg, (from, y), (to, y), colour, 2.0);
        line(&mut svg, (stroke, y - 6.0), (stroke, y + 6.0), colour, 2.0);
        circle(&mut svg, (to, y), colour, "#ffffff");
        circle(&mut svg, (from, y), colour, colour);
        let figures = format!("{half:.0} / {most:.0} / {all:.0}");
        text(&mut svg, waited.figures, y + 4.0, "end", 12, INK, &figures);

        let [rush, held] = sent(row);
        let rush = rush.filter(|sent| *sent > 0.0);
        if let (Some(rush), Some(held)) = (rush, held) {
            line(
                &mut svg,
                (commands.x(rush), y),
                (commands.x(held), y),
                colour,
                2.0,
            );
        }
        for (sent, fill) in [(held, "#ffffff"), (rush, colour)] {
            if let Some(sent) = sent {
                circle(&mut svg, (commands.x(sent), y), colour, fill);
            }
        }
        let figures: Vec<_> = [rush.or(Some(0.0)), held]
            .into_iter()
            .flatten()
            .map(|sent| format!("{sent:.1}"))
            .collect();
        text(
            &mut svg,
            commands.figures,
            y + 4.0,
            "end",
            12,
            INK,
            &figures.join(" · "),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, size: u32, colour: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{colour}\">{words}</text>"
    );
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn circle(svg: &mut String, at: (f64, f64), colour: &str, fill: &str) {
    let _ = writeln!(
        svg,
        "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4.5\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        at.0, at.1
    );
}
