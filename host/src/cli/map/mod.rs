//! `ringfence map`: reads and writes the maps of a running job, through the control file of its process.

use super::process::{self, Choice};
use super::{Exit, Out};
use crate::observe::control::message::{Bytes, MapInfo, Request, Response};
use crate::observe::control::{CallError, Client};
use crate::observe::value;
use anyhow::bail;
use clap::Subcommand;
use serde_json::json;

mod print;

/// Arguments of `ringfence map`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    choice: Choice,
    /// One JSON object a line, with the field names of the policy's source.
    #[arg(long, global = true)]
    pub(super) json: bool,
}

const KEY: &str = "A number, JSON by field name ('{\"size\": 4096, \"rank\": 0}'), text, or bytes in the order of memory (hex:0a1b)";

#[derive(Debug, Subcommand)]
enum Action {
    /// The maps of the process.
    List,
    /// All entries of a map, page by page.
    Dump {
        /// Name of the map, or its number in `map list`.
        map: String,
    },
    /// The value of a key.
    Get {
        /// Name of the map, or its number.
        map: String,
        #[arg(help = KEY)]
        key: String,
    },
    /// Sets the value of a key.
    Set {
        /// Name of the map, or its number.
        map: String,
        #[arg(help = KEY)]
        key: String,
        /// As a key; an object must name all fields, unless --keep is given.
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// The key must not be there yet (BPF_NOEXIST).
        #[arg(long, conflicts_with = "exist")]
        create: bool,
        /// The key must be there already (BPF_EXIST).
        #[arg(long)]
        exist: bool,
        /// Fields that the value does not name stay as they are: reads, changes, writes, and may undo what a policy writes meanwhile.
        #[arg(long)]
        keep: bool,
        /// Of a per-CPU map, only this slot; all of them without it.
        #[arg(long)]
        slot: Option<u32>,
    },
    /// Removes a key.
    Delete {
        /// Name of the map, or its number.
        map: String,
        #[arg(help = KEY)]
        key: String,
    },
    /// Takes the records out of a ring buffer, the oldest first.
    Drain {
        /// Name of the map, or its number.
        map: String,
        /// Go on waiting for records.
        #[arg(long)]
        follow: bool,
    },
}

/// Runs the command.
pub(super) fn run(args: &Args, out: Out<'_>) -> anyhow::Result<Exit> {
    let process = process::one(&args.choice)?;
    let mut client = Client::connect(&process.dir, process.status.pid, process.status.part)?;
    let maps = client.maps()?;
    match act(args, &mut client, &maps, out) {
        Err(e) => match e.downcast::<CallError>() {
            Ok(CallError::Refused(errno, why)) => refused(args.json, errno.as_deref(), &why, out),
            Ok(other) => Err(other.into()),
            Err(e) => Err(e),
        },
        done => done,
    }
}

/// The process said no: that is an answer.
fn refused(json: bool, errno: Option<&str>, why: &str, out: Out<'_>) -> anyhow::Result<Exit> {
    if json {
        writeln!(out, "{}", json!({ "error": why, "errno": errno }))?;
    }
    let errno = errno.map_or_else(String::new, |errno| format!(" ({errno})"));
    eprintln!("ringfence: {why}{errno}");
    Ok(Exit::Refused)
}

fn act(args: &Args, client: &mut Client, maps: &[MapInfo], out: Out<'_>) -> anyhow::Result<Exit> {
    match &args.action {
        Action::List => print::list(maps, args.json, out)?,
        Action::Dump { map } => dump(client, chosen(maps, map)?, args.json, out)?,
        Action::Get { map, key } => get(client, chosen(maps, map)?, key, args.json, out)?,
        Action::Set { map, key, value, create, exist, keep, slot } => {
            let flags = u64::from(*create) | u64::from(*exist) << 1;
            let change = Change { key, value, flags, keep: *keep, slot: *slot };
            set(client, chosen(maps, map)?, &change)?;
        }
        Action::Delete { map, key } => delete(client, chosen(maps, map)?, key)?,
        Action::Drain { map, follow } => drain(client, chosen(maps, map)?, *follow, args.json, out)?,
    }
    Ok(Exit::Ok)
}

