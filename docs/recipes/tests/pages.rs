//! The list of the recipes is complete, and each recipe is short.

use std::{collections::BTreeSet, fs, path::Path};

#[test]
fn the_list_names_each_recipe_and_each_recipe_is_short() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(folder.join("README.md")).unwrap();
    let links = page.split("](").skip(1);
    let links: BTreeSet<_> = links
        .map(|rest| rest.split(')').next().unwrap().to_owned())
        .collect();
    let mut recipes = BTreeSet::new();
    for below in ["", "schedulers/"] {
        for entry in fs::read_dir(folder.join(below)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".rs") && name != "lib.rs" {
                recipes.insert(format!("{below}{name}"));
            }
        }
    }
    assert!(recipes.len() >= 9, "{recipes:?}");
    for recipe in &recipes {
        assert!(links.contains(recipe), "README.md does not name {recipe}");
        let text = fs::read_to_string(folder.join(recipe)).unwrap();
        // The comment at the top explains the recipe.
        let code = text.lines().filter(|line| !line.starts_with("//!")).count();
        assert!(code <= 60, "{recipe} has {code} lines of code");
    }
}
