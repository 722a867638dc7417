//! Tests of the Markdown pages: where their links lead, and the length of the README.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::root;

/// What the tests need of a page.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    /// The fragments that name the page's headings.
    anchors: HashSet<String>,
    /// The first line and the number of lines of each block of code, without its fences.
    blocks: Vec<(usize, usize)>,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading = None;
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push(dest_url.into_string());
                }
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => {
                    let fence = text[..range.start].lines().count() + 1;
                    page.blocks
                        .push((fence + 1, text[range].trim_end().lines().count() - 2));
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    page.add_anchor(&heading.take().unwrap_or_default());
                }
                _ => {}
            }
        }
        page
    }

    /// Adds the fragment under which GitHub and rustdoc show this heading.
    fn add_anchor(&mut self, heading: &str) {
        let kept = heading.to_lowercase().replace(' ', "-");
        let kept = kept
            .chars()
            .filter(|it| it.is_alphanumeric() || matches!(it, '-' | '_'));
        let plain: String = kept.collect();
        let mut anchor = plain.clone();
        for number in 1.. {
            if self.anchors.insert(anchor) {
                break;
            }
            anchor = format!("{plain}-{number}");
        }
    }
}

/// Collects the pages below a folder, except those that are hidden or built.
fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder can be read") {
        let path = entry.expect("a folder can be read").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                collect(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Returns each link of the pages below a folder that leads to no file of this folder or to no heading, with its page.
fn broken(root: &Path) -> Vec<String> {
    let mut pages = Vec::new();
    collect(root, &mut pages);
    let read = |path: &Path| Page::read(&fs::read_to_string(path).expect("a page can be read"));
    let mut broken = Vec::new();
    for page in &pages {
        for link in read(page).links {
            if link.contains("://") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => page.clone(),
                _ => page.with_file_name("").join(file),
            };
            let leads = target.exists()
                && (fragment.is_empty() || read(&target).anchors.contains(fragment));
            if !leads {
                let page = page.strip_prefix(root).unwrap_or(page);
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    broken
}

#[test]
fn every_link_leads_to_a_file_or_a_heading() {
    assert_eq!(broken(root()), [""; 0]);
}

#[test]
fn broken_links_are_found() {
    let folder = std::env::temp_dir().join(format!("links-{}", uuid::Uuid::new_v4()));
    fs::create_dir_all(folder.join("docs")).expect("a folder can be created");
    let good = "[a](docs/b.md) [b](docs/b.md#two-words-1) [c](https://localhost/) `[d](none.md)`";
    let bad = "| [e](none.md) |\n|---|\n| ![f](docs/none.svg) [g](docs/b.md#none) [h](#none) |";
    let page = "# Two `words`\n\n# Two words\n\n[a](../a.md) [b](#two-words)\n";
    fs::write(folder.join("a.md"), format!("{good}\n\n{bad}\n")).expect("a page can be written");
    fs::write(folder.join("docs/b.md"), page).expect("a page can be written");
    let found = broken(&folder);
    fs::remove_dir_all(&folder).expect("the folder is there");
    let expected = ["none.md", "docs/none.svg", "docs/b.md#none", "#none"];
    assert_eq!(found, expected.map(|link| format!("a.md: {link}")));
}

/// A newcomer reads the README in a few minutes, and sees code at once.
#[test]
fn the_readme_is_short() {
    let text = fs::read_to_string(root().join("README.md")).expect("the README can be read");
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(
        lines <= 120 && words <= 1400,
        "{lines} lines, {words} words"
    );
    let blocks = Page::read(&text).blocks;
    assert!(
        blocks[0].0 <= 9,
        "the first code is on line {}",
        blocks[0].0
    );
    for (first, lines) in blocks {
        assert!(lines <= 12, "the code on line {first} has {lines} lines");
    }
}