/// The map of that name or number.
fn chosen<'a>(maps: &'a [MapInfo], text: &str) -> anyhow::Result<&'a MapInfo> {
    let named: Vec<_> = maps.iter().filter(|m| m.name == text).collect();
    let number = text.parse::<u64>().ok();
    match (named.as_slice(), maps.iter().find(|m| Some(m.id) == number)) {
        ([only], _) => Ok(only),
        ([], Some(map)) => Ok(map),
        ([], None) => {
            let known: Vec<_> = maps.iter().map(|m| m.name.as_str()).collect();
            bail!("there is no map {text:?}; the process has {}", known.join(", "))
        }
        (several, _) => {
            let ids: Vec<_> = several.iter().map(|m| format!("{} (of {})", m.id, m.scope)).collect();
            bail!("several maps are called {text}, give the number: {}", ids.join(", "))
        }
    }
}

fn key_bytes(map: &MapInfo, text: &str) -> anyhow::Result<Bytes> {
    if map.key_size == 0 {
        // No such thing: the process says what there is instead.
        return Ok(Bytes(Vec::new()));
    }
    value::read(&value::parse(text), &map.key_desc(), None)
        .map(Bytes)
        .map_err(|why| anyhow::anyhow!("the key does not fit map {}: {why}", map.name))
}

fn dump(client: &mut Client, map: &MapInfo, json: bool, out: Out<'_>) -> anyhow::Result<()> {
    let mut from = Some(0);
    while let Some(start) = from {
        let Response::Entries { entries, next } = client.call(&Request::Dump { map: map.id, from: start })?
        else {
            return Ok(client.unexpected()?);
        };
        for (key, values) in &entries {
            print::entry(map, key, values, json, out)?;
        }
        // Places go up, or it would never end.
        from = next.filter(|next| *next > start);
    }
    Ok(())
}

fn values(client: &mut Client, map: &MapInfo, key: &Bytes) -> anyhow::Result<Vec<Bytes>> {
    match client.call(&Request::Get { map: map.id, key: key.clone() })? {
        Response::Values { values } => Ok(values),
        _ => Ok(client.unexpected()?),
    }
}

fn get(client: &mut Client, map: &MapInfo, key: &str, json: bool, out: Out<'_>) -> anyhow::Result<()> {
    let key = key_bytes(map, key)?;
    let values = values(client, map, &key)?;
    print::entry(map, &key, &values, json, out)
}

/// What `map set` is told.
struct Change<'a> {
    key: &'a str,
    value: &'a str,
    flags: u64,
    keep: bool,
    slot: Option<u32>,
}

fn set(client: &mut Client, map: &MapInfo, change: &Change<'_>) -> anyhow::Result<()> {
    let key = key_bytes(map, change.key)?;
    let before = match change.keep {
        true => values(client, map, &key)?.into_iter().nth(change.slot.unwrap_or(0) as usize),
        false => None,
    };
    let before = before.as_ref().map(|b| b.0.as_slice());
    let value = value::read(&value::parse(change.value), &map.value_desc(), before)
        .map_err(|why| anyhow::anyhow!("the value does not fit map {}: {why}", map.name))?;
    let request =
        Request::Set { map: map.id, key, value: Bytes(value), flags: change.flags, slot: change.slot };
    done(client, &request)
}

fn delete(client: &mut Client, map: &MapInfo, key: &str) -> anyhow::Result<()> {
    let key = key_bytes(map, key)?;
    done(client, &Request::Delete { map: map.id, key })
}

fn done(client: &mut Client, request: &Request) -> anyhow::Result<()> {
    match client.call(request)? {
        Response::Done => Ok(()),
        _ => Ok(client.unexpected()?),
    }
}

fn drain(client: &mut Client, map: &MapInfo, follow: bool, json: bool, out: Out<'_>) -> anyhow::Result<()> {
    let mut lost = 0;
    loop {
        let Response::Records { records, more, dropped } = client.call(&Request::Drain { map: map.id })?
        else {
            return Ok(client.unexpected()?);
        };
        for record in &records {
            print::record(map, record, json, out)?;
        }
        if dropped > lost {
            eprintln!("ringfence: {dropped} records found no room in {} so far", map.name);
            lost = dropped;
        }
        if !more && !follow {
            return Ok(());
        }
        if !more || records.is_empty() {
            out.flush()?;
            if !follow {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}
