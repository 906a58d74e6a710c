/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * sdr: a reliability layer over lossy long-haul RDMA asks a policy, for each message, how to protect it.
 *
 *     sdr POLICY SCHEMA [MAP:INDEX=VALUE]...
 *
 * The question is that of SDR-RDMA (arXiv 2505.05366): by drop rate, distance and bandwidth, selective repeat or erasure coding.
 * A Monte-Carlo simulation of the time until the sender knows that a message has arrived. Assumptions, none of them measured: losses
 * are independent; a lost packet is sent again 1.5 round trips after it was sent; packets that are sent again cost no other
 * packet its time; 10 us of round trip for a kilometre; the code is MDS over blocks of 32 data packets, and coding
 * costs no time; a block that lost more than its parity is mended by selective repeat of what it lost, 1.5 round trips after the
 * message.
 */
#include "common.h"
#include "sdr.h"

#define DATA 32
#define PACKET 4096
#define TRIALS 40
#define FIXED 6

struct path {
	double bytes, rtt_ns, ns_per_packet, drop;
};

/* How many packets get through before the next loss. */
static double gap(uint64_t *seed, double drop)
{
	return floor(log(uniform(seed)) / log1p(-drop));
}

/* How often a packet is lost in a row, of which once is certain. */
static int losses(uint64_t *seed, double drop)
{
	int n = 1;

	while (uniform(seed) < drop)
		n++;
	return n;
}

static double selective_repeat(const struct path *p, uint64_t *seed)
{
	double packets = ceil(p->bytes / PACKET), end = packets * p->ns_per_packet;

	for (double at = gap(seed, p->drop); at < packets; at += 1 + gap(seed, p->drop)) {
		double arrives = (at + 1) * p->ns_per_packet + losses(seed, p->drop) * 1.5 * p->rtt_ns;

		end = arrives > end ? arrives : end;
	}
	return end + p->rtt_ns;
}

static double erasure_coding(const struct path *p, uint32_t parity, uint64_t *seed)
{
	double data = ceil(p->bytes / PACKET), blocks = ceil(data / DATA);
	double packets = data + blocks * parity, end = packets * p->ns_per_packet;
	double size = DATA + parity, block = -1, wait = 0;
	uint32_t lost = 0;

	for (double at = gap(seed, p->drop); at < packets; at += 1 + gap(seed, p->drop)) {
		lost = floor(at / size) == block ? lost + 1 : 1;
		block = floor(at / size);
		if (lost > parity) {
			double rounds = losses(seed, p->drop);

			wait = rounds > wait ? rounds : wait;
		}
	}
	return end + wait * 1.5 * p->rtt_ns + p->rtt_ns;
}

static double run(const struct path *p, uint32_t scheme, uint32_t parity, uint64_t *seed)
{
	return scheme == SDR_RELIABILITY_SCHEME_SELECTIVE_REPEAT ? selective_repeat(p, seed)
								    : erasure_coding(p, parity, seed);
}

int main(int argc, char **argv)
{
	static const double bytes[] = { 256e3, 4e6, 64e6, 1e9 }, km[] = { 1, 100, 1000, 4000, 10000 };
	static const double drops[] = { 1e-6, 1e-5, 1e-4, 1e-3, 1e-2 }, gbits[] = { 100, 400, 800 };
	/* What one could do without asking: selective repeat, or erasure coding with one parity for everything. */
	static const uint32_t fixed_parity[FIXED] = { 0, 1, 2, 4, 8, 16 };
	double slow[FIXED + 1] = { 0 };
	uint64_t submitted = 0;
	uint32_t took[2] = { 0, 0 }, cells = 0;

	if (argc < 3) {
		fprintf(stderr, "usage: sdr POLICY SCHEMA [MAP:INDEX=VALUE]...\n");
		return 2;
	}
	rf_host *host;
	rf_hook *hook = open_hook(argv[1], argv[2], SDR_RELIABILITY_HOOK,
				  sizeof(struct SdrReliabilityContext), NULL, &host);
	for (int i = 3; i < argc; i++)
		set_entry(hook, argv[i]);

	for (unsigned cell = 0; cell < 4 * 5 * 5 * 3; cell++) {
		double rate = gbits[cell % 3], drop = drops[cell / 3 % 5];
		struct path p = { .bytes = bytes[cell / 75], .rtt_ns = km[cell / 15 % 5] * 10e3,
				  .ns_per_packet = PACKET * 8 / rate, .drop = drop };
		struct SdrReliabilityContext ctx;
		rf_outcome outcome = { 0 };
		double ns[FIXED + 1] = { 0 }, least = INFINITY;

		rf_context_init(hook, &ctx, sizeof ctx);
		ctx.message_bytes = (uint64_t)p.bytes;
		ctx.rtt_ns = (uint64_t)p.rtt_ns;
		ctx.mbit_per_s = (uint32_t)(rate * 1000);
		ctx.drop_ppb = (uint32_t)(drop * 1e9 + 0.5);
		ctx.packet_bytes = PACKET;
		if (rf_decide(hook, &ctx, sizeof ctx, &outcome) == RF_OK)
			submitted += outcome.submitted;
		for (int choice = 0; choice <= FIXED; choice++) {
			uint32_t scheme = choice < FIXED ? choice > 0 : ctx.scheme;
			uint32_t parity = choice < FIXED ? fixed_parity[choice] : ctx.parity;
			/* Each choice has losses of its own, the same in every run of this program. */
			uint64_t seed = 1000 * cell + choice;

			for (int trial = 0; trial < TRIALS; trial++)
				ns[choice] += run(&p, scheme, parity, &seed) / TRIALS;
		}
		for (int choice = 0; choice < FIXED; choice++)
			least = ns[choice] < least ? ns[choice] : least;
		for (int choice = 0; choice <= FIXED; choice++)
			slow[choice] += ns[choice] / least;
		took[ctx.scheme]++;
		cells++;
	}
	printf("cells %u\nsubmitted %llu\nselective_repeat_cells %u\nerasure_coding_cells %u\n", cells,
	       (unsigned long long)submitted, took[0], took[1]);
	printf("slowdown_selective_repeat %.4f\n", slow[0] / cells);
	for (int choice = 1; choice < FIXED; choice++)
		printf("slowdown_parity_%u %.4f\n", fixed_parity[choice], slow[choice] / cells);
	printf("slowdown_policy %.4f\n", slow[FIXED] / cells);
	rf_hook_close(hook);
	rf_close(host);
	return 0;
}
