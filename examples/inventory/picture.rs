//! The picture `docs/inventory.svg`. The picture has a row for each guard (way to guard the stock), and two panels with
//! logarithmic axes. One panel shows how long buyers wait, and the other panel shows how many commands the guard sends.

use crate::{
    guard::Guard,
    rows::{Row, Waiting},
    svg::{Svg, Type},
};

const WIDTH: f64 = 960.0;
const TOP: f64 = 84.0;
const ROW: f64 = 34.0;
const BOTTOM: f64 = 52.0;
/// The horizontal position of the right end of the guards' names.
const NAMES_END: f64 = 158.0;
/// The vertical distance from the middle of a row to the line on which the letters of its text stand.
const FOOT: f64 = 4.0;
/// Half the height of the stroke that marks the 99th percentile of the waits.
const STROKE: f64 = 8.0;

const INK: &str = "#1d2430";
const PALE: &str = "#5c6675";
const GRID: &str = "#d9dee6";
const EMPTY: &str = "#ffffff";
const OURS: &str = "#1763b6";
const OTHERS: &str = "#a4552a";

const TITLE: Type = Type {
    anchor: "start",
    size: 15,
    colour: INK,
};
const LEGEND: Type = Type {
    anchor: "start",
    size: 12,
    colour: PALE,
};
const AXIS: Type = Type {
    anchor: "middle",
    size: 12,
    colour: PALE,
};
const HEADING: Type = Type {
    anchor: "end",
    size: 12,
    colour: PALE,
};
const FIGURES: Type = Type {
    anchor: "end",
    size: 12,
    colour: INK,
};

/// One of the two panels of the picture. A column of figures is at the right end of the panel, at the position
/// `figures`.
struct Panel {
    left: f64,
    right: f64,
    figures: f64,
    title: &'static str,
    /// The meaning of the full dot and of the empty dot.
    legend: [String; 2],
    /// The heading above the column of figures.
    heading: &'static str,
    unit: &'static str,
    /// The exponent of the power of ten at the end of the axis. The axis begins at 1.
    powers: i32,
}

impl Panel {
    /// Returns the horizontal position of a value. A value below 1 is drawn at the beginning of the axis.
    fn x(&self, value: f64) -> f64 {
        let share = value.max(1.0).log10() / f64::from(self.powers);
        self.left + share * (self.right - self.left)
    }

    fn frame(&self, svg: &mut Svg, end: f64) {
        svg.text((self.left, 28.0), TITLE, self.title);
        for ((mark, words), y) in ["●", "○"].iter().zip(&self.legend).zip([48.0, 65.0]) {
            svg.text((self.left, y), LEGEND, &format!("{mark} {words}"));
        }
        svg.text((self.figures, 65.0), HEADING, self.heading);
        for power in 0..=self.powers {
            let value = 10_f64.powi(power);
            let x = self.x(value);
            svg.line((x, TOP), (x, end), GRID, 1);
            svg.text((x, end + 18.0), AXIS, &value.to_string());
        }
        let middle = f64::midpoint(self.left, self.right);
        svg.text((middle, end + 38.0), AXIS, self.unit);
    }

    /// Draws the dots of a row: a full dot, an empty dot, and a line between them. Also writes the figures of the row.
    fn row(&self, svg: &mut Svg, y: f64, colour: &str, dots: [Option<f64>; 2], figures: &str) {
        let [full, empty] = dots.map(|value| value.map(|value| (self.x(value), y)));
        if let (Some(from), Some(to)) = (full, empty) {
            svg.line(from, to, colour, 2);
        }
        for (dot, fill) in [(empty, EMPTY), (full, colour)] {
            if let Some(at) = dot {
                svg.circle(at, colour, fill);
            }
        }
        svg.text((self.figures, y + FOOT), FIGURES, figures);
    }
}

/// Returns the exponent of the lowest power of ten that no value exceeds. The exponent is at least 1.
fn powers(values: impl Iterator<Item = f64>) -> i32 {
    values.fold(10.0, f64::max).log10().ceil() as i32
}

fn waits_ms(row: &Row) -> [f64; 3] {
    [0.5, 0.99, 1.0].map(|share| row.rush.wait(share).as_secs_f64() * 1e3)
}

/// Draws the results of a run, and returns the text of the SVG file.
pub(crate) fn draw(rows: &[Row], waits: &[Waiting]) -> String {
    let held = |guard: Guard| waits.iter().find(|waiting| waiting.guard == guard);
    let sent = |row: &Row| {
        let rush = Some(row.rush.per_acquisition()).filter(|sent| *sent > 0.0);
        let held = held(row.guard).map(|waiting| waiting.waiters.per_acquisition());
        [rush, held]
    };
    let waiters = waits.first().map_or_else(String::new, |waiting| {
        let (callers, hold) = (waiting.waiters.entries(), waiting.hold.as_millis());
        format!("{callers} callers, each inside for {hold} ms")
    });
    let waited = Panel {
        left: NAMES_END + 12.0,
        right: 430.0,
        figures: 552.0,
        title: "How long a buyer waits in the rush",
        legend: ["half at most (p50)", "all at most; stroke: 99 of 100"].map(String::from),
        heading: "p50 / p99 / max",
        unit: "ms",
        powers: powers(rows.iter().flat_map(waits_ms)),
    };
    let commands = Panel {
        left: 600.0,
        right: 840.0,
        figures: WIDTH - 16.0,
        title: "What the guard sends",
        legend: ["in the rush".into(), waiters],
        heading: "● · ○",
        unit: "commands per acquisition",
        powers: powers(rows.iter().flat_map(sent).flatten()),
    };

    let end = TOP + ROW * rows.len() as f64;
    let mut svg = Svg::sheet(WIDTH, end + BOTTOM);
    for panel in [&waited, &commands] {
        panel.frame(&mut svg, end);
    }
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + ROW * (number as f64 + 0.5);
        let colour = if row.guard.is_ours() { OURS } else { OTHERS };
        let name = Type {
            anchor: "end",
            size: 13,
            colour,
        };
        svg.text((NAMES_END, y + FOOT), name, row.guard.name());

        let [half, most, all] = waits_ms(row);
        let x = waited.x(most);
        svg.line((x, y - STROKE), (x, y + STROKE), colour, 2);
        let figures = format!("{half:.0} / {most:.0} / {all:.0}");
        waited.row(&mut svg, y, colour, [Some(half), Some(all)], &figures);

        let dots = sent(row);
        let figures: Vec<_> = dots
            .iter()
            .flatten()
            .map(|sent| format!("{sent:.1}"))
            .collect();
        let figures = if figures.is_empty() {
            "none".into()
        } else {
            figures.join(" · ")
        };
        commands.row(&mut svg, y, colour, dots, &figures);
    }
    svg.finish()
}
