/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the programs here share: requests on standard input, answers on standard output, numbers in the machine's order. PROGRAM is defined before. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void die(const char *what)
{
	fprintf(stderr, PROGRAM ": %s\n", what);
	exit(2);
}

static void get(void *to, size_t n)
{
	if (n && fread(to, n, 1, stdin) != 1)
		die("the request ends early");
}

static uint32_t get32(uint32_t most)
{
	uint32_t x;

	get(&x, sizeof(x));
	if (x > most)
		die("a number in the request is too large");
	return x;
}

static void put(const void *from, size_t n)
{
	if (n && fwrite(from, n, 1, stdout) != 1)
		die("cannot answer");
}

static void put32(uint32_t x)
{
	put(&x, sizeof(x));
}
