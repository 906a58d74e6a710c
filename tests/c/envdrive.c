/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * NCCL's side of the env interface, from C, with layouts of its own: opens a plugin as NCCL does, asks, and prints the answers;
 * tests/env.rs judges. As in NCCL, the logger looks up a setting itself.
 *
 *     envdrive SO < commands > results
 *
 *     open V                      use ncclEnvPlugin_vV
 *     init MAJOR MINOR PATCH      init
 *     get NAME                    getEnv
 *     hold NAME                   getEnv, and keeps the pointer
 *     held                        what the kept pointers show now
 *     set NAME VALUE | unset NAME the process environment
 *     storm NAME N                getEnv N times on each of 8 threads; how many different answers
 *     null | fini | threads | fork COMMAND | sleep MS
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int result_t;
typedef void (*logger_t)(int, unsigned long, const char *, int, const char *, ...);

struct env_v1 {
	const char *name;
	result_t (*init)(uint8_t, uint8_t, uint8_t, const char *);
	result_t (*finalize)(void);
	const char *(*get)(const char *);
};
struct env_v2 {
	const char *name;
	result_t (*init)(uint8_t, uint8_t, uint8_t, const char *, logger_t);
	result_t (*finalize)(void);
	const char *(*get)(const char *);
};
_Static_assert(sizeof(struct env_v1) == 32 && offsetof(struct env_v1, get) == 24, "ncclEnv_v1_t");
_Static_assert(sizeof(struct env_v2) == 32 && offsetof(struct env_v2, finalize) == 16, "ncclEnv_v2_t");

static void *so;
static const struct env_v1 *v1;
static const struct env_v2 *v2;
static const char *held[4096];
static int nheld;

static const char *get(const char *name) { return v2 ? v2->get(name) : v1->get(name); }

/* NCCL's logger asks for settings while it holds its lock: a plugin that logs in a look-up would hang here. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
	va_list ap;
	(void)file; (void)line;
	pthread_mutex_lock(&lock);
	const char *subsys = get("NCCL_DEBUG_SUBSYS"), *algo = get("NCCL_ALGO");
	(void)subsys; (void)algo;
	va_start(ap, fmt);
	printf("LOG %d %#lx ", level, flags);
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
	pthread_mutex_unlock(&lock);
}

struct storm { const char *name; int n; const char *first; int different; };

static void *storm(void *arg)
{
	struct storm *s = arg;
	s->first = get(s->name);
	for (int i = 1; i < s->n; i++)
		s->different += get(s->name) != s->first;
	return NULL;
}

static void cmd_storm(const char *name, int n)
{
	pthread_t threads[8];
	struct storm s[8];
	int different = 0;
	for (int i = 0; i < 8; i++) {
		s[i] = (struct storm){ name, n, NULL, 0 };
		pthread_create(&threads[i], NULL, storm, &s[i]);
	}
	for (int i = 0; i < 8; i++) {
		pthread_join(threads[i], NULL);
		different += s[i].different + (s[i].first != s[0].first);
	}
	printf("storm %s different=%d\n", s[0].first ? s[0].first : "(null)", different);
}

static int count_threads(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/task");
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static void run(char *line)
{
	char name[512], value[2048], symbol[64];
	int a, b, c, n;
	line[strcspn(line, "\n")] = 0;
	if (sscanf(line, "open %d", &a) == 1) {
		snprintf(symbol, sizeof symbol, "ncclEnvPlugin_v%d", a);
		v1 = a == 1 ? dlsym(so, symbol) : NULL;
		v2 = a == 2 ? dlsym(so, symbol) : NULL;
		printf("open %s\n", v1 ? v1->name : v2 ? v2->name : "(no symbol)");
	} else if (sscanf(line, "init %d %d %d", &a, &b, &c) == 3) {
		printf("init %d\n", v2 ? v2->init(a, b, c, "", logger) : v1->init(a, b, c, ""));
	} else if (sscanf(line, "get %511s", name) == 1) {
		const char *v = get(name);
		printf("get %s=%s\n", name, v ? v : "(null)");
	} else if (sscanf(line, "hold %511s", name) == 1) {
		const char *v = held[nheld++] = get(name);
		printf("hold %s\n", v ? v : "(null)");
	} else if (strcmp(line, "held") == 0) {
		printf("held");
		for (int i = 0; i < nheld; i++)
			printf(" %s", held[i] ? held[i] : "(null)");
		printf("\n");
	} else if (sscanf(line, "set %511s %2047s", name, value) == 2) {
		printf("set %d\n", setenv(name, value, 1));
	} else if (sscanf(line, "unset %511s", name) == 1) {
		printf("unset %d\n", unsetenv(name));
	} else if (sscanf(line, "storm %511s %d", name, &n) == 2) {
		cmd_storm(name, n);
	} else if (strcmp(line, "null") == 0) {
		printf("null %s\n", get(NULL) ? "something" : "(null)");
	} else if (strcmp(line, "fini") == 0) {
		printf("fini %d\n", v2 ? v2->finalize() : v1->finalize());
	} else if (strcmp(line, "threads") == 0) {
		for (int i = 0; count_threads() > 1 && i < 1000; i++)
			usleep(1000);
		printf("threads %d\n", count_threads());
	} else if (sscanf(line, "sleep %d", &a) == 1) {
		usleep(a * 1000);
		printf("sleep\n");
	} else if (strncmp(line, "fork ", 5) == 0) {
		fflush(stdout);
		pid_t pid = fork();
		if (pid == 0) {
			alarm(20);
			run(line + 5);
			fflush(stdout);
			_exit(0);
		}
		int status = -1;
		waitpid(pid, &status, 0);
		if (status)
			printf("fork %d\n", status);
	} else {
		printf("unknown command: %s\n", line);
		exit(3);
	}
}

int main(int argc, char **argv)
{
	static char line[4096];
	setvbuf(stdout, NULL, _IOLBF, 0);
	so = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!so) {
		fprintf(stderr, "envdrive: %s\n", argc == 2 ? dlerror() : "usage: envdrive SO");
		return 2;
	}
	while (fgets(line, sizeof line, stdin))
		run(line);
	return dlclose(so) ? 4 : 0;
}
