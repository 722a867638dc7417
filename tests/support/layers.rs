//! Checks that the files of the engine depend on each other in one direction.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{UseTree, visit::Visit};

/// The path of a module below `crate`.
type Module = Vec<String>;

/// Pairs of files that may use each other: the file of a helper, and the file of the type that the helper serves.
const HELPERS: [(&str, &str); 7] = [
    ("background::clock", "background"),
    ("client::builder", "client"),
    ("client::builder::no_servers", "client::builder"),
    ("client::builder::servers", "client::builder"),
    ("client::leftovers", "client"),
    ("client::ping", "client"),
    ("client::testing", "client"),
];

/// The modules that a file uses, except in its tests.
struct Uses {
    /// The module that the visited item belongs to.
    inside: Module,
    found: BTreeSet<Module>,
}

impl Uses {
    fn add(&mut self, path: &[String]) {
        let mut inside = self.inside.clone();
        let (first, rest) = path.split_first().expect("a path has a first segment");
        match first.as_str() {
            "crate" => inside.clear(),
            "self" => {}
            "super" => drop(inside.pop()),
            _ => return,
        }
        let supers = rest.iter().take_while(|part| *part == "super").count();
        inside.truncate(inside.len() - supers);
        inside.extend_from_slice(&rest[supers..]);
        self.found.insert(inside);
    }

    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |part: &syn::Ident| [before, &[part.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&with(&path.ident), &path.tree),
            UseTree::Group(group) => group
                .items
                .iter()
                .for_each(|tree| self.add_tree(before, tree)),
            UseTree::Name(name) => self.add(&with(&name.ident)),
            UseTree::Rename(renamed) => self.add(&with(&renamed.ident)),
            UseTree::Glob(_) => self.add(before),
        }
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<_> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        self.add(&parts);
        syn::visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let is_test = item.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Ident>()
                    .is_ok_and(|word| word == "test")
        });
        if !is_test {
            self.inside.push(item.ident.to_string());
            syn::visit::visit_item_mod(self, item);
            self.inside.pop();
        }
    }
}

/// Returns the files of a folder and of the folders in it, without the files that contain only tests.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("the folder can be read").path());
    paths
        .flat_map(|path| match path.extension() {
            _ if path.is_dir() => sources(&path),
            Some(ending) if ending == "rs" && !path.ends_with("tests.rs") => vec![path],
            _ => Vec::new(),
        })
        .collect()
}

fn module_of(file: &Path) -> Module {
    let mut parts: Module = file
        .with_extension("")
        .iter()
        .map(|part| part.to_str().expect("a name in UTF-8").to_owned())
        .collect();
    parts.pop_if(|last| last == "mod" || last == "lib");
    parts
}

/// Returns the files that each file of the engine uses.
fn graph() -> BTreeMap<Module, BTreeSet<Module>> {
    let root = crate::root().join("lock-runtime/src");
    let files = sources(&root);
    let modules = files.iter().map(|file| {
        module_of(
            file.strip_prefix(&root)
                .expect("the file is below the root"),
        )
    });
    let modules: BTreeSet<_> = modules.collect();
    let uses_of = |file: &PathBuf| {
        let module = module_of(
            file.strip_prefix(&root)
                .expect("the file is below the root"),
        );
        let text = fs::read_to_string(file).expect("a source can be read");
        let mut uses = Uses {
            inside: module.clone(),
            found: BTreeSet::new(),
        };
        uses.visit_file(&syn::parse_file(&text).expect("a source can be parsed"));
        // The last segments of a path name items in the file.
        let files = uses.found.into_iter().map(|mut path| {
            while !modules.contains(&path) {
                path.pop();
            }
            path
        });
        // Each file is allowed to use the items that `lib.rs` re-exports for users.
        let files = files.filter(|file| *file != module && !file.is_empty());
        (module.clone(), files.collect())
    };
    files.iter().map(uses_of).collect()
}

/// No file depends on itself through other files. The files in [`HELPERS`] are an exception.
#[test]
fn files_depend_on_each_other_in_one_direction() {
    let mut graph = graph();
    let arrows: usize = graph.values().map(BTreeSet::len).sum();
    assert!(
        graph.len() > 80 && arrows > 300,
        "the check has found only {} files with {arrows} dependencies",
        graph.len()
    );
    for (helper, used) in HELPERS {
        let path = |file: &str| file.split("::").map(str::to_owned).collect::<Module>();
        let uses = graph
            .get_mut(&path(helper))
            .expect("the helper is a file of the engine");
        assert!(uses.remove(&path(used)), "{helper} does not use {used}");
    }
    loop {
        let is_lowest = |uses: &BTreeSet<Module>| uses.iter().all(|used| !graph.contains_key(used));
        let lowest = graph.iter().filter(|(_, uses)| is_lowest(uses));
        let lowest: BTreeSet<_> = lowest.map(|(file, _)| file.clone()).collect();
        if lowest.is_empty() {
            break;
        }
        graph.retain(|file, _| !lowest.contains(file));
    }
    let left: Vec<_> = graph.keys().map(|file| file.join("::")).collect();
    assert!(
        left.is_empty(),
        "these files depend on each other in a circle, or use a file that does: {left:?}"
    );
}

/// The core makes decisions. It uses nothing that sends, waits, wakes, locks or reads a clock.
#[test]
fn the_core_only_decides() {
    let root = crate::root().join("lock-runtime/src");
    let core = ["backend", "redis", "core"].map(str::to_owned);
    let graph = graph();
    let files = graph.iter().filter(|(file, _)| file.starts_with(&core));
    let mut found = 0;
    for (file, uses) in files {
        found += 1;
        for used in uses {
            let is_pure = [
                "backend::redis::core",
                "backend::redis::protocol::grant",
                "limits",
            ]
            .iter()
            .any(|pure| used.join("::").starts_with(pure));
            assert!(is_pure, "{file:?} uses {used:?}");
        }
    }
    assert_eq!(found, 5, "the files of the core");
    for path in sources(&root.join("backend/redis/core")) {
        let text = fs::read_to_string(&path).expect("a source can be read");
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for line in code {
            for word in [
                "tokio", "Mutex", "Atomic", "Waker", "Instant", "async ", "tracing",
            ] {
                assert!(!line.contains(word), "{path:?}: {line}");
            }
        }
    }
}
