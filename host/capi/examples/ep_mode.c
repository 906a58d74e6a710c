/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * ep_mode: a mixture-of-experts framework over NCCL EP asks a policy, before each step, for the mode.
 *
 *     ep_mode POLICY SCHEMA [MAP:INDEX=VALUE]...
 *
 * The steps are simulated. Facts, from contrib/nccl_ep of NCCL 2.30.7 (README.md, "Reference performance numbers", H100,
 * bf16, hidden 7168, top 8 of 256 experts, 128 tokens a rank, low-latency mode): dispatch and combine reach 224.3 and
 * 185.2 GB/s on 1 node of 8 GPUs, 76.7 and 73.0 on 2, 53.6 and 50.0 on 4, 48.8 and 43.8 on 8. Low latency sends a token to each of
 * its experts; high throughput sends it once to each node over RDMA and spreads it there over NVLink (README.md, "Overview").
 * At most 8192 tokens a rank in high-throughput mode (common.hpp), and its routing map is gathered from all ranks first (nccl_ep.cc).
 *
 * Assumptions, for which there are no published numbers: a low-latency operation starts in 20 us on one node, 35 us on
 * several; high throughput in 100 us, and 40 us for each doubling of nodes; 50 GB/s of RDMA and 320 GB/s of NVLink
 * for each GPU; times scatter by up to 5 % either way.
 */
#include "common.h"
#include "ep_mode.h"

#define TOP_K 8
#define TOKEN_BYTES 14336.0
#define GPUS 8
#define STEPS 4000

static const double ll_gbps[4][2] = { { 224.3, 185.2 }, { 76.7, 73.0 }, { 53.6, 50.0 }, { 48.8, 43.8 } };

/* Dispatch and combine in us, low latency: a start, and the rest in proportion to tokens, through the published point. */
static double low_latency(uint32_t tokens, uint32_t nodes_log2)
{
	double start = nodes_log2 == 0 ? 20 : 35, us = 0;

	for (int op = 0; op < 2; op++) {
		double at_128 = 128 * TOP_K * TOKEN_BYTES / ll_gbps[nodes_log2][op] / 1e3;

		us += start + (at_128 - start) / 128 * tokens;
	}
	return us;
}

/* How many of `n` equal places TOP_K experts hit, on average, but for the own one. */
static double hit(double n)
{
	return n * (1 - pow(1 - 1 / n, TOP_K)) * (n - 1) / n;
}

/* Dispatch and combine in us, high throughput: a start, and the slower of RDMA and NVLink. */
static double high_throughput(uint32_t tokens, uint32_t nodes_log2)
{
	double nodes = 1 << nodes_log2;
	double rdma = hit(nodes) * TOKEN_BYTES / 50e3, nvlink = hit(nodes * GPUS) * TOKEN_BYTES / 320e3;

	return 2 * (100 + 20 * nodes_log2 + (rdma > nvlink ? rdma : nvlink) * tokens);
}

int main(int argc, char **argv)
{
	double us[2] = { 0, 0 }, best = 0, asked = 0, slow[3] = { 0, 0, 0 };
	uint64_t seed = 20260101, submitted = 0;
	uint32_t took[2] = { 0, 0 };

	if (argc < 3) {
		fprintf(stderr, "usage: ep_mode POLICY SCHEMA [MAP:INDEX=VALUE]...\n");
		return 2;
	}
	rf_group group = { .struct_size = sizeof group, .id = 1, .n_ranks = 16, .n_nodes = 2 };
	rf_host *host;
	rf_hook *hook =
		open_hook(argv[1], argv[2], EP_MODE_HOOK, sizeof(struct EpModeContext), &group, &host);
	for (int i = 3; i < argc; i++)
		set_entry(hook, argv[i]);

	for (int step = 0; step < STEPS; step++) {
		uint32_t nodes_log2 = draw(&seed) % 4;
		/* 1 to 8192 tokens, every power of two as likely. */
		uint32_t tokens = (uint32_t)exp2(13 * uniform(&seed));
		double cost[2] = { low_latency(tokens, nodes_log2) * (0.95 + 0.1 * uniform(&seed)),
				   high_throughput(tokens, nodes_log2) * (0.95 + 0.1 * uniform(&seed)) };
		struct EpModeContext ctx = { .max_tokens = tokens, .n_ranks = GPUS << nodes_log2,
					     .n_nodes = 1u << nodes_log2, .top_k = TOP_K,
					     .token_bytes = (uint32_t)TOKEN_BYTES,
					     .mode = EP_MODE_MODE_HIGH_THROUGHPUT };
		rf_outcome outcome = { 0 };
		double least = cost[0] < cost[1] ? cost[0] : cost[1];

		/* Whatever comes back, ctx.mode is one of the two: a failed call leaves our own choice. */
		if (rf_decide(hook, &ctx, sizeof ctx, &outcome) == RF_OK)
			submitted += outcome.submitted;
		us[0] += cost[0];
		us[1] += cost[1];
		best += least;
		asked += cost[ctx.mode];
		took[ctx.mode]++;
		slow[0] += cost[0] / least;
		slow[1] += cost[1] / least;
		slow[2] += cost[ctx.mode] / least;
	}
	printf("steps %d\nsubmitted %llu\nlow_latency_steps %u\nhigh_throughput_steps %u\n", STEPS,
	       (unsigned long long)submitted, took[0], took[1]);
	printf("total_us_low_latency %.0f\ntotal_us_high_throughput %.0f\ntotal_us_policy %.0f\ntotal_us_best %.0f\n", us[0],
	       us[1], asked, best);
	printf("slowdown_low_latency %.4f\nslowdown_high_throughput %.4f\nslowdown_policy %.4f\n", slow[0] / STEPS,
	       slow[1] / STEPS, slow[2] / STEPS);
	rf_hook_close(hook);
	rf_close(host);
	return 0;
}
