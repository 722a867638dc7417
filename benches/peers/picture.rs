//! The picture `docs/performance.svg`. On the left, a line for each lock shows how the rate depends on the number of
//! tasks at one key. On the right, a bar for each lock shows the parts of the time of an uncontended lock and unlock.

use crate::{
    names::{self, EVERY_SIZE, OURS},
    pages::{Shares, shares},
    report::Figure,
    svg::{At, Svg, Type},
    workloads::{Measured, row},
};

const WIDTH: f64 = 1120.0;
const HEIGHT: f64 = 560.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = HEIGHT - 60.0;

const LINES_LEFT: f64 = 60.0;
const LINES_RIGHT: f64 = 400.0;
/// The smallest vertical distance between the names at the ends of two lines.
const APART: f64 = 15.0;

const BARS_LEFT: f64 = 740.0;
const BARS_RIGHT: f64 = WIDTH - 70.0;
const BAR: u32 = 16;

/// The vertical distance from the middle of a line of text to the line on which its letters stand.
const FOOT: f64 = 4.0;

const INK: &str = "#1d2430";
const PALE: &str = "#5c6675";
const GRID: &str = "#d9dee6";
const OURS_COLOUR: &str = "#1763b6";
const SERVER_COLOUR: &str = "#c2571f";
const NETWORK_COLOUR: &str = "#9aa5b4";
const CLIENT_COLOUR: &str = "#3d8b57";

const fn words(anchor: &'static str, size: u32, colour: &'static str) -> Type {
    Type {
        anchor,
        size,
        colour,
    }
}

const TITLE: Type = words("start", 15, INK);
const NOTE: Type = words("start", 12, PALE);
const BELOW: Type = words("middle", 12, PALE);
const BESIDE: Type = words("end", 12, PALE);

/// Returns the colour and the width of a lock's line. The lines of this project's locks are wider than the other lines.
fn stroke(name: &str) -> (&'static str, u32) {
    match name {
        OURS => (OURS_COLOUR, 4),
        names::OURS_SPIN => ("#5b9bdc", 2),
        names::SHA | names::GATE => ("#1d2430", 2),
        names::RSLOCK => ("#a4552a", 2),
        names::REDIS_LOCK => ("#c98a1b", 2),
        names::ASYNC_REDIS_LOCK => ("#8a6d3b", 2),
        names::DISTRIBUTED_LOCK_REDIS => ("#7b5ea7", 2),
        names::DISTKIT => ("#2f7f79", 2),
        _ => ("#b8325f", 2),
    }
}

