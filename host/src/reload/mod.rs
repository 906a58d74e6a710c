mod plan;
mod slot;
mod watch;
