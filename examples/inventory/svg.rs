//! The parts of SVG that the pictures need.

use std::fmt::Write as _;

/// A position in a drawing: the distances from the left and from the top.
pub(crate) type At = (f64, f64);

/// A drawing. Elements that are drawn later cover elements that were drawn earlier.
#[derive(Debug)]
pub(crate) struct Svg(String);

/// The style of a text, and how the text is aligned to its position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Type {
    pub(crate) anchor: &'static str,
    pub(crate) size: u32,
    pub(crate) colour: &'static str,
}

impl Svg {
    /// Starts a drawing on a white sheet, so that the drawing is readable on a dark page too.
    pub(crate) fn sheet(width: f64, height: f64) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        ))
    }

    pub(crate) fn text(&mut self, (x, y): At, kind: Type, words: &str) {
        let Type {
            anchor,
            size,
            colour,
        } = kind;
        let words = words.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" \
             text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{colour}\">{words}</text>"
        );
    }

    pub(crate) fn line(&mut self, from: At, to: At, colour: &str, width: u32) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.0,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" \
             x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        );
    }

    pub(crate) fn circle(&mut self, (x, y): At, colour: &str, fill: &str) {
        let _ = writeln!(
            self.0,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
    }

    pub(crate) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}
