//! The `ringfence` command.

fn main() -> std::process::ExitCode {
    nccl_ringfence::cli::main(std::env::args_os())
}
