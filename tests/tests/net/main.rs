//! The net half of the built plugin: its exported symbols, called from C with NCCL's layouts (tests/netplug/netdrive.c), around a plugin
//! over TCP (tests/netplug/netplug.c), in all versions.

#[path = "../plugin/mod.rs"]
mod plugin;

mod policies;
mod side;
mod wrap;
