//! The `ringfence` command.

fn main() -> std::process::ExitCode {
    ringfence_host::cli::main(std::env::args_os())
}
