// Prints the tests of the kernel's test_verifier.c as JSON, one a line. build.sh gives its path in KERNEL_TESTS; its own code
// fills in what the tests leave open. Where it would make a map or program in the kernel, it gets a number from here: file
// descriptors from FIRST_FD on stand for the maps of the test, in the order of their making.
#define main kernel_main
#include KERNEL_TESTS
#undef main

enum { FIRST_FD = 1000, MAPS = 64, UPDATES = 64 };

static struct made_map {
    unsigned type, key, value, entries, flags, value_type;
} maps[MAPS];
static int made;

static struct update {
    int map;
    unsigned char key[64], value[512];
} updates[UPDATES];
static int updated;

int bpf_map_create(enum bpf_map_type type, const char *name, __u32 key, __u32 value, __u32 entries,
                   const struct bpf_map_create_opts *opts)
{
    struct made_map m = {type, key, value, entries, opts ? opts->map_flags : 0, opts ? opts->btf_value_type_id : 0};
    if (made == MAPS)
        abort();
    maps[made] = m;
    return FIRST_FD + made++;
}

int bpf_map_update_elem(int fd, const void *key, const void *value, __u64 flags)
{
    int map = fd - FIRST_FD;
    if (map < 0 || map >= made || updated == UPDATES || maps[map].key > 64 || maps[map].value > 512)
        return -1;
    struct update *u = &updates[updated++];
    u->map = map;
    memcpy(u->key, key, maps[map].key);
    memcpy(u->value, value, maps[map].value);
    return 0;
}

// Programs of a program array are not part of the corpus, but they must seem to load.
int bpf_prog_load(enum bpf_prog_type type, const char *name, const char *license, const struct bpf_insn *insns, size_t n,
                  struct bpf_prog_load_opts *opts) { return 1; }
int bpf_test_load_program(enum bpf_prog_type type, const struct bpf_insn *insns, size_t n, const char *license, __u32 version,
                          char *log, size_t size) { return 1; }
int bpf_btf_load(const void *btf, size_t size, struct bpf_btf_load_opts *opts) { return 1; }
bool is_jit_enabled(void) { return true; }
int libbpf_probe_bpf_map_type(enum bpf_map_type type, const void *opts) { return 1; }
struct btf *btf__load_vmlinux_btf(void) { return (struct btf *)maps; }
struct btf *btf__load_module_btf(const char *module, struct btf *base) { return NULL; }
int btf__find_by_name_kind(const struct btf *btf, const char *name, __u32 kind) { return 1; }
void btf__free(struct btf *btf) {}

static void text(const char *s)
{
    putchar('"');
    for (; s && *s; s++)
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < ' ')
            printf("\\u%04x", *s);
        else
            putchar(*s);
    putchar('"');
}

static void hex(const void *bytes, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n; i++)
        printf("%02x", ((const unsigned char *)bytes)[i]);
    putchar('"');
}

static const char *verdict(int result)
{
    return result == REJECT ? "\"refused\"" : result == UNDEF ? "null" : "\"accepted\"";
}

static void print_maps(void)
{
    printf(",\"maps\":[");
    for (int i = 0; i < made; i++)
        printf("%s{\"type\":%u,\"key\":%u,\"value\":%u,\"entries\":%u,\"flags\":%u,\"value_type\":%u}", i ? "," : "",
               maps[i].type, maps[i].key, maps[i].value, maps[i].entries, maps[i].flags, maps[i].value_type);
    printf("],\"updates\":[");
    for (int i = 0; i < updated; i++) {
        struct update *u = &updates[i];
        printf("%s{\"map\":%d,\"key\":", i ? "," : "", u->map);
        hex(u->key, maps[u->map].key);
        printf(",\"value\":");
        hex(u->value, maps[u->map].value);
        printf("}");
    }
    printf("]");
}

static void print_runs(const struct bpf_test *t)
{
    int runs = t->runs ? t->runs : 1;
    printf(",\"runs\":[");
    for (int i = 0; i < runs; i++) {
        printf("%s{\"retval\":%u,\"data\":", i ? "," : "", t->retvals[i].retval);
        hex(t->retvals[i].data, TEST_DATA_LEN);
        printf("}");
    }
    printf("]");
}

static void print_test(const char *file, struct bpf_test *t)
{
    int map_fds[MAX_NR_MAPS], fd_array[2] = {-1, -1};
    int type = t->prog_type ? t->prog_type : BPF_PROG_TYPE_SOCKET_FILTER;
    made = updated = 0;
    for (int i = 0; i < MAX_NR_MAPS; i++)
        map_fds[i] = -1;
    do_test_fixup(t, type, t->insns, map_fds, fd_array);
    const struct bpf_insn *code = t->fill_insns ? t->fill_insns : t->insns;
    int n = t->fill_insns ? t->prog_len : probe_filter_length(code);
    printf("{\"file\":");
    text(file);
    printf(",\"name\":");
    text(t->descr);
    printf(",\"type\":%d,\"attach\":%d,\"flags\":%u", type, t->expected_attach_type, t->flags);
    printf(",\"result\":%s,\"unprivileged\":%s", verdict(t->result), verdict(t->result_unpriv));
    printf(",\"message\":");
    text(t->errstr);
    printf(",\"message_unprivileged\":");
    text(t->errstr_unpriv);
    printf(",\"kfuncs\":%s", t->fixup_kfunc_btf_id[0].kfunc ? "true" : "false");
    print_maps();
    print_runs(t);
    printf(",\"code\":");
    hex(code, 8 * (size_t)n);
    printf("}\n");
}

int main(void)
{
    const char *file = "";
    for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
        if (tests[i].descr[0] == '@')
            file = tests[i].descr + 1;
        else
            print_test(file, &tests[i]);
    }
    return 0;
}