/// A line of the picture: the name of the lock, and the number of tasks and the rate at each point.
type Line = (&'static str, Vec<(f64, f64)>);

fn lines(measured: &Measured) -> Vec<Line> {
    let Some(table) = measured.report.of("W3") else {
        return Vec::new();
    };
    let lines = EVERY_SIZE.into_iter().map(|name| {
        let points = measured.sizes.iter().filter_map(|tasks| {
            let rate = table.median(&row(name, *tasks), Figure::Rate);
            (rate > 0.0).then_some((*tasks as f64, rate))
        });
        (name, points.collect::<Vec<_>>())
    });
    lines.filter(|(_, points)| !points.is_empty()).collect()
}

/// A logarithmic axis, described by the powers of ten at its two ends and by the positions of these ends.
struct Axis {
    powers: (i32, i32),
    places: (f64, f64),
}

impl Axis {
    /// Creates an axis that contains all values. The axis reaches from the power of ten below the values to the power
    /// of ten above them.
    fn around(values: impl Iterator<Item = f64> + Clone, places: (f64, f64)) -> Self {
        let least = values.clone().fold(f64::MAX, f64::min);
        let most = values.fold(1.0, f64::max);
        let low = least.log10().floor() as i32;
        let high = (most.log10().ceil() as i32).max(low + 1);
        Self {
            powers: (low, high),
            places,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let ((low, high), (from, to)) = (self.powers, self.places);
        let share = (value.log10() - f64::from(low)) / f64::from(high - low);
        from + share * (to - from)
    }
}

fn tens(power: i32) -> String {
    match 10_f64.powi(power) {
        value if value >= 1e3 => format!("{} k", value / 1e3),
        value => value.to_string(),
    }
}

fn draw_lines(svg: &mut Svg, lines: &[Line]) {
    svg.text(
        (LINES_LEFT, 28.0),
        TITLE,
        "Tasks that want one key, empty body",
    );
    let note = "acquisitions a second, over the number of tasks";
    svg.text((LINES_LEFT, 48.0), NOTE, note);
    let points = lines.iter().flat_map(|(_, points)| points);
    let across = Axis::around(points.clone().map(|(x, _)| *x), (LINES_LEFT, LINES_RIGHT));
    let up = Axis::around(points.map(|(_, y)| *y), (BOTTOM, TOP));
    for power in across.powers.0..=across.powers.1 {
        let x = across.place(10_f64.powi(power));
        svg.line((x, TOP), (x, BOTTOM), GRID, 1);
        svg.text((x, BOTTOM + 18.0), BELOW, &tens(power));
    }
    for power in up.powers.0..=up.powers.1 {
        let y = up.place(10_f64.powi(power));
        svg.line((LINES_LEFT, y), (LINES_RIGHT, y), GRID, 1);
        svg.text((LINES_LEFT - 8.0, y + FOOT), BESIDE, &tens(power));
    }
    let middle = f64::midpoint(LINES_LEFT, LINES_RIGHT);
    svg.text((middle, BOTTOM + 38.0), BELOW, "tasks");

    let place = |(x, y): &(f64, f64)| -> At { (across.place(*x), up.place(*y)) };
    let mut ends: Vec<(f64, At, &str)> = Vec::new();
    for (name, points) in lines {
        let (colour, width) = stroke(name);
        let places: Vec<At> = points.iter().map(place).collect();
        for pair in places.windows(2) {
            svg.line(pair[0], pair[1], colour, width);
        }
        for at in &places {
            svg.circle(*at, colour, colour);
        }
        let end = places[places.len() - 1];
        ends.push((end.1, end, name));
    }
    // First, from the top to the bottom, the loop moves each name down until it is at least `APART` below the name
    // above it.
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut above = f64::MIN;
    for (y, _, _) in &mut ends {
        above = y.max(above + APART);
        *y = above;
    }
    // Then, from the bottom to the top, the loop moves each name up if it is below the picture or too close to the name
    // below it.
    let mut below = BOTTOM + APART;
    for (y, _, _) in ends.iter_mut().rev() {
        below = y.min(below - APART);
        *y = below;
    }
    for (y, end, name) in ends {
        let (colour, _) = stroke(name);
        let x = LINES_RIGHT + 28.0;
        svg.line((end.0 + 6.0, end.1), (x - 4.0, y), GRID, 1);
        svg.text((x, y + FOOT), words("start", 12, colour), name);
    }
}

fn draw_bars(svg: &mut Svg, bars: &[(&'static str, Shares)]) {
    svg.text(
        (BARS_LEFT, 28.0),
        TITLE,
        "One lock and unlock that nobody else wants",
    );
    svg.text((BARS_LEFT, 48.0), NOTE, "µs, by where they pass:");
    let mut x = BARS_LEFT + 140.0;
    for (colour, name) in [
        (SERVER_COLOUR, "server"),
        (NETWORK_COLOUR, "network"),
        (CLIENT_COLOUR, "client"),
    ] {
        svg.line((x, 44.0), (x + 12.0, 44.0), colour, 12);
        svg.text((x + 17.0, 48.0), NOTE, name);
        x += 76.0;
    }
    let sum = |shares: &Shares| shares.server + shares.network + shares.client;
    let longest = bars
        .iter()
        .map(|(_, shares)| sum(shares))
        .fold(1.0, f64::max);
    let scale = (BARS_RIGHT - BARS_LEFT) / longest;
    let height = (BOTTOM - TOP) / bars.len() as f64;
    for (number, (name, shares)) in bars.iter().enumerate() {
        let y = TOP + height * (number as f64 + 0.5);
        let colour = if name.starts_with(OURS) {
            OURS_COLOUR
        } else {
            INK
        };
        svg.text((BARS_LEFT - 8.0, y + FOOT), words("end", 12, colour), name);
        let mut x = BARS_LEFT;
        for (time, colour) in [
            (shares.server, SERVER_COLOUR),
            (shares.network, NETWORK_COLOUR),
            (shares.client, CLIENT_COLOUR),
        ] {
            let end = x + time * scale;
            svg.line((x, y), (end, y), colour, BAR);
            x = end;
        }
        let figure = format!("{:.0}", sum(shares));
        svg.text((x + 6.0, y + FOOT), words("start", 12, INK), &figure);
    }
}

/// Draws the results of a run, and returns the text of the SVG file.
pub(crate) fn draw(measured: &Measured) -> String {
    let mut svg = Svg::sheet(WIDTH, HEIGHT);
    draw_lines(&mut svg, &lines(measured));
    draw_bars(&mut svg, &shares(measured));
    svg.finish()
}
