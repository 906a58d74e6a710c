"""Run by hand on a machine with GPUs and PyTorch (CI has neither): real NCCL, real data, our plugin.

    NCCL_TUNER_PLUGIN=/path/libnccl_ringfence.so RINGFENCE_POLICY=/path/policy-dir \
    NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING python3 torch_ranks.py [--rounds 10] [--ranks N]

With `--swap-at K --with NEW.bpf.o --into POLICY-DIR/NAME.bpf.o` the policy is replaced by a rename before round K; communicators of
several ranks keep their policy for life, so round K is the first on the new one.

With `--inspect CLI` rank 0 shows, while the last communicator lives, what `ringfence status` and `ringfence map dump` say of its process:
with NCCL_PROFILER_PLUGIN set too, the latencies that a profiler policy measured.

The net half moves real data between two ranks with

    NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET_PLUGIN=/path/libnccl_ringfence.so RINGFENCE_CHAIN_NET=/path/netplug.so

where netplug.so is tests/netplug/netplug.c, built with -shared -fPIC -DV11.

Creates and destroys the communicator `rounds` times, and checks the result of every collective on every rank. With one
rank NCCL loads the plugin but never asks it; with two it asks for each collective. Prints one line a round and rank,
and at the end the number of threads, so that a leak would show.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = [1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26]  # bytes


def check(name, got, want):
    if not torch.equal(got, want):
        raise SystemExit(f"WRONG RESULT: {name}: got {got[:4].tolist()}, want {want[:4].tolist()}")


def collectives(rank, ranks):
    total = sum(r + 1 for r in range(ranks))
    for size in SIZES:
        n = size // 4
        x = torch.full((n,), float(rank + 1), device="cuda")
        dist.all_reduce(x)
        check(f"all_reduce {size}", x, torch.full_like(x, float(total)))
        part = torch.full((n // ranks,), float(rank + 1), device="cuda")
        out = torch.empty(n // ranks * ranks, device="cuda")
        dist.all_gather_into_tensor(out, part)
        want = torch.cat([torch.full((n // ranks,), float(r + 1), device="cuda") for r in range(ranks)])
        check(f"all_gather {size}", out, want)
        sums = torch.empty(n // ranks, device="cuda")
        dist.reduce_scatter_tensor(sums, torch.full((n // ranks * ranks,), float(rank + 1), device="cuda"))
        check(f"reduce_scatter {size}", sums, torch.full_like(sums, float(total)))
    torch.cuda.synchronize()


def bandwidth(ranks, size, iterations=20):
    x = torch.ones(size // 4, device="cuda")
    for _ in range(5):
        dist.all_reduce(x)
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(iterations):
        dist.all_reduce(x)
    stop.record()
    torch.cuda.synchronize()
    seconds = start.elapsed_time(stop) / 1e3 / iterations
    return size / seconds / 1e9 * 2 * (ranks - 1) / ranks


def swap(args):
    temporary = args.into + ".tmp"
    shutil.copyfile(args.new, temporary)
    os.replace(temporary, args.into)


def inspect(cli):
    # The reload thread writes the status about once a second.
    time.sleep(2.5)
    me = str(os.getpid())
    for command in (["status", "--pid", me], ["map", "list", "--pid", me]):
        print(f"$ ringfence {' '.join(command)}", flush=True)
        subprocess.run([cli, *command], check=False)
    listed = subprocess.run([cli, "map", "list", "--pid", me, "--json"], capture_output=True, text=True, check=False).stdout
    for name in ("telemetry_map", "net_bytes", "event_counts"):
        if name in listed:
            print(f"$ ringfence map dump {name}", flush=True)
            subprocess.run([cli, "map", "dump", name, "--pid", me], check=False)
    sys.stdout.flush()


def worker(rank, args, folder):
    ranks, rounds = args.ranks, args.rounds
    torch.cuda.set_device(rank)
    for i in range(rounds):
        last = i in (args.swap_at - 1, rounds - 1)
        dist.init_process_group("nccl", init_method=f"file://{folder}/round{i}", rank=rank, world_size=ranks)
        collectives(rank, ranks)
        line = ""
        if last and ranks > 1:
            line = " bus GB/s " + ", ".join(f"{s >> 20} MiB {bandwidth(ranks, s):.0f}" for s in (1 << 22, 1 << 26, 1 << 28))
        dist.barrier()
        if args.inspect and rank == 0 and i == rounds - 1:
            inspect(args.inspect)
        if i == args.swap_at - 1:
            # While the old communicators live, as in a job; both ranks must see the new set before they make new ones.
            if rank == 0:
                swap(args)
            time.sleep(2)
            collectives(rank, ranks)
        dist.destroy_process_group()
        threads = len(os.listdir("/proc/self/task"))
        print(f"round {i} rank {rank}: all results right, {threads} threads{line}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("--swap-at", type=int, default=-1)
    parser.add_argument("--with", dest="new")
    parser.add_argument("--into")
    parser.add_argument("--inspect")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, args=(args, folder), nprocs=args.ranks)
    print("DONE", file=sys.stderr)
