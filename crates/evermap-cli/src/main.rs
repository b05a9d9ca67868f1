//! The `evermap` command.

fn main() {}
