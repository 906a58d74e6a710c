/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Runs a policy of NCCLbpf natively, in the way its plugin does (context, telemetry snapshot, packed action), over random
 * calls, and prints the trace. Compiled with -D__BPF__ -include POLICY.bpf.c -DPOLICY=function, and with
 * -DTELEMETRY and -DCONFIG where the policy has these maps. See build.sh.
 *
 *   put MAP KEY VALUE                         the host writes a map (hex)
 *   call BYTES COLL PIPE REG : CHANNELS ALGO PROTO     a decision; -1 -1 for no route
 */
int printf(const char *format, ...);
int strcmp(const char *a, const char *b);
void *memcpy(void *to, const void *from, unsigned long n);
int memcmp(const void *a, const void *b, unsigned long n);

#define ENTRIES 64
struct store {
	const char *name;
	void *map;
	unsigned key_size, value_size, array, used;
	unsigned char keys[ENTRIES][64], values[ENTRIES][128];
};

static struct store stores[] = {
#ifdef TELEMETRY
	{ "telemetry_map", &telemetry_map, sizeof(*telemetry_map.key), sizeof(*telemetry_map.value), 0 },
#endif
#ifdef CONFIG
	{ "config_map", &config_map, sizeof(*config_map.key), sizeof(*config_map.value), 1 },
#endif
	{ "", 0 },
};

static struct store *store_of(void *map)
{
	struct store *s = stores;

	while (s->map && s->map != map)
		s++;
	return s->map ? s : 0;
}

static void *lookup(void *map, const void *key)
{
	struct store *s = store_of(map);
	unsigned i;

	if (!s)
		return 0;
	if (s->array) {
		memcpy(&i, key, 4);
		return i < sizeof(*(int(*)[5])0) / sizeof(int) ? s->values[i] : 0;
	}
	for (i = 0; i < s->used; i++)
		if (!memcmp(s->keys[i], key, s->key_size))
			return s->values[i];
	return 0;
}

static long update(void *map, const void *key, const void *value, unsigned long flags)
{
	struct store *s = store_of(map);
	void *old = lookup(map, key);

	(void)flags;
	if (!old) {
		memcpy(s->keys[s->used], key, s->key_size);
		old = s->values[s->used++];
	}
	memcpy(old, value, s->value_size);
	return 0;
}

static unsigned long long seed = 88172645463325252ull;

static unsigned long long next_random(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static void print_hex(const unsigned char *bytes, unsigned n)
{
	while (n--)
		printf("%02x", *bytes++);
}

/* What a profiler, or an operator, would write. */
static void put(struct store *s)
{
	unsigned words[16], i;
	unsigned char key[8] = { next_random() % 5, 0, 0, 0, 2 };

	for (i = 0; i < 16; i++)
		words[i] = i % 2 && s->value_size >= 32 && i < 8 ? 0 : next_random() % 300;
	update(s->map, key, words, 0);
	printf("put %s ", s->name);
	print_hex(key, s->key_size);
	printf(" ");
	print_hex((unsigned char *)words, s->value_size);
	printf("\n");
}

int main(void)
{
	unsigned long long calls = 0, action;
	int last = 0, i;

	bpf_map_lookup_elem = lookup;
	bpf_map_update_elem = update;
	(void)bpf_map_delete_elem;
	for (i = 0; i < 3000; i++) {
		struct nccl_policy_ctx ctx = {};
		unsigned flags;

		if (stores[0].map && next_random() % 7 == 0)
			put(&stores[next_random() % (sizeof(stores) / sizeof(stores[0]) - 1)]);
		ctx.n_bytes = next_random() >> (24 + next_random() % 40);
		ctx.coll_type = next_random() % 5;
		ctx.num_pipe_ops = 1 + next_random() % 3;
		ctx.reg_buff = next_random() % 2;
		ctx.n_ranks = 16;
		ctx.n_nodes = 2;
		ctx.call_count = calls++;
		ctx.current_channels = last;
#ifdef TELEMETRY
		{
			unsigned key[2] = { ctx.coll_type, ctx.n_nodes };
			struct nccl_policy_telemetry_value *t = lookup(&telemetry_map, key);

			if (t) {
				ctx.last_latency_ns = t->last_latency_ns;
				ctx.avg_latency_ns = t->avg_latency_ns;
				ctx.rolling_p99_ns = t->p99_latency_ns;
			}
		}
#endif
		action = POLICY(&ctx);
		flags = action >> 32 & 0xff;
		if (flags & 4 && (action >> 16 & 0xff))
			last = action >> 16 & 0xff;
		printf("call %llu %u %u %u : %d ", ctx.n_bytes, ctx.coll_type, ctx.num_pipe_ops, ctx.reg_buff, last);
		if ((flags & 3) == 3 && (action & 0xff) < 7 && (action >> 8 & 0xff) < 3)
			printf("%d %d\n", (int)(action & 0xff), (int)(action >> 8 & 0xff));
		else
			printf("-1 -1\n");
	}
	return 0;
}
