// How the CUDA runtime inside libnccl.so is taken over.
#include "fakegpu.h"
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void *entry_in(const struct entry *table, const char *name) {
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table->function;
    return NULL;
}

// The function that answers for one of the runtime's, or NULL.
static void *runtime_function(const char *name) {
    const struct entry *tables[] = {error_functions, memory_functions, device_functions, driver_functions};
    void *found = NULL;
    for (size_t i = 0; i < sizeof tables / sizeof *tables && !found; i++)
        found = entry_in(tables[i], name);
    return found;
}

// Where every function that is not in a table ends.
int not_implemented(const char *name) {
    dprintf(2, "[fakegpu] %s is not implemented\n", name);
    return fail(NOT_SUPPORTED);
}

// Makes the code at `at` jump to `target`, with `argument` as the first argument unless that is NULL.
int redirect(unsigned char *at, void *target, const char *argument) {
    static const unsigned char MOV_RDI[] = {0x48, 0xBF}, MOV_R11[] = {0x49, 0xBB}, JMP_R11[] = {0x41, 0xFF, 0xE3};
    unsigned char code[32];
    size_t size = 0;
#define PUT(from, bytes) (memcpy(code + size, (from), (bytes)), size += (bytes))
    if (argument) {
        PUT(MOV_RDI, sizeof MOV_RDI);
        PUT(&argument, sizeof argument);
    }
    PUT(MOV_R11, sizeof MOV_R11);
    PUT(&target, sizeof target);
    PUT(JMP_R11, sizeof JMP_R11);
#undef PUT
    // Code of `size` bytes lies in at most two pages.
    unsigned char *first = (unsigned char *)((uintptr_t)at & ~(uintptr_t)(PAGE - 1));
    unsigned char *last = (unsigned char *)((uintptr_t)(at + size - 1) & ~(uintptr_t)(PAGE - 1));
    size_t length = (size_t)(last - first) + PAGE;
    if (mprotect(first, length, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
        return -1;
    memcpy(at, code, size);
    return mprotect(first, length, PROT_READ | PROT_EXEC);
}

// Whether a symbol is a public function of the CUDA runtime with room for the jump. cudaPfn... are functions of NCCL's own.
static int is_runtime_function(const char *name, const Elf64_Sym *symbol) {
    if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_shndx == SHN_UNDEF || symbol->st_size < 32)
        return 0;
    return strncmp(name, "cuda", 4) == 0 && name[4] >= 'A' && name[4] <= 'Z' && strncmp(name, "cudaPfn", 7) != 0;
}

// Redirects the runtime functions of one symbol table. The number that is answered, or -1.
static int attach_symbols(const char *file, const Elf64_Shdr *table, const char *names, char *loaded_at) {
    const Elf64_Sym *symbols = (const void *)(file + table->sh_offset);
    int answered = 0, trapped = 0;
    for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
        const char *name = names + symbols[i].st_name;
        if (!is_runtime_function(name, &symbols[i]))
            continue;
        void *ours = runtime_function(name);
        // The name outlives the mapping of the file.
        const char *kept = ours ? NULL : strdup(name);
        if (redirect((unsigned char *)loaded_at + symbols[i].st_value, ours ? ours : (void *)not_implemented, kept) != 0)
            return -1;
        ours ? answered++ : trapped++;
    }
    if (log_enabled)
        dprintf(2, "[fakegpu] %d functions of the CUDA runtime answered, %d trapped\n", answered, trapped);
    return answered;
}

static int attach_file(const char *file, char *loaded_at) {
    const Elf64_Ehdr *header = (const void *)file;
    const Elf64_Shdr *sections = (const void *)(file + header->e_shoff);
    for (int s = 0; s < header->e_shnum; s++)
        if (sections[s].sh_type == SHT_SYMTAB)
            return attach_symbols(file, &sections[s], file + sections[sections[s].sh_link].sh_offset, loaded_at);
    return -1;
}

static int is_nccl(struct dl_phdr_info *info, size_t size, void *out) {
    (void)size;
    if (!strstr(info->dlpi_name, "/libnccl.so"))
        return 0;
    *(struct dl_phdr_info *)out = *info;
    return 1;
}

// Takes over the CUDA runtime inside the libnccl.so that is loaded. Returns how many of its functions are answered, or -1 if none is
// loaded, it has no symbol table, or its code cannot be written. Call it once, before NCCL is used.
PUBLIC int fakegpu_attach(void) {
    struct dl_phdr_info library;
    struct stat status;
    if (!dl_iterate_phdr(is_nccl, &library))
        return -1;
    int fd = open(library.dlpi_name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    char *file = MAP_FAILED;
    if (fstat(fd, &status) == 0)
        file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return -1;
    int answered = attach_file(file, (char *)library.dlpi_addr);
    munmap(file, (size_t)status.st_size);
    return answered;
}

// What a program does with cudaSetDevice before ncclCommInitRank: our driver has no CUDA runtime of its own.
PUBLIC int fakegpu_set_device(int device) {
    return set_device(device);
}
