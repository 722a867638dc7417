//! Writes the generated parts of `docs/guides/acl.md` and `docs/guides/options.md`: `cargo run --bin guides`.

fn main() -> std::io::Result<()> {
    support::rights::write()?;
    support::option_guide::write()
}
