//! The guide to the attribute's options, `docs/guides/options.md`. A part of the attribute's documentation is copied into
//! the guide. The original is in the folder of the crate, because a published crate contains only its own folder.

use std::{fs, io};

use crate::{page, root};

const GUIDE: &str = "docs/guides/options.md";

/// Returns the text for the guide. Its headings are one level lower than in the documentation.
fn text() -> io::Result<String> {
    let original = fs::read_to_string(root().join("lock-macros/src/options.md"))?;
    Ok(original.replace("\n# ", "\n## "))
}

/// Writes the text into the guide.
///
/// # Errors
/// If one of the files cannot be read or written, or the guide lacks a marker.
pub fn write() -> io::Result<()> {
    page::update(&root().join(GUIDE), "options", &text()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_text_of_the_documentation() {
        let guide = fs::read_to_string(root().join(GUIDE)).expect("the guide can be read");
        let text = text().expect("the documentation can be read");
        assert!(guide.contains(&text), "run `cargo run --bin guides`");
    }
}
