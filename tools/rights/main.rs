//! Writes the lines that `docs/guides/acl.md` prints: `cargo run --bin rights`.

fn main() -> std::io::Result<()> {
    support::rights::write()
}
