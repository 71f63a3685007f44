//! `farbus-bench`, the program: what it does is in the library of this package, which `farbus-papers` uses, too.

use std::process::ExitCode;

fn main() -> ExitCode {
    farbus_bench::main()
}
